/* Entropy decoding of the only scan of a baseline JPEG: any MCU is decoded or skipped.
 *
 * Why not libjpeg's: it cannot start at a saved state, its fast path accepts codes that do not
 * exist without a warning and is switched off near the end of the data (all of a 32x32 image) and
 * by restart markers. This one is stricter: all that it accepts, libjpeg decodes to the same
 * coefficients without a warning. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "libjpeg.h"

#define PF_LOOKUP_BITS 10
#define PF_MAX_COMPONENTS 3

/* What the next bits are. value != 0: a coefficient after `run` zeros, `bits` include its extra
 * bits. value == 0: only a symbol, `run` (its extra bits follow). bits == 0: a longer code. */
typedef struct {
    int16_t value;
    uint8_t run;
    uint8_t bits;
} pf_symbol;

/* One or two AC coefficients to skip: `bits` in all, `advance` coefficients. bits == 0: look
 * closer. */
typedef struct {
    uint8_t bits;
    uint8_t advance;
} pf_step;

typedef struct {
    uint8_t counts[17]; /* libjpeg's form of the table, by which a repeated one is recognized */
    uint8_t symbols[256];
    bool is_built;
    bool has_steps;
    int32_t code_end[17]; /* by length: one more than the largest code; 0 if there is none */
    int32_t offset[17];   /* by length: index of a code's symbol, less the code */
    pf_symbol lookup[1 << PF_LOOKUP_BITS];
    pf_step steps[1 << PF_LOOKUP_BITS];
} pf_table;

/* The next bits are the highest of `window`. Behind the end of the data they are zeros. */
typedef struct {
    const uint8_t *next;
    const uint8_t *end;
    uint64_t window;
    int count;   /* bits in the window */
    int padding; /* those of them, the last, that are not data; more than `count`: some were read */
} pf_bits;

/* Where decoding can start: before an MCU, and before the restart marker in front of it. */
typedef struct {
    uint32_t offset; /* of the byte with the next bit, in the JPEG */
    uint32_t bit;    /* bits of it that were read: 0 to 7 */
    int32_t dc[PF_MAX_COMPONENTS];
} pf_state;

typedef struct {
    pf_bits bits;
    int32_t dc[PF_MAX_COMPONENTS];
    uint32_t mcu; /* number of the next MCU */
    uint32_t mcus_per_row;
    uint32_t mcu_rows;
    uint32_t restart_interval;
    uint32_t until_restart;
    const uint8_t *jpeg;
    uint32_t data_start; /* offset of the entropy-coded data */
    int components;
    int blocks;                             /* per MCU */
    uint8_t component[D_MAX_BLOCKS_IN_MCU]; /* of each block */
    bool is_needed[D_MAX_BLOCKS_IN_MCU];    /* else only its DC is decoded */
    const pf_table *dc_table[D_MAX_BLOCKS_IN_MCU];
    pf_table *ac_table[D_MAX_BLOCKS_IN_MCU];
} pf_scan;

/* Tables are kept from image to image: those of most encoders are always the same. */
typedef struct {
    pf_table dc[NUM_HUFF_TBLS];
    pf_table ac[NUM_HUFF_TBLS];
} pf_tables;

/* Returns whether `pf_scan_start` knows this kind of scan; call it after jpeg_read_header. */
bool pf_scan_is_known(j_decompress_ptr jpeg);

/* Starts at the first MCU, in place of the entropy decoder's start_pass; `data` is the JPEG.
 * Returns false if the Huffman tables are missing or not valid. */
bool pf_scan_start(pf_scan *scan, pf_tables *tables, j_decompress_ptr jpeg, const uint8_t *data);

/* Decodes the next MCU into blocks of zeros, or skips it if `blocks` is NULL; false if it is
 * damaged. */
bool pf_scan_decode(pf_scan *scan, JBLOCKROW *blocks);

bool pf_scan_skip(pf_scan *scan, uint32_t count);

/* Returns whether the data ends here, as it must after the last MCU. */
bool pf_scan_is_at_end(const pf_scan *scan);

/* First byte that is not part of the data read so far. */
const uint8_t *pf_scan_next_byte(const pf_scan *scan);

pf_state pf_scan_state(const pf_scan *scan);

/* Continues at an MCU; returns false if the state is not inside the data. */
bool pf_scan_seek(pf_scan *scan, uint32_t mcu, const pf_state *state);
