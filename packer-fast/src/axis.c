#include "axis.h"

#include <math.h>
#include <string.h>

#include "packer_fast.h"

#define ONE (1 << PF_WEIGHT_BITS)
#define GROUP PF_GROUP

/* Samples first to first + count - 1, or pixels of the image. */
typedef struct {
    int first;
    int count;
    double weights[PF_MAX_TAPS];
} taps_t;

static int clamp(int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
}

static double limit(double value, double low, double high) {
    return value < low ? low : value > high ? high : value;
}

/* Adds a weight; positions must not fall below the first by more than one. */
static void add(taps_t *taps, int position, double weight) {
    if (taps->count == 0)
        taps->first = position;
    if (position < taps->first) {
        memmove(taps->weights + 1, taps->weights, sizeof(double) * (size_t)taps->count);
        taps->weights[0] = 0;
        taps->first--;
        taps->count++;
    }
    while (position >= taps->first + taps->count)
        taps->weights[taps->count++] = 0;
    taps->weights[position - taps->first] += weight;
}

/* The pixels that make the output pixel at `center`, `scale` times as large as they are. */
static void shrink(taps_t *pixels, const pf_axis_spec *spec, double scale, double center) {
    const double reach = spec->kernel == PF_TRIANGLE ? scale : scale / 2;
    const double low = limit(center - reach, spec->low, spec->high);
    const double high = limit(center + reach, spec->low, spec->high);
    double sum = 0;
    pixels->first = clamp((int)low, spec->low, spec->high - 1);
    pixels->count = 0;
    for (int pixel = pixels->first; pixel < high; pixel++) {
        double weight;
        if (spec->kernel == PF_TRIANGLE) {
            const double distance = pixel + 0.5 - center;
            weight = limit(scale - (distance < 0 ? -distance : distance), 0, scale);
        } else {
            weight = limit(high, pixel, pixel + 1) - limit(low, pixel, pixel + 1);
        }
        pixels->weights[pixels->count++] = weight;
        sum += weight;
    }
    for (int i = 0; i < pixels->count; i++)
        pixels->weights[i] /= sum;
}

static void interpolate(taps_t *taps, double position, int low, int high) {
    position = limit(position, low, high - 1);
    taps->first = clamp((int)position, low, high > low + 1 ? high - 2 : low);
    taps->count = 2;
    taps->weights[1] = position - taps->first;
    taps->weights[0] = 1 - taps->weights[1];
}

/* Replaces pixels by the samples from which libjpeg would make them. */
static void expand(taps_t *samples, const taps_t *pixels, const pf_axis_spec *spec) {
    samples->count = 0;
    for (int i = 0; i < pixels->count; i++) {
        const int pixel = pixels->first + i;
        const int nearest = clamp(pixel / spec->expand, 0, spec->samples - 1);
        const int other = clamp(nearest + (pixel % 2 ? 1 : -1), 0, spec->samples - 1);
        const double share = spec->is_fancy ? 0.75 : 1;
        add(samples, nearest, pixels->weights[i] * share);
        if (spec->is_fancy)
            add(samples, other, pixels->weights[i] * 0.25);
    }
}

static void find_taps(taps_t *taps, const pf_axis_spec *spec, double scale, int index) {
    const double center = spec->begin + (index + 0.5) * scale;
    const bool is_linear = spec->kernel == PF_LINEAR;
    if (is_linear && (spec->expand == 1 || spec->is_fancy)) {
        /* between the centers of two pixels, interpolating samples is as good as interpolating the
         * pixels made from them, and needs two taps instead of three */
        const double inside = limit(center, spec->low + 0.5, spec->high - 0.5);
        interpolate(taps, inside / spec->expand - 0.5, 0, spec->samples);
        return;
    }
    taps_t pixels;
    taps_t *made = spec->expand == 1 ? taps : &pixels;
    if (is_linear)
        interpolate(made, center - 0.5, spec->low, spec->high);
    else
        shrink(made, spec, scale, center);
    if (made != taps)
        expand(taps, made, spec);
}

