// Integer layers: a stream of quads for each output channel over tiles of pixels (see int8_lanes.h for the arithmetic).
//
// A tile is 64 neighbouring places of the output. Its input is a table of rows, one for each pair of channel and tap:
// read where it lies if it was stored tile by tile (kTiled), copied into scratch once for all output channels
// (kCopied), or read from the planes at any alignment (kDirect), which pays where the copy is not read often enough.
#pragma once
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "abi.h"
#include "int8_lanes.h"

namespace {

constexpr int kPerTile = 64 / kLanes;  // vectors of a tile

SPX_INLINE const uint8_t* vector_of(const uint8_t* base, int64_t tile_stride, int vector) {
  return base + vector / kPerTile * tile_stride + vector % kPerTile * kLanes;
}

template <int R, class Q>
SPX_INLINE void add_quad(Sums (&sums)[R], const uint8_t* const* x, const Q& q) {
  const auto w = splat_weights(q.weights);
  const int64_t i = q.offset[0], j = q.offset[1], k = q.offset[2], m = q.offset[3];
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
    quad(sums[r], load_bytes(x[r] + i), load_bytes(x[r] + j), load_bytes(x[r] + k), load_bytes(x[r] + m), w);
}

// The quads of one run on R vectors; with two sets of sums where one would wait for itself.
template <int R, class Q>
SPX_INLINE void add_run(Sums (&sums)[R], const uint8_t* const* x, const Q* q, const Q* end) {
  if (R == 1) {
    Sums more[R];
    for (int r = 0; r < R; r++) set(more[r], 0);
    for (; q + 2 <= end; q += 2) add_quad<R>(sums, x, q[0]), add_quad<R>(more, x, q[1]);
    if (q < end) add_quad<R>(sums, x, *q);
    for (int r = 0; r < R; r++) add_sums(sums[r], more[r]);
  } else {
    for (; q < end; q++) add_quad<R>(sums, x, *q);
  }
}

// The lanes that are pixels, one run of neighbours after the other, into a float value.
SPX_INLINE void store_runs(const spx::Conv8& op, const Sums& sums, const spx::Channel8& row, int vector) {
  float lanes[kLanes];
  store_floats(sums, row.factor, lanes);
  float* out = op.real + row.channel * op.real_channel;
  for (int i = op.run_start[vector / kPerTile]; i < op.run_start[vector / kPerTile + 1]; i++) {
    const spx::Run8& run = op.runs[i];
    const int begin = vector % kPerTile * kLanes;
    const int first = run.lane > begin ? run.lane : begin;
    const int last = run.lane + run.count < begin + kLanes ? run.lane + run.count : begin + kLanes;
    if (first < last) std::memcpy(out + run.offset + first - run.lane, lanes + first - begin, 4 * (last - first));
  }
}

template <int R>
SPX_INLINE void store_vectors(const spx::Conv8& op, const Sums (&sums)[R], const spx::Channel8& row, int vector) {
  if (op.real) {
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) store_runs(op, sums[r], row, vector + r);
    return;
  }
  const Store8 to{op.zero, op.low, op.high, op.residual_factor, op.residual_zero};
  const uint8_t* residual = op.residual ? op.residual + row.channel * op.residual_channel : nullptr;
  uint8_t* out = op.out + row.channel * op.out_channel;
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
    store_bytes(sums[r], row.factor, to, residual ? vector_of(residual, op.residual_tile, vector + r) : nullptr,
                op.mask ? op.mask + (vector + r) * kLanes : nullptr,
                const_cast<uint8_t*>(vector_of(out, op.out_tile, vector + r)));
}

