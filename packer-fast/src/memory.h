/* A block of memory that grows and is kept from image to image. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Vector loads may read this far behind the last sample or row. */
#define PF_SLACK 64

typedef struct {
    uint8_t *data;
    size_t capacity;
} pf_memory;

/* Returns `size` bytes and PF_SLACK more, aligned as by malloc, or NULL if there are none. What was
 * in the block before is lost. */
static inline uint8_t *pf_reserve(pf_memory *memory, size_t size) {
    if (memory->data == NULL || size > memory->capacity) {
        free(memory->data);
        memory->capacity = size + size / 4;
        /* zeros: the bytes behind the last sample are read, with a weight of zero */
        memory->data = calloc(1, memory->capacity + PF_SLACK);
    }
    return memory->data;
}
