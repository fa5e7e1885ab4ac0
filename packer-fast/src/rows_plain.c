#include "packer_fast.h"
#include "rows.h"

#define BLOCK 64 /* values; compilers make vector code of loops over them */
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

void pf_down(int16_t *out, const int16_t *const *rows, const int16_t *weights, int taps, int count) {
    const int shift = PF_MIDDLE_BITS + PF_WEIGHT_BITS - PF_RESULT_BITS;
    for (int i = 0; i < count; i += BLOCK) {
        const int size = count - i < BLOCK ? count - i : BLOCK;
        int sums[BLOCK] = {0};
        for (int t = 0; t < taps; t++) {
            const int16_t *row = rows[t] + i;
            const int weight = weights[t];
            for (int j = 0; j < size; j++)
                sums[j] += row[j] * weight;
        }
        for (int j = 0; j < size; j++)
            out[i + j] = (int16_t)((sums[j] + HALF(shift)) >> shift);
    }
}

static uint8_t to_byte(int value) {
    const int rounded = (value + HALF(PF_RESULT_BITS)) >> PF_RESULT_BITS;
    return (uint8_t)(rounded < 0 ? 0 : rounded > 255 ? 255 : rounded);
}

static void to_rgb(uint8_t *out, const int16_t *const *planes, int count) {
    for (int i = 0; i < count; i++) {
        const int y = planes[0][i];
        const int b = planes[1][i] - (128 << PF_RESULT_BITS);
        const int r = planes[2][i] - (128 << PF_RESULT_BITS);
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

const pf_rows pf_rows_plain = {PF_VERSION " (libjpeg-turbo 3.2.0, plain C)", across, pf_down, to_rgb};
