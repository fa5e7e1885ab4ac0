#include "index.h"

#include <string.h>

#include "packer_fast.h"

#define MAGIC 0x01494A50U
#define DC_BITS 12
#define DC_MASK ((1U << DC_BITS) - 1)
/* Decoding on for this many MCUs to compare the state costs less than what it makes sure of. */
#define COMPARE_WITHIN 4
#define FIRST_BYTES 64

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

/* The header that an index of this scan has, but for its checksum. */
static pf_index_header make_header(const pf_scan *scan, uint32_t interval) {
    const uint8_t *data = scan->jpeg + scan->data_start;
    const size_t size = (size_t)(scan->bits.end - data);
    const pf_index_header header = {
        .magic = MAGIC,
        .jpeg_bytes = (uint32_t)(scan->bits.end - scan->jpeg),
        .first_bytes = checksum(data, size < FIRST_BYTES ? size : FIRST_BYTES),
        .interval = (uint16_t)interval,
        .mcus_per_row = (uint16_t)scan->mcus_per_row,
        .mcu_rows = (uint16_t)scan->mcu_rows,
        .components = (uint16_t)scan->components,
    };
    return header;
}

uint64_t pf_index_size(const pf_scan *scan, uint32_t interval) {
    if (scan->mcus_per_row > UINT16_MAX || scan->mcu_rows > UINT16_MAX || interval > UINT16_MAX)
        return 0;
    const uint64_t entries = (uint64_t)entries_per_row(scan, interval) * scan->mcu_rows + 1;
    return sizeof(pf_index_header) + entries * entry_bytes(scan);
}

int32_t pf_index_open(pf_index *index, const uint8_t *bytes, uint64_t size, const pf_scan *scan) {
    pf_index_header header;
    if (size < sizeof(header))
        return PF_WRONG_INDEX;
    memcpy(&header, bytes, sizeof(header));
    if (header.interval == 0 || size != pf_index_size(scan, header.interval))
        return PF_WRONG_INDEX;
    pf_index_header expected = make_header(scan, header.interval);
    expected.checksum = checksum(bytes + 8, (size_t)size - 8);
    if (memcmp(&header, &expected, sizeof(header)) != 0)
        return PF_WRONG_INDEX;
    index->entries = bytes + sizeof(header);
    index->interval = header.interval;
    index->per_row = entries_per_row(scan, header.interval);
    return PF_OK;
}

static pf_state read_entry(const pf_index *index, const pf_scan *scan, uint32_t number) {
    const uint8_t *at = index->entries + (size_t)number * entry_bytes(scan);
    pf_state state = {0, at[4] & 7U, {0}};
    uint64_t packed = 0;
    memcpy(&state.offset, at, 4);
    memcpy(&packed, at + 4, entry_bytes(scan) - 4);
    for (int i = 0; i < scan->components; i++) {
        const int32_t dc = (int32_t)(packed >> (3 + DC_BITS * i) & DC_MASK);
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
        packed |= (uint64_t)((uint32_t)state.dc[i] & DC_MASK) << (3 + DC_BITS * i);
    }
    memcpy(out, &state.offset, 4);
    memcpy(out + 4, &packed, entry_bytes(scan) - 4);
    return true;
}

int32_t pf_index_seek(const pf_index *index, pf_scan *scan, uint32_t row, uint32_t mcu) {
    const uint32_t number = row * index->per_row + mcu / index->interval;
    const pf_state state = read_entry(index, scan, number);
    const pf_state next = read_entry(index, scan, number + 1);
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
    const pf_state expected = read_entry(index, scan, row * index->per_row + number);
    const size_t dc_bytes = sizeof(state.dc[0]) * (size_t)scan->components;
    if (state.offset != expected.offset || state.bit != expected.bit ||
        memcmp(state.dc, expected.dc, dc_bytes) != 0)
        return PF_WRONG_INDEX;
    return PF_OK;
}

int32_t pf_index_write(pf_scan *scan, uint32_t interval, uint8_t *out) {
    pf_index_header header = make_header(scan, interval);
    uint8_t *entry = out + sizeof(header);
    while (scan->mcu < scan->mcus_per_row * scan->mcu_rows) {
        const uint32_t left = scan->mcus_per_row - scan->mcu % scan->mcus_per_row;
        if (!write_entry(scan, entry))
            return PF_UNSUPPORTED;
        if (!pf_scan_skip(scan, left < interval ? left : interval))
            return PF_DAMAGED;
        entry += entry_bytes(scan);
    }
    if (!write_entry(scan, entry))
        return PF_UNSUPPORTED;
    memcpy(out, &header, sizeof(header));
    header.checksum = checksum(out + 8, (size_t)(entry - out) + entry_bytes(scan) - 8);
    memcpy(out, &header, sizeof(header));
    return pf_scan_is_at_end(scan) ? PF_OK : PF_DAMAGED;
}
