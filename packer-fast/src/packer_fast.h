/* The interface of the shared library: one call for batches, and the call that makes an index. */
#ifndef PACKER_FAST_H
#define PACKER_FAST_H

#include <stdint.h>

#define PF_API __attribute__((visibility("default")))

/* Raised with every change of these functions or structs; the Python package refuses another one. */
#define PF_ABI 2
#define PF_VERSION "0.2.0"

/* What became of an image. Only PF_OK leaves the whole row written; otherwise its content is undefined. */
enum {
    PF_OK = 0,
    PF_DAMAGED = 1,     /* libjpeg raises an error or a warning, or the data is not valid */
    PF_UNSUPPORTED = 2, /* another decoder may read it: CMYK, 12 bits, another size, ... */
    PF_WRONG_INDEX = 3, /* the index is damaged, or that of another JPEG */
    PF_NO_MEMORY = 4,
};

/* What an axis that shrinks does; one that grows is interpolated linearly. */
enum {
    PF_AREA = 0,     /* each output pixel is the mean of the area it covers */
    PF_BILINEAR = 1, /* a triangle twice as wide, as Pillow has it */
    PF_FAST = 2,     /* linear if both axes shrink by at most 1.15, else as PF_AREA */
};

/* Arrays have one element per image, unless they say otherwise. Addresses are uint64_t on all systems. */
typedef struct {
    int64_t count;
    const uint64_t *jpegs;         /* address of each JPEG */
    const uint64_t *jpeg_bytes;    /* its size */
    const int32_t *sizes;          /* (count, 2): width and height that the JPEG must have */
    const int32_t *regions;        /* (count, 4): x, y, width, height, inside the image */
    const uint64_t *rows;          /* address of each result, uint8 (height, width, channels) */
    const uint8_t *flips;          /* 1: mirror left and right. NULL: none is */
    const uint64_t *indexes;       /* address of each index, or 0. NULL: none has one */
    const uint64_t *indexes_bytes; /* its size */
    int32_t *errors;               /* written: PF_OK or another code of each image */
    int32_t height;                /* of the results */
    int32_t width;
    int32_t channels; /* 1 (gray) or 3 (RGB) */
    int32_t filter;   /* PF_AREA, PF_BILINEAR or PF_FAST */
    int32_t verify;   /* 1: also find damage outside the region; indexes are then not used */
    int32_t headroom; /* decode at 1/2, 1/4 or 1/8 if that is this many times the result; 0: never */
} pf_batch;

/* Decodes regions of each JPEG, `count` of them: that of crops[c] into its row. Each JPEG is decoded once, as small as
 * all of its regions allow. Crops have JPEGs, their sizes and indexes, channels, verify and headroom in common, and
 * errors are written to the first: an image that has one has no row. Uses no global state: call it from any number of
 * threads. Returns the number of images whose error is not PF_OK, or -1 if a crop is not valid. */
PF_API int64_t packer_fast_decode_crops(const pf_batch *crops, int64_t count);

/* Makes the index of a JPEG, with an entry every `interval` MCUs of a row (0: at the start of each row). Returns the
 * size of the index, and writes it if `capacity` is enough; 0 with *error if the JPEG is damaged or cannot have one. */
PF_API int64_t packer_fast_make_index(const uint8_t *jpeg, uint64_t jpeg_bytes, int32_t interval, uint8_t *index,
                                      uint64_t capacity, int32_t *error);

PF_API int32_t packer_fast_abi(void);

/* Versions of this library and of libjpeg-turbo, and the instruction set in use. */
PF_API const char *packer_fast_version(void);

#endif
