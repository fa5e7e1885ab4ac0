#include "axis.h"

#include <math.h>
#include <string.h>

#include "packer_fast.h"

#define ONE (1 << PF_WEIGHT_BITS)

/* Pixels of the image, or samples, from the first one on. */
typedef struct {
    int first;
    int count;
    double weights[PF_MAX_TAPS];
} taps_t;

static double limit(double value, double low, double high) { return value < low ? low : value > high ? high : value; }

static int clamp(int value, int low, int high) { return value < low ? low : value > high ? high : value; }

/* Finds the pixels that make the output pixel at `center`, `scale` times as large as they are. */
static void find_pixels(taps_t *pixels, const pf_axis_spec *spec, double scale, double center) {
    const double first = floor(spec->begin);
    const double end = ceil(spec->end);
    const double reach = spec->kernel == PF_LINEAR ? 1 : spec->kernel == PF_BOX ? scale / 2 : scale;
    const double low = limit(center - reach, first, end);
    const double high = limit(center + reach, first, end);
    double sum = 0;
    pixels->first = (int)low;
    pixels->count = 0;
    for (int pixel = (int)low; pixel < high; pixel++) {
        const double weight = spec->kernel == PF_BOX ? limit(high, pixel, pixel + 1) - limit(low, pixel, pixel + 1)
                                                     : reach - fabs(pixel + 0.5 - center);
        if (weight > 1e-9) {
            pixels->weights[pixels->count++] = weight;
            sum += weight;
        } else if (pixels->count == 0) {
            pixels->first = pixel + 1;
        }
    }
    for (int i = 0; i < pixels->count; i++)
        pixels->weights[i] /= sum;
}

/* Finds the samples from which libjpeg makes these pixels. */
static void find_samples(taps_t *taps, const taps_t *pixels, const pf_axis_spec *spec) {
    const int margin = spec->is_fancy ? 1 : 0;
    taps->first = clamp(pixels->first / spec->expand - margin, 0, spec->samples - 1);
    memset(taps->weights, 0, sizeof(double) * (size_t)(pixels->count + 3));
    for (int i = 0; i < pixels->count; i++) {
        const int pixel = pixels->first + i;
        const int nearest = clamp(pixel / spec->expand, 0, spec->samples - 1);
        const int other = clamp(nearest + (pixel % 2 ? margin : -margin), 0, spec->samples - 1);
        taps->weights[nearest - taps->first] += pixels->weights[i] * 0.75;
        taps->weights[other - taps->first] += pixels->weights[i] * 0.25;
        taps->count = (nearest > other ? nearest : other) + 1 - taps->first;
    }
}

/* Rounds the weights so that they add up to one. */
static void store(pf_axis *axis, int index, const taps_t *taps, int samples) {
    int16_t *weights = axis->weights + (size_t)index * (size_t)axis->taps;
    const int start = clamp(taps->first, 0, samples > axis->taps ? samples - axis->taps : 0);
    int sum = 0;
    int largest = 0;
    axis->start[index] = start;
    memset(weights, 0, sizeof(int16_t) * (size_t)axis->taps);
    for (int i = 0, t = taps->first - start; i < taps->count; i++, t++) {
        weights[t] = (int16_t)(taps->weights[i] * ONE + 0.5);
        sum += weights[t];
        if (weights[t] > weights[largest])
            largest = t;
    }
    weights[largest] = (int16_t)(weights[largest] + ONE - sum);
}

/* For each part: the weights of its outputs, eight of each in turn, zeros behind the last tap. */
static void make_wide(pf_axis *axis) {
    const int steps = PF_WIDE_STEPS(axis->taps);
    const int outputs = (axis->count + PF_PART - 1) / PF_PART * PF_PART;
    axis->is_wide = true;
    memset(axis->vectors, 0, (size_t)(outputs * steps) * 16);
    for (int i = 0; i < axis->count; i++) {
        uint8_t *at = axis->vectors + (i / PF_PART * steps * PF_PART + i % PF_PART) * 16;
        for (int t = 0; t < axis->taps; t += 2)
            memcpy(at + t / 8 * PF_PART * 16 + t % 8 * 2, axis->weights + i * axis->taps + t, 4);
    }
}

/* For each group of outputs: which bytes of the 16 samples from their base on to take for a pair of taps (pshufb), the
 * same for every pair, as the next one has the samples two further; then their weights (pmaddwd), pair after pair. */
static void make_vectors(pf_axis *axis) {
    const int end = axis->count - 1;
    for (int i = 0; i <= end || i % PF_GROUP != 0; i += PF_PART) {
        const int first = axis->start[clamp(i, 0, end)], last = axis->start[clamp(i + PF_PART - 1, 0, end)];
        const int base = last < first ? last : first; /* starts fall if the axis is mirrored */
        uint8_t *at = axis->vectors + i / PF_GROUP * PF_GROUP_BYTES(axis->taps) + i % PF_GROUP * 4;
        axis->bases[i / PF_PART] = base;
        for (int j = i; j < i + PF_PART; j++, at += 4) {
            const int output = clamp(j, 0, end);
            const int offset = axis->start[output] - base;
            if (offset > 14) {
                make_wide(axis);
                return;
            }
            const uint8_t bytes[4] = {(uint8_t)offset, 0x80, (uint8_t)(offset + 1), 0x80};
            memcpy(at, bytes, 4);
            for (int t = 0; t < axis->taps; t += 2)
                memcpy(at + (2 * t + 4) * PF_GROUP, axis->weights + output * axis->taps + t, 4);
        }
    }
}

void pf_axis_make(pf_axis *axis, j_decompress_ptr jpeg, const pf_axis_spec *spec) {
    const double scale = (spec->end - spec->begin) / spec->count;
    if (scale > PF_MAX_SHRINK)
        pf_fail(jpeg, PF_UNSUPPORTED);
    int taps = spec->kernel == PF_LINEAR ? 2 : (spec->kernel == PF_BOX ? 1 : (int)ceil(scale)) + (int)ceil(scale);
    if (spec->expand > 1)
        taps = (taps + spec->expand - 2) / spec->expand + (spec->is_fancy ? 3 : 1);
    const size_t count = (size_t)spec->count;
    const size_t groups = (count + PF_GROUP - 1) / PF_GROUP;
    axis->count = spec->count;
    axis->taps = (taps + 1) & ~1;
    axis->is_wide = false;
    /* room for either: that of all taps, rounded up to what is loaded of a wide axis */
    const size_t bytes = groups * PF_GROUP_BYTES(8 * PF_WIDE_STEPS((size_t)axis->taps));
    const size_t bases = groups * PF_GROUP / PF_PART;
    axis->vectors = pf_allocate(jpeg, bytes + (bases + count) * 4 + count * (size_t)axis->taps * 2);
    axis->bases = (int32_t *)(void *)(axis->vectors + bytes);
    axis->start = axis->bases + bases;
    axis->weights = (int16_t *)(void *)(axis->start + count);
    taps_t pixels, samples;
    for (int i = 0; i < spec->count; i++) {
        find_pixels(&pixels, spec, scale, spec->begin + (i + 0.5) * scale);
        if (spec->expand > 1)
            find_samples(&samples, &pixels, spec);
        store(axis, spec->mirrored ? spec->count - 1 - i : i, spec->expand > 1 ? &samples : &pixels, spec->samples);
    }
    make_vectors(axis);
}
