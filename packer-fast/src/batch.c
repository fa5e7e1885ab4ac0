/* The calls of packer_fast.h: what each image of a batch needs, and where errors of libjpeg end. */
#include "packer_fast.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include "resize.h"
#include "rows.h"

/* packer.images.jpeg.REDUCED_SIDE_MIN: for smaller sides several scales of libjpeg give the same size. */
#define REDUCED_SIDE_MIN 16
#define MAX_SIDE 65500 /* of a JPEG, in libjpeg */

/* All that one call needs; nothing is shared between calls. */
typedef struct {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    jmp_buf jump;
    int32_t error;
    const uint8_t *data;                        /* the JPEG */
    void (*start_input_pass)(j_decompress_ptr); /* libjpeg's */
    pf_scan scan;
} context_t;

/* Batches of the same JPEGs; what all of them must have alike is read from the first. */
typedef struct {
    const pf_batch *crops;
    int64_t count;
} call_t;

_Noreturn void pf_fail(j_decompress_ptr jpeg, int32_t error) {
    context_t *context = (context_t *)jpeg->client_data;
    context->error = error;
    longjmp(context->jump, 1);
}

void *pf_allocate(j_decompress_ptr jpeg, size_t size) {
    return jpeg->mem->alloc_large((j_common_ptr)jpeg, JPOOL_IMAGE, size + PF_SLACK);
}

static void fail(j_common_ptr jpeg) {
    const int code = jpeg->err->msg_code;
    const int32_t error = code == JERR_SOF_UNSUPPORTED ? PF_UNSUPPORTED : PF_DAMAGED;
    pf_fail((j_decompress_ptr)jpeg, code == JERR_OUT_OF_MEMORY ? PF_NO_MEMORY : error);
}

/* Does not tell a warning from an error: how much of the image it spoils is not known. */
static void report(j_common_ptr jpeg, int level) {
    if (level < 0)
        fail(jpeg);
}

/* Replaces the start_pass of libjpeg's entropy decoder. */
static void start_scan(j_decompress_ptr jpeg) {
    context_t *context = (context_t *)jpeg->client_data;
    jpeg->entropy->insufficient_data = FALSE;
    pf_scan_start(&context->scan, jpeg, context->data);
}

/* Replaces its decode_mcu; libjpeg's blocks are one array, as it keeps no coefficients of a single scan. */
static boolean decode_mcu(j_decompress_ptr jpeg, JBLOCKROW *blocks) {
    pf_scan *scan = &((context_t *)jpeg->client_data)->scan;
    pf_scan_decode(scan, blocks[0]);
    if (scan->mcu == jpeg->MCUs_per_row * jpeg->MCU_rows_in_scan)
        pf_scan_return(scan);
    return TRUE;
}

/* Called by jpeg_start_decompress, when libjpeg has made its entropy decoder but not yet its tables. */
static void start_input_pass(j_decompress_ptr jpeg) {
    jpeg->entropy->start_pass = start_scan;
    jpeg->entropy->decode_mcu = decode_mcu;
    ((context_t *)jpeg->client_data)->start_input_pass(jpeg);
}

static void close_context(context_t *context) {
    if (context != NULL)
        jpeg_destroy_decompress(&context->jpeg);
    free(context);
}

static bool create(context_t *context) {
    context->jpeg.err = jpeg_std_error(&context->errors);
    context->errors.error_exit = fail;
    context->errors.emit_message = report;
    context->jpeg.client_data = context;
    if (setjmp(context->jump))
        return false;
    jpeg_create_decompress(&context->jpeg);
    context->start_input_pass = context->jpeg.inputctl->start_input_pass;
    context->jpeg.inputctl->start_input_pass = start_input_pass;
    return true;
}

/* Returns NULL if there is no memory. */
static context_t *open_context(void) {
    context_t *context = calloc(1, sizeof(context_t));
    if (context == NULL || create(context))
        return context;
    close_context(context);
    return NULL;
}

/* libjpeg keeps tables for the next image: one that lacks its own would become a wrong picture. pf_scan_start refuses
 * a table with a mark, which defining it again overwrites. */
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

