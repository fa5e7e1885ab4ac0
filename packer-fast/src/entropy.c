#include "entropy.h"

#include <string.h>

#define LOOKUP_SIZE (1 << PF_LOOKUP_BITS)
#define BAD_CODE 0xFFFFU
#define MARKER_RST0 0xD0U
#define MARKER_EOI 0xD9U
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* Positions in a block, by their order in the file; a damaged run may lead 16 beyond the end. */
static const uint8_t NATURAL_ORDER[DCTSIZE2 + 16] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33,
    40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36,
    29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54,
    47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63};

/* Returns the value of `size` extra bits: figure F.12 of the standard. */
ALWAYS_INLINE int32_t extend(uint32_t extra, uint32_t size) {
    const int32_t value = (int32_t)extra;
    return value < (1 << (size - 1)) ? value - (1 << size) + 1 : value;
}

static void fill_lookup(pf_table *table, uint32_t code, uint32_t length, uint8_t symbol) {
    const uint32_t size = symbol & 15U;
    const uint32_t rest = PF_LOOKUP_BITS - length;
    pf_symbol *entry = table->lookup + (code << rest);
    for (uint32_t i = 0; i < 1U << rest; i++) {
        const bool fits = size != 0 && size <= rest;
        entry[i].value = fits ? (int16_t)extend(i >> (rest - size), size) : 0;
        entry[i].run = (uint8_t)(fits ? symbol >> 4 : symbol);
        entry[i].bits = (uint8_t)(fits ? length + size : length);
    }
}

/* Returns false if the table is missing or not valid, by the rules of libjpeg's
 * jpeg_make_d_derived_tbl. */
static bool build_table(pf_table *table, const JHUFF_TBL *source, bool is_dc) {
    if (source == NULL)
        return false;
    if (table->is_built && memcmp(table->counts, source->bits, sizeof(table->counts)) == 0 &&
        memcmp(table->symbols, source->huffval, sizeof(table->symbols)) == 0)
        return true;
    table->is_built = table->has_steps = false;
    memcpy(table->counts, source->bits, sizeof(table->counts));
    memcpy(table->symbols, source->huffval, sizeof(table->symbols));
    memset(table->lookup, 0, sizeof(table->lookup));
    uint32_t code = 0;
    uint32_t index = 0;
    for (uint32_t length = 1; length <= 16; length++) {
        table->offset[length] = (int32_t)index - (int32_t)code;
        for (uint32_t i = 0; i < table->counts[length]; i++, code++, index++) {
            if (index > 255 || code >> length != 0 || (is_dc && table->symbols[index] > 15))
                return false;
            if (length <= PF_LOOKUP_BITS)
                fill_lookup(table, code, length, table->symbols[index]);
        }
        table->code_end[length] = table->counts[length] ? (int32_t)code : 0;
        code <<= 1;
    }
    table->is_built = true;
    return true;
}

/* Two coefficients per step, where both fit, make skipping faster than decoding. */
static void build_steps(pf_table *table) {
    for (uint32_t i = 0; i < LOOKUP_SIZE; i++) {
        const pf_symbol first = table->lookup[i];
        pf_step step = {0, 0};
        if (first.value != 0) {
            step.bits = first.bits;
            step.advance = (uint8_t)(first.run + 1);
            const pf_symbol second = table->lookup[(i << first.bits) & (LOOKUP_SIZE - 1)];
            if (second.value != 0 && first.bits + second.bits <= PF_LOOKUP_BITS) {
                step.bits = (uint8_t)(first.bits + second.bits);
                step.advance = (uint8_t)(step.advance + second.run + 1);
            }
        }
        table->steps[i] = step;
    }
    table->has_steps = true;
}

static void fill_slowly(pf_bits *bits) {
    while (bits->count < 56) {
        uint64_t byte = 0;
        if (bits->next < bits->end && *bits->next != 0xFF) {
            byte = *bits->next++;
        } else if (bits->end - bits->next >= 2 && bits->next[1] == 0) {
            byte = 0xFF;
            bits->next += 2;
        } else {
            bits->padding += 8; /* a marker, or the end of the file */
        }
        bits->window |= byte << (56 - bits->count);
        bits->count += 8;
    }
}

/* Makes at least 56 bits available. Whether bits are needed is not asked: such a branch would often
 * be mispredicted. Bits behind `count` may already be set; they are those that come next. */
ALWAYS_INLINE void fill(pf_bits *bits) {
    if (bits->end - bits->next >= 8) {
        uint64_t word = 0;
        for (int i = 0; i < 8; i++)
            word = word << 8 | bits->next[i];
        if (((~word - 0x0101010101010101U) & word & 0x8080808080808080U) == 0) { /* no 0xFF */
            bits->window |= word >> bits->count;
            bits->next += (63 - bits->count) >> 3;
            bits->count |= 56;
            return;
        }
    }
    fill_slowly(bits);
}

