// Products with a block of sums in registers: every vector that is read serves several rows.
#pragma once
#include <utility>
#include "rows.h"

namespace {

#if defined(SPX_AVX512)
constexpr int kRows = 6, kVectors = 3;  // 18 sums, or 24 with a narrow vector, of 32 registers
#else
constexpr int kRows = 4, kVectors = 3;  // 12 of 16
#endif

typedef float Four __attribute__((vector_size(16)));
typedef float Eight __attribute__((vector_size(32)));

// How a row is cut into vectors. The last one may be narrow: a half or a quarter costs half as much.
struct Columns {
  int64_t vectors, narrow;  // whole ones, and the lanes of the last: 0, 4 or 8

  explicit Columns(int64_t width) : vectors(width / kWidth), narrow(0) {
    const int64_t rest = width % kWidth;
    if (rest > kWidth / 2) vectors++;
    else if (rest) narrow = rest <= 4 ? 4 : 8;
  }
  int64_t tiles() const { return std::max<int64_t>(1, (vectors + kVectors - 1) / kVectors); }
  int64_t first(int64_t tile) const { return cut(vectors, tile, tiles()); }
};

// The vectors that are weighed and added: whole ones side by side, the narrow one beside them or elsewhere.
struct Lines {
  const float *whole, *narrow;
  int64_t pitch, narrow_pitch, count;
};

// Line k has the weight first[k * line + r * row] in row r.
struct Factors {
  const float* first;
  int64_t line, row;
};

template <class Narrow, int R, int V>
void tile(const Lines& lines, const Factors& factors, float* rows, int64_t pitch, bool add_up) {
  constexpr bool narrow = sizeof(Narrow) > sizeof(float);
  Vec sums[R][V ? V : 1];
  Narrow last[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) sums[r][v] = add_up ? load(rows + r * pitch + v * kWidth) : splat(0.0f);
    last[r] = Narrow{};
    if (narrow && add_up) __builtin_memcpy(&last[r], rows + r * pitch + V * kWidth, sizeof(Narrow));
  }
  const float *whole = lines.whole, *rest = lines.narrow, *factor = factors.first;
  const int64_t whole_step = lines.pitch, rest_step = lines.narrow_pitch, line = factors.line, row = factors.row;
  for (int64_t k = lines.count; k > 0; k--) {
    Vec weights[V ? V : 1];
    Narrow weight = Narrow{};
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) weights[v] = load(whole + v * kWidth);
    if (narrow) __builtin_memcpy(&weight, rest, sizeof(Narrow));
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
      const float scalar = factor[r * row];
      const Vec wide = splat(scalar);
#pragma GCC unroll 8
      for (int v = 0; v < V; v++) sums[r][v] = fma(wide, weights[v], sums[r][v]);
      if (narrow) last[r] += weight * scalar;
    }
    whole += whole_step, rest += rest_step, factor += line;
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) store(rows + r * pitch + v * kWidth, sums[r][v]);
    if (narrow) __builtin_memcpy(rows + r * pitch + V * kWidth, &last[r], sizeof(Narrow));
  }
}

using Tile = void (*)(const Lines&, const Factors&, float*, int64_t, bool);

// By whole vectors, then by rows less one.
struct Tiles {
  Tile of[kVectors + 1][kRows];
};

template <class Narrow, int V, int... R>
constexpr void fill(Tile* to, std::integer_sequence<int, R...>) {
  ((to[R] = tile<Narrow, R + 1, V>), ...);
}

template <class Narrow, int... V>
constexpr Tiles tiles_with(std::integer_sequence<int, V...>) {
  Tiles made{};
  (fill<Narrow, V>(made.of[V], std::make_integer_sequence<int, kRows>()), ...);
  return made;
}

// By the lanes of the narrow vector over four.
constexpr Tiles kTiles[] = {
    tiles_with<float>(std::make_integer_sequence<int, kVectors + 1>()),
    tiles_with<Four>(std::make_integer_sequence<int, kVectors + 1>()),
    tiles_with<Eight>(std::make_integer_sequence<int, kVectors + 1>()),
};

// rows[r] (+)= the sum over k of a factor of row r times line k, in one tile of the columns, for any number of rows.
SPX_INLINE void product(const Columns& columns, int64_t number, const Lines& lines, const Factors& factors,
                        int64_t count, float* rows, int64_t pitch, bool add_up) {
  const int64_t first = columns.first(number), vectors = columns.first(number + 1) - first;
  const int64_t narrow = number + 1 == columns.tiles() ? columns.narrow : 0, blocks = (count + kRows - 1) / kRows;
  for (int64_t block = 0; block < blocks; block++) {
    const int64_t begin = cut(count, block, blocks), size = cut(count, block + 1, blocks) - begin;
    const Factors own{factors.first + begin * factors.row, factors.line, factors.row};
    kTiles[narrow / 4].of[vectors][size - 1](lines, own, rows + begin * pitch + first * kWidth, pitch, add_up);
  }
}

// A matrix in the order in which products read it: tile after tile, and the narrow columns at the end.
struct Panels {
  int64_t count;
  Columns columns;
  Rows whole, narrow;

  Panels(int64_t count, int64_t width)
      : count(count), columns(width), whole(1, count * columns.vectors * kWidth), narrow(1, count * columns.narrow) {}

  // Line k is given[k * line + j * column] for the columns j.
  void read(int64_t begin, int64_t lines, int64_t width, const float* given, int64_t line, int64_t column) {
    for (int64_t number = 0; number < columns.tiles(); number++) {
      const int64_t first = columns.first(number) * kWidth, tile = columns.first(number + 1) * kWidth - first;
      float* to = whole.values + first * count + begin * tile;
      for (int64_t k = 0; k < lines; k++)
        for (int64_t j = 0; j < std::min(tile, width - first); j++)
          to[k * tile + j] = given[k * line + (first + j) * column];
    }
    for (int64_t k = 0; k < lines; k++)
      for (int64_t j = columns.vectors * kWidth; j < width; j++)
        narrow.values[(begin + k) * columns.narrow + j - columns.vectors * kWidth] = given[k * line + j * column];
  }

  // rows (+)= factors times the matrix.
  void times(const float* factors, int64_t factor_pitch, int64_t size, float* rows, int64_t pitch, bool add_up) const {
    for (int64_t number = 0; number < columns.tiles(); number++) {
      const int64_t first = columns.first(number) * kWidth, tile = columns.first(number + 1) * kWidth - first;
      const Lines lines{whole.values + first * count, narrow.values, tile, columns.narrow, count};
      product(columns, number, lines, {factors, 1, factor_pitch}, size, rows, pitch, add_up);
    }
  }
};

// sums += left' right, with left [count, .] and right [count, columns]; sums has a row for every column of left.
SPX_INLINE void add_outer(const Columns& columns, int64_t count, const float* left, int64_t left_pitch,
                          int64_t left_width, const float* right, int64_t right_pitch, float* sums, int64_t pitch) {
  for (int64_t number = 0; number < columns.tiles(); number++) {
    const Lines lines{right + columns.first(number) * kWidth, right + columns.vectors * kWidth, right_pitch,
                      right_pitch, count};
    product(columns, number, lines, {left, left_pitch, 1}, left_width, sums, pitch, true);
  }
}

}  // namespace
