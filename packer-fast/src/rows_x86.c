/* SSSE3 (2006) has the byte shuffles; AVX2 (2013) takes two parts of a row at once. */
#include "packer_fast.h"
#include "rows.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <immintrin.h>
#include <string.h>

#define SSSE3 __attribute__((target("ssse3")))
#define AVX2 __attribute__((target("avx2")))

SSSE3 static __m128i load(const void *at) { return _mm_loadu_si128((const __m128i *)at); }

SSSE3 static void store(void *at, __m128i value) { _mm_storeu_si128((__m128i *)at, value); }

/* Each output of a wide axis by itself: eight of its samples at once. */
SSSE3 static void across_wide(int16_t *out, const uint8_t *samples, const pf_axis *axis) {
    const int shift = PF_WEIGHT_BITS - PF_MIDDLE_BITS;
    const __m128i half = _mm_set1_epi32(1 << (shift - 1));
    const uint8_t *at = axis->vectors;
    for (int i = 0; i < axis->count; i += PF_PART) {
        __m128i sums[PF_PART] = {0};
        for (int t = 0; t < axis->taps; t += 8) {
            for (int j = 0; j < PF_PART; j++, at += 16) {
                const int start = axis->start[i + j < axis->count ? i + j : i];
                const __m128i eight = _mm_loadl_epi64((const __m128i *)(const void *)(samples + start + t));
                const __m128i words = _mm_unpacklo_epi8(eight, _mm_setzero_si128());
                sums[j] = _mm_add_epi32(sums[j], _mm_madd_epi16(words, load(at)));
            }
        }
        __m128i four = _mm_hadd_epi32(_mm_hadd_epi32(sums[0], sums[1]), _mm_hadd_epi32(sums[2], sums[3]));
        four = _mm_srai_epi32(_mm_add_epi32(four, half), shift);
        _mm_storel_epi64((__m128i *)(void *)(out + i), _mm_packs_epi32(four, four));
    }
}

SSSE3 static void across_16(int16_t *out, const uint8_t *samples, const pf_axis *axis) {
    if (axis->is_wide) {
        across_wide(out, samples, axis);
        return;
    }
    const int shift = PF_WEIGHT_BITS - PF_MIDDLE_BITS;
    const __m128i half = _mm_set1_epi32(1 << (shift - 1));
    for (int i = 0; i < axis->count; i += PF_PART) {
        const uint8_t *from = samples + axis->bases[i / PF_PART];
        const uint8_t *at = axis->vectors + i / PF_GROUP * PF_GROUP_BYTES(axis->taps) + i % PF_GROUP * 4;
        const __m128i places = load(at);
        __m128i sums = half;
        for (int t = 0; t < axis->taps; t += 2) {
            at += PF_GROUP * 4;
            const __m128i pairs = _mm_shuffle_epi8(load(from + t), places);
            sums = _mm_add_epi32(sums, _mm_madd_epi16(pairs, load(at)));
        }
        sums = _mm_srai_epi32(sums, shift);
        _mm_storel_epi64((__m128i *)(void *)(out + i), _mm_packs_epi32(sums, sums));
    }
}

AVX2 static __m256i load_32(const void *at) { return _mm256_loadu_si256((const __m256i *)at); }

AVX2 static void across(int16_t *out, const uint8_t *samples, const pf_axis *axis) {
    if (axis->is_wide) {
        across_wide(out, samples, axis);
        return;
    }
    const int shift = PF_WEIGHT_BITS - PF_MIDDLE_BITS;
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    const uint8_t *at = axis->vectors;
    const int32_t *bases = axis->bases;
    for (int i = 0; i < axis->count; i += PF_GROUP, bases += 2) {
        const __m256i places = load_32(at);
        __m256i sums = half;
        at += PF_GROUP * 4;
        for (int t = 0; t < axis->taps; t += 2, at += PF_GROUP * 4) {
            const __m256i low = _mm256_castsi128_si256(load(samples + bases[0] + t));
            const __m256i window = _mm256_inserti128_si256(low, load(samples + bases[1] + t), 1);
            const __m256i pairs = _mm256_shuffle_epi8(window, places);
            sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, load_32(at)));
        }
        sums = _mm256_srai_epi32(sums, shift);
        /* pack works within each half, and doubles it */
        sums = _mm256_permute4x64_epi64(_mm256_packs_epi32(sums, sums), 0x08);
        store(out + i, _mm256_castsi256_si128(sums));
    }
}