/* Reads the header of an image of a kind that is decoded here. */
static void open_jpeg(context_t *context, const uint8_t *data, uint64_t bytes) {
    j_decompress_ptr jpeg = &context->jpeg;
    if (bytes > UINT32_MAX) /* offsets in an index have 32 bits */
        pf_fail(jpeg, PF_UNSUPPORTED);
    mark_tables(jpeg);
    context->data = data;
    jpeg_mem_src(jpeg, data, (unsigned long)bytes);
    jpeg_read_header(jpeg, TRUE);
    const J_COLOR_SPACE space = jpeg->jpeg_color_space;
    const bool has_one_scan = !jpeg->progressive_mode && jpeg->comps_in_scan == jpeg->num_components;
    if (jpeg->data_precision != 8 || jpeg->arith_code || jpeg->master->lossless || !has_one_scan ||
        !(space == JCS_GRAYSCALE || space == JCS_YCbCr || space == JCS_RGB))
        pf_fail(jpeg, PF_UNSUPPORTED);
}

/* Returns the region of image `i` in a crop. */
static const int32_t *region_of(const pf_batch *crop, int64_t i) { return crop->regions + 4 * i; }

static bool has_room(const pf_batch *crop, int64_t i, int64_t factor) {
    const int32_t *region = region_of(crop, i);
    return region[2] >= factor * crop->headroom * crop->width && region[3] >= factor * crop->headroom * crop->height;
}

/* Sets the scale at which every region is at least `headroom` times its result. */
static void set_scale(j_decompress_ptr jpeg, const call_t *call, int64_t i) {
    jpeg->scale_num = jpeg->scale_denom = 8;
    if (call->crops->headroom == 0 || jpeg->image_width < REDUCED_SIDE_MIN || jpeg->image_height < REDUCED_SIDE_MIN)
        return;
    for (unsigned factor = 2; factor <= 8; factor *= 2) {
        for (int64_t c = 0; c < call->count; c++) {
            if (!has_room(&call->crops[c], i, factor))
                return;
        }
        jpeg->scale_num = 8 / factor;
    }
}

/* Finds the rectangle around all regions of image `i`. */
static void unite(int32_t box[4], const call_t *call, int64_t i) {
    memcpy(box, region_of(call->crops, i), 4 * sizeof(int32_t));
    for (int64_t c = 1; c < call->count; c++) {
        const int32_t *region = region_of(&call->crops[c], i);
        for (int axis = 0; axis < 2; axis++) {
            const int32_t first = region[axis] < box[axis] ? region[axis] : box[axis];
            const int32_t end = region[axis] + region[axis + 2], last = box[axis] + box[axis + 2];
            box[axis] = first;
            box[axis + 2] = (end > last ? end : last) - first;
        }
    }
}

/* Decodes all of an image into the row, with the pixels that libjpeg gives. */
static void decode_whole(j_decompress_ptr jpeg, uint8_t *row, const pf_batch *batch, bool flip) {
    const size_t channels = (size_t)batch->channels;
    const size_t stride = (size_t)batch->width * channels;
    jpeg->out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_start_decompress(jpeg);
    while (jpeg->output_scanline < jpeg->output_height) {
        JSAMPROW line = row + jpeg->output_scanline * stride;
        jpeg_read_scanlines(jpeg, &line, 1);
    }
    jpeg_finish_decompress(jpeg);
    for (int32_t y = 0; flip && y < batch->height; y++, row += stride) {
        for (size_t left = 0, right = stride - channels; left < right; left += channels, right -= channels) {
            for (size_t c = 0; c < channels; c++) {
                const uint8_t swapped = row[left + c];
                row[left + c] = row[right + c];
                row[right + c] = swapped;
            }
        }
    }
}

static void decode_regions(context_t *context, const call_t *call, int64_t i) {
    j_decompress_ptr jpeg = &context->jpeg;
    const pf_batch *first = call->crops;
    int32_t box[4];
    pf_planes planes;
    pf_index index = {0};
    unite(box, call, i);
    set_scale(jpeg, call, i);
    jpeg->raw_data_out = TRUE;
    jpeg_start_decompress(jpeg);
    if (first->indexes != NULL && first->indexes[i] != 0 && !first->verify)
        pf_index_open(&index, (const uint8_t *)(uintptr_t)first->indexes[i], first->indexes_bytes[i], &context->scan);
    pf_planes_decode(&planes, &context->scan, box, first->channels == 1, index.entries == NULL ? NULL : &index);
    for (int64_t c = 0; c < call->count; c++)
        pf_resize(jpeg, &planes, &call->crops[c], i);
    if (first->verify)
        pf_scan_finish(&context->scan);
}

