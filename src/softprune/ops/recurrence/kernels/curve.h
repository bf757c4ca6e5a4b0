// The non-linearities of a gated recurrence and their slopes, a vector at a time. Not-a-number stays not-a-number.
#pragma once
#include <cstdint>
#include <limits>
#include "simd.h"

namespace {

enum Curve : int32_t { kCurveSigmoid, kCurveTanh, kCurveRelu, kQuantTanh, kQuantSigm, kQuantSigm4, kCurves };

typedef uint32_t Bits __attribute__((vector_size(sizeof(Vec))));

#if defined(SPX_AVX512)
// Fourteen digits and a step of Newton's are faster than a division; the result is within two units of the last place.
SPX_INLINE Vec inverse(Vec x) {
  const Vec rough = _mm512_rcp14_ps(x);
  return fma(rough, splat(1.0f) - x * rough, rough);
}
#else
SPX_INLINE Vec inverse(Vec x) { return splat(1.0f) / x; }
#endif

// exp(x) = scale (1 + rest): x = n ln 2 + r, scale = 2^n, rest = exp(r) - 1 by a polynomial, within 2e-8 of itself.
struct Exponential {
  Vec scale, rest;
};

SPX_INLINE Exponential exponential(Vec x) {
  const Vec magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  const Vec shifted = fma(x, splat(1.44269504f), magic), n = shifted - magic;
  const Vec r = fma(n, splat(2.12194440e-4f), fma(n, splat(-0.693359375f), x));  // the first product is exact
  Vec p = splat(1.393368586e-3f);
  p = fma(p, r, splat(8.369184382e-3f));
  p = fma(p, r, splat(4.166646460e-2f));
  p = fma(p, r, splat(1.666650494e-1f));
  p = fma(p, r, splat(5.000000013e-1f));
  p = fma(p, r, splat(1.0f));
  Bits bits;
  __builtin_memcpy(&bits, &shifted, sizeof bits);
  bits = (bits << 23) + 0x3f800000u;
  Vec scale;
  __builtin_memcpy(&scale, &bits, sizeof scale);
  return {scale, p * r};
}

SPX_INLINE Vec sigmoid(Vec x) {
  const Exponential e = exponential(splat(0.0f) - clamp(splat(-60.0f), splat(60.0f), x));
  return inverse(fma(e.scale, e.rest, e.scale) + splat(1.0f));
}

// (exp(2 x) - 1) / (exp(2 x) + 1); the numerator keeps its digits near zero, where scale is one.
SPX_INLINE Vec tangent(Vec x) {
  const Exponential e = exponential(clamp(splat(-20.0f), splat(20.0f), x + x));
  const Vec less = fma(e.scale, e.rest, e.scale - splat(1.0f));
  return less * inverse(less + splat(2.0f));
}

// `inside` between two corners; at a corner it is zero, as torch has it.
SPX_INLINE Vec between(Vec x, float low, float high, float inside) {
  return (x > splat(low)) & (x < splat(high)) ? splat(inside) : splat(0.0f);
}

template <int C>
SPX_INLINE Vec value(Vec x) {
  const Vec zero = splat(0.0f), one = splat(1.0f);
  switch (C) {
    case kCurveSigmoid: return sigmoid(x);
    case kCurveTanh: return tangent(x);
    case kCurveRelu: return clamp(zero, splat(std::numeric_limits<float>::infinity()), x);
    case kQuantTanh: return clamp(splat(-1.0f), one, x);
    case kQuantSigm: return clamp(zero, one, (x + one) * splat(0.5f));
    default: return clamp(zero, one, (x + splat(2.0f)) * splat(0.25f));
  }
}

// The slope at x, where y is the value there.
template <int C>
SPX_INLINE Vec slope(Vec x, Vec y) {
  switch (C) {
    case kCurveSigmoid: return y - y * y;
    case kCurveTanh: return splat(1.0f) - y * y;
    case kCurveRelu: return x > splat(0.0f) ? splat(1.0f) : splat(0.0f);
    case kQuantTanh: return between(x, -1.0f, 1.0f, 1.0f);
    case kQuantSigm: return between(x, -1.0f, 1.0f, 0.5f);
    default: return between(x, -2.0f, 2.0f, 0.25f);
  }
}

}  // namespace
