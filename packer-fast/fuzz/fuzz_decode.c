/* libFuzzer target: (size of the index, region, options) from the first bytes, then the index, then the JPEG.
 *
 * By one of the options, an input is decoded whole; or as a region and once more: with the given index, with its own,
 * with its own of which a bit is changed, or with `verify`. Neither an index nor `verify` may change the pixels. Then it
 * is one of two crops. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "packer_fast.h"

#define HEAD 16
#define MAX_PIXELS (1 << 18)
#define MAX_OUT 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A good JPEG of 8x8 pixels, with tables of its own. */
static const uint8_t other[] = {
    0xFF, 0xD8, 0xFF, 0xDB, 0x00, 0x43, 0x00, 0x10, 0x0B, 0x0C, 0x0E, 0x0C, 0x0A, 0x10, 0x0E, 0x0D, 0x0E, 0x12, 0x11,
    0x10, 0x13, 0x18, 0x28, 0x1A, 0x18, 0x16, 0x16, 0x18, 0x31, 0x23, 0x25, 0x1D, 0x28, 0x3A, 0x33, 0x3D, 0x3C, 0x39,
    0x33, 0x38, 0x37, 0x40, 0x48, 0x5C, 0x4E, 0x40, 0x44, 0x57, 0x45, 0x37, 0x38, 0x50, 0x6D, 0x51, 0x57, 0x5F, 0x62,
    0x67, 0x68, 0x67, 0x3E, 0x4D, 0x71, 0x79, 0x70, 0x64, 0x78, 0x5C, 0x65, 0x67, 0x63, 0xFF, 0xDB, 0x00, 0x43, 0x01,
    0x11, 0x12, 0x12, 0x18, 0x15, 0x18, 0x2F, 0x1A, 0x1A, 0x2F, 0x63, 0x42, 0x38, 0x42, 0x63, 0x63, 0x63, 0x63, 0x63,
    0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63,
    0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63,
    0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0x63, 0xFF, 0xC0, 0x00, 0x11, 0x08, 0x00, 0x08, 0x00, 0x08, 0x03, 0x01, 0x11,
    0x00, 0x02, 0x11, 0x01, 0x03, 0x11, 0x01, 0xFF, 0xC4, 0x00, 0x14, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0xFF, 0xC4, 0x00, 0x18, 0x10, 0x00, 0x02, 0x03, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x05, 0x22, 0x31, 0xFF, 0xC4,
    0x00, 0x15, 0x01, 0x01, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x02, 0x04, 0xFF, 0xC4, 0x00, 0x18, 0x11, 0x00, 0x03, 0x01, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x05, 0x31, 0x21, 0xFF, 0xDA, 0x00, 0x0C, 0x03, 0x01, 0x00, 0x02, 0x11, 0x03,
    0x11, 0x00, 0x3F, 0x00, 0x32, 0x70, 0xF9, 0x52, 0xB7, 0x69, 0x6F, 0x43, 0x3D, 0xBC, 0x3F, 0xFF, 0xD9};

/* Returns whether there is a frame header, with its width and height, so that the call does not refuse the size. */
static int find_size(const uint8_t *jpeg, size_t size, int32_t *out) {
    for (size_t i = 2; i + 9 < size; i++) {
        if (jpeg[i] == 0xFF && jpeg[i + 1] >= 0xC0 && jpeg[i + 1] <= 0xC2) {
            out[1] = jpeg[i + 5] << 8 | jpeg[i + 6];
            out[0] = jpeg[i + 7] << 8 | jpeg[i + 8];
            return out[0] > 0 && out[1] > 0 && (int64_t)out[0] * out[1] <= MAX_PIXELS;
        }
    }
    return 0;
}

typedef struct {
    const uint8_t *jpeg;
    size_t jpeg_bytes;
    int32_t sides[2];
    int32_t region[4];
    uint8_t flip, height, width, channels, filter, headroom;
    uint8_t *rows[2];
} input_t;

