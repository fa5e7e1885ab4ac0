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
    for (size_t at = 0; at < size; at += 8) {
        uint64_t word = 0;
        for (size_t i = 0; i < 8 && at + i < size; i++)
            word |= (uint64_t)bytes[at + i] << (8 * i);
        sum = (sum ^ word) * 0xD6E8FEB86659FD93U;
        sum ^= sum >> 32;
    }
    return (uint32_t)(sum ^ sum >> 29);
}

static uint32_t entry_bytes(const pf_scan *scan) {
    return 4 + (3 + DC_BITS * (uint32_t)scan->jpeg->comps_in_scan + 7) / 8;
}

/* The header that an index of this scan has, but for its checksum. */
static pf_index_header make_header(const pf_scan *scan, uint32_t interval) {
    const uint8_t *data = scan->data + scan->data_start;
    const uint8_t *end = scan->bits.end;
    const uint32_t first = checksum(data, end - data < FIRST_BYTES ? (size_t)(end - data) : FIRST_BYTES);
    const j_decompress_ptr jpeg = scan->jpeg;
    return (pf_index_header){MAGIC,
                             0,
                             (uint32_t)(end - scan->data),
                             first,
                             (uint16_t)interval,
                             (uint16_t)jpeg->MCUs_per_row,
                             (uint16_t)jpeg->MCU_rows_in_scan,
                             (uint16_t)jpeg->comps_in_scan};
}

static uint64_t index_bytes(const pf_scan *scan, uint32_t interval) {
    const uint64_t per_row = (scan->jpeg->MCUs_per_row + interval - 1) / interval;
    return sizeof(pf_index_header) + (per_row * scan->jpeg->MCU_rows_in_scan + 1) * entry_bytes(scan);
}

void pf_index_open(pf_index *index, const uint8_t *bytes, uint64_t size, const pf_scan *scan) {
    pf_index_header header = {0};
    if (size >= sizeof(header))
        memcpy(&header, bytes, sizeof(header));
    if (header.interval == 0 || size != index_bytes(scan, header.interval))
        pf_fail(scan->jpeg, PF_WRONG_INDEX);
    pf_index_header expected = make_header(scan, header.interval);
    expected.checksum = checksum(bytes + 8, (size_t)size - 8);
    if (memcmp(&header, &expected, sizeof(header)) != 0)
        pf_fail(scan->jpeg, PF_WRONG_INDEX);
    *index = (pf_index){bytes + sizeof(header), header.interval,
                        (scan->jpeg->MCUs_per_row + header.interval - 1) / header.interval};
}

static pf_state read_entry(const pf_index *index, const pf_scan *scan, uint32_t number) {
    const uint8_t *at = index->entries + (size_t)number * entry_bytes(scan);
    pf_state state = {0, at[4] & 7U, {0}};
    uint64_t packed = 0;
    memcpy(&state.offset, at, 4);
    memcpy(&packed, at + 4, entry_bytes(scan) - 4);
    for (int i = 0; i < scan->jpeg->comps_in_scan; i++) {
        const int32_t dc = (int32_t)(packed >> (3 + DC_BITS * i) & DC_MASK);
        state.dc[i] = dc < 1 << (DC_BITS - 1) ? dc : dc - (1 << DC_BITS);
    }
    return state;
}

static void write_entry(const pf_scan *scan, uint8_t *out) {
    const pf_state state = pf_scan_state(scan);
    uint64_t packed = state.bit;
    for (int i = 0; i < scan->jpeg->comps_in_scan; i++) {
        if (state.dc[i] < -(1 << (DC_BITS - 1)) || state.dc[i] >= 1 << (DC_BITS - 1))
            pf_fail(scan->jpeg, PF_UNSUPPORTED); /* no image of 8 bits has it */
        packed |= (uint64_t)((uint32_t)state.dc[i] & DC_MASK) << (3 + DC_BITS * i);
    }
    memcpy(out, &state.offset, 4);
    memcpy(out + 4, &packed, entry_bytes(scan) - 4);
}

void pf_index_seek(const pf_index *index, pf_scan *scan, uint32_t row, uint32_t mcu) {
    const uint32_t number = row * index->per_row + mcu / index->interval;
    const pf_state state = read_entry(index, scan, number);
    pf_scan_seek(scan, row * scan->jpeg->MCUs_per_row + mcu / index->interval * index->interval, &state);
    pf_scan_skip(scan, mcu % index->interval);
}

void pf_index_compare(const pf_index *index, pf_scan *scan) {
    const uint32_t row = (scan->mcu - 1) / scan->jpeg->MCUs_per_row;
    const uint32_t mcu = scan->mcu - row * scan->jpeg->MCUs_per_row;
    const uint32_t number = (mcu + index->interval - 1) / index->interval;
    const uint32_t at = number == index->per_row ? scan->jpeg->MCUs_per_row : number * index->interval;
    if (at - mcu > COMPARE_WITHIN)
        return;
    pf_scan_skip(scan, at - mcu);
    const pf_state state = pf_scan_state(scan);
    const pf_state expected = read_entry(index, scan, row * index->per_row + number);
    if (memcmp(&state, &expected, sizeof(state)) != 0)
        pf_fail(scan->jpeg, PF_WRONG_INDEX);
}

uint64_t pf_index_write(pf_scan *scan, uint32_t interval, uint8_t *out, uint64_t capacity) {
    interval = interval == 0 ? scan->jpeg->MCUs_per_row : interval;
    if (scan->jpeg->MCUs_per_row > UINT16_MAX || scan->jpeg->MCU_rows_in_scan > UINT16_MAX || interval > UINT16_MAX)
        pf_fail(scan->jpeg, PF_UNSUPPORTED);
    const uint64_t size = index_bytes(scan, interval);
    if (size > capacity)
        return size;
    pf_index_header header = make_header(scan, interval);
    uint8_t *entry = out + sizeof(header);
    while (scan->mcu < scan->jpeg->MCUs_per_row * scan->jpeg->MCU_rows_in_scan) {
        const uint32_t left = scan->jpeg->MCUs_per_row - scan->mcu % scan->jpeg->MCUs_per_row;
        write_entry(scan, entry);
        pf_scan_skip(scan, left < interval ? left : interval);
        entry += entry_bytes(scan);
    }
    write_entry(scan, entry);
    memcpy(out, &header, sizeof(header));
    header.checksum = checksum(out + 8, (size_t)size - 8);
    memcpy(out, &header, sizeof(header));
    return size;
}
