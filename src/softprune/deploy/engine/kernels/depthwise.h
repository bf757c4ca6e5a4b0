// Depthwise convolution, straight from the image: pixels are the lanes, and masks of lanes stand in for zeros around it.
//
// Each channel is done alone, plane after plane, so memory is read and written in order. Only the nonzeros of its
// kernel are walked. Lane l of a vector belongs to column c + l of the output, which reads column step * (c + l) + x.
#pragma once
#include "abi.h"
#include "simd.h"

namespace {

constexpr int kDepthwiseVectors = 8;

// The pixels of one tap for one vector; lanes outside of the image are zero.
template <int Step>
SPX_INLINE Vec pixels(const float* in, unsigned mask) {
  if (Step == 1) return load_lanes(in, mask);
  const unsigned low = mask & ((1u << kWidth) - 1);
  return even_lanes(load_lanes(in, low), load_lanes(in + kWidth, mask >> kWidth));
}

// R vectors of one output channel.
template <int R, int Step, bool Flat>
SPX_INLINE void depthwise_vectors(const spx::Depthwise& op, const spx::Tile& tile, int channel) {
  const spx::Span* spans = op.spans + tile.vector;
  const float* in = op.in + channel / op.multiplier * op.in_plane;
  Vec sums[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) sums[r] = splat(op.bias[channel]);
  const spx::Nonzero *nonzero = op.stream + op.start[channel], *end = op.stream + op.start[channel + 1];
  for (; nonzero < end; nonzero++) {
    const Vec weight = splat(nonzero->value);
    const uint32_t* masks = op.masks + (int64_t)nonzero->offset * op.vector_count + tile.vector;
    const float* x = in + op.reach[nonzero->offset] + (Flat ? tile.position : 0);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
      sums[r] = fma(weight, pixels<Step>(x + (Flat ? r * kWidth : spans[r].in), masks[r]), sums[r]);
  }
  const Vec low = splat(op.low), high = splat(op.high);
  float* out = op.out + channel * op.out_plane;
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
    const Vec v = clamp(low, high, sums[r]);
    if (Flat) store(out + tile.position + r * kWidth, v);
    else store_lanes(out + spans[r].out, spans[r].mask, v);
  }
}

template <int Step, bool Flat>
void depthwise_planes(const spx::Depthwise& op, const spx::Share& share) {
  int first_tile = share.first, last_tile = share.last < 0 ? op.tile_count : share.last;
  int first = 0, last = op.channels;
  if (op.by_channel) {
    first = (int)cut(op.channels, share.part, share.parts);
    last = (int)cut(op.channels, share.part + 1, share.parts);
  } else {
    const int tiles = last_tile - first_tile;
    last_tile = first_tile + (int)cut(tiles, share.part + 1, share.parts);
    first_tile += (int)cut(tiles, share.part, share.parts);
  }
  for (int channel = first; channel < last; channel++)
    for (int t = first_tile; t < last_tile; t++) {
      const spx::Tile& tile = op.tiles[t];
      switch (tile.count) {
#define CASE(R) \
  case R: depthwise_vectors<R, Step, Flat>(op, tile, channel); break;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7)
#undef CASE
        default: depthwise_vectors<kDepthwiseVectors, Step, Flat>(op, tile, channel);
      }
    }
}

void run_depthwise(const void* record, const spx::Share& share) {
  const auto& op = *static_cast<const spx::Depthwise*>(record);
  if (op.flat) depthwise_planes<1, true>(op, share);
  else if (op.step == 1) depthwise_planes<1, false>(op, share);
  else depthwise_planes<2, false>(op, share);
}

}  // namespace
