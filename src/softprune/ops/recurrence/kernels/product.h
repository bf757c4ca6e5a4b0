// rows += factors times a matrix, for a few rows at once: the matrix is read once for all of them.
#pragma once
#include <cstdint>
#include <vector>
#include "simd.h"

namespace {

#if defined(SPX_AVX512)
constexpr int kTile = 5;  // vectors of sums per row: with four rows 20 of 32 registers
#else
constexpr int kTile = 3;  // 12 of 16 registers
#endif

// A square matrix with rows padded by zeros to whole vectors.
struct Matrix {
  int64_t size, pitch;
  std::vector<float> values;

  Matrix(const float* given, int64_t size, bool transposed)
      : size(size), pitch((size + kWidth - 1) / kWidth * kWidth), values(size * pitch) {
    for (int64_t i = 0; i < size; i++)
      for (int64_t k = 0; k < size; k++) values[i * pitch + k] = transposed ? given[k * size + i] : given[i * size + k];
  }
};

template <int R, int V>
void product_tile(const float* matrix, int64_t size, int64_t pitch, const float* factors, float* rows) {
  Vec sums[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) sums[r][v] = load(rows + r * pitch + v * kWidth);
  for (int64_t k = 0; k < size; k++) {
    const float* line = matrix + k * pitch;
#pragma GCC unroll 8
    for (int v = 0; v < V; v++) {
      const Vec weights = load(line + v * kWidth);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) sums[r][v] = fma(splat(factors[r * pitch + k]), weights, sums[r][v]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) store(rows + r * pitch + v * kWidth, sums[r][v]);
}

template <int R>
void product_rows(const Matrix& matrix, const float* factors, float* rows) {
  const int64_t vectors = matrix.pitch / kWidth, tiles = (vectors + kTile - 1) / kTile;
  for (int64_t tile = 0; tile < tiles; tile++) {
    const int64_t first = cut(vectors, tile, tiles), at = first * kWidth;
    const auto run = [&](auto function) {
      function(matrix.values.data() + at, matrix.size, matrix.pitch, factors, rows + at);
    };
    switch (cut(vectors, tile + 1, tiles) - first) {
      case 1: run(product_tile<R, 1>); break;
      case 2: run(product_tile<R, 2>); break;
      case 3: run(product_tile<R, 3>); break;
#if defined(SPX_AVX512)
      case 4: run(product_tile<R, 4>); break;
      case 5: run(product_tile<R, 5>); break;
#endif
    }
  }
}

// rows[r] += factors[r] * matrix for 1 to 4 rows; both have the matrix's pitch.
void product(const Matrix& matrix, int64_t count, const float* factors, float* rows) {
  switch (count) {
    case 1: return product_rows<1>(matrix, factors, rows);
    case 2: return product_rows<2>(matrix, factors, rows);
    case 3: return product_rows<3>(matrix, factors, rows);
    case 4: return product_rows<4>(matrix, factors, rows);
  }
}

}  // namespace