/* Decodes the image twice in a call, with another one between: what is kept from image to image must not be seen. */
static int32_t decode(const input_t *input, int which, const uint8_t *index, size_t index_bytes, int verify) {
    const size_t row_bytes = (size_t)input->height * input->width * input->channels;
    uint8_t *again = malloc(row_bytes);
    const uint64_t image = (uint64_t)(uintptr_t)input->jpeg, its_index = (uint64_t)(uintptr_t)index;
    const uint64_t jpegs[] = {image, (uint64_t)(uintptr_t)other, image};
    const uint64_t jpeg_bytes[] = {input->jpeg_bytes, sizeof(other), input->jpeg_bytes};
    const uint64_t rows[] = {(uint64_t)(uintptr_t)input->rows[which], (uint64_t)(uintptr_t)again,
                             (uint64_t)(uintptr_t)again};
    const uint64_t indexes[] = {its_index, 0, its_index}, indexes_bytes[] = {index_bytes, 0, index_bytes};
    const int32_t sizes[] = {input->sides[0], input->sides[1], 8, 8, input->sides[0], input->sides[1]};
    int32_t regions[12] = {[6] = 8, [7] = 8};
    memcpy(regions, input->region, 16);
    memcpy(regions + 8, input->region, 16);
    const uint8_t flips[] = {input->flip, 0, input->flip};
    int32_t errors[] = {-1, -1, -1};
    const pf_batch batch = {
        .count = 3,
        .jpegs = jpegs,
        .jpeg_bytes = jpeg_bytes,
        .sizes = sizes,
        .regions = regions,
        .rows = rows,
        .flips = flips,
        .indexes = indexes,
        .indexes_bytes = indexes_bytes,
        .errors = errors,
        .height = input->height,
        .width = input->width,
        .channels = input->channels,
        .filter = input->filter,
        .verify = verify,
        .headroom = input->headroom,
    };
    if (packer_fast_decode_crops(&batch, 1) < 0 || errors[0] < 0 || errors[0] > 4 || errors[1] != PF_OK)
        abort();
    /* a file without tables of its own is decoded with those of the standard, but not behind another one */
    if (errors[2] != errors[0] && errors[2] != PF_DAMAGED)
        abort();
    if (errors[2] == PF_OK && memcmp(input->rows[which], again, row_bytes) != 0)
        abort();
    free(again);
    return errors[0];
}

static int have_same_rows(const input_t *input) {
    return memcmp(input->rows[0], input->rows[1], (size_t)input->height * input->width * input->channels) == 0;
}

/* `numbers` are the interval, the place of a changed bit and the bit. */
static void check_own_index(const input_t *input, int32_t plain, const uint8_t *numbers, int change) {
    uint8_t own[4096];
    int32_t error;
    const int64_t size = packer_fast_make_index(input->jpeg, input->jpeg_bytes, numbers[0], own, sizeof(own), &error);
    if (error != PF_OK || size > (int64_t)sizeof(own))
        return;
    if (change)
        own[(size_t)numbers[1] * (size_t)size / 256] ^= (uint8_t)(1 << (numbers[2] & 7));
    const int32_t by_index = decode(input, 1, own, (size_t)size, 0);
    const int is_whole = input->region[2] == input->sides[0] && input->region[3] == input->sides[1] &&
                         input->width == input->sides[0] && input->height == input->sides[1];
    if (change && plain == PF_OK && !is_whole && by_index != PF_WRONG_INDEX)
        abort(); /* one changed bit is always seen, if the index is used at all */
    if (!change && (by_index != plain || (plain == PF_OK && !have_same_rows(input))))
        abort();
}

