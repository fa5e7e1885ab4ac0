/* The calls of packer_fast.h: what each image of a batch needs, and where errors of libjpeg end. */
#include "packer_fast.h"

#include <setjmp.h>
#include <stdlib.h>

#include "entropy.h"
#include "index.h"
#include "planes.h"
#include "resize.h"

/* packer.images.jpeg.REDUCED_SIDE_MIN: for smaller sides several scales of libjpeg give the same
 * size. */
#define REDUCED_SIDE_MIN 16
#define MAX_SIDE 65500 /* of a JPEG, in libjpeg */
#define LINES 16
#define RENEWED 256 /* images, after which the memory of forgotten tables is freed */

/* All that one call needs; nothing is shared between calls. */
typedef struct {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jmp_buf jump;
    int32_t error;
    const uint8_t *data; /* the JPEG */
    bool has_scan;       /* entropy.h decodes it, else libjpeg */
    pf_scan scan;
    pf_tables tables;
    void (*start_input_pass)(j_decompress_ptr); /* libjpeg's */
    pf_planes planes;
    pf_resizer resizer;
    const pf_rows *rows;
} context_t;

static void fail(j_common_ptr jpeg) {
    context_t *context = (context_t *)jpeg->client_data;
    switch (jpeg->err->msg_code) {
    case JERR_OUT_OF_MEMORY:
        context->error = PF_NO_MEMORY;
        break;
    case JERR_CONVERSION_NOTIMPL:
    case JERR_FRACT_SAMPLE_NOTIMPL:
    case JERR_IMAGE_TOO_BIG:
    case JERR_NOTIMPL:
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

/* Replaces the start_pass of libjpeg's entropy decoder. */
static void start_scan(j_decompress_ptr jpeg) {
    context_t *context = (context_t *)jpeg->client_data;
    jpeg->entropy->insufficient_data = FALSE;
    if (!pf_scan_start(&context->scan, &context->tables, jpeg, context->data))
        ERREXIT(jpeg, JERR_BAD_HUFF_TABLE);
}

/* Replaces its decode_mcu. */
static boolean decode_mcu(j_decompress_ptr jpeg, JBLOCKROW *blocks) {
    pf_scan *scan = &((context_t *)jpeg->client_data)->scan;
    if (!pf_scan_decode(scan, blocks))
        ERREXIT(jpeg, JERR_BAD_HUFF_TABLE); /* any that means damage; its text is never seen */
    if (scan->mcu == scan->mcus_per_row * scan->mcu_rows) {
        jpeg->src->next_input_byte = pf_scan_next_byte(scan);
        jpeg->src->bytes_in_buffer = (size_t)(scan->bits.end - jpeg->src->next_input_byte);
    }
    return TRUE;
}

/* Called by jpeg_start_decompress, when libjpeg has made its entropy decoder but not yet its
 * tables. */
static void start_input_pass(j_decompress_ptr jpeg) {
    context_t *context = (context_t *)jpeg->client_data;
    context->has_scan = pf_scan_is_known(jpeg);
    if (context->has_scan) {
        jpeg->entropy->start_pass = start_scan;
        jpeg->entropy->decode_mcu = decode_mcu;
    }
    context->start_input_pass(jpeg);
}

static bool create(context_t *context) {
    context->jpeg.err = jpeg_std_error(&context->errors);
    context->errors.error_exit = fail;
    context->errors.emit_message = report;
    context->errors.output_message = print_nothing;
    context->jpeg.client_data = context;
    context->rows = pf_rows_best();
    if (setjmp(context->jump))
        return false;
    jpeg_create_decompress(&context->jpeg);
    context->start_input_pass = context->jpeg.inputctl->start_input_pass;
    context->jpeg.inputctl->start_input_pass = start_input_pass;
    return true;
}

static void close_context(context_t *context) {
    jpeg_destroy_decompress(&context->jpeg);
    free(context->planes.memory.data);
    free(context->resizer.memory.data);
    for (int i = 0; i < 2; i++) {
        free(context->resizer.across[i].memory.data);
        free(context->resizer.down[i].memory.data);
    }
    free(context);
}

static context_t *open_context(void) {
    context_t *context = calloc(1, sizeof(context_t));
    if (context != NULL && !create(context)) {
        close_context(context);
        return NULL;
    }
    return context;
}

/* libjpeg keeps tables for the next image: one that lacks its own would become a wrong picture.
 * Those that are there before an image get a mark, which defining them again overwrites. */
static void mark_tables(j_decompress_ptr jpeg) {
    for (int i = 0; i < NUM_QUANT_TBLS; i++) {
        if (jpeg->quant_tbl_ptrs[i] != NULL)
            jpeg->quant_tbl_ptrs[i]->quantval[0] = 0;
        if (jpeg->dc_huff_tbl_ptrs[i] != NULL)
            jpeg->dc_huff_tbl_ptrs[i]->bits[0] = 1;
        if (jpeg->ac_huff_tbl_ptrs[i] != NULL)
            jpeg->ac_huff_tbl_ptrs[i]->bits[0] = 1;
    }
}

/* Forgets tables with a mark, after the header; those that the only scan does not use may stay,
 * because libjpeg frees none of them before the end. */
static void forget_tables(j_decompress_ptr jpeg) {
    unsigned used = pf_scan_is_known(jpeg) ? 0 : ~0U;
    for (int i = 0; used != ~0U && i < jpeg->num_components; i++) {
        const jpeg_component_info *info = &jpeg->comp_info[i];
        used |= 1U << (info->quant_tbl_no & 31) | 1U << info->dc_tbl_no | 1U << info->ac_tbl_no;
    }
    for (int i = 0; i < NUM_QUANT_TBLS; i++) {
        if ((used >> i & 1) == 0)
            continue;
        if (jpeg->quant_tbl_ptrs[i] != NULL && jpeg->quant_tbl_ptrs[i]->quantval[0] == 0)
            jpeg->quant_tbl_ptrs[i] = NULL;
        if (jpeg->dc_huff_tbl_ptrs[i] != NULL && jpeg->dc_huff_tbl_ptrs[i]->bits[0] != 0)
            jpeg->dc_huff_tbl_ptrs[i] = NULL;
        if (jpeg->ac_huff_tbl_ptrs[i] != NULL && jpeg->ac_huff_tbl_ptrs[i]->bits[0] != 0)
            jpeg->ac_huff_tbl_ptrs[i] = NULL;
    }
}

/* Reads the header. Returns PF_UNSUPPORTED unless the image is one of those that are decoded here.
 */
static int32_t open_jpeg(context_t *context, const uint8_t *data, uint64_t bytes) {
    j_decompress_ptr jpeg = &context->jpeg;
    if (bytes > UINT32_MAX) /* offsets in an index have 32 bits */
        return PF_UNSUPPORTED;
    context->data = data;
    jpeg_mem_src(jpeg, data, (unsigned long)bytes);
    mark_tables(jpeg);
    jpeg_read_header(jpeg, TRUE);
    forget_tables(jpeg);
    const bool is_gray = jpeg->jpeg_color_space == JCS_GRAYSCALE && jpeg->num_components == 1;
    const bool is_color = jpeg->num_components == 3 && (jpeg->jpeg_color_space == JCS_YCbCr ||
                                                        jpeg->jpeg_color_space == JCS_RGB);
    if (jpeg->data_precision != 8 || jpeg->arith_code || jpeg->master->lossless ||
        (!is_gray && !is_color))
        return PF_UNSUPPORTED;
    return PF_OK;
}

/* Sets the scale at which the region is at least `headroom` times the result. */
static void set_scale(j_decompress_ptr jpeg, const int32_t region[4], const pf_batch *batch) {
    jpeg->scale_num = jpeg->scale_denom = 8;
    if (batch->headroom == 0 || jpeg->image_width < REDUCED_SIDE_MIN ||
        jpeg->image_height < REDUCED_SIDE_MIN)
        return;
    for (unsigned factor = 2; factor <= 8; factor *= 2) {
        const int64_t least = (int64_t)factor * batch->headroom;
        if (region[2] < least * batch->width || region[3] < least * batch->height)
            return;
        jpeg->scale_num = 8 / factor;
    }
}

/* Decodes all of an image into the row, with the pixels that libjpeg gives. */
static void decode_whole(j_decompress_ptr jpeg, uint8_t *row, const pf_batch *batch, bool flip) {
    const size_t channels = (size_t)batch->channels;
    jpeg->out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_start_decompress(jpeg);
    const size_t width = jpeg->output_width;
    while (jpeg->output_scanline < jpeg->output_height) {
        JSAMPROW lines[LINES];
        for (JDIMENSION i = 0; i < LINES; i++) /* libjpeg writes no more lines than the image has */
            lines[i] = row + (jpeg->output_scanline + i) * width * channels;
        jpeg_read_scanlines(jpeg, lines, LINES);
    }
    const size_t height = jpeg->output_height;
    jpeg_finish_decompress(jpeg);
    for (size_t y = 0; flip && y < height; y++, row += width * channels) {
        for (size_t i = 0; i < width / 2 * channels; i++) {
            const size_t j = (width - 1 - i / channels) * channels + i % channels;
            const uint8_t swapped = row[i];
            row[i] = row[j];
            row[j] = swapped;
        }
    }
}

static int32_t decode_region(context_t *context, const pf_batch *batch, int64_t i, uint8_t *row) {
    j_decompress_ptr jpeg = &context->jpeg;
    const int32_t *region = batch->regions + 4 * i;
    pf_index index;
    const pf_index *used = NULL;
    int32_t error = PF_OK;
    set_scale(jpeg, region, batch);
    jpeg->raw_data_out = TRUE;
    jpeg_start_decompress(jpeg);
    if (batch->indexes != NULL && batch->indexes[i] != 0 && !batch->verify && context->has_scan) {
        error = pf_index_open(&index, (const uint8_t *)(uintptr_t)batch->indexes[i],
                              batch->indexes_bytes[i], &context->scan);
        used = &index;
    }
    if (error == PF_OK)
        error = pf_planes_decode(&context->planes, context->has_scan ? &context->scan : NULL, jpeg,
                                 region, batch->channels == 1, used, batch->verify != 0);
    if (error != PF_OK)
        return error;
    const bool is_ycc = jpeg->jpeg_color_space == JCS_YCbCr && batch->channels == 3;
    const bool mirrored = batch->flips != NULL && batch->flips[i] != 0;
    const pf_target target = {batch->width,  batch->height, batch->channels,
                              batch->filter, mirrored,      is_ycc};
    return pf_resize(&context->resizer, context->rows, &context->planes, region, &target, row);
}

static int32_t decode_image(context_t *context, const pf_batch *batch, int64_t i) {
    const j_decompress_ptr jpeg = &context->jpeg;
    const int32_t *size = batch->sizes + 2 * i;
    const int32_t *region = batch->regions + 4 * i;
    uint8_t *row = (uint8_t *)(uintptr_t)batch->rows[i];
    if (region[0] < 0 || region[1] < 0 || region[2] < 1 || region[3] < 1 || size[0] > MAX_SIDE ||
        size[1] > MAX_SIDE || region[2] > size[0] || region[3] > size[1] ||
        region[0] > size[0] - region[2] || region[1] > size[1] - region[3])
        return PF_UNSUPPORTED;
    const uint8_t *data = (const uint8_t *)(uintptr_t)batch->jpegs[i];
    const int32_t error = open_jpeg(context, data, batch->jpeg_bytes[i]);
    if (error != PF_OK)
        return error;
    if (jpeg->image_width != (JDIMENSION)size[0] || jpeg->image_height != (JDIMENSION)size[1] ||
        (jpeg->jpeg_color_space == JCS_RGB && batch->channels == 1))
        return PF_UNSUPPORTED;
    if (region[2] != size[0] || region[3] != size[1] || batch->width != size[0] ||
        batch->height != size[1])
        return decode_region(context, batch, i, row);
    decode_whole(jpeg, row, batch, batch->flips != NULL && batch->flips[i] != 0);
    return PF_OK;
}

/* libjpeg's errors come back here. */
static int32_t decode_guarded(context_t *context, const pf_batch *batch, int64_t i) {
    const int32_t error = setjmp(context->jump) ? context->error : decode_image(context, batch, i);
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
        if (context != NULL && i % RENEWED == RENEWED - 1) {
            jpeg_destroy_decompress(&context->jpeg);
            if (!create(context)) {
                close_context(context);
                context = NULL;
            }
        }
        batch->errors[i] = context == NULL ? PF_NO_MEMORY : decode_guarded(context, batch, i);
        failed += batch->errors[i] != PF_OK;
    }
    if (context != NULL)
        close_context(context);
    return failed;
}

/* Opens a JPEG up to its data; returns the size of its index. */
static uint64_t open_scan(context_t *context, const uint8_t *data, uint64_t bytes,
                          uint32_t *interval) {
    if (setjmp(context->jump))
        return 0;
    context->error = open_jpeg(context, data, bytes);
    if (context->error != PF_OK)
        return 0;
    context->error = PF_UNSUPPORTED;
    if (!pf_scan_is_known(&context->jpeg))
        return 0;
    context->jpeg.raw_data_out = TRUE;
    jpeg_start_decompress(&context->jpeg);
    if (*interval == 0)
        *interval = context->scan.mcus_per_row;
    return pf_index_size(&context->scan, *interval);
}

int64_t packer_fast_make_index(const uint8_t *jpeg, uint64_t jpeg_bytes, int32_t interval,
                               uint8_t *index, uint64_t capacity, int32_t *error) {
    uint32_t mcus = (uint32_t)interval; /* a negative one is too large */
    context_t *context = open_context();
    *error = PF_NO_MEMORY;
    if (context == NULL)
        return 0;
    uint64_t size = open_scan(context, jpeg, jpeg_bytes, &mcus);
    *error = size == 0 ? context->error : PF_OK;
    if (size != 0 && size <= capacity)
        *error = pf_index_write(&context->scan, mcus, index);
    close_context(context);
    return *error == PF_OK ? (int64_t)size : 0;
}

int32_t packer_fast_abi(void) {
    return PF_ABI;
}

const char *packer_fast_version(void) {
    return PF_VERSION;
}
