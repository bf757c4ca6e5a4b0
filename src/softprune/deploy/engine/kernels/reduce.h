// Operations along some axes: mean, softmax, layer norm. Outer axes are shared by the threads.
#pragma once
#include "abi.h"
#include "activation.h"
#include "simd.h"

namespace {

SPX_INLINE float row_sum(const float* in, int64_t step, int64_t count) {
  if (step != 1) {
    float total = 0;
    for (int64_t i = 0; i < count; i++) total += in[i * step];
    return total;
  }
  Vec sums = splat(0.0f);
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) sums = add(sums, load(in + i));
  float total = sum(sums);
  for (; i < count; i++) total += in[i];
  return total;
}

void mean(const spx::Reduce& op, const float* in, float* out) {
  const int last = op.inner_dims - 1;
  int64_t rows = 1;
  for (int d = 0; d < last; d++) rows *= op.inner[d];
  double total = 0;
  for (int64_t index = 0; index < rows; index++) {
    int64_t rest = index, place = 0;
    for (int d = last - 1; d >= 0; d--) {
      place += rest % op.inner[d] * op.inner_stride[d];
      rest /= op.inner[d];
    }
    total += row_sum(in + place, op.inner_stride[last], op.inner[last]);
  }
  *out = (float)(total / (double)(rows * op.inner[last]));
}

void softmax(const spx::Reduce& op, const float* in, float* out) {
  const int64_t n = op.inner[0], step = op.inner_stride[0], out_step = op.inner_out_stride[0];
  float top = -__builtin_inff();
  for (int64_t i = 0; i < n; i++) top = in[i * step] > top ? in[i * step] : top;
  if (top == -__builtin_inff()) top = 0.0f;
  float total = 0;
  if (step == 1 && out_step == 1) {
    // exponential() stops at exp(-87), which is zero next to the largest term, exp(0); masked places must be zero.
    for (int64_t i = 0; i < n; i++) out[i] = in[i] - top < -87.0f ? 0.0f : exponential(in[i] - top);
    total = row_sum(out, 1, n);
    const float scale = 1.0f / total;
    for (int64_t i = 0; i < n; i++) out[i] *= scale;
    return;
  }
  for (int64_t i = 0; i < n; i++) {
    const float x = in[i * step] - top, e = x < -87.0f ? 0.0f : exponential(x);
    out[i * out_step] = e;
    total += e;
  }
  for (int64_t i = 0; i < n; i++) out[i * out_step] /= total;
}

void layer_norm(const spx::Reduce& op, const float* in, float* out) {
  const int64_t n = op.inner[0];
  const float center = row_sum(in, 1, n) / n;
  Vec squares = splat(0.0f);
  const Vec minus = splat(-center);
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) {
    const Vec d = add(load(in + i), minus);
    squares = fma(d, d, squares);
  }
  float variance = sum(squares);
  for (; i < n; i++) variance += (in[i] - center) * (in[i] - center);
  const float scale = 1.0f / __builtin_sqrtf(variance / n + op.epsilon);
  for (i = 0; i < n; i++) {
    float v = (in[i] - center) * scale;
    if (op.weight) v *= op.weight[i];
    if (op.bias) v += op.bias[i];
    out[i] = v;
  }
}

void run_reduce(const void* record, const spx::Share& share) {
  const auto& op = *static_cast<const spx::Reduce*>(record);
  int64_t rows = 1;
  for (int d = 0; d < op.dims; d++) rows *= op.shape[d];
  const float* in = at(op.in, share);
  float* out = at(op.out, share);
  for (int64_t index = cut(rows, share.part, share.parts); index < cut(rows, share.part + 1, share.parts); index++) {
    int64_t rest = index, source = 0, target = 0;
    for (int d = op.dims - 1; d >= 0; d--) {
      source += rest % op.shape[d] * op.in_stride[d];
      target += rest % op.shape[d] * op.out_stride[d];
      rest /= op.shape[d];
    }
    if (op.kind == 0) mean(op, in + source, out + target);
    else if (op.kind == 1) softmax(op, in + source, out + target);
    else layer_norm(op, in + source, out + target);
  }
}

}  // namespace