/* Decodes the region and the whole image as two crops of it, the second mirrored. */
static void check_crops(const input_t *input, const uint8_t *index, size_t index_bytes) {
    const size_t row_bytes = (size_t)input->height * input->width * input->channels;
    const uint64_t image = (uint64_t)(uintptr_t)input->jpeg, bytes = input->jpeg_bytes;
    const uint64_t its_index = (uint64_t)(uintptr_t)index, its_bytes = index_bytes;
    const int32_t whole[] = {0, 0, input->sides[0], input->sides[1]};
    const uint8_t flips[] = {0, 1};
    uint8_t *made[] = {malloc(row_bytes), malloc(row_bytes)};
    const uint64_t rows[] = {(uint64_t)(uintptr_t)made[0], (uint64_t)(uintptr_t)made[1]};
    int32_t error = -1;
    pf_batch crops[2];
    for (int c = 0; c < 2; c++) {
        crops[c] = (pf_batch){.count = 1,
                              .jpegs = &image,
                              .jpeg_bytes = &bytes,
                              .sizes = input->sides,
                              .regions = c ? whole : input->region,
                              .rows = rows + c,
                              .flips = flips + c,
                              .indexes = &its_index,
                              .indexes_bytes = &its_bytes,
                              .errors = &error,
                              .height = input->height,
                              .width = input->width,
                              .channels = input->channels,
                              .filter = input->filter,
                              .headroom = input->headroom};
    }
    if (packer_fast_decode_crops(crops, 2) < 0 || error < 0 || error > 4)
        abort();
    free(made[0]);
    free(made[1]);
}

static void check_whole(input_t *input) {
    memcpy(input->region, (int32_t[]){0, 0, input->sides[0], input->sides[1]}, 16);
    input->width = (uint8_t)input->sides[0];
    input->height = (uint8_t)input->sides[1];
    input->rows[0] = malloc((size_t)input->width * input->height * input->channels);
    decode(input, 0, NULL, 0, 0);
    free(input->rows[0]);
}

static void check_region(input_t *input, const uint8_t *data, const uint8_t *index, size_t index_bytes) {
    const int32_t x = (data[2] | data[3] << 8) % input->sides[0], y = (data[4] | data[5] << 8) % input->sides[1];
    const int32_t region[] = {x, y, 1 + data[6] * (input->sides[0] - x - 1) / 255,
                              1 + data[7] * (input->sides[1] - y - 1) / 255};
    memcpy(input->region, region, 16);
    input->height = (uint8_t)(1 + data[9] % MAX_OUT);
    input->width = (uint8_t)(1 + data[10] % MAX_OUT);
    for (int i = 0; i < 2; i++)
        input->rows[i] = malloc((size_t)input->height * input->width * input->channels);
    const int mode = data[12] >> 6;
    const int32_t plain = decode(input, 0, NULL, 0, 0);
    if (mode == 0) {
        if (decode(input, 1, NULL, 0, 1) == PF_OK && (plain != PF_OK || !have_same_rows(input)))
            abort();
    } else if (mode == 1) {
        decode(input, 1, index, index_bytes, 0);
    } else {
        check_own_index(input, plain, data + 13, mode == 3);
    }
    check_crops(input, mode == 1 ? index : NULL, mode == 1 ? index_bytes : 0);
    for (int i = 0; i < 2; i++)
        free(input->rows[i]);
}

/* Returns a copy of the exact size, so that reads behind it are seen. */
static uint8_t *copy(const uint8_t *data, size_t size) {
    uint8_t *made = malloc(size + (size == 0));
    memcpy(made, data, size);
    return made;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < HEAD)
        return 0;
    size_t index_bytes = (size_t)(data[0] | (data[1] & 7) << 8);
    if (index_bytes > size - HEAD)
        index_bytes = 0;
    uint8_t *index = copy(data + HEAD, index_bytes);
    uint8_t *jpeg = copy(data + HEAD + index_bytes, size - HEAD - index_bytes);
    input_t input = {.jpeg = jpeg,
                     .jpeg_bytes = size - HEAD - index_bytes,
                     .flip = data[8] & 1,
                     .channels = data[8] & 2 ? 3 : 1,
                     .filter = data[11] % 3,
                     .headroom = (data[12] & 15) % 3};
    if (find_size(jpeg, input.jpeg_bytes, input.sides)) {
        if ((data[8] & 4) == 0)
            check_region(&input, data, index, index_bytes);
        else if (input.sides[0] <= 128 && input.sides[1] <= 128)
            check_whole(&input);
    }
    free(index);
    free(jpeg);
    return 0;
}
