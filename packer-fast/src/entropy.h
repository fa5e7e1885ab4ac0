/* Entropy decoding of the only scan of a baseline JPEG, from its start or from any saved state.
 *
 * Why not libjpeg's: its fast path is switched off near the end of the data (all of a 32x32 image) and by restart
 * markers, it makes its tables anew for each image, and it accepts codes that do not exist without a warning. This one
 * is stricter: all that it accepts, libjpeg decodes to the same coefficients without a warning. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "libjpeg.h"

#define PF_LOOKUP_BITS 10
#define PF_MAX_COMPONENTS 3

/* What the next bits are. value != 0: a coefficient after `run` zeros; `bits` include its extra bits. value == 0: only
 * a symbol, `run`, whose extra bits follow. bits == 0: a longer code. */
typedef struct {
    int16_t value;
    uint8_t run;
    uint8_t bits;
} pf_symbol;

typedef struct {
    JHUFF_TBL source; /* libjpeg's, by which a repeated table is recognized */
    bool is_built;
    int32_t code_end[17]; /* by length: one more than the largest code; 0 if there is none */
    int32_t offset[17];   /* by length: index of a code's symbol, less the code */
    pf_symbol lookup[1 << PF_LOOKUP_BITS];
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
    j_decompress_ptr jpeg;
    const uint8_t *data; /* the JPEG */
    uint32_t data_start; /* offset of the entropy-coded data */
    pf_bits bits;
    int32_t dc[PF_MAX_COMPONENTS];
    uint32_t mcu; /* number of the next MCU */
    uint32_t until_restart;
    const pf_table *dc_table[D_MAX_BLOCKS_IN_MCU]; /* of each block of an MCU */
    const pf_table *ac_table[D_MAX_BLOCKS_IN_MCU];
    pf_table tables[2][NUM_HUFF_TBLS]; /* DC and AC; kept from image to image, as those of most encoders are the same */
} pf_scan;

/* Starts at the first MCU, in place of the start_pass of libjpeg's entropy decoder. */
void pf_scan_start(pf_scan *scan, j_decompress_ptr jpeg, const uint8_t *data);

/* Decodes the next MCU into blocks of zeros, or skips it if `blocks` is NULL. */
void pf_scan_decode(pf_scan *scan, JBLOCK *blocks);

void pf_scan_skip(pf_scan *scan, uint32_t count);

/* Decodes what is left, up to the end of the file. */
void pf_scan_finish(pf_scan *scan);

/* Lets libjpeg read on behind the last MCU. */
void pf_scan_return(const pf_scan *scan);

pf_state pf_scan_state(const pf_scan *scan);

/* Continues at an MCU. */
void pf_scan_seek(pf_scan *scan, uint32_t mcu, const pf_state *state);
