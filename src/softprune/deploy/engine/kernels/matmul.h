// Batched product of two strided matrices: a panel of b is packed, then blocks of 4 rows run over it.
#pragma once
#include "abi.h"
#include "simd.h"

namespace {

constexpr int kPanel = 2 * kWidth;

template <int M>
SPX_INLINE void block(const spx::Matmul& op, const float* a, const float* panel, float* out, int64_t columns) {
  Vec sums[M][2];
  for (int m = 0; m < M; m++) sums[m][0] = sums[m][1] = splat(0.0f);
  for (int64_t k = 0; k < op.k; k++) {
    const Vec left = load(panel + k * kPanel), right = load(panel + k * kPanel + kWidth);
#pragma GCC unroll 4
    for (int m = 0; m < M; m++) {
      const Vec x = splat(a[m * op.a_m + k * op.a_k]);
      sums[m][0] = fma(x, left, sums[m][0]);
      sums[m][1] = fma(x, right, sums[m][1]);
    }
  }
  for (int m = 0; m < M; m++) {
    float row[kPanel];
    store(row, sums[m][0]);
    store(row + kWidth, sums[m][1]);
    for (int64_t j = 0; j < columns; j++) out[m * op.out_m + j * op.out_n] = op.scale * row[j];
  }
}

void pack(const spx::Matmul& op, const float* b, float* panel, int64_t columns) {
  for (int64_t k = 0; k < op.k; k++) {
    for (int64_t j = 0; j < columns; j++) panel[k * kPanel + j] = b[k * op.b_k + j * op.b_n];
    for (int64_t j = columns; j < kPanel; j++) panel[k * kPanel + j] = 0.0f;
  }
}

void run_matmul(const void* record, const spx::Share& share) {
  const auto& op = *static_cast<const spx::Matmul*>(record);
  const int64_t panels = (op.n + kPanel - 1) / kPanel;
  const int64_t units = op.batch[0] * op.batch[1] * op.batch[2] * op.batch[3] * panels;
  float* panel = op.scratch + share.part * op.scratch_stride;
  for (int64_t unit = cut(units, share.part, share.parts); unit < cut(units, share.part + 1, share.parts); unit++) {
    const int64_t first = unit % panels * kPanel, columns = op.n - first < kPanel ? op.n - first : kPanel;
    int64_t rest = unit / panels, out_at = 0, a_at = 0, b_at = 0;
    for (int d = 3; d >= 0; d--) {
      const int64_t i = rest % op.batch[d];
      rest /= op.batch[d];
      out_at += i * op.out_batch[d];
      a_at += i * op.a_batch[d];
      b_at += i * op.b_batch[d];
    }
    const float* a = at(op.a, share) + a_at;
    float* out = at(op.out, share) + out_at + first * op.out_n;
    pack(op, at(op.b, share) + b_at + first * op.b_n, panel, columns);
    int64_t m = 0;
    for (; m + 4 <= op.m; m += 4) block<4>(op, a + m * op.a_m, panel, out + m * op.out_m, columns);
    for (; m < op.m; m++) block<1>(op, a + m * op.a_m, panel, out + m * op.out_m, columns);
  }
}

}  // namespace
