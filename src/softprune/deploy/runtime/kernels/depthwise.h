// Depthwise convolution with dense kernels, from planes of any pitch without a halo to planes of any pitch.
#pragma once
#include "abi.h"
#include "simd.h"

namespace {

void depthwise_row(const spx::Depthwise& op, const float* in, const float* weights, float bias, float* out, int y) {
  for (int x = 0; x < op.out_width; x++) out[x] = bias;
  for (int ky = 0; ky < op.kernel_h; ky++) {
    const int iy = y * op.stride_h - op.pad_h + ky * op.dilation_h;
    if (iy < 0 || iy >= op.height) continue;
    for (int kx = 0; kx < op.kernel_w; kx++) {
      const float weight = weights[ky * op.kernel_w + kx];
      const int shift = kx * op.dilation_w - op.pad_w, jump = op.stride_w;
      const int x0 = shift < 0 ? (-shift + jump - 1) / jump : 0;
      int x1 = op.width - 1 - shift < 0 ? 0 : (op.width - 1 - shift) / jump + 1;
      if (x1 > op.out_width) x1 = op.out_width;
      const float* source = in + iy * op.in_pitch + shift;
      if (jump == 1)
        for (int x = x0; x < x1; x++) out[x] += weight * source[x];
      else
        for (int x = x0; x < x1; x++) out[x] += weight * source[(int64_t)x * jump];
    }
  }
  for (int x = 0; x < op.out_width; x++) {
    const float v = out[x] < op.low ? op.low : out[x];
    out[x] = v > op.high ? op.high : v;
  }
}

void run_depthwise(const void* record, const spx::Share& share) {
  const auto& op = *static_cast<const spx::Depthwise*>(record);
  const int64_t planes = (int64_t)op.images * op.channels;
  for (int64_t p = cut(planes, share.part, share.parts); p < cut(planes, share.part + 1, share.parts); p++) {
    const int64_t c = p / op.images, n = p % op.images;
    const float* in = op.in + c * op.in_plane + n * op.in_image;
    float* out = op.out + c * op.out_plane + n * op.out_image;
    const float* weights = op.weights + c * op.kernel_h * op.kernel_w;
    for (int y = 0; y < op.out_height; y++) depthwise_row(op, in, weights, op.bias[c], out + y * op.out_pitch, y);
  }
}

}  // namespace