static bool is_inside(const int32_t region[4], const int32_t size[2]) {
    return region[0] >= 0 && region[1] >= 0 && region[2] >= 1 && region[3] >= 1 && region[2] <= size[0] - region[0] &&
           region[3] <= size[1] - region[1];
}

static void decode_image(context_t *context, const call_t *call, int64_t i) {
    const j_decompress_ptr jpeg = &context->jpeg;
    const pf_batch *first = call->crops;
    const int32_t *size = first->sizes + 2 * i;
    const int32_t *region = region_of(first, i);
    if (size[0] > MAX_SIDE || size[1] > MAX_SIDE)
        pf_fail(jpeg, PF_UNSUPPORTED);
    for (int64_t c = 0; c < call->count; c++) {
        if (!is_inside(region_of(&call->crops[c], i), size))
            pf_fail(jpeg, PF_UNSUPPORTED);
    }
    open_jpeg(context, (const uint8_t *)(uintptr_t)first->jpegs[i], first->jpeg_bytes[i]);
    if (jpeg->image_width != (JDIMENSION)size[0] || jpeg->image_height != (JDIMENSION)size[1] ||
        (jpeg->jpeg_color_space == JCS_RGB && first->channels == 1))
        pf_fail(jpeg, PF_UNSUPPORTED);
    if (call->count == 1 && region[2] == size[0] && region[3] == size[1] && first->width == size[0] &&
        first->height == size[1])
        decode_whole(jpeg, (uint8_t *)(uintptr_t)first->rows[i], first, first->flips != NULL && first->flips[i] != 0);
    else
        decode_regions(context, call, i);
}

/* All errors of an image come back here. */
static int32_t decode_guarded(context_t *context, const call_t *call, int64_t i) {
    if (context == NULL)
        return PF_NO_MEMORY;
    context->error = PF_OK;
    if (!setjmp(context->jump))
        decode_image(context, call, i);
    jpeg_abort_decompress(&context->jpeg);
    return context->error;
}

static bool is_valid(const pf_batch *batch) {
    return batch->count >= 0 && batch->height >= 1 && batch->height <= MAX_SIDE && batch->width >= 1 &&
           batch->width <= MAX_SIDE && (batch->channels == 1 || batch->channels == 3) && batch->filter >= PF_AREA &&
           batch->filter <= PF_FAST && batch->headroom >= 0 && batch->headroom <= MAX_SIDE;
}

/* Whether a crop is of the same images as the first. */
static bool is_alike(const pf_batch *crop, const pf_batch *first) {
    return crop->count == first->count && crop->channels == first->channels && crop->headroom == first->headroom;
}

int64_t packer_fast_decode_crops(const pf_batch *crops, int64_t count) {
    const call_t call = {crops, count};
    for (int64_t c = 0; c < count; c++) {
        if (!is_valid(&crops[c]) || !is_alike(&crops[c], crops))
            return -1;
    }
    if (count < 1)
        return -1;
    context_t *context = open_context();
    int64_t failed = 0;
    for (int64_t i = 0; i < crops->count; i++) {
        crops->errors[i] = decode_guarded(context, &call, i);
        failed += crops->errors[i] != PF_OK;
    }
    close_context(context);
    return failed;
}

static int64_t make_index(context_t *context, const uint8_t *data, uint64_t bytes, uint32_t interval, uint8_t *index,
                          uint64_t capacity) {
    if (setjmp(context->jump))
        return 0;
    open_jpeg(context, data, bytes);
    context->jpeg.raw_data_out = TRUE;
    jpeg_start_decompress(&context->jpeg);
    const uint64_t size = pf_index_write(&context->scan, interval, index, capacity);
    if (size <= capacity)
        pf_scan_finish(&context->scan);
    return (int64_t)size;
}

int64_t packer_fast_make_index(const uint8_t *jpeg, uint64_t jpeg_bytes, int32_t interval, uint8_t *index,
                               uint64_t capacity, int32_t *error) {
    context_t *context = open_context();
    const int64_t size =
        context == NULL ? 0 : make_index(context, jpeg, jpeg_bytes, (uint32_t)interval, index, capacity);
    *error = context == NULL ? PF_NO_MEMORY : context->error;
    close_context(context);
    return size;
}

int32_t packer_fast_abi(void) { return PF_ABI; }

const char *packer_fast_version(void) { return pf_rows_best()->version; }
