// The non-linearities of a gated recurrence and their slopes, over rows of numbers.
#pragma once
#include <cstdint>
#include "activation.h"

namespace {

enum Curve : int32_t { kCurveSigmoid, kCurveTanh, kCurveRelu, kQuantTanh, kQuantSigm, kQuantSigm4 };

template <int C>
SPX_INLINE float value(float x) {
  switch (C) {
    case kCurveSigmoid: return sigmoid(x);
    case kCurveTanh: return tangent(x);
    case kCurveRelu: return x < 0.0f ? 0.0f : x;
    case kQuantTanh: return clip(x, -1.0f, 1.0f);
    case kQuantSigm: return clip((x + 1.0f) * 0.5f, 0.0f, 1.0f);
    default: return clip((x + 2.0f) * 0.25f, 0.0f, 1.0f);
  }
}

// The slope at x, where y is the value there; at a corner it is zero, as torch has it.
template <int C>
SPX_INLINE float slope(float x, float y) {
  switch (C) {
    case kCurveSigmoid: return y * (1.0f - y);
    case kCurveTanh: return 1.0f - y * y;
    case kCurveRelu: return x > 0.0f ? 1.0f : 0.0f;
    case kQuantTanh: return (x > -1.0f) & (x < 1.0f) ? 1.0f : 0.0f;
    case kQuantSigm: return (x > -1.0f) & (x < 1.0f) ? 0.5f : 0.0f;
    default: return (x > -2.0f) & (x < 2.0f) ? 0.25f : 0.0f;
  }
}

template <int C>
void value_row(const float* pre, const float* bias, float* out, int64_t count) {
  for (int64_t i = 0; i < count; i++) out[i] = value<C>(pre[i] + bias[i]);
}

template <int C>
void slope_row(const float* pre, const float* bias, const float* value, float* grad, int64_t count) {
  for (int64_t i = 0; i < count; i++) grad[i] *= slope<C>(pre[i] + bias[i], value[i]);
}

using ValueRow = void (*)(const float*, const float*, float*, int64_t);
using SlopeRow = void (*)(const float*, const float*, const float*, float*, int64_t);

constexpr ValueRow kValueRows[] = {value_row<0>, value_row<1>, value_row<2>, value_row<3>, value_row<4>, value_row<5>};
constexpr SlopeRow kSlopeRows[] = {slope_row<0>, slope_row<1>, slope_row<2>, slope_row<3>, slope_row<4>, slope_row<5>};

}  // namespace
