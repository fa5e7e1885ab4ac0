/* The calls of packer_fast.h: what each image of a batch needs, and where errors of libjpeg end. */
#include "packer_fast.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "entropy.h"
#include "index.h"
#include "planes.h"
#include "resize.h"

/* packer.images.jpeg.REDUCED_SIDE_MIN: for smaller sides several scales of libjpeg give the same size. */
#define REDUCED_SIDE_MIN 16
#define MAX_SIDE 65500 /* of a JPEG, in libjpeg */
#define LINES 16

/* All that one call needs; nothing is shared between calls. */
typedef struct {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jmp_buf jump;
    int32_t error;
    pf_tables tables;
    pf_scan scan;
    pf_planes planes;
    pf_resizer resizer;
    const pf_rows *rows;
} context_t;

typedef struct {
    const uint8_t *data;
    uint64_t bytes;
    const int32_t *size;
    const int32_t *region;
    uint8_t *row;
    bool flip;
    const uint8_t *index;
    uint64_t index_bytes;
} image_t;

static void fail(j_common_ptr jpeg) {
    context_t *context = (context_t *)jpeg->client_data;
    switch (jpeg->err->msg_code) {
    case JERR_OUT_OF_MEMORY:
        context->error = PF_NO_MEMORY;
        break;
    case JERR_ARITH_NOTIMPL:
    case JERR_BAD_J_COLORSPACE:
    case JERR_BAD_PRECISION:
    case JERR_CCIR601_NOTIMPL:
    case JERR_COMPONENT_COUNT:
    case JERR_CONVERSION_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_IMAGE_TOO_BIG:
    case JERR_NOTIMPL:
    case JERR_NOT_COMPILED:
    case JERR_SOF_UNSUPPORTED:
        context->error = PF_UNSUPPORTED;
        break;
    default:
        context->error = PF_DAMAGED;
    }
    longjmp(context->jump, 1);
}

/* Does not tell a warning from an error: how much of the image it spoils is not known. */
static void report(j_common_ptr jpeg, int level) {
    if (level < 0)
        fail(jpeg);
}

static void print_nothing(j_common_ptr jpeg) {
    (void)jpeg;
}

static context_t *open_context(void) {
    context_t *context = calloc(1, sizeof(context_t));
    if (context == NULL)
        return NULL;
    context->jpeg.err = jpeg_std_error(&context->errors);
    context->errors.error_exit = fail;
    context->errors.emit_message = report;
    context->errors.output_message = print_nothing;
    context->jpeg.client_data = context;
    context->rows = pf_rows_best();
    if (setjmp(context->jump)) {
        free(context);
        return NULL;
    }
    jpeg_create_decompress(&context->jpeg);
    return context;
}

static void close_context(context_t *context) {
    jpeg_destroy_decompress(&context->jpeg);
    pf_release(&context->planes.memory);
    pf_release(&context->resizer.memory);
    for (int i = 0; i < 2; i++) {
        pf_release(&context->resizer.across[i].memory);
        pf_release(&context->resizer.down[i].memory);
    }
    free(context);
}

/* Reads the header. Returns PF_UNSUPPORTED unless the image is one of those that are decoded here. */
static int32_t open_jpeg(context_t *context, const uint8_t *data, uint64_t bytes) {
    j_decompress_ptr jpeg = &context->jpeg;
    if (bytes > UINT32_MAX) /* offsets in an index have 32 bits */
        return PF_UNSUPPORTED;
    jpeg_mem_src(jpeg, data, (unsigned long)bytes);
    jpeg_read_header(jpeg, TRUE);
    const bool is_gray = jpeg->jpeg_color_space == JCS_GRAYSCALE && jpeg->num_components == 1;
    const bool is_color = jpeg->num_components == 3 && (jpeg->jpeg_color_space == JCS_YCbCr ||
                                                        jpeg->jpeg_color_space == JCS_RGB);
    if (jpeg->data_precision != 8 || jpeg->arith_code || jpeg->master->lossless ||
        (!is_gray && !is_color))
        return PF_UNSUPPORTED;
    return PF_OK;
}

