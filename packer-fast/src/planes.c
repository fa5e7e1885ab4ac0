#include "planes.h"

#include <string.h>

#include "packer_fast.h"

#define MAX_LINES (4 * DCTSIZE) /* of a component, in a row of MCUs */

/* The MCUs to decode, and the size of one in pixels at the decoded scale. */
typedef struct {
    uint32_t first_column, end_column;
    uint32_t first_row, end_row;
    int width, height;
} area_t;

static int min(int a, int b) {
    return a < b ? a : b;
}

/* Whether libjpeg interpolates between the samples of this component (jdsample.c), or repeats them.
 */
static bool is_fancy(j_decompress_ptr jpeg, const jpeg_component_info *info,
                     const pf_plane *plane) {
    if (jpeg->min_DCT_scaled_size == 1 || plane->expand_x > 2 || plane->expand_y > 2)
        return false;
    return plane->expand_x == 1 || info->downsampled_width > 2;
}

/* Sets expansion and interpolation of each plane. Returns false if libjpeg would refuse the
 * sampling. */
static bool set_sampling(pf_planes *planes, j_decompress_ptr jpeg) {
    const int full_width = jpeg->max_h_samp_factor * jpeg->min_DCT_scaled_size;
    const int full_height = jpeg->max_v_samp_factor * jpeg->min_DCT_scaled_size;
    for (int i = 0; i < jpeg->num_components; i++) {
        const jpeg_component_info *info = &jpeg->comp_info[i];
        const int width = info->h_samp_factor * info->DCT_scaled_size;
        const int height = info->v_samp_factor * info->DCT_scaled_size;
        if (full_width % width != 0 || full_height % height != 0)
            return false;
        planes->planes[i].expand_x = full_width / width;
        planes->planes[i].expand_y = full_height / height;
        planes->planes[i].is_fancy = is_fancy(jpeg, info, &planes->planes[i]);
    }
    return true;
}

/* Returns the MCUs that a region covers, and those of the neighbors of its chroma samples. */
static area_t find_area(const pf_planes *planes, const pf_scan *scan, const int32_t region[4],
                        int width, int height) {
    bool margin_x = false;
    bool margin_y = false;
    for (int i = 0; i < planes->count; i++) {
        margin_x |= planes->planes[i].is_fancy && planes->planes[i].expand_x > 1;
        margin_y |= planes->planes[i].is_fancy && planes->planes[i].expand_y > 1;
    }
    /* edges at the decoded scale, rounded outward, with the margin inside the image */
    const int left = region[0] * planes->scale / 8 - (margin_x && region[0] > 0);
    const int top = region[1] * planes->scale / 8 - (margin_y && region[1] > 0);
    const int right = ((region[0] + region[2]) * planes->scale + 7) / 8 + margin_x;
    const int bottom = ((region[1] + region[3]) * planes->scale + 7) / 8 + margin_y;
    area_t area = {.width = width, .height = height};
    area.first_column = left < 0 ? 0 : (uint32_t)(left / width);
    area.first_row = top < 0 ? 0 : (uint32_t)(top / height);
    area.end_column = (uint32_t)min((int)scan->mcus_per_row, (right + width - 1) / width);
    area.end_row = (uint32_t)min((int)scan->mcu_rows, (bottom + height - 1) / height);
    return area;
}

/* Places the planes in memory: `blocks[i]` are the width and height of an MCU of component i. */
static bool allocate(pf_planes *planes, j_decompress_ptr jpeg, const area_t *area,
                     const int blocks[][2]) {
    const size_t columns = area->end_column - area->first_column;
    const size_t rows = area->end_row - area->first_row;
    size_t offsets[PF_MAX_COMPONENTS];
    size_t size = 0;
    planes->x = (int)area->first_column * area->width;
    planes->y = (int)area->first_row * area->height;
    for (int i = 0; i < jpeg->num_components; i++) {
        const jpeg_component_info *info = &jpeg->comp_info[i];
        pf_plane *plane = &planes->planes[i];
        const size_t width = columns * (size_t)(blocks[i][0] * info->DCT_scaled_size);
        const size_t height = rows * (size_t)(blocks[i][1] * info->DCT_scaled_size);
        plane->stride = (width + 31) & ~(size_t)31;
        plane->width = min((int)width, (int)info->downsampled_width - planes->x / plane->expand_x);
        plane->height =
            min((int)height, (int)info->downsampled_height - planes->y / plane->expand_y);
        offsets[i] = size;
        size += plane->stride * height + PF_SLACK;
    }
    uint8_t *memory = pf_reserve(&planes->memory, size);
    for (int i = 0; memory != NULL && i < jpeg->num_components; i++)
        planes->planes[i].samples = memory + offsets[i];
    return memory != NULL;
}

/* Writes the samples of one MCU, the `column`-th of the area. */
static void transform(const pf_planes *planes, j_decompress_ptr jpeg, JBLOCK *blocks,
                      JSAMPROW lines[][MAX_LINES], uint32_t column) {
    for (int i = 0; i < planes->count; i++) {
        jpeg_component_info *info = jpeg->cur_comp_info[i];
        const int size = info->DCT_scaled_size;
        for (int y = 0; y < info->MCU_height; y++) {
            for (int x = 0; x < info->MCU_width; x++, blocks++) {
                const uint32_t at =
                    (column * (uint32_t)info->MCU_width + (uint32_t)x) * (uint32_t)size;
                jpeg->idct->inverse_DCT[i](jpeg, info, *blocks, lines[i] + y * size, at);
            }
        }
    }
}

