/* libFuzzer target: (size of the index, region, options) from the first bytes, then the index, then
 * the JPEG.
 *
 * Every input is decoded whole and as a region, with the given index, with its own, and with
 * `verify`; what the index changes must not be the pixels. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "packer_fast.h"

#define HEAD 16
#define MAX_PIXELS (1 << 18)
#define MAX_OUT 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Returns width and height from the first frame header, so that the call does not refuse the size.
 */
static int find_size(const uint8_t *jpeg, size_t size, int32_t *out) {
    for (size_t i = 2; i + 9 < size; i++) {
        if (jpeg[i] == 0xFF && jpeg[i + 1] >= 0xC0 && jpeg[i + 1] <= 0xC2) {
            out[1] = jpeg[i + 5] << 8 | jpeg[i + 6];
            out[0] = jpeg[i + 7] << 8 | jpeg[i + 8];
            return 1;
        }
    }
    return 0;
}

static int32_t decode(const uint8_t *jpeg, size_t size, const int32_t *sides, const int32_t *region,
                      const uint8_t *index, size_t index_bytes, const uint8_t *options,
                      uint8_t *row) {
    const uint64_t jpegs = (uint64_t)(uintptr_t)jpeg, bytes = size;
    const uint64_t indexes = (uint64_t)(uintptr_t)index, indexes_bytes = index_bytes;
    const uint64_t rows = (uint64_t)(uintptr_t)row;
    int32_t error = -1;
    const pf_batch batch = {
        .count = 1,
        .jpegs = &jpegs,
        .jpeg_bytes = &bytes,
        .sizes = sides,
        .regions = region,
        .rows = &rows,
        .flips = options,
        .indexes = &indexes,
        .indexes_bytes = &indexes_bytes,
        .errors = &error,
        .height = options[1],
        .width = options[2],
        .channels = options[3],
        .filter = options[4],
        .verify = options[5],
        .headroom = options[6],
    };
    if (packer_fast_decode_batch(&batch) < 0 || error < 0 || error > 4)
        abort();
    return error;
}

static uint8_t *copy(const uint8_t *data, size_t size) {
    uint8_t *made =
        malloc(size + (size == 0)); /* of the exact size, so that reads behind it are seen */
    if (made == NULL)
        abort();
    memcpy(made, data, size);
    return made;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    int32_t sides[2];
    if (size < HEAD)
        return 0;
    size_t index_bytes = (size_t)(data[0] | (data[1] & 7) << 8);
    if (index_bytes > size - HEAD)
        index_bytes = 0;
    const size_t jpeg_bytes = size - HEAD - index_bytes;
    uint8_t *index = copy(data + HEAD, index_bytes);
    uint8_t *jpeg = copy(data + HEAD + index_bytes, jpeg_bytes);
    if (find_size(jpeg, jpeg_bytes, sides) && sides[0] > 0 && sides[1] > 0 &&
        (int64_t)sides[0] * sides[1] <= MAX_PIXELS) {
        const int32_t x = (data[2] | data[3] << 8) % sides[0],
                      y = (data[4] | data[5] << 8) % sides[1];
        const int32_t region[4] = {x, y, 1 + data[6] * (sides[0] - x - 1) / 255,
                                   1 + data[7] * (sides[1] - y - 1) / 255};
        uint8_t options[7] = {data[8] & 1,
                              (uint8_t)(1 + data[9] % MAX_OUT),
                              (uint8_t)(1 + data[10] % MAX_OUT),
                              data[8] & 2 ? 3 : 1,
                              data[11] % 3,
                              0,
                              data[12] % 3};
        const size_t row_bytes = (size_t)options[1] * options[2] * options[3];
        uint8_t *rows[4];
        for (int i = 0; i < 4; i++)
            rows[i] = malloc(row_bytes);
        const int32_t plain = decode(jpeg, jpeg_bytes, sides, region, NULL, 0, options, rows[0]);
        if (index_bytes != 0)
            decode(jpeg, jpeg_bytes, sides, region, index, index_bytes, options, rows[1]);
        options[5] = 1;
        const int32_t strict = decode(jpeg, jpeg_bytes, sides, region, NULL, 0, options, rows[1]);
        if (strict == PF_OK && (plain != PF_OK || memcmp(rows[0], rows[1], row_bytes) != 0))
            abort();
        options[5] = 0;
        uint8_t own[4096];
        int32_t error;
        const int64_t made =
            packer_fast_make_index(jpeg, jpeg_bytes, data[13], own, sizeof(own), &error);
        if (error == PF_OK && made <= (int64_t)sizeof(own)) {
            const int32_t by_index =
                decode(jpeg, jpeg_bytes, sides, region, own, (size_t)made, options, rows[2]);
            if (by_index != plain || (plain == PF_OK && memcmp(rows[0], rows[2], row_bytes) != 0))
                abort();
            /* one changed bit is always seen, if the index is used at all */
            own[(size_t)data[14] * (size_t)made / 256] ^= (uint8_t)(1 << (data[15] & 7));
            const int32_t changed =
                decode(jpeg, jpeg_bytes, sides, region, own, (size_t)made, options, rows[3]);
            const int whole = region[2] == sides[0] && region[3] == sides[1] &&
                              options[2] == sides[0] && options[1] == sides[1];
            if (plain == PF_OK && !whole && changed != PF_WRONG_INDEX)
                abort();
        }
        for (int i = 0; i < 4; i++)
            free(rows[i]);
        if ((int64_t)sides[0] * sides[1] <= 128 * 128 && sides[0] <= 255 && sides[1] <= 255) {
            const int32_t all[4] = {0, 0, sides[0], sides[1]};
            options[1] = (uint8_t)sides[1];
            options[2] = (uint8_t)sides[0];
            uint8_t *row = malloc((size_t)sides[0] * (size_t)sides[1] * options[3]);
            decode(jpeg, jpeg_bytes, sides, all, NULL, 0, options, row);
            free(row);
        }
    }
    free(index);
    free(jpeg);
    return 0;
}