template <int R, class Q>
__attribute__((noinline)) void run_block(const spx::Conv8& op, int vector, int block, const spx::Share& share) {
  const uint8_t* x[R];
  const int first = block * op.block, count = op.row_count - first < op.block ? op.row_count - first : op.block;
  for (int r = 0; r < R; r++) {
    const uint8_t* in = vector_of(op.in, op.in_tile, vector + r);
    if (op.taps) {
      uint8_t* to = op.scratch + share.part * op.scratch_stride + (int64_t)r * op.block * kLanes;
      x[r] = to;
      for (int k = 0; k < count; k++) copy_bytes(to + kLanes * k, in + op.taps[first + k]);
    } else {
      x[r] = in + (op.in_row ? (int64_t)first * op.in_row : 0);
    }
  }
  const spx::Channel8* rows = op.rows + (int64_t)block * op.channels;
  const int32_t* start = op.start + (int64_t)block * (op.channels + 1);
  const Q* quads = static_cast<const Q*>(op.quads);
  const bool begins = block == 0, ends = block == op.blocks - 1;
  int32_t* waiting = op.waiting + share.part * op.waiting_stride;
  // A thread has the channels c with c % parts == part, in every block: they lie together.
  int begin = 0, channels = op.channels;
  if (op.by_channel) {
    for (int p = 0; p < share.part; p++) begin += (op.channels - p + share.parts - 1) / share.parts;
    channels = begin + (op.channels - share.part + share.parts - 1) / share.parts;
  }
  for (int k = begin; k < channels; k++) {
    const Q *q = quads + start[k], *end = quads + start[k + 1];
    if (q == end && !begins && !ends) continue;
    Sums sums[R];
    int32_t* wait = waiting + (int64_t)rows[k].channel * R * kLanes;
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      if (begins) set(sums[r], rows[k].bias);
      else load_sums(sums[r], wait + r * kLanes);
    }
    add_run<R>(sums, x, q, end);
    if (ends) {
      store_vectors<R>(op, sums, rows[k], vector);
    } else {
#pragma GCC unroll 4
      for (int r = 0; r < R; r++) store_sums(sums[r], wait + r * kLanes);
    }
  }
}

template <class Q>
void run_vectors(const spx::Conv8& op, int vector, int count, int block, const spx::Share& share) {
  switch (count) {
    case 1: return run_block<1, Q>(op, vector, block, share);
    case 2: return run_block<2, Q>(op, vector, block, share);
    case 3: return run_block<3, Q>(op, vector, block, share);
    default: return run_block<4, Q>(op, vector, block, share);
  }
}

void run_conv8(const void* record, const spx::Share& share) {
  const spx::Conv8& op = *static_cast<const spx::Conv8*>(record);
  const int vectors = op.tiles * kPerTile, groups = (vectors + op.vectors - 1) / op.vectors;
  const int begin = op.by_channel ? 0 : (int)((int64_t)groups * share.part / share.parts);
  const int end = op.by_channel ? groups : (int)((int64_t)groups * (share.part + 1) / share.parts);
  for (int g = begin; g < end; g++) {
    const int first = (int)((int64_t)vectors * g / groups), last = (int)((int64_t)vectors * (g + 1) / groups);
    for (int b = 0; b < op.blocks; b++) {
      if (op.wide) run_vectors<spx::WideQuad>(op, first, last - first, b, share);
      else run_vectors<spx::Quad>(op, first, last - first, b, share);
    }
  }
}

// Each channel by itself: its plane is read in order.
template <int R>
SPX_INLINE void run_channel(const spx::Conv8& op, const spx::Channel8& row, const spx::WideQuad* q,
                            const spx::WideQuad* end, int vector) {
  const uint8_t* x[R];
  for (int r = 0; r < R; r++) x[r] = op.in + (int64_t)(vector + r) * kLanes;
  Sums sums[R];
#pragma GCC unroll 4
  for (int r = 0; r < R; r++) set(sums[r], row.bias);
  for (; q < end; q++) add_quad<R>(sums, x, *q);
  store_vectors<R>(op, sums, row, vector);
}

