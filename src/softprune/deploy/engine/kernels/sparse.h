// Sparse convolution and the store that dense convolution shares with it.
//
// Pixels are the lanes. For each output channel the nonzeros are a stream of {offset, value}; one nonzero is one
// broadcast and R multiply-adds whose memory operands lie `offset` bytes away from the R output vectors.
#pragma once
#include "abi.h"
#include "simd.h"

namespace {

#if !defined(SPX_AVX512)
void store_pieces(const spx::Piece* piece, int count, const float* lanes, float* out, const float* residual, float low,
                  float high) {
  for (int r = 0; r < count; r++, lanes += kWidth) {
    for (;; piece++) {
      if (piece->mask) {
        const int first = __builtin_ctz(piece->mask), last = first + __builtin_popcount(piece->mask);
        float* to = out + piece->offset;
        if (!residual && last - first == kWidth) store(to, load(lanes));
        else if (!residual)
          for (int i = first; i < last; i++) to[i] = lanes[i];
        else
          for (int i = first; i < last; i++) {
            const float v = lanes[i] + residual[piece->residual + i];
            to[i] = v < low ? low : v > high ? high : v;
          }
      }
      if (!piece->more) break;
    }
    piece++;
  }
}
#endif

// Stores R finished vectors of one output channel.
template <int R>
SPX_INLINE void finish(const spx::Walk& walk, const spx::Tile& tile, int channel, const Vec* sums) {
  const Vec low = splat(walk.low), high = splat(walk.high);
  float* out = walk.out + channel * walk.out_plane;
  const float* residual = walk.residual ? walk.residual + channel * walk.residual_plane : nullptr;
  if (walk.direct) {
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      Vec v = sums[r];
      const int64_t place = tile.position + r * kWidth;
      if (residual) v = add(v, load(residual + place));
      store(out + place, clamp(low, high, v));
    }
    return;
  }
  const spx::Piece* piece = walk.pieces + walk.piece_start[tile.vector];
#if defined(SPX_AVX512)
#pragma GCC unroll 16
  for (int r = 0; r < R; r++) {
    for (;; piece++) {
      Vec v = sums[r];
      if (residual) v = add(v, load_lanes(residual + piece->residual, piece->mask));
      store_lanes(out + piece->offset, piece->mask, clamp(low, high, v));
      if (!piece->more) break;
    }
    piece++;
  }
#else
  // Masked moves are slow on several processors of this class: the lanes of a piece are neighbours, copied as a run.
  float lanes[R * kWidth];
  for (int r = 0; r < R; r++) store(lanes + r * kWidth, residual ? sums[r] : clamp(low, high, sums[r]));
  store_pieces(piece, R, lanes, out, residual, walk.low, walk.high);
#endif
}

#if defined(SPX_AVX512)
alignas(64) const int32_t kShifts[16 * 16] = {
#define ROW(s) s, s + 1, s + 2, s + 3, s + 4, s + 5, s + 6, s + 7, s + 8, s + 9, s + 10, s + 11, s + 12, s + 13, s + 14, s + 15
    ROW(0), ROW(1), ROW(2),  ROW(3),  ROW(4),  ROW(5),  ROW(6),  ROW(7),
    ROW(8), ROW(9), ROW(10), ROW(11), ROW(12), ROW(13), ROW(14), ROW(15)
#undef ROW
};
#endif

// Adds one nonzero to R accumulators.
template <int R, bool Shifted>
SPX_INLINE void accumulate(const char* in, const spx::Nonzero& nonzero, Vec* sums) {
  const Vec weight = splat(nonzero.value);
#if defined(SPX_AVX512)
  if (Shifted) {
    // R + 1 aligned loads and R permutes beat R loads that cross a cache line.
    const char* x = in + (nonzero.offset & ~63);
    const __m512i lanes = _mm512_load_si512(kShifts + (nonzero.offset & 63) / 4 * 16);
    Vec left = load(reinterpret_cast<const float*>(x));
#pragma GCC unroll 16
    for (int r = 0; r < R; r++) {
      const Vec right = load(reinterpret_cast<const float*>(x + 64 * (r + 1)));
      sums[r] = fma(weight, _mm512_permutex2var_ps(left, lanes, right), sums[r]);
      left = right;
    }
    return;
  }
#endif
  const char* x = in + nonzero.offset;
#pragma GCC unroll 16
  for (int r = 0; r < R; r++)
    sums[r] = fma(weight, load(reinterpret_cast<const float*>(x + 4 * kWidth * r)), sums[r]);
}

