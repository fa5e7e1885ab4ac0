#include "rows.h"

#define HALF(bits) (1 << ((bits)-1))

static void across(int16_t *out, const uint8_t *samples, const pf_axis *axis) {
    const int shift = PF_WEIGHT_BITS - PF_MIDDLE_BITS;
    const int16_t *weights = axis->weights;
    for (int i = 0; i < axis->count; i++) {
        const uint8_t *from = samples + axis->start[i];
        int sum = HALF(shift);
        for (int t = 0; t < axis->taps; t++)
            sum += from[t] * weights[t];
        out[i] = (int16_t)(sum >> shift);
        weights += axis->taps;
    }
}

static void down(int16_t *out, const int16_t *const *rows, const int16_t *weights, int taps,
                 int count) {
    const int shift = PF_MIDDLE_BITS + PF_WEIGHT_BITS - PF_RESULT_BITS;
    for (int i = 0; i < count; i++) {
        int sum = HALF(shift);
        for (int t = 0; t < taps; t++)
            sum += rows[t][i] * weights[t];
        out[i] = (int16_t)(sum >> shift);
    }
}

static uint8_t to_byte(int value) {
    const int rounded = (value + HALF(PF_RESULT_BITS)) >> PF_RESULT_BITS;
    return (uint8_t)(rounded < 0 ? 0 : rounded > 255 ? 255 : rounded);
}

static void to_rgb(uint8_t *out, const int16_t *const *planes, int count) {
    const int16_t *luma = planes[0];
    const int16_t *blue = planes[1];
    const int16_t *red = planes[2];
    for (int i = 0; i < count; i++) {
        const int y = luma[i];
        const int b = blue[i] - (128 << PF_RESULT_BITS);
        const int r = red[i] - (128 << PF_RESULT_BITS);
        /* the factors of libjpeg, times 1 << 15 */
        out[3 * i] = to_byte(y + ((r * 45941 + HALF(15)) >> 15));
        out[3 * i + 1] = to_byte(y - ((b * 11277 + r * 23401 + HALF(15)) >> 15));
        out[3 * i + 2] = to_byte(y + ((b * 58065 + HALF(15)) >> 15));
    }
}

void pf_pack(uint8_t *out, const int16_t *const *planes, int channels, int count) {
    for (int i = 0; i < count; i++) {
        for (int c = 0; c < channels; c++)
            out[channels * i + c] = to_byte(planes[c][i]);
    }
}

const pf_rows pf_rows_plain = {"plain C", across, down, to_rgb};