/* Decodes the area's part of a row of MCUs. */
static bool decode_row(const pf_planes *planes, pf_scan *scan, j_decompress_ptr jpeg,
                       const area_t *area, uint32_t row) {
    _Alignas(64) JBLOCK blocks[D_MAX_BLOCKS_IN_MCU]; /* SIMD code needs aligned blocks */
    JBLOCKROW pointers[D_MAX_BLOCKS_IN_MCU];
    JSAMPROW lines[PF_MAX_COMPONENTS][MAX_LINES];
    for (int i = 0; i < scan->blocks; i++)
        pointers[i] = &blocks[i];
    for (int i = 0; i < planes->count; i++) {
        const jpeg_component_info *info = jpeg->cur_comp_info[i];
        const pf_plane *plane = &planes->planes[i];
        const size_t height = (size_t)(info->MCU_height * info->DCT_scaled_size);
        for (size_t line = 0; line < height; line++)
            lines[i][line] =
                plane->samples + ((row - area->first_row) * height + line) * plane->stride;
    }
    for (uint32_t column = area->first_column; column < area->end_column; column++) {
        memset(blocks, 0, (size_t)scan->blocks * sizeof(JBLOCK));
        if (!pf_scan_decode(scan, pointers))
            return false;
        transform(planes, jpeg, blocks, lines, column - area->first_column);
    }
    return true;
}

static int32_t decode_area(const pf_planes *planes, pf_scan *scan, j_decompress_ptr jpeg,
                           const area_t *area, const pf_index *index) {
    for (uint32_t row = area->first_row; row < area->end_row; row++) {
        if (index != NULL) {
            const int32_t error = pf_index_seek(index, scan, row, area->first_column);
            if (error != PF_OK)
                return error;
        } else if (!pf_scan_skip(scan, row * scan->mcus_per_row + area->first_column - scan->mcu)) {
            return PF_DAMAGED;
        }
        if (!decode_row(planes, scan, jpeg, area, row))
            return PF_DAMAGED;
        const int32_t error = index == NULL ? PF_OK : pf_index_compare(index, scan);
        if (error != PF_OK)
            return error;
    }
    return PF_OK;
}

/* Decodes all of a file that has several scans: libjpeg keeps its coefficients. */
static int32_t decode_all(pf_planes *planes, j_decompress_ptr jpeg) {
    JSAMPROW lines[PF_MAX_COMPONENTS][MAX_LINES];
    JSAMPARRAY arrays[PF_MAX_COMPONENTS] = {lines[0], lines[1], lines[2]};
    int blocks[PF_MAX_COMPONENTS][2];
    const int width = jpeg->max_h_samp_factor * jpeg->min_DCT_scaled_size;
    const int height = jpeg->max_v_samp_factor * jpeg->min_DCT_scaled_size;
    const area_t area = {.end_column = (jpeg->output_width + (uint32_t)width - 1) / (uint32_t)width,
                         .end_row = jpeg->total_iMCU_rows,
                         .width = width,
                         .height = height};
    for (int i = 0; i < jpeg->num_components; i++) {
        blocks[i][0] = jpeg->comp_info[i].h_samp_factor;
        blocks[i][1] = jpeg->comp_info[i].v_samp_factor;
    }
    if (!allocate(planes, jpeg, &area, blocks))
        return PF_NO_MEMORY;
    for (size_t row = 0; row < area.end_row; row++) {
        for (int i = 0; i < jpeg->num_components; i++) {
            const size_t count = (size_t)(blocks[i][1] * jpeg->comp_info[i].DCT_scaled_size);
            for (size_t line = 0; line < count; line++)
                lines[i][line] =
                    planes->planes[i].samples + (row * count + line) * planes->planes[i].stride;
        }
        jpeg_read_raw_data(jpeg, arrays, (JDIMENSION)height);
    }
    jpeg_finish_decompress(jpeg);
    return PF_OK;
}

int32_t pf_planes_decode(pf_planes *planes, pf_scan *scan, j_decompress_ptr jpeg,
                         const int32_t region[4], bool gray_only, const pf_index *index,
                         bool verify) {
    int blocks[PF_MAX_COMPONENTS][2];
    planes->count = gray_only ? 1 : jpeg->num_components;
    planes->scale = (int)jpeg->scale_num;
    if (!set_sampling(planes, jpeg))
        return PF_UNSUPPORTED;
    if (scan == NULL)
        return decode_all(planes, jpeg);
    for (int i = 0; i < jpeg->num_components; i++) {
        blocks[i][0] = jpeg->cur_comp_info[i]->MCU_width;
        blocks[i][1] = jpeg->cur_comp_info[i]->MCU_height;
    }
    for (int i = 0; i < scan->blocks; i++)
        scan->is_needed[i] = scan->component[i] < planes->count;
    const pf_plane *luma = &planes->planes[0];
    const int size = jpeg->cur_comp_info[0]->DCT_scaled_size;
    const area_t area = find_area(planes, scan, region, blocks[0][0] * size * luma->expand_x,
                                  blocks[0][1] * size * luma->expand_y);
    if (!allocate(planes, jpeg, &area, blocks))
        return PF_NO_MEMORY;
    const int32_t error = decode_area(planes, scan, jpeg, &area, index);
    if (error != PF_OK || !verify)
        return error;
    const bool is_whole = pf_scan_skip(scan, scan->mcus_per_row * scan->mcu_rows - scan->mcu) &&
                          pf_scan_is_at_end(scan);
    return is_whole ? PF_OK : PF_DAMAGED;
}
