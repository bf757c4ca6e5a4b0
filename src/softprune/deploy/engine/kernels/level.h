// All kernels of one instruction set; included once per translation unit, after the choice of the instruction set.
#pragma once
#include "clear.h"
#include "dense.h"
#include "depthwise.h"
#include "elementwise.h"
#include "linear.h"
#include "matmul.h"
#include "pool.h"
#include "reduce.h"
#include "resize.h"
#include "sparse.h"

namespace {

// Sums `repeats` passes over a buffer with 8 chains of multiply-adds: the rate that a sparse kernel can reach at best.
double rate(const float* data, int64_t bytes, int64_t repeats) {
  Vec sums[8];
  const Vec weight = splat(1.0f);
  for (int k = 0; k < 8; k++) sums[k] = splat(0.0f);
  const int64_t count = bytes / 4;
  for (int64_t pass = 0; pass < repeats; pass++)
    for (int64_t i = 0; i + 8 * kWidth <= count; i += 8 * kWidth)
#pragma GCC unroll 8
      for (int k = 0; k < 8; k++) sums[k] = fma(weight, load(data + i + k * kWidth), sums[k]);
  double total = 0;
  for (int k = 0; k < 8; k++) total += sum(sums[k]);
  return total;
}

#if defined(SPX_AVX512)
constexpr int kExpands = 1;
#else
constexpr int kExpands = 0;
#endif

}  // namespace

#define SPX_TABLE(label)                                                                                    \
  {label, kWidth, kDenseChannels, kDenseVectors, kExpands, kExpands,                                        \
   {run_sparse, run_dense, run_maps, run_pool, run_reduce, run_matmul, run_linear, run_resize,              \
    run_depthwise, run_clear, nullptr},                                                                     \
   rate}
