#include "index.h"

#include <string.h>

#include "packer_fast.h"

#define HEADER_BYTES 24
#define INDEX_VERSION 1
#define DC_BITS 12
/* Decoding on for this many MCUs to compare the state costs less than what it makes sure of. */
#define COMPARE_WITHIN 4
#define FIRST_BYTES 64

static uint32_t read_u16(const uint8_t *at) {
    return (uint32_t)(at[0] | at[1] << 8);
}

static uint32_t read_u32(const uint8_t *at) {
    return read_u16(at) | read_u16(at + 2) << 16;
}

static void write_u16(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static void write_u32(uint8_t *at, uint32_t value) {
    write_u16(at, value);
    write_u16(at + 2, value >> 16);
}

/* Every step is invertible, so any change within one word changes the result. */
static uint32_t checksum(const uint8_t *bytes, size_t size) {
    uint64_t sum = 0x9E3779B97F4A7C15U ^ size;
    while (size != 0) {
        uint64_t word = 0;
        const size_t part = size < 8 ? size : 8;
        for (size_t i = 0; i < part; i++)
            word |= (uint64_t)bytes[i] << (8 * i);
        sum = (sum ^ word) * 0xD6E8FEB86659FD93U;
        sum ^= sum >> 32;
        bytes += part;
        size -= part;
    }
    return (uint32_t)(sum ^ sum >> 29);
}

static uint32_t entry_bytes(const pf_scan *scan) {
    return 4 + (3 + DC_BITS * (uint32_t)scan->components + 7) / 8;
}

static uint32_t entries_per_row(const pf_scan *scan, uint32_t interval) {
    return (scan->mcus_per_row + interval - 1) / interval;
}

static uint32_t jpeg_bytes(const pf_scan *scan) {
    return (uint32_t)(scan->bits.end - scan->jpeg);
}

static uint32_t fingerprint(const pf_scan *scan) {
    const uint32_t size = jpeg_bytes(scan) - scan->data_start;
    return checksum(scan->jpeg + scan->data_start, size < FIRST_BYTES ? size : FIRST_BYTES);
}

uint64_t pf_index_size(const pf_scan *scan, uint32_t interval) {
    if (scan->mcus_per_row > UINT16_MAX || scan->mcu_rows > UINT16_MAX || interval > UINT16_MAX)
        return 0;
    const uint64_t entries = (uint64_t)entries_per_row(scan, interval) * scan->mcu_rows + 1;
    return HEADER_BYTES + entries * entry_bytes(scan);
}

int32_t pf_index_open(pf_index *index, const uint8_t *bytes, uint64_t size, const pf_scan *scan) {
    if (size < HEADER_BYTES || memcmp(bytes, "PJI", 3) != 0 || bytes[3] != INDEX_VERSION)
        return PF_WRONG_INDEX;
    const uint32_t interval = read_u16(bytes + 16);
    if (interval == 0 || size != pf_index_size(scan, interval) ||
        read_u32(bytes + 8) != jpeg_bytes(scan) || read_u32(bytes + 12) != fingerprint(scan) ||
        read_u16(bytes + 18) != scan->mcus_per_row || read_u16(bytes + 20) != scan->mcu_rows ||
        read_u16(bytes + 22) != (uint32_t)scan->components ||
        read_u32(bytes + 4) != checksum(bytes + 8, (size_t)size - 8))
        return PF_WRONG_INDEX;
    index->entries = bytes + HEADER_BYTES;
    index->interval = interval;
    index->per_row = entries_per_row(scan, interval);
    index->entry_bytes = entry_bytes(scan);
    index->components = scan->components;
    return PF_OK;
}

static pf_state read_entry(const pf_index *index, uint32_t number) {
    const uint8_t *at = index->entries + (size_t)number * index->entry_bytes;
    pf_state state = {read_u32(at), at[4] & 7U, {0}};
    uint64_t packed = 0;
    for (uint32_t i = 4; i < index->entry_bytes; i++)
        packed |= (uint64_t)at[i] << (8 * (i - 4));
    for (int i = 0; i < index->components; i++) {
        const int32_t dc = (int32_t)(packed >> (3 + DC_BITS * i)) & ((1 << DC_BITS) - 1);
        state.dc[i] = dc < 1 << (DC_BITS - 1) ? dc : dc - (1 << DC_BITS);
    }
    return state;
}

static bool write_entry(const pf_scan *scan, uint8_t *out) {
    const pf_state state = pf_scan_state(scan);
    uint64_t packed = state.bit;
    for (int i = 0; i < scan->components; i++) {
        if (state.dc[i] < -(1 << (DC_BITS - 1)) || state.dc[i] >= 1 << (DC_BITS - 1))
            return false; /* no image of 8 bits has it */
        packed |= ((uint64_t)state.dc[i] & ((1 << DC_BITS) - 1)) << (3 + DC_BITS * i);
    }
    write_u32(out, state.offset);
    for (uint32_t i = 4; i < entry_bytes(scan); i++)
        out[i] = (uint8_t)(packed >> (8 * (i - 4)));
    return true;
}

int32_t pf_index_seek(const pf_index *index, pf_scan *scan, uint32_t row, uint32_t mcu) {
    const uint32_t number = row * index->per_row + mcu / index->interval;
    const pf_state state = read_entry(index, number);
    const pf_state next = read_entry(index, number + 1);
    const uint32_t start = row * scan->mcus_per_row + mcu / index->interval * index->interval;
    if (state.offset > next.offset || !pf_scan_seek(scan, start, &state))
        return PF_WRONG_INDEX;
    return pf_scan_skip(scan, mcu % index->interval) ? PF_OK : PF_DAMAGED;
}

int32_t pf_index_compare(const pf_index *index, pf_scan *scan) {
    const uint32_t row = (scan->mcu - 1) / scan->mcus_per_row;
    const uint32_t mcu = scan->mcu - row * scan->mcus_per_row;
    const uint32_t number = (mcu + index->interval - 1) / index->interval;
    const uint32_t at = number == index->per_row ? scan->mcus_per_row : number * index->interval;
    if (at - mcu > COMPARE_WITHIN)
        return PF_OK;
    if (!pf_scan_skip(scan, at - mcu))
        return PF_DAMAGED;
    const pf_state state = pf_scan_state(scan);
    const pf_state expected = read_entry(index, row * index->per_row + number);
    const size_t dc_bytes = sizeof(state.dc[0]) * (size_t)scan->components;
    if (state.offset != expected.offset || state.bit != expected.bit ||
        memcmp(state.dc, expected.dc, dc_bytes) != 0)
        return PF_WRONG_INDEX;
    return PF_OK;
}

int32_t pf_index_write(pf_scan *scan, uint32_t interval, uint8_t *out) {
    const uint64_t size = pf_index_size(scan, interval);
    memcpy(out, "PJI", 3);
    out[3] = INDEX_VERSION;
    write_u32(out + 8, jpeg_bytes(scan));
    write_u32(out + 12, fingerprint(scan));
    write_u16(out + 16, interval);
    write_u16(out + 18, scan->mcus_per_row);
    write_u16(out + 20, scan->mcu_rows);
    write_u16(out + 22, (uint32_t)scan->components);
    uint8_t *entry = out + HEADER_BYTES;
    for (uint32_t row = 0; row < scan->mcu_rows; row++) {
        for (uint32_t mcu = 0; mcu < scan->mcus_per_row; mcu += interval) {
            const uint32_t left = scan->mcus_per_row - mcu;
            if (!write_entry(scan, entry))
                return PF_UNSUPPORTED;
            if (!pf_scan_skip(scan, left < interval ? left : interval))
                return PF_DAMAGED;
            entry += entry_bytes(scan);
        }
    }
    if (!write_entry(scan, entry))
        return PF_UNSUPPORTED;
    write_u32(out + 4, checksum(out + 8, (size_t)size - 8));
    return pf_scan_is_at_end(scan) ? PF_OK : PF_DAMAGED;
}
