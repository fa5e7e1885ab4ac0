/* The planes (luma and chroma samples) of the MCUs that a region needs. */
#pragma once

#include "entropy.h"
#include "index.h"
#include "memory.h"

typedef struct {
    uint8_t *samples;
    size_t stride;
    int width; /* samples that belong to the image, of those decoded */
    int height;
    int expand_x; /* image pixels (at the decoded scale) per sample */
    int expand_y;
    bool is_fancy; /* libjpeg interpolates where it expands, else it repeats samples */
} pf_plane;

typedef struct {
    pf_plane planes[PF_MAX_COMPONENTS];
    int count;
    int x; /* of the first sample, in image pixels at the decoded scale */
    int y;
    int scale; /* the image is decoded at scale / 8 */
    pf_memory memory;
} pf_planes;

/* Decodes what the rectangle (x, y, width, height, in pixels of the whole image) needs, at the
 * scale set in `jpeg`, after jpeg_start_decompress. `scan` is NULL if the file has several. Only
 * the luma if `gray_only`. `index` may be NULL; with `verify` the rest of the file is checked as
 * well.
 *
 * Returns PF_OK or another code; errors of libjpeg leave by its error_exit. */
int32_t pf_planes_decode(pf_planes *planes, pf_scan *scan, j_decompress_ptr jpeg,
                         const int32_t region[4], bool gray_only, const pf_index *index,
                         bool verify);