/* Rounds the weights so that they add up to one. */
static void store(pf_axis *axis, int index, const taps_t *taps, int samples) {
    int16_t *weights = axis->weights + (size_t)index * (size_t)axis->taps;
    const int start = clamp(taps->first, 0, samples > axis->taps ? samples - axis->taps : 0);
    int sum = 0;
    int largest = 0;
    axis->start[index] = start;
    memset(weights, 0, sizeof(int16_t) * (size_t)axis->taps);
    for (int i = 0; i < taps->count; i++) {
        const int t = taps->first - start + i;
        if (t >= axis->taps) /* linear at the last sample: its weight is zero */
            break;
        weights[t] = (int16_t)(taps->weights[i] * ONE + 0.5);
        sum += weights[t];
        if (weights[t] > weights[largest])
            largest = t;
    }
    weights[largest] = (int16_t)(weights[largest] + ONE - sum);
}

/* For each group of four outputs and each pair of taps: which bytes of the 16 samples at the first
 * start to take (pshufb), then the weights in the same order (pmaddwd). */
static void make_vectors(pf_axis *axis) {
    uint8_t *at = axis->vectors;
    for (int i = 0; i < axis->count; i += GROUP) {
        /* starts fall if the axis is mirrored */
        const int last = axis->start[i + GROUP <= axis->count ? i + GROUP - 1 : axis->count - 1];
        const int base = last < axis->start[i] ? last : axis->start[i];
        axis->bases[i / GROUP] = base;
        for (int t = 0; t < axis->taps; t += 2) {
            int16_t weights[2 * GROUP];
            for (int j = 0; j < GROUP; j++) {
                const int output = i + j < axis->count ? i + j : axis->count - 1;
                const int offset = axis->start[output] - base + t;
                if (offset > 14) {
                    axis->vectors = NULL;
                    return;
                }
                at[4 * j] = (uint8_t)offset;
                at[4 * j + 2] = (uint8_t)(offset + 1);
                at[4 * j + 1] = at[4 * j + 3] = 0x80;
                memcpy(weights + 2 * j, axis->weights + (size_t)output * (size_t)axis->taps + t, 4);
            }
            memcpy(at + 16, weights, 16);
            at += 32;
        }
    }
}

int32_t pf_axis_make(pf_axis *axis, const pf_axis_spec *spec) {
    const double scale = (spec->end - spec->begin) / spec->count;
    if (scale > PF_MAX_SHRINK)
        return PF_UNSUPPORTED;
    const int pixels = spec->kernel == PF_LINEAR     ? 2
                       : spec->kernel == PF_TRIANGLE ? 2 * (int)ceil(scale) + 1
                                                     : (int)ceil(scale) + 1;
    int taps = pixels;
    if (spec->expand > 1 && spec->kernel != PF_LINEAR)
        taps = (pixels + spec->expand - 2) / spec->expand + 1 + (spec->is_fancy ? 2 : 0);
    axis->count = spec->count;
    axis->taps = (taps + 1) & ~1;
    const size_t count = (size_t)spec->count;
    const size_t entries = count * (size_t)axis->taps;
    const size_t groups = (count + GROUP - 1) / GROUP;
    const size_t vector_bytes = groups * (size_t)axis->taps * 16;
    uint8_t *memory =
        pf_reserve(&axis->memory, vector_bytes + entries * 2 + (count + groups) * 4 + 16);
    if (memory == NULL)
        return PF_NO_MEMORY;
    axis->vectors = memory;
    axis->bases = (int32_t *)(void *)(memory + vector_bytes);
    axis->start = axis->bases + groups;
    axis->weights = (int16_t *)(void *)(axis->start + count);
    taps_t found;
    for (int i = 0; i < spec->count; i++) {
        find_taps(&found, spec, scale, i);
        store(axis, spec->mirrored ? spec->count - 1 - i : i, &found, spec->samples);
    }
    make_vectors(axis);
    return PF_OK;
}
