// Maximum, average and adaptive average pooling on strided images.
#pragma once
#include "abi.h"
#include "elementwise.h"
#include "simd.h"

namespace {

struct Window {
  int first, last, size;  // taps [first, last) lie inside the image; `size` counts for the average
};

SPX_INLINE Window window(int index, int kernel, int stride, int pad, int dilation, int length, int include_pad) {
  const int start = index * stride - pad;
  int first = start < 0 ? (-start + dilation - 1) / dilation : 0;
  int last = length > start ? (length - start + dilation - 1) / dilation : 0;
  if (last > kernel) last = kernel;
  if (first > last) first = last;
  int size = last - first;
  if (include_pad) {
    // A window that ceil_mode lets stick out behind the padding counts only what lies inside of it.
    const int end = start + kernel < length + pad ? start + kernel : length + pad;
    size = end - start;
  }
  return {first, last, size};
}

SPX_INLINE float larger(float a, float b) { return b > a || b != b ? b : a; }

void pool_row(const spx::Pool& op, const float* in, float* out, int y) {
  const Window rows = window(y, op.kernel_h, op.stride_h, op.pad_h, op.dilation_h, op.height, op.include_pad);
  const float start = op.kind == 0 ? -__builtin_inff() : 0.0f;
  const int64_t step = op.out_stride[3], in_step = op.in_stride[3];
  for (int x = 0; x < op.out_width; x++) out[x * step] = start;
  for (int ky = rows.first; ky < rows.last; ky++) {
    const float* line = in + (int64_t)(y * op.stride_h - op.pad_h + ky * op.dilation_h) * op.in_stride[2];
    for (int kx = 0; kx < op.kernel_w; kx++) {
      const int shift = kx * op.dilation_w - op.pad_w;
      int x0 = shift < 0 ? (-shift + op.stride_w - 1) / op.stride_w : 0;
      int x1 = op.width - 1 - shift < 0 ? 0 : (op.width - 1 - shift) / op.stride_w + 1;
      if (x1 > op.out_width) x1 = op.out_width;
      const float* source = line + shift * in_step;
      const int64_t jump = op.stride_w * in_step;
      if (op.kind == 0 && step == 1)
        for (int x = x0; x < x1; x++) out[x] = larger(out[x], source[x * jump]);
      else if (op.kind == 0)
        for (int x = x0; x < x1; x++) out[x * step] = larger(out[x * step], source[x * jump]);
      else
        for (int x = x0; x < x1; x++) out[x * step] += source[x * jump];
    }
  }
  if (op.kind == 0) return;
  for (int x = 0; x < op.out_width; x++) {
    const Window columns = window(x, op.kernel_w, op.stride_w, op.pad_w, op.dilation_w, op.width, op.include_pad);
    out[x * step] /= (float)(rows.size * columns.size);
  }
}

constexpr int kLine = 2048;

// Combines all lines of a window, then all shifts of the result, then takes every stride-th place: contiguous loops.
template <bool Max>
SPX_INLINE void window_lines(const spx::Pool& op, const float* in, float* line, float* wide, int y, int length) {
  const Window rows = window(y, op.kernel_h, op.stride_h, op.pad_h, op.dilation_h, op.height, 0);
  const float start = Max ? -__builtin_inff() : 0.0f;
  length = (length + kWidth - 1) / kWidth * kWidth;  // whole vectors: what is too much is not taken
  const int reach = length + (op.kernel_w - 1) * op.dilation_w;
  for (int x = 0; x < reach; x++) line[x] = start;
  float* inside = line + op.pad_w;
  const int count = op.width < reach - op.pad_w ? op.width : reach - op.pad_w;
  for (int ky = rows.first; ky < rows.last; ky++) {
    const float* source = in + (int64_t)(y * op.stride_h - op.pad_h + ky * op.dilation_h) * op.in_stride[2];
    for (int x = 0; x < count; x++) inside[x] = Max ? larger(inside[x], source[x]) : inside[x] + source[x];
  }
  for (int x = 0; x < length; x++) wide[x] = line[x];
  for (int kx = 1; kx < op.kernel_w; kx++) {
    const float* shifted = line + kx * op.dilation_w;
    for (int x = 0; x < length; x++) wide[x] = Max ? larger(wide[x], shifted[x]) : wide[x] + shifted[x];
  }
}

// True if it could do the row: columns side by side and short enough for the buffers.
bool pool_lines(const spx::Pool& op, const float* in, float* out, int y) {
  const int64_t length = (int64_t)(op.out_width - 1) * op.stride_w + 1;
  if (op.in_stride[3] != 1 || op.out_stride[3] != 1) return false;
  if (length + (int64_t)(op.kernel_w - 1) * op.dilation_w + op.pad_w > kLine) return false;
  float line[kLine + kWidth], wide[kLine + kWidth];
  if (op.kind == 0) window_lines<true>(op, in, line, wide, y, (int)length);
  else window_lines<false>(op, in, line, wide, y, (int)length);
  if (op.stride_w == 1) memcpy(out, wide, length * sizeof(float));
  else if (op.stride_w == 2) halve(out, wide, op.out_width);
  else
    for (int x = 0; x < op.out_width; x++) out[x] = wide[x * op.stride_w];
  if (op.kind == 0) return true;
  const Window rows = window(y, op.kernel_h, op.stride_h, op.pad_h, op.dilation_h, op.height, op.include_pad);
  for (int x = 0; x < op.out_width; x++) {
    const Window columns = window(x, op.kernel_w, op.stride_w, op.pad_w, op.dilation_w, op.width, op.include_pad);
    out[x] /= (float)(rows.size * columns.size);
  }
  return true;
}

void adaptive_row(const spx::Pool& op, const float* in, float* out, int y) {
  const int64_t y0 = (int64_t)y * op.height / op.out_height;
  const int64_t y1 = ((int64_t)(y + 1) * op.height + op.out_height - 1) / op.out_height;
  for (int64_t x = 0; x < op.out_width; x++) {
    const int64_t x0 = x * op.width / op.out_width, x1 = ((x + 1) * op.width + op.out_width - 1) / op.out_width;
    float total = 0;
    for (int64_t i = y0; i < y1; i++)
      for (int64_t j = x0; j < x1; j++) total += in[i * op.in_stride[2] + j * op.in_stride[3]];
    out[x * op.out_stride[3]] = total / (float)((y1 - y0) * (x1 - x0));
  }
}

void run_pool(const void* record, const spx::Share& share) {
  const auto& op = *static_cast<const spx::Pool*>(record);
  const int64_t planes = (int64_t)op.images * op.channels;
  const float* in = at(op.in, share);
  float* out = at(op.out, share);
  for (int64_t p = cut(planes, share.part, share.parts); p < cut(planes, share.part + 1, share.parts); p++) {
    const int64_t n = p / op.channels, c = p % op.channels;
    const float* source = in + n * op.in_stride[0] + c * op.in_stride[1];
    float* target = out + n * op.out_stride[0] + c * op.out_stride[1];
    for (int y = 0; y < op.out_height; y++) {
      if (op.kind == 2) adaptive_row(op, source, target + y * op.out_stride[2], y);
      else if (!pool_lines(op, source, target + y * op.out_stride[2], y))
        pool_row(op, source, target + y * op.out_stride[2], y);
    }
  }
}

}  // namespace
