#include "planes.h"

#include <string.h>

#include "packer_fast.h"

#define MAX_LINES (4 * DCTSIZE) /* of a component, in a row of MCUs */

/* The MCUs to decode: columns, rows. */
typedef struct {
    uint32_t first[2];
    uint32_t end[2];
} area_t;

static int min(int a, int b) { return a < b ? a : b; }

/* Sets expansion and interpolation of each plane, as libjpeg does it (jdsample.c). */
static void set_sampling(pf_planes *planes, j_decompress_ptr jpeg) {
    const int full[2] = {jpeg->max_h_samp_factor * jpeg->min_DCT_scaled_size,
                         jpeg->max_v_samp_factor * jpeg->min_DCT_scaled_size};
    for (int i = 0; i < jpeg->num_components; i++) {
        const jpeg_component_info *info = &jpeg->comp_info[i];
        const int made[2] = {info->h_samp_factor * info->DCT_scaled_size, info->v_samp_factor * info->DCT_scaled_size};
        int *expand = planes->planes[i].expand;
        for (int axis = 0; axis < 2; axis++) {
            expand[axis] = full[axis] / made[axis];
            if (expand[axis] * made[axis] != full[axis])
                pf_fail(jpeg, PF_UNSUPPORTED);
        }
        planes->planes[i].is_fancy = jpeg->min_DCT_scaled_size > 1 && expand[0] <= 2 && expand[1] <= 2 &&
                                     (expand[0] == 1 || info->downsampled_width > 2);
    }
}

/* Finds the MCUs that a region covers, with the neighbors of its chroma samples, and places the planes. */
static area_t find_area(pf_planes *planes, const pf_scan *scan, const int32_t region[4]) {
    const j_decompress_ptr jpeg = scan->jpeg;
    const int scale = (int)jpeg->scale_num;
    const jpeg_component_info *luma = jpeg->cur_comp_info[0];
    const int mcus[2] = {(int)jpeg->MCUs_per_row, (int)jpeg->MCU_rows_in_scan};
    const int blocks[2] = {luma->MCU_width, luma->MCU_height};
    area_t area;
    for (int axis = 0; axis < 2; axis++) {
        const int size = blocks[axis] * luma->DCT_scaled_size * planes->planes[0].expand[axis];
        const int edge = region[axis] * scale / 8;
        const int last = ((region[axis] + region[axis + 2]) * scale + 7) / 8 / size;
        area.first[axis] = edge == 0 ? 0 : (uint32_t)((edge - 1) / size);
        area.end[axis] = (uint32_t)min(mcus[axis], last + 1);
        planes->origin[axis] = (int)area.first[axis] * size;
    }
    for (int i = 0; i < planes->count; i++) {
        const jpeg_component_info *info = jpeg->cur_comp_info[i];
        pf_plane *plane = &planes->planes[i];
        const int width = (int)(area.end[0] - area.first[0]) * info->MCU_width * info->DCT_scaled_size;
        const int height = (int)(area.end[1] - area.first[1]) * info->MCU_height * info->DCT_scaled_size;
        plane->stride = ((size_t)width + 31) & ~(size_t)31;
        plane->size[0] = min(width, (int)info->downsampled_width - planes->origin[0] / plane->expand[0]);
        plane->size[1] = min(height, (int)info->downsampled_height - planes->origin[1] / plane->expand[1]);
        plane->samples = pf_allocate(jpeg, plane->stride * (size_t)height);
    }
    return area;
}

/* Writes the samples of one MCU, the `column`-th of the area. */
static void transform(const pf_planes *planes, j_decompress_ptr jpeg, JBLOCK *blocks, JSAMPROW lines[][MAX_LINES],
                      uint32_t column) {
    for (int i = 0; i < planes->count; i++) {
        jpeg_component_info *info = jpeg->cur_comp_info[i];
        const int size = info->DCT_scaled_size;
        for (int y = 0; y < info->MCU_height; y++) {
            for (int x = 0; x < info->MCU_width; x++, blocks++) {
                const uint32_t at = (column * (uint32_t)info->MCU_width + (uint32_t)x) * (uint32_t)size;
                jpeg->idct->inverse_DCT[i](jpeg, info, *blocks, lines[i] + y * size, at);
            }
        }
    }
}

/* Decodes the area's part of a row of MCUs. */
static void decode_row(const pf_planes *planes, pf_scan *scan, const area_t *area, uint32_t row) {
    const j_decompress_ptr jpeg = scan->jpeg;
    _Alignas(64) JBLOCK blocks[D_MAX_BLOCKS_IN_MCU]; /* SIMD code needs aligned blocks */
    JSAMPROW lines[PF_MAX_COMPONENTS][MAX_LINES];
    for (int i = 0; i < planes->count; i++) {
        const jpeg_component_info *info = jpeg->cur_comp_info[i];
        const pf_plane *plane = &planes->planes[i];
        const size_t height = (size_t)(info->MCU_height * info->DCT_scaled_size);
        for (size_t line = 0; line < height; line++)
            lines[i][line] = plane->samples + ((row - area->first[1]) * height + line) * plane->stride;
    }
    for (uint32_t column = area->first[0]; column < area->end[0]; column++) {
        memset(blocks, 0, (size_t)jpeg->blocks_in_MCU * sizeof(JBLOCK));
        pf_scan_decode(scan, blocks);
        transform(planes, jpeg, blocks, lines, column - area->first[0]);
    }
}

void pf_planes_decode(pf_planes *planes, pf_scan *scan, const int32_t region[4], bool gray_only,
                      const pf_index *index) {
    planes->count = gray_only ? 1 : scan->jpeg->num_components;
    set_sampling(planes, scan->jpeg);
    const area_t area = find_area(planes, scan, region);
    for (uint32_t row = area.first[1]; row < area.end[1]; row++) {
        if (index != NULL)
            pf_index_seek(index, scan, row, area.first[0]);
        else
            pf_scan_skip(scan, row * scan->jpeg->MCUs_per_row + area.first[0] - scan->mcu);
        decode_row(planes, scan, &area, row);
        if (index != NULL)
            pf_index_compare(index, scan);
    }
}