// One block of input channels for one tile of R vectors and the output channels [first, last), with `Sets` sets of
// accumulators to hide latency. Sums wait in `partial` between blocks.
template <int R, int Sets, bool Shifted>
__attribute__((noinline)) void sparse_tile(const spx::Sparse& op, const spx::Tile& tile, int block, int first, int last,
                                           float* partial) {
  const char* in = reinterpret_cast<const char*>(op.walk.in + tile.position);
  const int32_t* start = op.start + (int64_t)block * op.walk.channels;
  const bool begins = block == 0, ends = block == op.blocks - 1;
  for (int run = first; run < last; run++) {
    const spx::Nonzero *nonzero = op.stream + start[run], *end = op.stream + start[run + 1];
    if (nonzero == end && !begins && !ends) continue;
    const int channel = op.channel[run];
    float* waiting = partial + (int64_t)run * R * kWidth;
    Vec sums[Sets][R];
    if (begins) {
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) sums[0][r] = splat(op.walk.bias[channel]);
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) sums[0][r] = load(waiting + r * kWidth);
    }
#pragma GCC unroll 4
    for (int k = 1; k < Sets; k++)
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) sums[k][r] = splat(0.0f);
    for (; nonzero + Sets <= end; nonzero += Sets) {
#pragma GCC unroll 4
      for (int k = 0; k < Sets; k++) accumulate<R, Shifted>(in, nonzero[k], sums[k]);
    }
    if (Sets > 1)
      for (; nonzero < end; nonzero++) accumulate<R, Shifted>(in, *nonzero, sums[0]);
#pragma GCC unroll 4
    for (int k = 1; k < Sets; k++)
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) sums[0][r] = add(sums[0][r], sums[k][r]);
    if (ends) {
      finish<R>(op.walk, tile, channel, sums[0]);
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < R; r++) store(waiting + r * kWidth, sums[0][r]);
    }
  }
}

using SparseTile = void (*)(const spx::Sparse&, const spx::Tile&, int, int, int, float*);

template <int Sets, bool Shifted>
SparseTile sparse_tile_of(int count) {
  switch (count) {
#define CASE(R) case R: return sparse_tile<R, Sets, Shifted>;
    CASE(1) CASE(2)
  }
  if constexpr (Sets <= 2) switch (count) {
    CASE(3) CASE(4)
  }
  if constexpr (Sets == 1) switch (count) {
    CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
  }
#if defined(SPX_AVX512)
  if constexpr (Sets == 1) switch (count) {
    CASE(13) CASE(14) CASE(15) CASE(16)
  }
#endif
#undef CASE
  return nullptr;
}

SparseTile pick(const spx::Sparse& op, int count) {
#if defined(SPX_AVX512)
  if (op.shifted) {
    if (op.sets == 4) return sparse_tile_of<4, true>(count);
    return op.sets == 2 ? sparse_tile_of<2, true>(count) : sparse_tile_of<1, true>(count);
  }
#endif
  if (op.sets == 4) return sparse_tile_of<4, false>(count);
  return op.sets == 2 ? sparse_tile_of<2, false>(count) : sparse_tile_of<1, false>(count);
}

// First run of a part, when parts share the nonzeros of the first block equally (a run costs a few by itself).
int sparse_cut(const spx::Sparse& op, int part, int parts) {
  const int channels = op.walk.channels;
  if (part == 0) return 0;
  if (part == parts) return channels;
  const int64_t target = (op.start[channels] + 4 * (int64_t)channels) * part / parts;
  int low = 0, high = channels;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (op.start[middle] + 4 * (int64_t)middle < target) low = middle + 1;
    else high = middle;
  }
  return low;
}

void run_sparse(const void* record, const spx::Share& share) {
  const auto& op = *static_cast<const spx::Sparse*>(record);
  int first_tile = share.first, last_tile = share.last < 0 ? op.walk.tile_count : share.last;
  int first = 0, last = op.walk.channels;
  if (op.walk.by_channel) {
    first = sparse_cut(op, share.part, share.parts);
    last = sparse_cut(op, share.part + 1, share.parts);
  } else {
    const int tiles = last_tile - first_tile;
    last_tile = first_tile + (int)cut(tiles, share.part + 1, share.parts);
    first_tile += (int)cut(tiles, share.part, share.parts);
  }
  float* partial = op.scratch + share.part * op.scratch_stride;
  for (int t = first_tile; t < last_tile; t++) {
    const spx::Tile& tile = op.walk.tiles[t];
    const SparseTile kernel = pick(op, tile.count);
    for (int block = 0; block < op.blocks; block++) kernel(op, tile, block, first, last, partial);
  }
}

}  // namespace