void run_depthwise8(const void* record, const spx::Share& share) {
  const spx::Conv8& op = *static_cast<const spx::Conv8*>(record);
  const int vectors = op.tiles * kPerTile;
  const spx::WideQuad* quads = static_cast<const spx::WideQuad*>(op.quads);
  const int begin = (int)((int64_t)op.channels * share.part / share.parts);
  const int end = (int)((int64_t)op.channels * (share.part + 1) / share.parts);
  for (int c = begin; c < end; c++) {
    const spx::WideQuad *q = quads + op.start[c], *last = quads + op.start[c + 1];
    int v = 0;
    for (; v + 4 <= vectors; v += 4) run_channel<4>(op, op.rows[c], q, last, v);
    for (; v + 2 <= vectors; v += 2) run_channel<2>(op, op.rows[c], q, last, v);
    if (v < vectors) run_channel<1>(op, op.rows[c], q, last, v);
  }
}

// A linear layer with few rows of inputs: all weights, inputs are the lanes.
void run_linear8(const void* record, const spx::Share& share) {
  const spx::Linear8& op = *static_cast<const spx::Linear8*>(record);
  const int64_t begin = op.outputs * share.part / share.parts, end = op.outputs * (share.part + 1) / share.parts;
  for (int64_t o = begin; o < end; o++) {
    for (int64_t r = 0; r < op.rows; r++) {
      const int32_t sum = op.bias[o] + dot(op.in + r * op.in_row, op.weights + o * op.inputs, op.inputs);
      float y = (float)sum * op.factor[o];
      if (op.real) {
        op.real[r * op.out_row + o] = y;
        continue;
      }
      if (op.residual)
        y = y + ((float)op.residual[r * op.residual_row + o] - (float)op.residual_zero) * op.residual_factor;
      const int32_t q = (int32_t)std::rint(y) + op.zero;
      op.out[r * op.out_row + o] = (uint8_t)(q < op.low ? op.low : q > op.high ? op.high : q);
    }
  }
}

// Where an element lies: in a strided array, or in one that is stored tile by tile.
SPX_INLINE int64_t place(const spx::Side8& side, int64_t n, int64_t c, int64_t y, int64_t x) {
  const int64_t at = side.first + n * side.image + y * side.row + x * side.column;
  return c * side.channel + (side.tile ? (at >> 6) * side.tile + (at & 63) : at);
}

SPX_INLINE uint8_t to_byte(float x, float rate, float zero) {
  float v = x * rate;
  v = v > -zero ? v : -zero;  // also for NaN
  v = v < 255.0f - zero ? v : 255.0f - zero;
  return (uint8_t)(int32_t)(std::rint(v) + zero);
}

// One row of pixels, or of channels where these lie side by side.
template <int kind>
SPX_INLINE void move_line(const spx::Move8& op, const char* in, char* out, int64_t in_step, int64_t out_step, int64_t n) {
  const float rate = op.scale, zero = (float)op.zero;
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(in);
  const float* reals = reinterpret_cast<const float*>(in);
  uint8_t* to = reinterpret_cast<uint8_t*>(out);
  float* real = reinterpret_cast<float*>(out);
  const auto each = [&](int64_t from_step, int64_t to_step) __attribute__((always_inline)) {
    for (int64_t i = 0; i < n; i++) {
      if (kind == spx::kCopy8) to[i * to_step] = bytes[i * from_step];
      else if (kind == spx::kLookup8) to[i * to_step] = op.table[bytes[i * from_step]];
      else if (kind == spx::kQuantize8) to[i * to_step] = to_byte(reals[i * from_step], rate, zero);
      else real[i * to_step] = (float)(bytes[i * from_step] - op.zero) * op.scale;
    }
  };
  if (kind == spx::kLookup8 && in_step == 1 && out_step == 1) lookup_bytes(to, bytes, op.table, n);
  else if (in_step == 1 && out_step == 1) each(1, 1);
  else if (in_step == 2 && out_step == 1) each(2, 1);
  else each(in_step, out_step);
}

