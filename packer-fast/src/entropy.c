#include "entropy.h"

#include <string.h>

#include "packer_fast.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define LONGEST 31 /* bits of a symbol with its extra bits */

/* Returns the value of `size` extra bits: figure F.12 of the standard. */
ALWAYS_INLINE int16_t extend(uint32_t extra, uint32_t size) {
    const int32_t value = (int32_t)extra;
    return (int16_t)(value < 1 << (size - 1) ? value - (1 << size) + 1 : value);
}

/* Writes the entries of lookups that begin with a code. */
static void fill_lookup(pf_table *table, uint32_t code, uint32_t length, uint8_t symbol) {
    const uint32_t size = symbol & 15U;
    const uint32_t rest = PF_LOOKUP_BITS - length;
    for (uint32_t i = 0; i < 1U << rest; i++) {
        pf_symbol *entry = &table->lookup[(code << rest) + i];
        *entry = (pf_symbol){0, symbol, (uint8_t)length};
        if (size != 0 && size <= rest)
            *entry = (pf_symbol){extend(i >> (rest - size), size), symbol >> 4, (uint8_t)(length + size)};
    }
}

/* Returns false if the table is missing or not valid, by the rules of libjpeg's jpeg_make_d_derived_tbl. */
static bool build_table(pf_table *table, const JHUFF_TBL *source, bool is_dc) {
    if (source == NULL || source->bits[0] != 0)
        return false;
    if (table->is_built && memcmp(&table->source, source, offsetof(JHUFF_TBL, sent_table)) == 0)
        return true;
    table->is_built = false;
    table->source = *source;
    memset(table->lookup, 0, sizeof(table->lookup));
    uint32_t code = 0;
    uint32_t index = 0;
    for (uint32_t length = 1; length <= 16; length++, code <<= 1) {
        table->offset[length] = (int32_t)index - (int32_t)code;
        for (uint32_t i = 0; i < source->bits[length]; i++, code++, index++) {
            if (index > 255 || code >> length != 0 || (is_dc && source->huffval[index] > 15))
                return false;
            if (length <= PF_LOOKUP_BITS)
                fill_lookup(table, code, length, source->huffval[index]);
        }
        table->code_end[length] = source->bits[length] ? (int32_t)code : 0;
    }
    return table->is_built = true;
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

/* Makes at least 56 bits available. Whether bits are needed is not asked: such a branch would often be mispredicted.
 * Bits behind `count` may already be set; they are those that come next. */
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

ALWAYS_INLINE pf_symbol look_up(const pf_bits *bits, const pf_table *table) {
    return table->lookup[bits->window >> (64 - PF_LOOKUP_BITS)];
}

/* Takes a symbol by a code that is longer than a lookup; returns -1 if no code begins with these bits. */
static int take_long(pf_bits *bits, const pf_table *table) {
    for (uint32_t length = PF_LOOKUP_BITS + 1; length <= 16; length++) {
        const int32_t code = (int32_t)(bits->window >> (64 - length));
        if (code < table->code_end[length]) {
            take(bits, length);
            return table->source.huffval[code + table->offset[length]];
        }
    }
    return -1;
}

/* Takes the symbol that was looked up, and its extra bits; needs LONGEST bits. */
ALWAYS_INLINE bool take_symbol(pf_bits *bits, const pf_table *table, pf_symbol *symbol) {
    int found = symbol->run;
    if (symbol->bits == 0)
        found = take_long(bits, table);
    else
        take(bits, symbol->bits);
    if (symbol->value != 0 || found < 0)
        return found >= 0;
    const uint32_t size = (uint32_t)found & 15U;
    symbol->run = (uint8_t)(found >> 4);
    if (size != 0)
        symbol->value = extend(take(bits, size), size);
    return true;
}

/* Decodes a block; returns false if it is damaged. */
ALWAYS_INLINE bool decode_block(pf_bits *bits, const pf_table *dc_table, const pf_table *ac_table, int32_t *dc,
                                JCOEF *block) {
    fill(bits);
    pf_symbol symbol = look_up(bits, dc_table);
    if (!take_symbol(bits, dc_table, &symbol))
        return false;
    *dc = (int32_t)((uint32_t)*dc + (uint32_t)symbol.value); /* damaged data may overflow it */
    if (block != NULL)
        block[0] = (JCOEF)*dc;
    uint32_t k = 1;
    while (k < DCTSIZE2) {
        fill(bits);
        symbol = look_up(bits, ac_table);
        for (int i = 0; i < 3 && symbol.value != 0 && k < DCTSIZE2; i++) { /* most symbols are complete */
            take(bits, symbol.bits);
            k += symbol.run;
            if (block != NULL)
                block[jpeg_natural_order[k]] = symbol.value;
            k++;
            symbol = look_up(bits, ac_table);
        }
        if (k >= DCTSIZE2)
            break;
        if (symbol.value != 0 || bits->count < LONGEST)
            continue;
        if (!take_symbol(bits, ac_table, &symbol))
            return false;
        if (symbol.value == 0 && symbol.run != 15)
            break;
        k += symbol.run;
        if (block != NULL)
            block[jpeg_natural_order[k]] = symbol.value;
        k++;
    }
    return k <= DCTSIZE2;
}

/* Reads the restart marker in front of the next MCU; returns false if it is not there. */
static bool restart(pf_scan *scan) {
    pf_bits *bits = &scan->bits;
    const uint32_t number = (scan->mcu / scan->jpeg->restart_interval - 1) & 7U;
    if (bits->count - bits->padding >= 8 || /* whole bytes of data are left */
        bits->end - bits->next < 2 || bits->next[0] != 0xFF || bits->next[1] != JPEG_RST0 + number)
        return false;
    *bits = (pf_bits){.next = bits->next + 2, .end = bits->end};
    memset(scan->dc, 0, sizeof(scan->dc));
    scan->until_restart = scan->jpeg->restart_interval - 1;
    return true;
}

void pf_scan_start(pf_scan *scan, j_decompress_ptr jpeg, const uint8_t *data) {
    scan->jpeg = jpeg;
    scan->data = data;
    scan->data_start = (uint32_t)(jpeg->src->next_input_byte - data);
    scan->bits =
        (pf_bits){.next = jpeg->src->next_input_byte, .end = data + scan->data_start + jpeg->src->bytes_in_buffer};
    memset(scan->dc, 0, sizeof(scan->dc));
    scan->mcu = 0;
    scan->until_restart = jpeg->restart_interval;
    bool is_valid = jpeg->Ss == 0 && jpeg->Se == DCTSIZE2 - 1 && jpeg->Ah == 0 && jpeg->Al == 0;
    for (int i = 0; is_valid && i < jpeg->comps_in_scan; i++) {
        const jpeg_component_info *info = jpeg->cur_comp_info[i];
        const int dc = info->dc_tbl_no;
        const int ac = info->ac_tbl_no;
        is_valid = dc < NUM_HUFF_TBLS && build_table(&scan->tables[0][dc], jpeg->dc_huff_tbl_ptrs[dc], true) &&
                   ac < NUM_HUFF_TBLS && build_table(&scan->tables[1][ac], jpeg->ac_huff_tbl_ptrs[ac], false) &&
                   info->quant_table->quantval[0] != 0;
    }
    if (!is_valid)
        pf_fail(jpeg, PF_DAMAGED);
    for (int i = 0; i < jpeg->blocks_in_MCU; i++) {
        const jpeg_component_info *info = jpeg->cur_comp_info[jpeg->MCU_membership[i]];
        scan->dc_table[i] = &scan->tables[0][info->dc_tbl_no];
        scan->ac_table[i] = &scan->tables[1][info->ac_tbl_no];
    }
}

void pf_scan_decode(pf_scan *scan, JBLOCK *blocks) {
    const j_decompress_ptr jpeg = scan->jpeg;
    bool is_whole = jpeg->restart_interval == 0 || scan->until_restart-- != 0 || restart(scan);
    pf_bits bits = scan->bits; /* a copy, which the compiler can keep in registers */
    for (int i = 0; is_whole && i < jpeg->blocks_in_MCU; i++) {
        int32_t *last = &scan->dc[jpeg->MCU_membership[i]];
        const pf_table *dc = scan->dc_table[i];
        const pf_table *ac = scan->ac_table[i];
        is_whole =
            blocks == NULL ? decode_block(&bits, dc, ac, last, NULL) : decode_block(&bits, dc, ac, last, blocks[i]);
    }
    if (!is_whole || bits.padding > bits.count)
        pf_fail(jpeg, PF_DAMAGED);
    scan->bits = bits;
    scan->mcu++;
}

void pf_scan_skip(pf_scan *scan, uint32_t count) {
    while (count-- != 0)
        pf_scan_decode(scan, NULL);
}

pf_state pf_scan_state(const pf_scan *scan) {
    const int unread = scan->bits.count - scan->bits.padding;
    const uint8_t *at = scan->bits.next;
    for (int i = 0; i < (unread + 7) / 8; i++) {
        at--;
        if (at[0] == 0 && at[-1] == 0xFF) /* a zero behind 0xFF is not data */
            at--;
    }
    pf_state state = {(uint32_t)(at - scan->data), (uint32_t)(-unread & 7), {0}};
    memcpy(state.dc, scan->dc, sizeof(state.dc));
    return state;
}

void pf_scan_return(const pf_scan *scan) {
    if (scan->bits.count - scan->bits.padding >= 8) /* whole bytes of data are left */
        pf_fail(scan->jpeg, PF_DAMAGED);
    scan->jpeg->src->next_input_byte = scan->bits.next;
    scan->jpeg->src->bytes_in_buffer = (size_t)(scan->bits.end - scan->bits.next);
}

void pf_scan_finish(pf_scan *scan) {
    const j_decompress_ptr jpeg = scan->jpeg;
    pf_scan_skip(scan, jpeg->MCUs_per_row * jpeg->MCU_rows_in_scan - scan->mcu);
    pf_scan_return(scan);
    jpeg->inputctl->finish_input_pass(jpeg);
    jpeg->output_scanline = jpeg->output_height; /* else libjpeg takes the image for incomplete */
    jpeg_finish_decompress(jpeg);
}

void pf_scan_seek(pf_scan *scan, uint32_t mcu, const pf_state *state) {
    const uint32_t interval = scan->jpeg->restart_interval;
    if (state->offset < scan->data_start || state->offset > scan->bits.end - scan->data)
        pf_fail(scan->jpeg, PF_WRONG_INDEX);
    scan->mcu = mcu;
    if (interval != 0)
        scan->until_restart = mcu % interval == 0 && mcu != 0 ? 0 : interval - mcu % interval;
    memcpy(scan->dc, state->dc, sizeof(scan->dc));
    scan->bits = (pf_bits){.next = scan->data + state->offset, .end = scan->bits.end};
    fill_slowly(&scan->bits);
    scan->bits.window <<= state->bit;
    scan->bits.count -= (int)state->bit;
}
