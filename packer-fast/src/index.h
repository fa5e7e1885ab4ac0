/* The index of a JPEG: states of the entropy decoder, so that decoding can start inside the data.
 *
 * A header (pf_index_header), the entries row by row, and one for the end of the data. An entry has
 * 9 bytes (for 1 component: 6): the offset of the byte with the next bit (4 bytes), then from the
 * lowest bit the number of bits of that byte already read (3 bits) and the last DC of each
 * component (12 bits each).
 *
 * What is caught: any change of the index (its checksum), the index of another JPEG (size,
 * geometry, first bytes), states outside the data, and, where an entry is near the end of a row's
 * part, any state that does not lead to that entry exactly. What is not: a forged index with a
 * right checksum whose entries are far apart. It gives wrong pixels, but reads nothing outside the
 * JPEG. */
#pragma once

#include "entropy.h"

/* Written as it is in memory: little-endian. A big-endian system takes such an index for a wrong
 * one. */
typedef struct {
    uint32_t magic;    /* "PJI" and the version */
    uint32_t checksum; /* of all that follows, entries included */
    uint32_t jpeg_bytes;
    uint32_t first_bytes; /* checksum of the first bytes of the entropy-coded data */
    uint16_t interval;    /* MCUs between two entries of a row */
    uint16_t mcus_per_row;
    uint16_t mcu_rows;
    uint16_t components;
} pf_index_header;

typedef struct {
    const uint8_t *entries;
    uint32_t interval;
    uint32_t per_row;
} pf_index;

/* Checks an index against a scan that has just been started. */
void pf_index_open(pf_index *index, const uint8_t *bytes, uint64_t size, const pf_scan *scan);

/* Continues at column `mcu` of a row. */
void pf_index_seek(const pf_index *index, pf_scan *scan, uint32_t row, uint32_t mcu);

/* Compares the state with the next entry, if it is near. */
void pf_index_compare(const pf_index *index, pf_scan *scan);

/* Decodes a scan that has just been started and writes its index, if `capacity` is enough. Returns its size. */
uint64_t pf_index_write(pf_scan *scan, uint32_t interval, uint8_t *out, uint64_t capacity);