/* Sets the scale at which the region is at least `headroom` times the result. */
static void set_scale(j_decompress_ptr jpeg, const image_t *image, const pf_batch *batch) {
    jpeg->scale_num = jpeg->scale_denom = 8;
    if (batch->headroom == 0 || image->size[0] < REDUCED_SIDE_MIN ||
        image->size[1] < REDUCED_SIDE_MIN)
        return;
    for (unsigned factor = 2; factor <= 8; factor *= 2) {
        const int64_t least = (int64_t)factor * batch->headroom;
        if (image->region[2] < least * batch->width || image->region[3] < least * batch->height)
            return;
        jpeg->scale_num = 8 / factor;
    }
}

/* Replaces libjpeg's decode_mcu: the same coefficients, sooner. */
static boolean decode_mcu(j_decompress_ptr jpeg, JBLOCKROW *blocks) {
    context_t *context = (context_t *)jpeg->client_data;
    pf_scan *scan = &context->scan;
    int last[D_MAX_BLOCKS_IN_MCU];
    if (!pf_scan_decode(scan, blocks, last))
        ERREXIT(jpeg, JERR_BAD_HUFF_TABLE); /* any that means damage; its text is never seen */
    if (scan->mcu == scan->mcus_per_row * scan->mcu_rows) {
        jpeg->src->next_input_byte = pf_scan_next_byte(scan);
        jpeg->src->bytes_in_buffer = (size_t)(scan->bits.end - jpeg->src->next_input_byte);
    }
    return TRUE;
}

/* Decodes all of an image into the row, with the pixels that libjpeg gives. */
static void decode_whole(context_t *context, const image_t *image, int channels) {
    j_decompress_ptr jpeg = &context->jpeg;
    jpeg->out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_start_decompress(jpeg);
    if (pf_scan_is_known(jpeg)) {
        pf_scan_start(&context->scan, &context->tables, jpeg, image->data);
        jpeg->entropy->decode_mcu = decode_mcu;
    }
    const size_t stride = (size_t)jpeg->output_width * (size_t)channels;
    while (jpeg->output_scanline < jpeg->output_height) {
        JSAMPROW lines[LINES];
        const JDIMENSION left = jpeg->output_height - jpeg->output_scanline;
        const JDIMENSION count = left < LINES ? left : LINES;
        for (JDIMENSION i = 0; i < count; i++)
            lines[i] = image->row + (jpeg->output_scanline + i) * stride;
        jpeg_read_scanlines(jpeg, lines, count);
    }
    jpeg_finish_decompress(jpeg);
}

static void mirror(uint8_t *row, int width, int height, int channels) {
    for (int y = 0; y < height; y++, row += (size_t)width * (size_t)channels) {
        for (int left = 0, right = width - 1; left < right; left++, right--) {
            for (int c = 0; c < channels; c++) {
                const uint8_t swapped = row[left * channels + c];
                row[left * channels + c] = row[right * channels + c];
                row[right * channels + c] = swapped;
            }
        }
    }
}

static int32_t decode_region(context_t *context, const image_t *image, const pf_batch *batch) {
    j_decompress_ptr jpeg = &context->jpeg;
    pf_index index;
    const pf_index *used = NULL;
    set_scale(jpeg, image, batch);
    jpeg->raw_data_out = TRUE;
    jpeg_start_decompress(jpeg);
    if (image->index != NULL && !batch->verify && pf_scan_is_known(jpeg)) {
        pf_scan_start(&context->scan, &context->tables, jpeg, image->data);
        const int32_t error = pf_index_open(&index, image->index, image->index_bytes, &context->scan);
        if (error != PF_OK)
            return error;
        used = &index;
    }
    const int32_t error =
        pf_planes_decode(&context->planes, &context->scan, &context->tables, jpeg, image->data,
                         image->region, batch->channels == 1, used, batch->verify != 0);
    if (error != PF_OK)
        return error;
    const bool is_ycc = jpeg->jpeg_color_space == JCS_YCbCr && batch->channels == 3;
    const pf_target target = {batch->width,  batch->height, batch->channels,
                              batch->filter, image->flip,   is_ycc};
    return pf_resize(&context->resizer, context->rows, &context->planes, image->region, &target,
                     image->row);
}