template <int kind>
void move(const spx::Move8& op, const spx::Share& share) {
  constexpr int kIn = kind == spx::kQuantize8 ? 4 : 1, kOut = kind == spx::kDequantize8 ? 4 : 1;
  const char* in = reinterpret_cast<const char*>(at(op.in.base, share));
  char* out = reinterpret_cast<char*>(at(op.out.base, share));
  const int64_t lines = op.images * op.channels;
  const int64_t begin = lines * share.part / share.parts, end = lines * (share.part + 1) / share.parts;
  for (int64_t line = begin; line < end; line++) {
    const int64_t n = line / op.channels, c = line % op.channels;
    for (int64_t y = 0; y < op.rows; y++) {
      // A stretch ends where a tile does.
      for (int64_t x = 0; x < op.columns;) {
        int64_t count = op.columns - x;
        for (const spx::Side8* side : {&op.in, &op.out}) {
          if (!side->tile || !side->column) continue;
          const int64_t lane = (side->first + n * side->image + y * side->row + x * side->column) & 63;
          const int64_t room = (63 - lane) / side->column + 1;
          count = room < count ? room : count;
        }
        move_line<kind>(op, in + kIn * place(op.in, n, c, y, x), out + kOut * place(op.out, n, c, y, x), op.in.column,
                        op.out.column, count);
        x += count;
      }
    }
  }
}

// Blocks of 16 features of 16 rows are turned round: rows of floats become planes or tiles of bytes, or planes of floats
// become rows of floats.
template <int kind>
void turn(const spx::Move8& op, const spx::Share& share) {
  constexpr int64_t kBlock = 16;
  const float* in = at(op.in.base, share);
  float* out = at(op.out.base, share);
  const float zero = (float)op.zero, rate = op.scale;
  const int64_t blocks = (op.channels + kBlock - 1) / kBlock;
  const int64_t begin = blocks * share.part / share.parts, end = blocks * (share.part + 1) / share.parts;
  for (int64_t block = begin; block < end; block++) {
    const int64_t first = block * kBlock, count = op.channels - first < kBlock ? op.channels - first : kBlock;
    for (int64_t x = 0; x < op.columns; x += kBlock) {
      const int64_t rows = op.columns - x < kBlock ? op.columns - x : kBlock;
      if (kind == spx::kTranspose8) {
        for (int64_t r = 0; r < rows; r++) {
          float* to = out + (x + r) * op.out.column + first;
          for (int64_t c = 0; c < count; c++) to[c] = in[(first + c) * op.in.channel + x + r];
        }
        continue;
      }
      uint8_t turned[kBlock][kBlock];
      for (int64_t r = 0; r < rows; r++) {
        const float* from = in + (x + r) * op.in.column + first;
        for (int64_t c = 0; c < count; c++) turned[r][c] = to_byte(from[c], rate, zero);
      }
      // Tiles begin at multiples of the block.
      for (int64_t c = 0; c < count; c++) {
        uint8_t* to = reinterpret_cast<uint8_t*>(out) + place(op.out, 0, first + c, 0, x);
        for (int64_t r = 0; r < rows; r++) to[r] = turned[r][c];
      }
    }
  }
}

void run_move8(const void* record, const spx::Share& share) {
  const spx::Move8& op = *static_cast<const spx::Move8*>(record);
  switch (op.kind) {
    case spx::kCopy8: return move<spx::kCopy8>(op, share);
    case spx::kLookup8: return move<spx::kLookup8>(op, share);
    case spx::kTranspose8: return turn<spx::kTranspose8>(op, share);
    case spx::kQuantize8:
      if (op.images * op.rows == 1 && op.in.channel == 1 && op.in.column != 1 && op.out.column == 1 && !op.out.first)
        return turn<spx::kQuantize8>(op, share);
      return move<spx::kQuantize8>(op, share);
    default: return move<spx::kDequantize8>(op, share);
  }
}