AVX2 static void down(int16_t *out, const int16_t *const *rows, const int16_t *weights, int taps, int count) {
    const int shift = PF_MIDDLE_BITS + PF_WEIGHT_BITS - PF_RESULT_BITS;
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    for (int i = 0; i < count; i += 16) {
        __m256i low = half;
        __m256i high = half;
        for (int t = 0; t < taps; t += 2) {
            int two;
            memcpy(&two, weights + t, sizeof(two));
            const __m256i pair = _mm256_set1_epi32(two);
            const __m256i a = load_32(rows[t] + i);
            const __m256i b = load_32(rows[t + 1] + i);
            low = _mm256_add_epi32(low, _mm256_madd_epi16(_mm256_unpacklo_epi16(a, b), pair));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(_mm256_unpackhi_epi16(a, b), pair));
        }
        low = _mm256_srai_epi32(low, shift);
        high = _mm256_srai_epi32(high, shift);
        /* unpack and pack both work within each half, so the order is right again */
        _mm256_storeu_si256((__m256i *)(void *)(out + i), _mm256_packs_epi32(low, high));
    }
}

/* Writes 16 RGB pixels: byte n of the three registers goes to bytes 3 n, 3 n + 1 and 3 n + 2. */
SSSE3 static void store_rgb(uint8_t *out, __m128i red, __m128i green, __m128i blue) {
    static const int8_t places[9][16] = {
        {0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1, 5},
        {-1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1},
        {-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1},
        {-1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10, -1},
        {5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10},
        {-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1},
        {-1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1, -1},
        {-1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1},
        {10, -1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15},
    };
    for (int part = 0; part < 3; part++) {
        const __m128i r = _mm_shuffle_epi8(red, load(places[3 * part]));
        const __m128i g = _mm_shuffle_epi8(green, load(places[3 * part + 1]));
        const __m128i b = _mm_shuffle_epi8(blue, load(places[3 * part + 2]));
        store(out + 16 * part, _mm_or_si128(_mm_or_si128(r, g), b));
    }
}

static int16_t factor(double value) { return (int16_t)(value * 32768 + (value < 0 ? -0.5 : 0.5)); }

/* (a * b) / 32768, rounded; a factor of 1.402 is written as one and 0.402 to fit */
#define MUL(a, b) _mm_mulhrs_epi16(a, b)

SSSE3 static void to_rgb(uint8_t *out, const int16_t *const *planes, int count) {
    const __m128i center = _mm_set1_epi16(128 << PF_RESULT_BITS);
    const __m128i half = _mm_set1_epi16(1 << (PF_RESULT_BITS - 1));
    const __m128i red_r = _mm_set1_epi16(factor(0.402)), blue_b = _mm_set1_epi16(factor(0.772));
    const __m128i green_r = _mm_set1_epi16(factor(-0.714136));
    const __m128i green_b = _mm_set1_epi16(factor(-0.344136));
    for (int i = 0; i < count; i += 16) {
        __m128i rgb[3][2];
        for (int h = 0; h < 2; h++) {
            const int at = i + 8 * h;
            const __m128i y = _mm_add_epi16(load(planes[0] + at), half);
            const __m128i b = _mm_sub_epi16(load(planes[1] + at), center);
            const __m128i r = _mm_sub_epi16(load(planes[2] + at), center);
            rgb[0][h] = _mm_adds_epi16(_mm_adds_epi16(y, r), MUL(r, red_r));
            rgb[1][h] = _mm_adds_epi16(_mm_adds_epi16(y, MUL(b, green_b)), MUL(r, green_r));
            rgb[2][h] = _mm_adds_epi16(_mm_adds_epi16(y, b), MUL(b, blue_b));
        }
        __m128i bytes[3];
        for (int c = 0; c < 3; c++)
            bytes[c] =
                _mm_packus_epi16(_mm_srai_epi16(rgb[c][0], PF_RESULT_BITS), _mm_srai_epi16(rgb[c][1], PF_RESULT_BITS));
        if (i + 16 <= count) {
            store_rgb(out + 3 * i, bytes[0], bytes[1], bytes[2]);
        } else {
            uint8_t last[48]; /* the row ends here; the next bytes are another image's */
            store_rgb(last, bytes[0], bytes[1], bytes[2]);
            memcpy(out + 3 * i, last, (size_t)(3 * (count - i)));
        }
    }
}

const pf_rows *pf_rows_best(void) {
    static const pf_rows best = {PF_VERSION " (libjpeg-turbo 3.2.0, AVX2)", across, down, to_rgb};
    static const pf_rows older = {PF_VERSION " (libjpeg-turbo 3.2.0, SSSE3)", across_16, pf_down, to_rgb};
    if (__builtin_cpu_supports("avx2"))
        return &best;
    return __builtin_cpu_supports("ssse3") ? &older : &pf_rows_plain;
}

#else

const pf_rows *pf_rows_best(void) { return &pf_rows_plain; }

#endif