static int32_t decode_image(context_t *context, const image_t *image, const pf_batch *batch) {
    const int32_t *size = image->size;
    const int32_t *region = image->region;
    if (region[0] < 0 || region[1] < 0 || region[2] < 1 || region[3] < 1 || size[0] > MAX_SIDE ||
        size[1] > MAX_SIDE || region[2] > size[0] || region[3] > size[1] ||
        region[0] > size[0] - region[2] || region[1] > size[1] - region[3])
        return PF_UNSUPPORTED;
    const int32_t error = open_jpeg(context, image->data, image->bytes);
    if (error != PF_OK)
        return error;
    const j_decompress_ptr jpeg = &context->jpeg;
    if (jpeg->image_width != (JDIMENSION)size[0] || jpeg->image_height != (JDIMENSION)size[1] ||
        (jpeg->jpeg_color_space == JCS_RGB && batch->channels == 1))
        return PF_UNSUPPORTED;
    if (region[2] != size[0] || region[3] != size[1] || batch->width != size[0] ||
        batch->height != size[1])
        return decode_region(context, image, batch);
    decode_whole(context, image, batch->channels);
    if (image->flip)
        mirror(image->row, size[0], size[1], batch->channels);
    return PF_OK;
}

/* libjpeg's errors come back here. */
static int32_t decode_guarded(context_t *context, const image_t *image, const pf_batch *batch) {
    if (setjmp(context->jump)) {
        jpeg_abort_decompress(&context->jpeg);
        return context->error;
    }
    const int32_t error = decode_image(context, image, batch);
    jpeg_abort_decompress(&context->jpeg);
    return error;
}

static bool is_valid(const pf_batch *batch) {
    return batch->count >= 0 && batch->height >= 1 && batch->height <= MAX_SIDE &&
           batch->width >= 1 && batch->width <= MAX_SIDE &&
           (batch->channels == 1 || batch->channels == 3) && batch->filter >= PF_AREA &&
           batch->filter <= PF_FAST && batch->headroom >= 0 && batch->headroom <= MAX_SIDE;
}

int64_t packer_fast_decode_batch(const pf_batch *batch) {
    if (!is_valid(batch))
        return -1;
    context_t *context = open_context();
    int64_t failed = 0;
    for (int64_t i = 0; i < batch->count; i++) {
        const image_t image = {
            .data = (const uint8_t *)(uintptr_t)batch->jpegs[i],
            .bytes = batch->jpeg_bytes[i],
            .size = batch->sizes + 2 * i,
            .region = batch->regions + 4 * i,
            .row = (uint8_t *)(uintptr_t)batch->rows[i],
            .flip = batch->flips != NULL && batch->flips[i] != 0,
            .index = batch->indexes == NULL ? NULL : (const uint8_t *)(uintptr_t)batch->indexes[i],
            .index_bytes = batch->indexes == NULL ? 0 : batch->indexes_bytes[i],
        };
        batch->errors[i] =
            context == NULL ? PF_NO_MEMORY : decode_guarded(context, &image, batch);
        failed += batch->errors[i] != PF_OK;
    }
    if (context != NULL)
        close_context(context);
    return failed;
}

typedef struct {
    const uint8_t *data;
    uint64_t bytes;
    int32_t interval;
    uint8_t *out;
    uint64_t capacity;
    uint64_t size; /* of the index */
} request_t;

static int32_t make_index(context_t *context, request_t *request) {
    j_decompress_ptr jpeg = &context->jpeg;
    if (setjmp(context->jump))
        return context->error;
    int32_t error = open_jpeg(context, request->data, request->bytes);
    if (error != PF_OK)
        return error;
    if (!pf_scan_is_known(jpeg) || request->interval < 0)
        return PF_UNSUPPORTED;
    jpeg->raw_data_out = TRUE;
    jpeg_start_decompress(jpeg);
    pf_scan_start(&context->scan, &context->tables, jpeg, request->data);
    const uint32_t interval =
        request->interval == 0 ? context->scan.mcus_per_row : (uint32_t)request->interval;
    request->size = pf_index_size(&context->scan, interval);
    if (request->size == 0)
        return PF_UNSUPPORTED;
    if (request->size <= request->capacity)
        error = pf_index_write(&context->scan, interval, request->out);
    return error;
}

int64_t packer_fast_make_index(const uint8_t *jpeg, uint64_t jpeg_bytes, int32_t interval,
                               uint8_t *index, uint64_t capacity, int32_t *error) {
    request_t request = {jpeg, jpeg_bytes, interval, index, capacity, 0};
    context_t *context = open_context();
    *error = PF_NO_MEMORY;
    if (context == NULL)
        return 0;
    *error = make_index(context, &request);
    close_context(context);
    return *error == PF_OK ? (int64_t)request.size : 0;
}

int32_t packer_fast_abi(void) {
    return PF_ABI;
}

const char *packer_fast_version(void) {
    return PF_VERSION;
}