ALWAYS_INLINE uint32_t take(pf_bits *bits, uint32_t size) {
    const uint32_t value = (uint32_t)(bits->window >> (64 - size));
    bits->window <<= size;
    bits->count -= (int)size;
    return value;
}

static uint32_t take_long_symbol(pf_bits *bits, const pf_table *table) {
    for (uint32_t length = PF_LOOKUP_BITS + 1; length <= 16; length++) {
        const int32_t code = (int32_t)(bits->window >> (64 - length));
        if (code < table->code_end[length]) {
            take(bits, length);
            return table->symbols[code + table->offset[length]];
        }
    }
    return BAD_CODE;
}

/* Returns a symbol, or BAD_CODE; `entry` is the one at the next bits. */
ALWAYS_INLINE uint32_t take_symbol(pf_bits *bits, const pf_table *table, pf_symbol entry) {
    if (entry.bits == 0)
        return take_long_symbol(bits, table);
    take(bits, entry.bits);
    return entry.run;
}

ALWAYS_INLINE bool decode_dc(pf_bits *bits, const pf_table *table, int32_t *dc) {
    fill(bits);
    const pf_symbol entry = table->lookup[bits->window >> (64 - PF_LOOKUP_BITS)];
    int32_t difference = entry.value;
    if (difference != 0) {
        take(bits, entry.bits);
    } else {
        const uint32_t size = take_symbol(bits, table, entry);
        if (size == BAD_CODE)
            return false;
        if (size != 0)
            difference = extend(take(bits, size), size);
    }
    *dc = (int32_t)((uint32_t)*dc + (uint32_t)difference); /* damaged data may overflow it */
    return true;
}

ALWAYS_INLINE uint32_t next_bits(const pf_bits *bits) {
    return (uint32_t)(bits->window >> (64 - PF_LOOKUP_BITS));
}

/* Decodes the AC coefficients of a block, or only skips them if `block` is NULL (known when
 * compiling). A fill is enough for five lookups; any other symbol may need 31 bits. */
ALWAYS_INLINE bool decode_ac(pf_bits *bits, const pf_table *table, JCOEF *block) {
    uint32_t k = 1;
    while (k < DCTSIZE2) {
        fill(bits);
        for (int i = 0; i < 2 && block == NULL; i++) {
            const pf_step step = table->steps[next_bits(bits)];
            if (step.bits == 0 ||
                k + step.advance > DCTSIZE2) /* the second may be of the next block */
                break;
            take(bits, step.bits);
            k += step.advance;
        }
        pf_symbol entry = table->lookup[next_bits(bits)];
        for (int i = 0; i < 3 && entry.value != 0 && k < DCTSIZE2; i++) {
            take(bits, entry.bits);
            k += entry.run;
            if (block != NULL)
                block[NATURAL_ORDER[k]] = entry.value;
            k++;
            entry = table->lookup[next_bits(bits)];
        }
        if (k >= DCTSIZE2)
            break;
        if (entry.value != 0 || bits->count < 31)
            continue;
        const uint32_t symbol = take_symbol(bits, table, entry);
        if (symbol == BAD_CODE)
            return false;
        const uint32_t size = symbol & 15U;
        if (size == 0 && symbol != 0xF0)
            break;
        k += symbol >> 4;
        if (size != 0) {
            const uint32_t extra = take(bits, size);
            if (block != NULL)
                block[NATURAL_ORDER[k]] = (JCOEF)extend(extra, size);
        }
        k++;
    }
    return k <= DCTSIZE2;
}

/* Reads the restart marker in front of the next MCU. */
static bool restart(pf_scan *scan) {
    pf_bits *bits = &scan->bits;
    const uint32_t number = (scan->mcu / scan->restart_interval - 1) & 7U;
    if (bits->count - bits->padding >= 8)
        return false; /* whole bytes of data are left */
    while (bits->end - bits->next >= 2 && bits->next[0] == 0xFF && bits->next[1] == 0xFF)
        bits->next++;
    if (bits->end - bits->next < 2 || bits->next[0] != 0xFF ||
        bits->next[1] != MARKER_RST0 + number)
        return false;
    bits->next += 2;
    bits->window = 0;
    bits->count = bits->padding = 0;
    memset(scan->dc, 0, sizeof(scan->dc));
    scan->until_restart = scan->restart_interval;
    return true;
}

bool pf_scan_is_known(j_decompress_ptr jpeg) {
    return !jpeg->progressive_mode && !jpeg->arith_code && !jpeg->master->lossless &&
           jpeg->num_components <= PF_MAX_COMPONENTS && jpeg->comps_in_scan == jpeg->num_components;
}

