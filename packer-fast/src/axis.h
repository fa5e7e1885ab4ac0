/* Resampling along one axis: which samples of a plane make each output pixel, with what weights. */
#pragma once

#include <stdbool.h>

#include "libjpeg.h"

#define PF_WEIGHT_BITS 14
#define PF_MAX_SHRINK 32
#define PF_MAX_TAPS (2 * PF_MAX_SHRINK + 8)
/* Outputs that rows_x86.c makes at once, and those of them that are made of 16 samples. */
#define PF_GROUP 8
#define PF_PART 4
/* Loads of eight samples for each output of a wide axis. */
#define PF_WIDE_STEPS(taps) (((taps) + 7) / 8)
#define PF_GROUP_BYTES(taps) (PF_GROUP * 4 + (taps) * PF_GROUP * 2)

/* The last two are for an axis that shrinks. */
typedef enum { PF_LINEAR, PF_BOX, PF_TRIANGLE } pf_kernel;

/* Positions are in pixels of the image (at its decoded scale) from the start of the planes. */
typedef struct {
    int count;     /* output pixels */
    bool mirrored; /* the last output pixel comes first */
    pf_kernel kernel;
    double begin; /* of the region; a crop is resized as if it were an image: no pixel outside is read */
    double end;
    int expand;    /* pixels per sample of this plane: 2 for the chroma of 4:2:0 */
    bool is_fancy; /* pixels between samples are interpolated as by libjpeg, else repeated */
    int samples;   /* of the plane */
} pf_axis_spec;

/* Output pixel i is the sum of samples[start[i] + t] * weights[i * taps + t], t < taps. */
typedef struct {
    int count;
    int taps; /* even */
    int32_t *start;
    int16_t *weights; /* they add up to 1 << PF_WEIGHT_BITS */
    bool is_wide;     /* the pairs of samples of a part are further apart than 16 samples */
    uint8_t *vectors; /* for rows_x86.c */
    int32_t *bases;   /* first sample of each part, unless it is wide */
} pf_axis;

void pf_axis_make(pf_axis *axis, j_decompress_ptr jpeg, const pf_axis_spec *spec);
