// Dense convolution on the same planes: a block of output channels times a few vectors of pixels in registers; every
// tap loads the vectors once and multiplies them by the block's weights.
#pragma once
#include "abi.h"
#include "simd.h"
#include "sparse.h"

namespace {

#if defined(SPX_AVX512)
constexpr int kDenseChannels = 6, kDenseVectors = 4;
#else
constexpr int kDenseChannels = 4, kDenseVectors = 3;
#endif

template <int R>
__attribute__((noinline)) void dense_tile(const spx::Dense& op, const spx::Tile& tile, int first, int last) {
  const char* in = reinterpret_cast<const char*>(op.walk.in + tile.position);
  const int per_group = op.walk.channels / op.groups;
  const int blocks = (per_group + kDenseChannels - 1) / kDenseChannels;
  for (int block = first; block < last; block++) {
    const int group = block / blocks, channel = group * per_group + block % blocks * kDenseChannels;
    const int limit = (group + 1) * per_group;
    const int32_t* taps = op.taps + (int64_t)group * op.tap_count;
    const float* weights = op.weights + (int64_t)block * op.tap_count * kDenseChannels;
    Vec sums[kDenseChannels][R];
#pragma GCC unroll 8
    for (int m = 0; m < kDenseChannels; m++)
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) sums[m][r] = splat(channel + m < limit ? op.walk.bias[channel + m] : 0.0f);
    for (int t = 0; t < op.tap_count; t++, weights += kDenseChannels) {
      const char* x = in + taps[t];
      Vec pixels[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) pixels[r] = load(reinterpret_cast<const float*>(x + 4 * kWidth * r));
#pragma GCC unroll 8
      for (int m = 0; m < kDenseChannels; m++) {
        const Vec weight = splat(weights[m]);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) sums[m][r] = fma(weight, pixels[r], sums[m][r]);
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kDenseChannels; m++)
      if (channel + m < limit) finish<R>(op.walk, tile, channel + m, sums[m]);
  }
}

void run_dense(const void* record, const spx::Share& share) {
  const auto& op = *static_cast<const spx::Dense*>(record);
  const int per_group = op.walk.channels / op.groups;
  const int blocks = (per_group + kDenseChannels - 1) / kDenseChannels * op.groups;
  int first_tile = share.first, last_tile = share.last < 0 ? op.walk.tile_count : share.last;
  int first = 0, last = blocks;
  if (op.walk.by_channel) {
    first = (int)cut(blocks, share.part, share.parts);
    last = (int)cut(blocks, share.part + 1, share.parts);
  } else {
    const int tiles = last_tile - first_tile;
    last_tile = first_tile + (int)cut(tiles, share.part + 1, share.parts);
    first_tile += (int)cut(tiles, share.part, share.parts);
  }
  for (int t = first_tile; t < last_tile; t++) {
    const spx::Tile& tile = op.walk.tiles[t];
    switch (tile.count) {
      case 1: dense_tile<1>(op, tile, first, last); break;
      case 2: dense_tile<2>(op, tile, first, last); break;
      case 3: dense_tile<3>(op, tile, first, last); break;
      default: dense_tile<kDenseVectors>(op, tile, first, last);
    }
  }
}

}  // namespace
