/* A region of planes, resized to a row of a batch. */
#pragma once

#include "packer_fast.h"
#include "planes.h"

/* Writes the row of image `i` of a batch; `jpeg` is at the scale of the planes. */
void pf_resize(j_decompress_ptr jpeg, const pf_planes *planes, const pf_batch *batch, int64_t i);