// The largest byte of each window; what lies outside of the image counts as 0.
void run_pool8(const void* record, const spx::Share& share) {
  const spx::Pool8 op = *static_cast<const spx::Pool8*>(record);
  const int64_t planes = op.images * op.channels;
  const int64_t begin = planes * share.part / share.parts, end = planes * (share.part + 1) / share.parts;
  uint8_t* scratch = op.scratch + share.part * op.scratch_stride;
  for (int64_t p = begin; p < end; p++) {
    const int64_t n = p / op.channels, c = p % op.channels;
    const uint8_t* in = op.in + n * op.in_image + c * op.in_channel;
    uint8_t* out = op.out + n * op.out_image + c * op.out_channel;
    for (int64_t y = 0; y < op.out_rows; y++) {
      const int64_t top = y * op.stride_h - op.pad_h;
      // The first and the last row of the window that lie inside.
      const int64_t first = top < 0 ? (op.dilation_h - 1 - top) / op.dilation_h : 0;
      const int64_t room = op.rows - 1 - top, last = room < 0 ? -1 : room / op.dilation_h;
      const int64_t stop = last + 1 < op.kernel_h ? last + 1 : op.kernel_h;
      const uint8_t* row = in + (top + first * op.dilation_h) * op.in_row;
      pool_row(row, op.dilation_h * op.in_row, stop - first, op, out + y * op.out_row, scratch);
    }
  }
}

// Images whose rows and columns are dealt out to a plane for each phase of a stride of two.
void run_split8(const void* record, const spx::Share& share) {
  const spx::Split8 op = *static_cast<const spx::Split8*>(record);
  const bool odd_rows = op.planes[2] || op.planes[3], even_rows = op.planes[0] || op.planes[1];
  const int64_t first = even_rows ? 0 : 1, step = odd_rows && even_rows ? 1 : 2;
  const uint8_t behind = (uint8_t)op.around;
  const int64_t lines = op.images * op.channels;
  const int64_t begin = lines * share.part / share.parts, end = lines * (share.part + 1) / share.parts;
  for (int64_t line = begin; line < end; line++) {
    const int64_t n = line / op.channels, c = line % op.channels;
    const uint8_t* in = op.in + n * op.in_image + c * op.in_channel;
    const int64_t plane = n * op.out_image + c * op.out_channel;
    for (int64_t y = first; y < op.rows; y += step) {
      const uint8_t* from = in + y * op.in_row;
      const int64_t at = plane + (y >> 1) * op.out_row;
      uint8_t *even = op.planes[y & 1 ? 2 : 0], *odd = op.planes[y & 1 ? 3 : 1];
      // What is written behind a row is written over by those below it, as far as they reach.
      const int64_t below = (op.rows - 1 - y) / 2 * op.out_row + op.columns / 2;
      const bool exact = below < (op.columns + 63) / 64 * 32;
      if (even) split_bytes(even + at, odd ? odd + at : nullptr, from, (op.columns + 1) / 2, op.columns / 2, behind, exact);
      else if (odd) split_bytes(odd + at, nullptr, from + 1, op.columns / 2, 0, behind, exact);
    }
  }
}

// Means over the pixels of each channel, as floats.
void run_mean8(const void* record, const spx::Share& share) {
  const spx::Mean8 op = *static_cast<const spx::Mean8*>(record);
  const int64_t lines = op.images * op.channels;
  const int64_t begin = lines * share.part / share.parts, end = lines * (share.part + 1) / share.parts;
  for (int64_t line = begin; line < end; line++) {
    const int64_t n = line / op.channels, c = line % op.channels;
    int64_t sum = 0;
    for (int64_t i = op.start[n]; i < op.start[n + 1]; i++)
      sum += sum_tile(op.in + c * op.in_channel + op.tiles[i] * op.in_tile, op.masks + 64 * i);
    op.out[n * op.out_image + c * op.out_channel] = (float)(sum - op.pixels * op.zero) * op.factor;
  }
}

}  // namespace

#define SPX_TABLE8(label) \
  {label, kLanes, {run_conv8, run_depthwise8, run_linear8, run_move8, run_pool8, run_split8, run_mean8}}
