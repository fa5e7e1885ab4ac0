#include "memory.h"

#include <stdlib.h>

uint8_t *pf_reserve(pf_memory *memory, size_t size) {
    if (size > SIZE_MAX / 2)
        return NULL;
    if (memory->data == NULL || size > memory->capacity) {
        free(memory->data);
        memory->capacity = size + size / 4;
        /* zeros: the bytes behind the last sample are read (and not used) */
        memory->data = calloc(1, memory->capacity + PF_SLACK);
    }
    return memory->data;
}

void pf_release(pf_memory *memory) {
    free(memory->data);
    memory->data = NULL;
}
