// Nearest and bilinear resizing with tables of source rows, source columns and weights.
#pragma once
#include "abi.h"
#include "simd.h"

namespace {

void run_resize(const void* record, const spx::Share& share) {
  const auto& op = *static_cast<const spx::Resize*>(record);
  const int64_t planes = (int64_t)op.images * op.channels, step = op.in_stride[3];
  for (int64_t p = cut(planes, share.part, share.parts); p < cut(planes, share.part + 1, share.parts); p++) {
    const int64_t n = p / op.channels, c = p % op.channels;
    const float* in = at(op.in, share) + n * op.in_stride[0] + c * op.in_stride[1];
    float* out = at(op.out, share) + n * op.out_stride[0] + c * op.out_stride[1];
    for (int y = 0; y < op.out_height; y++) {
      const float *upper = in + op.y0[y] * op.in_stride[2], *lower = in + op.y1[y] * op.in_stride[2];
      const float down = op.wy[y];
      for (int x = 0; x < op.out_width; x++) {
        const int64_t left = op.x0[x] * step, right = op.x1[x] * step;
        const float across = op.wx[x];
        float top = upper[left], bottom = lower[left];
        // A weight of zero must not touch its neighbour: it may be infinite. Differences of neighbours may overflow.
        if (across != 0.0f) {
          top = top * (1.0f - across) + upper[right] * across;
          bottom = bottom * (1.0f - across) + lower[right] * across;
        }
        out[y * op.out_stride[2] + x * op.out_stride[3]] = down != 0.0f ? top * (1.0f - down) + bottom * down : top;
      }
    }
  }
}

}  // namespace