bool pf_scan_start(pf_scan *scan, pf_tables *tables, j_decompress_ptr jpeg, const uint8_t *data) {
    memset(scan, 0, sizeof(*scan));
    scan->jpeg = data;
    scan->bits.next = jpeg->src->next_input_byte;
    scan->bits.end = scan->bits.next + jpeg->src->bytes_in_buffer;
    scan->data_start = (uint32_t)(scan->bits.next - data);
    scan->mcus_per_row = jpeg->MCUs_per_row;
    scan->mcu_rows = jpeg->MCU_rows_in_scan;
    scan->restart_interval = scan->until_restart = jpeg->restart_interval;
    scan->components = jpeg->comps_in_scan;
    scan->blocks = jpeg->blocks_in_MCU;
    for (int i = 0; i < scan->blocks; i++) {
        const int component = jpeg->MCU_membership[i];
        const jpeg_component_info *info = jpeg->cur_comp_info[component];
        const int dc = info->dc_tbl_no;
        const int ac = info->ac_tbl_no;
        if (dc < 0 || dc >= NUM_HUFF_TBLS || ac < 0 || ac >= NUM_HUFF_TBLS ||
            !build_table(&tables->dc[dc], jpeg->dc_huff_tbl_ptrs[dc], true) ||
            !build_table(&tables->ac[ac], jpeg->ac_huff_tbl_ptrs[ac], false))
            return false;
        scan->component[i] = (uint8_t)component;
        scan->is_needed[i] = info->component_needed;
        scan->dc_table[i] = &tables->dc[dc];
        scan->ac_table[i] = &tables->ac[ac];
    }
    return jpeg->Ss == 0 && jpeg->Se == DCTSIZE2 - 1 && jpeg->Ah == 0 && jpeg->Al == 0;
}

static bool begin_mcu(pf_scan *scan) {
    if (scan->restart_interval != 0) {
        if (scan->until_restart == 0 && !restart(scan))
            return false;
        scan->until_restart--;
    }
    scan->mcu++;
    return true;
}

bool pf_scan_decode(pf_scan *scan, JBLOCKROW *blocks) {
    if (!begin_mcu(scan))
        return false;
    pf_bits bits = scan->bits; /* a copy, which the compiler can keep in registers */
    for (int i = 0; i < scan->blocks; i++) {
        int32_t *dc = &scan->dc[scan->component[i]];
        if (!decode_dc(&bits, scan->dc_table[i], dc))
            return false;
        const bool is_needed = blocks != NULL && scan->is_needed[i];
        if (!is_needed && !scan->ac_table[i]->has_steps)
            build_steps(scan->ac_table[i]);
        if (!(is_needed ? decode_ac(&bits, scan->ac_table[i], *blocks[i])
                        : decode_ac(&bits, scan->ac_table[i], NULL)))
            return false;
        if (is_needed)
            (*blocks[i])[0] = (JCOEF)*dc;
    }
    scan->bits = bits;
    return bits.padding <= bits.count;
}

bool pf_scan_skip(pf_scan *scan, uint32_t count) {
    while (count-- != 0) {
        if (!pf_scan_decode(scan, NULL))
            return false;
    }
    return true;
}

pf_state pf_scan_state(const pf_scan *scan) {
    const pf_bits *bits = &scan->bits;
    const int unread = bits->count - bits->padding;
    const uint8_t *at = bits->next;
    for (int i = 0; i < (unread + 7) / 8; i++) {
        at--;
        if (at[0] == 0 && at[-1] == 0xFF) /* a zero behind 0xFF is not data */
            at--;
    }
    pf_state state = {(uint32_t)(at - scan->jpeg), (uint32_t)(-unread & 7), {0}};
    memcpy(state.dc, scan->dc, sizeof(state.dc));
    return state;
}

const uint8_t *pf_scan_next_byte(const pf_scan *scan) {
    const pf_state state = pf_scan_state(scan);
    const uint8_t *at = scan->jpeg + state.offset;
    if (state.bit == 0)
        return at;
    return at + (at[0] == 0xFF ? 2 : 1);
}

bool pf_scan_is_at_end(const pf_scan *scan) {
    const uint8_t *at = pf_scan_next_byte(scan);
    const uint8_t *end = scan->bits.end;
    while (end - at >= 2 && at[0] == 0xFF && at[1] == 0xFF)
        at++;
    return end - at >= 2 && at[0] == 0xFF && at[1] == MARKER_EOI;
}

bool pf_scan_seek(pf_scan *scan, uint32_t mcu, const pf_state *state) {
    const uint8_t *at = scan->jpeg + state->offset;
    if (state->offset < scan->data_start || state->offset > scan->bits.end - scan->jpeg)
        return false;
    scan->mcu = mcu;
    if (scan->restart_interval != 0) {
        const uint32_t since = mcu % scan->restart_interval;
        scan->until_restart = since == 0 && mcu != 0 ? 0 : scan->restart_interval - since;
    }
    memcpy(scan->dc, state->dc, sizeof(scan->dc));
    scan->bits.next = at;
    scan->bits.window = 0;
    scan->bits.count = scan->bits.padding = 0;
    fill_slowly(&scan->bits);
    scan->bits.window <<= state->bit;
    scan->bits.count -= (int)state->bit;
    return scan->bits.padding <= scan->bits.count;
}
