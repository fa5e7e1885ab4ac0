#include "resize.h"

#include <math.h>

#include "rows.h"

/* packer.images.opencv.FAST_SHRINK: linear differs little from area up to here. */
#define FAST_SHRINK 1.15

/* One plane on its way to the result. */
typedef struct {
    const pf_plane *plane;
    pf_axis axes[2]; /* across and down */
    int16_t *ring;   /* the last rows that were resampled across: row y is at y & mask */
    size_t stride;
    int mask;
    int made; /* rows up to this one */
    int16_t *result;
} channel_t;

static void make_axes(channel_t *channel, j_decompress_ptr jpeg, const int origin[2], const pf_batch *batch,
                      int64_t i) {
    const int32_t *region = batch->regions + 4 * i;
    const int32_t size[2] = {batch->width, batch->height};
    const double scale = jpeg->scale_num / 8.0;
    const double shrink[2] = {region[2] * scale / size[0], region[3] * scale / size[1]};
    const bool is_mild = batch->filter == PF_FAST && fmax(shrink[0], shrink[1]) <= FAST_SHRINK;
    for (int axis = 0; axis < 2; axis++) {
        const pf_axis_spec spec = {.count = size[axis],
                                   .mirrored = axis == 0 && batch->flips != NULL && batch->flips[i] != 0,
                                   .kernel = shrink[axis] <= 1 || is_mild   ? PF_LINEAR
                                             : batch->filter == PF_BILINEAR ? PF_TRIANGLE
                                                                            : PF_BOX,
                                   .begin = region[axis] * scale - origin[axis],
                                   .end = (region[axis] + region[axis + 2]) * scale - origin[axis],
                                   .expand = channel->plane->expand[axis],
                                   .is_fancy = channel->plane->is_fancy,
                                   .samples = channel->plane->size[axis]};
        pf_axis_make(&channel->axes[axis], jpeg, &spec);
    }
}

static void open_channel(channel_t *channel, j_decompress_ptr jpeg) {
    int size = 2;
    while (size < channel->axes[1].taps)
        size *= 2;
    channel->stride = ((size_t)channel->axes[0].count + PF_ROW_MULTIPLE - 1) / PF_ROW_MULTIPLE * PF_ROW_MULTIPLE;
    channel->mask = size - 1;
    channel->made = -1;
    channel->ring = pf_allocate(jpeg, ((size_t)size + 1) * channel->stride * sizeof(int16_t));
    channel->result = channel->ring + (size_t)size * channel->stride;
}

/* Makes one row of the result, and the rows of the plane it needs that are not there yet. */
static void make_row(channel_t *channel, const pf_rows *rows, int row) {
    const pf_plane *plane = channel->plane;
    const pf_axis *down = &channel->axes[1];
    const int16_t *needed[PF_MAX_TAPS];
    for (int t = 0; t < down->taps; t++) {
        const int y = down->start[row] + t;
        int16_t *at = channel->ring + (size_t)(y & channel->mask) * channel->stride;
        needed[t] = at;
        if (y > channel->made) {
            /* behind the last row the weights are zero, but the values are read */
            const int line = y < plane->size[1] ? y : plane->size[1] - 1;
            rows->across(at, plane->samples + (size_t)line * plane->stride, &channel->axes[0]);
            channel->made = y;
        }
    }
    rows->down(channel->result, needed, down->weights + row * down->taps, down->taps, channel->axes[0].count);
}

void pf_resize(j_decompress_ptr jpeg, const pf_planes *planes, const pf_batch *batch, int64_t i) {
    const pf_rows *rows = pf_rows_best();
    const pf_plane *chroma = &planes->planes[planes->count - 1];
    channel_t channels[PF_MAX_COMPONENTS];
    const int16_t *results[PF_MAX_COMPONENTS];
    for (int c = 0; c < planes->count; c++) {
        const pf_plane *plane = &planes->planes[c];
        if (c == 1 && (plane->expand[0] != chroma->expand[0] || plane->expand[1] != chroma->expand[1]))
            pf_fail(jpeg, PF_UNSUPPORTED);
        if (c == 2)
            channels[c] = channels[1];
        channels[c].plane = plane;
        if (c < 2)
            make_axes(&channels[c], jpeg, planes->origin, batch, i);
        open_channel(&channels[c], jpeg);
    }
    for (int c = 0; c < PF_MAX_COMPONENTS; c++)
        results[c] = channels[c < planes->count ? c : 0].result; /* gray to RGB: three times the same */
    uint8_t *out = (uint8_t *)(uintptr_t)batch->rows[i];
    for (int row = 0; row < batch->height; row++) {
        for (int c = 0; c < planes->count; c++)
            make_row(&channels[c], rows, row);
        if (jpeg->jpeg_color_space == JCS_YCbCr && batch->channels == 3)
            rows->to_rgb(out, results, batch->width);
        else
            pf_pack(out, results, batch->channels, batch->width);
        out += (size_t)batch->width * (size_t)batch->channels;
    }
}
