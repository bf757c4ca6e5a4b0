// The records that Python hands over: plain structures of numbers and pointers, mirrored in records.py.
// Everything in them was checked there; the kernels trust them.
#pragma once
#include <cstdint>

namespace spx {

constexpr int kMaxDims = 6;
constexpr int kMaxThreads = 256;

// A base address: `data`, or the caller's array number `slot` when slot >= 0 (then `data` counts bytes from its start).
struct Base {
  float* data;
  int64_t slot;
};

// One nonzero weight: how far its input lies from the output position (in bytes), and its value.
struct Nonzero {
  int32_t offset;
  float value;
};

// Lanes of a vector that are stored together: lane l goes to out + offset + l for every l in mask.
struct Piece {
  int32_t offset;
  int32_t residual;
  uint16_t mask;
  uint16_t more;  // another piece of the same vector follows
};

// Consecutive vectors of output positions that are computed in registers together.
struct Tile {
  int32_t vector;  // index of its first vector in the list of pieces
  int32_t count;
  int64_t position;  // of its first lane, in floats from the start of a plane
};

// What sparse and dense convolutions share: the walk over output positions and the store.
struct Walk {
  const float* in;
  const Tile* tiles;
  const Piece* pieces;
  const int32_t* piece_start;
  float* out;
  const float* residual;
  const float* bias;
  int64_t out_plane;
  int64_t residual_plane;
  int32_t tile_count;
  int32_t channels;
  int32_t direct;  // output positions are input positions: whole vectors are stored
  int32_t by_channel;  // threads share the channels instead of the tiles
  float low, high;
};

struct Sparse {
  Walk walk;
  const Nonzero* stream;
  const int32_t* start;    // blocks x channels + 1 places in the stream
  const int32_t* channel;  // output channel of each run
  int32_t sets;            // independent accumulators per vector: 1, 2 or 4
  int32_t shifted;         // offsets may be misaligned: aligned loads and a shift in registers
  int32_t blocks;          // of input channels, so that what a tile reads stays in the first-level cache
  int32_t unused;
  float* scratch;          // per thread: sums of one tile between blocks
  int64_t scratch_stride;
};

struct Dense {
  Walk walk;
  const int32_t* taps;    // groups x tap_count byte offsets
  const float* weights;   // packed: group, block of kDenseChannels channels, tap, channel
  int32_t tap_count;
  int32_t groups;
};

// A vector of output positions of a depthwise convolution: where its first lane reads and is stored, in floats from the
// start of a plane, and which lanes (the first ones) are stored.
struct Span {
  int32_t in, out;
  uint32_t mask;
};

struct Depthwise {
  const float* in;
  const Tile* tiles;
  const Span* spans;
  const Nonzero* stream;   // per output channel; `offset` is the number of the tap
  const int32_t* start;    // channels + 1 places in the stream
  const int32_t* reach;    // per tap: how far it lies from the position, in floats
  const uint32_t* masks;   // taps x vectors: lanes whose pixel lies in the image; with step 2, bit 2 l for lane l
  float* out;
  const float* bias;
  int64_t in_plane, out_plane;
  int32_t vector_count, tile_count, channels;
  int32_t multiplier;      // outputs per input channel
  int32_t step;            // columns from lane to lane: 1 or 2
  int32_t flat;            // positions of input and output are the same: whole vectors one after the other
  int32_t by_channel;      // threads share the channels instead of the tiles
  float low, high;
  int32_t unused;
};

struct Map {
  Base out, a, b, c;
  int64_t shape[kMaxDims];
  int64_t out_stride[kMaxDims], a_stride[kMaxDims], b_stride[kMaxDims], c_stride[kMaxDims];
  int32_t dims;
  int32_t kind;        // see elementwise.h
  int32_t activation;  // see activation.h
  float first, second; // its numbers
  int32_t unused;
};

struct Maps {
  const Map* items;
  int64_t count;
};

struct Pool {
  Base out, in;
  int64_t out_stride[4], in_stride[4];
  int32_t images, channels, height, width, out_height, out_width;
  int32_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int32_t kind;  // 0 max, 1 average, 2 adaptive average
  int32_t include_pad;
};

struct Reduce {
  Base out, in;
  const float *weight, *bias;
  int64_t shape[kMaxDims], out_stride[kMaxDims], in_stride[kMaxDims];
  int64_t inner[kMaxDims], inner_stride[kMaxDims], inner_out_stride[kMaxDims];
  int32_t dims, inner_dims;
  int32_t kind;  // 0 mean, 1 softmax, 2 layer norm
  float epsilon;
};

struct Matmul {
  Base out, a, b;
  float* scratch;  // per thread: k times the width of a panel
  int64_t scratch_stride;
  int64_t batch[4], out_batch[4], a_batch[4], b_batch[4];
  int64_t m, n, k;
  int64_t out_m, out_n, a_m, a_k, b_k, b_n;
  float scale;
  int32_t unused;
};

struct Linear {
  Base out, in;
  Base residual;
  const float* bias;
  const float* values;
  const int32_t* start;
  const int32_t* index;   // sparse without expand instructions
  const uint16_t* masks;  // sparse with expand: one bit per input, 16 inputs each
  int64_t rows, out_row, in_row, residual_row;
  int32_t inputs, outputs;
  int32_t kind;  // 0 dense, 1 indices, 2 masks
  float low, high;
};

struct Resize {
  Base out, in;
  int64_t out_stride[4], in_stride[4];
  const int32_t *y0, *y1, *x0, *x1;
  const float *wy, *wx;
  int32_t images, channels, out_height, out_width;
};

// The pixels of a plane that its producer writes, counted from the first place of an image with its halo.
struct Written {
  int32_t first_row, last_row, first_column, last_column;
};

struct Clear {
  float* data;             // of the buffer
  const Written* written;  // one per plane of a channel
  int64_t margin, plane, image, pitch;
  int64_t channels, planes, images;
};

// A range of tiles of one convolution.
struct Band {
  const void* record;
  int32_t kind;
  int32_t first, last;
  int32_t unused;
};

// Convolutions that run band by band, each as soon as the rows that it reads are there.
struct Group {
  const Band* bands;
  int64_t count;
};

// Integer layers; see int8.h. Four nonzero weights of one output channel, and where their rows of pixels begin.
struct Quad {
  uint16_t offset[4];
  int32_t weights;
};

struct WideQuad {
  int32_t offset[4];
  int32_t weights;
};

struct Channel8 {
  int32_t channel, bias;
  float factor;
};

// Neighbouring lanes of a tile that are pixels, and where they lie in a float value.
struct Run8 {
  int32_t lane, count;
  int64_t offset;
};

struct Conv8 {
  const uint8_t* in;
  const int32_t* taps;     // bytes from a tile of a plane to each row, if rows are copied
  const void* quads;       // Quad, or WideQuad if `wide`
  const int32_t* start;    // blocks x (channels + 1) places in the quads
  const Channel8* rows;    // blocks x channels, each block in its own order
  const uint8_t* mask;     // tiles x 64: 255 where a lane is a pixel; null if all are
  uint8_t* out;            // null if the output is float
  const uint8_t* residual;
  float* real;
  const Run8* runs;
  const int32_t* run_start;  // tiles + 1 places in the runs
  uint8_t* scratch;          // per thread: copied rows
  int32_t* waiting;          // per thread: sums between blocks
  int64_t in_tile, in_row, out_channel, out_tile, residual_channel, residual_tile, real_channel;
  int64_t scratch_stride, waiting_stride;
  int32_t row_count, block, blocks;  // rows in all and per block
  int32_t channels, tiles, vectors;  // vectors that are computed together
  int32_t wide, by_channel, zero, low, high, residual_zero;
  float residual_factor;
  int32_t unused;
};

struct Linear8 {
  const uint8_t* in;
  const int8_t* weights;  // outputs x inputs, padded like the rows of inputs to a multiple of 64
  const int32_t* bias;
  const float* factor;
  uint8_t* out;
  const uint8_t* residual;
  float* real;
  int64_t rows, inputs, outputs, in_row, out_row, residual_row;
  int32_t zero, low, high, residual_zero;
  float residual_factor;
  int32_t unused;
};

// One side of a move: strides in elements; with `tile`, images, rows and columns count places, 64 of them in a tile.
struct Side8 {
  Base base;
  int64_t image, channel, row, column, tile;
  int64_t first;  // place of the first element
};

enum Move8Kind : int32_t { kCopy8, kLookup8, kQuantize8, kDequantize8, kTranspose8 };

struct Move8 {
  Side8 out, in;
  const uint8_t* table;
  int64_t images, channels, rows, columns;
  float scale;  // of quantize its reciprocal
  int32_t zero, kind, unused;
};

struct Pool8 {
  const uint8_t* in;
  uint8_t* out;
  uint8_t* scratch;
  int64_t in_image, in_channel, in_row, out_image, out_channel, out_row, scratch_stride;
  int64_t images, channels, rows, columns, out_rows, out_columns;
  int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
};

struct Split8 {
  const uint8_t* in;
  uint8_t* planes[4];  // even and odd columns of even rows, then of odd rows; null if not wanted
  int64_t in_image, in_channel, in_row, out_image, out_channel, out_row;
  int64_t images, channels, rows, columns, around;  // `around`: what lies between the pixels
};

struct Mean8 {
  const uint8_t* in;
  float* out;
  const int32_t* tiles;   // of each image, those that hold its pixels
  const int32_t* start;   // images + 1 places in them
  const uint8_t* masks;   // 64 for each of them: 255 where a lane is a pixel of the image
  int64_t in_channel, in_tile, out_image, out_channel;
  int64_t images, channels, pixels;
  int32_t zero;
  float factor;
};

// The kinds from kConv8 on are those of the table of integer kernels.
enum Kind : int32_t {
  kSparse, kDense, kMaps, kPool, kReduce, kMatmul, kLinear, kResize, kDepthwise, kClear, kGroup,
  kConv8, kDepthwise8, kLinear8, kMove8, kPool8, kSplit8, kMean8, kKinds,
};

// Which share of an operation a thread does; of a convolution possibly only tiles [first, last).
struct Share {
  int part, parts;
  float* const* slots;
  int first = 0, last = -1;
};

inline float* at(const Base& base, const Share& share) {
  if (base.slot < 0) return base.data;
  return reinterpret_cast<float*>(reinterpret_cast<char*>(share.slots[base.slot]) + reinterpret_cast<intptr_t>(base.data));
}

using Kernel = void (*)(const void* record, const Share& share);

// All kernels of one instruction set.
struct Table {
  const char* name;
  int32_t width;           // floats per vector
  int32_t dense_channels;  // channels per block of the dense kernel
  int32_t dense_vectors;   // vectors per tile of the dense kernel, at most
  int32_t expands;         // has expand instructions
  int32_t shifts;          // has two-source permutes
  Kernel kernels[kConv8];
  double (*rate)(const float* data, int64_t bytes, int64_t repeats);  // FMAs with a memory operand
};

// The integer kernels of one instruction set.
struct Table8 {
  const char* name;
  int32_t lanes;  // pixels per vector
  Kernel kernels[kKinds - kConv8];
};

#if defined(__x86_64__)
extern const Table kAvx512;
extern const Table kAvx2;
extern const Table8 kVnni512;
extern const Table8 kVnni256;
#endif
extern const Table kPortable;
extern const Table8 kPortable8;

const Table& table();
const Table8& table8();

inline Kernel kernel_of(int32_t kind) {
  return kind < kConv8 ? table().kernels[kind] : table8().kernels[kind - kConv8];
}

}  // namespace spx
