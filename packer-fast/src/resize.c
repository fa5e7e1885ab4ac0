#include "resize.h"

#include <math.h>

#include "packer_fast.h"

/* packer.images.resample.FAST_SHRINK: linear differs little from area up to here. */
#define FAST_SHRINK 1.15

/* The last rows of one plane that were resampled across; row y is at y & mask. */
typedef struct {
    int16_t *rows;
    size_t stride;
    int mask;
    int done; /* rows up to this one were made */
} ring_t;

static pf_kernel kernel_of(int filter, double shrink, double larger_shrink) {
    if (shrink <= 1 || (filter == PF_FAST && larger_shrink <= FAST_SHRINK))
        return PF_LINEAR;
    return filter == PF_BILINEAR ? PF_TRIANGLE : PF_BOX;
}

/* Makes the two axes of plane `number`. */
static int32_t make_axes(pf_resizer *resizer, int which, const pf_planes *planes, int number,
                         const int32_t region[4], const pf_target *target) {
    const pf_plane *plane = &planes->planes[number];
    const double scale = planes->scale / 8.0;
    const double shrink_x = region[2] * scale / target->width;
    const double shrink_y = region[3] * scale / target->height;
    const double larger = fmax(shrink_x, shrink_y);
    pf_axis_spec spec = {.count = target->width, .mirrored = target->mirrored};
    spec.kernel = kernel_of(target->filter, shrink_x, larger);
    spec.begin = region[0] * scale - planes->x;
    spec.end = (region[0] + region[2]) * scale - planes->x;
    spec.low = (int)floor(spec.begin);
    spec.high = (int)ceil(spec.end);
    spec.expand = plane->expand_x;
    spec.is_fancy = plane->is_fancy;
    spec.samples = plane->width;
    const int32_t error = pf_axis_make(&resizer->across[which], &spec);
    if (error != PF_OK)
        return error;
    spec.count = target->height;
    spec.mirrored = false;
    spec.kernel = kernel_of(target->filter, shrink_y, larger);
    spec.begin = region[1] * scale - planes->y;
    spec.end = (region[1] + region[3]) * scale - planes->y;
    spec.low = (int)floor(spec.begin);
    spec.high = (int)ceil(spec.end);
    spec.expand = plane->expand_y;
    spec.samples = plane->height;
    return pf_axis_make(&resizer->down[which], &spec);
}

static bool have_same_samples(const pf_plane *a, const pf_plane *b) {
    return a->expand_x == b->expand_x && a->expand_y == b->expand_y && a->is_fancy == b->is_fancy;
}

/* Makes one row of the result of one plane, and the rows of the plane it needs that are not there
 * yet. */
static void make_row(int16_t *out, ring_t *ring, const pf_rows *rows, const pf_plane *plane,
                     const pf_axis *across, const pf_axis *down, int row) {
    const int16_t *needed[PF_MAX_TAPS];
    const int start = down->start[row];
    for (int t = 0; t < down->taps; t++) {
        const int y = start + t;
        int16_t *at = ring->rows + (size_t)(y & ring->mask) * ring->stride;
        needed[t] = at;
        if (y > ring->done) {
            /* behind the last row the weights are zero, but the values are read */
            const int line = y < plane->height ? y : plane->height - 1;
            rows->across(at, plane->samples + (size_t)line * plane->stride, across);
            ring->done = y;
        }
    }
    rows->down(out, needed, down->weights + (size_t)row * (size_t)down->taps, down->taps,
               across->count);
}

int32_t pf_resize(pf_resizer *resizer, const pf_rows *rows, const pf_planes *planes,
                  const int32_t region[4], const pf_target *target, uint8_t *out) {
    int which[PF_MAX_COMPONENTS] = {0, 0, 0};
    ring_t rings[PF_MAX_COMPONENTS];
    int16_t *results[PF_MAX_COMPONENTS] = {NULL};
    const int16_t *planes_out[PF_MAX_COMPONENTS];
    for (int i = 1; i < planes->count; i++)
        which[i] = have_same_samples(&planes->planes[0], &planes->planes[i]) ? 0 : 1;
    if (planes->count == 3 && which[1] != 0 && which[2] != 0 &&
        !have_same_samples(&planes->planes[1], &planes->planes[2]))
        return PF_UNSUPPORTED;
    for (int i = 0; i < planes->count; i++) {
        if (i > 0 && (which[i] == 0 || (i == 2 && which[1] == 1)))
            continue;
        const int32_t error = make_axes(resizer, which[i], planes, i, region, target);
        if (error != PF_OK)
            return error;
    }
    const size_t stride =
        ((size_t)target->width + PF_ROW_MULTIPLE - 1) / PF_ROW_MULTIPLE * PF_ROW_MULTIPLE;
    size_t lines = 0;
    for (int i = 0; i < planes->count; i++) {
        int size = 2;
        while (size < resizer->down[which[i]].taps)
            size *= 2;
        rings[i] = (ring_t){.stride = stride, .mask = size - 1, .done = -1};
        lines += (size_t)size + 1;
    }
    int16_t *memory = (int16_t *)(void *)pf_reserve(&resizer->memory, lines * stride * 2);
    if (memory == NULL)
        return PF_NO_MEMORY;
    for (int i = 0; i < planes->count; i++) {
        results[i] = memory;
        rings[i].rows = memory + stride;
        memory += stride * ((size_t)rings[i].mask + 2);
    }
    for (int i = 0; i < PF_MAX_COMPONENTS; i++)
        planes_out[i] = results[i < planes->count ? i : 0]; /* gray to RGB: three times the same */
    for (int row = 0; row < target->height; row++) {
        for (int i = 0; i < planes->count; i++)
            make_row(results[i], &rings[i], rows, &planes->planes[i], &resizer->across[which[i]],
                     &resizer->down[which[i]], row);
        if (target->is_ycc)
            rows->to_rgb(out, planes_out, target->width);
        else
            pf_pack(out, planes_out, target->channels, target->width);
        out += (size_t)target->width * (size_t)target->channels;
    }
    return PF_OK;
}
