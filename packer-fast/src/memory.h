/* A block of memory that grows and is kept from image to image. */
#ifndef PF_MEMORY_H
#define PF_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Vector loads may read this far behind the last sample or row. */
#define PF_SLACK 64

typedef struct {
    uint8_t *data;
    size_t capacity;
} pf_memory;

/* Returns `size` bytes and PF_SLACK more, aligned as by malloc; NULL if there is no memory. What was in
 * the block before is lost. */
uint8_t *pf_reserve(pf_memory *memory, size_t size);

void pf_release(pf_memory *memory);

#endif
