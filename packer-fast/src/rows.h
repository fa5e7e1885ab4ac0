/* The inner loops over one row: resampling along it and across rows, and color conversion. */
#pragma once

#include <stdint.h>

#include "axis.h"

/* Rows of int16_t may be written, and read, up to the next multiple of this many values. */
#define PF_ROW_MULTIPLE 16
/* Fraction bits of values between the two resampling steps, and after them. */
#define PF_MIDDLE_BITS 7
#define PF_RESULT_BITS 6

typedef struct {
    const char *version; /* of the library, and the instructions that these use */
    /* Resamples a row of 8-bit samples; the result has PF_MIDDLE_BITS. */
    void (*across)(int16_t *out, const uint8_t *samples, const pf_axis *axis);
    /* Adds rows (of PF_MIDDLE_BITS) by their weights; the result has PF_RESULT_BITS. */
    void (*down)(int16_t *out, const int16_t *const *rows, const int16_t *weights, int taps, int count);
    /* Converts full-range BT.601 YCbCr (JFIF) to `count` RGB pixels. */
    void (*to_rgb)(uint8_t *out, const int16_t *const *planes, int count);
} pf_rows;

extern const pf_rows pf_rows_plain;
void pf_down(int16_t *out, const int16_t *const *rows, const int16_t *weights, int taps, int count);

/* Interleaves `count` pixels of one or three planes as they are. */
void pf_pack(uint8_t *out, const int16_t *const *planes, int channels, int count);

/* Returns the fastest that this processor can run. */
const pf_rows *pf_rows_best(void);
