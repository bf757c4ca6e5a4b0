// Linear layers for a few rows: inputs are the lanes, one output at a time.
#pragma once
#include "abi.h"
#include "simd.h"

namespace {

SPX_INLINE float dense_dot(const float* weights, const float* in, int n) {
  Vec sums[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  int i = 0;
  for (; i + 4 * kWidth <= n; i += 4 * kWidth)
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) sums[k] = fma(load(weights + i + k * kWidth), load(in + i + k * kWidth), sums[k]);
  for (; i + kWidth <= n; i += kWidth) sums[0] = fma(load(weights + i), load(in + i), sums[0]);
  float total = sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
  for (; i < n; i++) total += weights[i] * in[i];
  return total;
}

SPX_INLINE float index_dot(const float* values, const int32_t* index, const float* in, int n) {
  float sums[4] = {0, 0, 0, 0};
  int i = 0;
  for (; i + 4 <= n; i += 4) {
    asm volatile("" : "+r"(i));  // or the compiler makes gathers of it, which take twice as long
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) sums[k] += values[i + k] * in[index[i + k]];
  }
  for (; i < n; i++) sums[0] += values[i] * in[index[i]];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

#if defined(SPX_AVX512)
// One bit per input: the values of 16 inputs are spread over the lanes. `values` has 16 floats to spare at its end.
SPX_INLINE float mask_dot(const float* values, const uint16_t* masks, const float* in, int n) {
  Vec sums[4] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
  const int whole = n / 16;
  int i = 0;
  for (; i + 4 <= whole; i += 4)
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
      sums[k] = fma(_mm512_maskz_expand_ps(masks[i + k], load(values)), load(in + 16 * (i + k)), sums[k]);
      values += __builtin_popcount(masks[i + k]);
    }
  for (; i < whole; i++) {
    sums[0] = fma(_mm512_maskz_expand_ps(masks[i], load(values)), load(in + 16 * i), sums[0]);
    values += __builtin_popcount(masks[i]);
  }
  if (n % 16) {
    const Vec weights = _mm512_maskz_expand_ps(masks[whole], load(values));
    sums[0] = fma(weights, load_lanes(in + 16 * whole, (1u << n % 16) - 1), sums[0]);
  }
  return sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}
#endif

SPX_INLINE float dot(const spx::Linear& op, const float* in, int output) {
  if (op.kind == 0) return dense_dot(op.values + (int64_t)output * op.inputs, in, op.inputs);
  const int32_t first = op.start[output];
#if defined(SPX_AVX512)
  if (op.kind == 2)
    return mask_dot(op.values + first, op.masks + (int64_t)output * ((op.inputs + 15) / 16), in, op.inputs);
#endif
  return index_dot(op.values + first, op.index + first, in, op.start[output + 1] - first);
}

void run_linear(const void* record, const spx::Share& share) {
  const auto& op = *static_cast<const spx::Linear*>(record);
  const float* in = at(op.in, share);
  float* out = at(op.out, share);
  const bool adds = op.residual.slot >= 0 || op.residual.data;
  const float* residual = adds ? at(op.residual, share) : nullptr;
  const int64_t last = cut(op.outputs, share.part + 1, share.parts);
  for (int64_t o = cut(op.outputs, share.part, share.parts); o < last; o++)
    for (int64_t r = 0; r < op.rows; r++) {
      float v = dot(op, in + r * op.in_row, (int)o) + op.bias[o];
      if (adds) v += residual[r * op.residual_row + o];
      v = v < op.low ? op.low : v;
      out[r * op.out_row + o] = v > op.high ? op.high : v;
    }
}

}  // namespace
