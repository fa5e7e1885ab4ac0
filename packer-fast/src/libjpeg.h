/* libjpeg-turbo with its private structs, which are those of one exact version. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define JPEG_INTERNALS
#include "jinclude.h"

#include "jpeglib.h"

#include "jerror.h"

#include "jconfigint.h"

#if LIBJPEG_TURBO_VERSION_NUMBER != 3002000
#error "the private structs of libjpeg-turbo are known for version 3.2.0 only"
#endif

/* Vector loads may read this far behind the last sample or row. */
#define PF_SLACK 64

/* Ends the decoding of an image with a code of packer_fast.h, as libjpeg's own errors do. */
_Noreturn void pf_fail(j_decompress_ptr jpeg, int32_t error);

/* Returns `size` bytes and PF_SLACK more, until the image is done. */
void *pf_allocate(j_decompress_ptr jpeg, size_t size);
