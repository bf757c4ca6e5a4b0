// Zeros around the images of a grid, in memory that held something else before.
#pragma once
#include "abi.h"
#include "simd.h"

namespace {

SPX_INLINE void zero(float* from, float* to) {
  const Vec nothing = splat(0.0f);
  for (; from + kWidth <= to; from += kWidth) store(from, nothing);
  if (from < to) store_lanes(from, (1u << (to - from)) - 1, nothing);
}

void run_clear(const void* record, const spx::Share& share) {
  const auto& op = *static_cast<const spx::Clear*>(record);
  float* first = op.data + op.margin;
  if (share.part == 0) {
    zero(op.data, first);
    zero(first + op.channels * op.planes * op.plane, first + op.channels * op.planes * op.plane + op.margin);
  }
  const int64_t count = op.channels * op.planes;
  for (int64_t p = cut(count, share.part, share.parts); p < cut(count, share.part + 1, share.parts); p++) {
    const spx::Written& written = op.written[p % op.planes];
    float *plane = first + p * op.plane, *end = plane + op.plane;
    for (int64_t i = 0; i < op.images; i++, plane += op.image) {
      float* row = plane + written.first_row * op.pitch;
      zero(plane, row);
      for (int r = written.first_row; r < written.last_row; r++, row += op.pitch) {
        zero(row, row + written.first_column);
        zero(row + written.last_column, row + op.pitch);
      }
      zero(row, plane + op.image);
    }
    zero(plane, end);
  }
}

}  // namespace
