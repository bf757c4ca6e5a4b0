// Activation functions, one lane at a time and free of branches, so that the compiler turns loops over them into
// vectors. Accuracy: a few units in the last place of the result's scale; not-a-number stays not-a-number.
#pragma once
#include <cstdint>
#include "simd.h"

namespace {

enum Activation : int32_t {
  kNone, kRelu, kRelu6, kHardswish, kHardsigmoid, kSilu, kGelu, kGeluTanh, kSigmoid, kTanh,
  kMish, kElu, kSoftplus
};

// The numbers that some activations have: alpha of ELU; beta and threshold of softplus.
struct Numbers {
  float first, second;
};

SPX_INLINE float clip(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}

// exp(x) = 2^n exp(r) with |r| <= ln(2)/2; the series to the sixth power leaves 2e-9 of the second factor.
SPX_INLINE float exponential(float x) {
  x = clip(x, -87.0f, 88.0f);
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const float shifted = x * 1.44269504f + magic;
  const float n = shifted - magic;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  uint32_t bits;
  __builtin_memcpy(&bits, &shifted, 4);
  bits = (bits - 0x4b400000u + 127u) << 23;
  float scale;
  __builtin_memcpy(&scale, &bits, 4);
  return p * scale;
}

SPX_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

SPX_INLINE float tangent(float x) {
  const float square = x * x;
  // Near zero the quotient loses digits, the series does not.
  const float series = x * (1.0f + square * (-1.0f / 3 + square * (2.0f / 15 + square * (-17.0f / 315))));
  const float quotient = 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f);
  return square < 0.04f ? series : quotient;
}

// x times a factor that is zero in the end: exponential() stops at exp(-87), and x may be larger than its inverse.
SPX_INLINE float faded(float x, float factor) { return x * (x < -87.0f ? 0.0f : factor); }

// exp(x) - 1 for x <= 0; the tangent loses no digits near zero.
SPX_INLINE float exponential_less_one(float x) {
  const float t = tangent(0.5f * x);
  return 2.0f * t / (1.0f - t);
}

// log(1 + exp(x)) = max(x, 0) + log(1 + u) with u = exp(-|x|), and log(1 + u) = 2 artanh(s) with s = u / (2 + u) <= 1/3.
SPX_INLINE float softplus(float x) {
  const float u = exponential(x < 0 ? x : -x), s = u / (2.0f + u), square = s * s;
  float p = 1.0f / 15;
  p = p * square + 1.0f / 13;
  p = p * square + 1.0f / 11;
  p = p * square + 1.0f / 9;
  p = p * square + 1.0f / 7;
  p = p * square + 1.0f / 5;
  p = p * square + 1.0f / 3;
  p = p * square + 1.0f;
  return (x < 0 ? 0.0f : x) + 2.0f * s * p;
}

// tanh(log(1 + e)) with e = exp(x) is (e^2 + 2 e) / (e^2 + 2 e + 2), which is 1 from 20 on.
SPX_INLINE float mish_factor(float x) {
  const float e = exponential(x > 20.0f ? 20.0f : x), part = e * (e + 2.0f);
  return part / (part + 2.0f);
}

// The error function after Abramowitz and Stegun, 7.1.26: within 1.5e-7.
SPX_INLINE float error_function(float x) {
  const float z = x < 0 ? -x : x, t = 1.0f / (1.0f + 0.3275911f * z);
  float p = 1.061405429f;
  p = p * t - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  const float value = 1.0f - p * t * exponential(-z * z);
  return x < 0 ? -value : value;
}

template <int A>
SPX_INLINE float activate(float x, Numbers n) {
  switch (A) {
    case kRelu: return x < 0.0f ? 0.0f : x;
    case kRelu6: return clip(x, 0.0f, 6.0f);
    case kHardswish: return x * (clip(x + 3.0f, 0.0f, 6.0f) * (1.0f / 6));  // 6 x may overflow
    case kHardsigmoid: return clip(x + 3.0f, 0.0f, 6.0f) * (1.0f / 6);
    case kSilu: return faded(x, sigmoid(x));
    case kGelu: return 0.5f * x * (1.0f + error_function(0.70710678f * x));
    case kGeluTanh: return 0.5f * x * (1.0f + tangent(0.79788456f * (x + 0.044715f * x * x * x)));
    case kSigmoid: return sigmoid(x);
    case kTanh: return tangent(x);
    case kMish: return faded(x, mish_factor(x));
    case kElu: return x > 0.0f ? x : n.first * exponential_less_one(x);
    case kSoftplus: return x * n.first > n.second ? x : softplus(x * n.first) / n.first;
    default: return x;
  }
}

template <int A>
void activate_row(float* out, int64_t stride, int64_t count, Numbers n) {
  if (stride == 1)
    for (int64_t i = 0; i < count; i++) out[i] = activate<A>(out[i], n);
  else
    for (int64_t i = 0; i < count; i++) out[i * stride] = activate<A>(out[i * stride], n);
}

void activate_row(int activation, float* out, int64_t stride, int64_t count, Numbers n) {
  switch (activation) {
#define CASE(A) case A: return activate_row<A>(out, stride, count, n);
    CASE(kRelu) CASE(kRelu6) CASE(kHardswish) CASE(kHardsigmoid) CASE(kSilu) CASE(kGelu) CASE(kGeluTanh)
    CASE(kSigmoid) CASE(kTanh) CASE(kMish) CASE(kElu) CASE(kSoftplus)
#undef CASE
  }
}

}  // namespace
