/* libjpeg-turbo with its private structs, which are those of one exact version. */
#pragma once

#include <stddef.h>
#include <stdio.h>

#define JPEG_INTERNALS
#include "jinclude.h"

#include "jpeglib.h"

#include "jerror.h"

#include "jconfigint.h"

#if LIBJPEG_TURBO_VERSION_NUMBER != 3002000
#error "the private structs of libjpeg-turbo are known for version 3.2.0 only"
#endif
