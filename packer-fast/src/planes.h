/* The planes (luma and chroma samples) of the MCUs that a region needs. In arrays of two, x comes first. */
#pragma once

#include "entropy.h"
#include "index.h"

typedef struct {
    uint8_t *samples;
    size_t stride;
    int size[2];   /* samples that belong to the image, of those decoded */
    int expand[2]; /* image pixels (at the decoded scale) per sample */
    bool is_fancy; /* libjpeg interpolates where it expands, else it repeats samples */
} pf_plane;

typedef struct {
    pf_plane planes[PF_MAX_COMPONENTS];
    int count;
    int origin[2]; /* of the first sample, in image pixels at the decoded scale */
} pf_planes;

/* Decodes what the rectangle (x, y, width, height, in pixels of the whole image) needs, at the scale set in libjpeg,
 * from the start of a scan. Only the luma if `gray_only`; `index` may be NULL. */
void pf_planes_decode(pf_planes *planes, pf_scan *scan, const int32_t region[4], bool gray_only, const pf_index *index);
