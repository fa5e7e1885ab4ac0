/* A region of planes, resized to a row of a batch. */
#pragma once

#include "axis.h"
#include "planes.h"
#include "rows.h"

typedef struct {
    pf_axis across[2]; /* of the luma, and of the chroma where it has other samples */
    pf_axis down[2];
    pf_memory memory;
} pf_resizer;

typedef struct {
    int width;
    int height;
    int channels;
    int filter;
    bool mirrored;
    bool is_ycc; /* planes are YCbCr, else as the result */
} pf_target;

/* Returns PF_OK, PF_UNSUPPORTED (the region shrinks too much) or PF_NO_MEMORY. */
int32_t pf_resize(pf_resizer *resizer, const pf_rows *rows, const pf_planes *planes,
                  const int32_t region[4], const pf_target *target, uint8_t *out);
