// Copies between layouts and element-wise operations on strided views with broadcasting (stride 0).
#pragma once
#include "abi.h"
#include "activation.h"
#include "simd.h"

namespace {

enum MapKind : int32_t { kCopy, kAdd, kMul, kAffine };

template <int K>
SPX_INLINE float combine(float a, float b, float c) {
  return K == kAdd ? a + b : K == kMul ? a * b : K == kAffine ? a * b + c : a;
}

struct Row {
  float* out;
  const float *a, *b, *c;
  int64_t out_step, a_step, b_step, c_step, count;
};

// Every second element. Masks keep the loads inside of the 2 * count - 1 elements that are there.
SPX_INLINE void halve(float* out, const float* in, int64_t count) {
#if defined(SPX_AVX512)
  int64_t i = 0;
  for (; i + kWidth < count; i += kWidth)
    store(out + i, even_lanes(load(in + 2 * i), load(in + 2 * i + 16)));
  const int left = (int)(count - i), there = 2 * left - 1;
  if (left <= 0) return;
  const unsigned low = there >= 16 ? 0xffffu : (1u << there) - 1, high = there > 16 ? (1u << (there - 16)) - 1 : 0;
  const Vec both = even_lanes(load_lanes(in + 2 * i, low), load_lanes(in + 2 * i + 16, high));
  store_lanes(out + i, left == 16 ? 0xffffu : (1u << left) - 1, both);
#else
  for (int64_t i = 0; i < count; i++) out[i] = in[2 * i];
#endif
}

template <int K>
void map_row(const Row& row) {
  float* out = row.out;
  const float *a = row.a, *b = row.b, *c = row.c;
  const int64_t n = row.count;
  if (row.out_step == 1 && row.a_step == 1 && K == kCopy) {
    memcpy(out, a, n * sizeof(float));
  } else if (row.out_step == 1 && row.a_step == 1 && row.b_step == 1 && K < kAffine) {
    for (int64_t i = 0; i < n; i++) out[i] = combine<K>(a[i], b[i], 0.0f);
  } else if (row.out_step == 1 && row.a_step == 1 && row.b_step == 0 && row.c_step == 0) {
    const float factor = *b, term = K == kAffine ? *c : 0.0f;
    for (int64_t i = 0; i < n; i++) out[i] = combine<K>(a[i], factor, term);
  } else {
    if (K == kCopy && row.out_step == 1 && row.a_step == 2) return halve(out, a, n);
    for (int64_t i = 0; i < n; i++)
      out[i * row.out_step] =
          combine<K>(a[i * row.a_step], K > kCopy ? b[i * row.b_step] : 0.0f, K == kAffine ? c[i * row.c_step] : 0.0f);
  }
}

void run_row(int kind, const Row& row) {
  if (kind == kAdd) return map_row<kAdd>(row);
  if (kind == kMul) return map_row<kMul>(row);
  if (kind == kAffine) return map_row<kAffine>(row);
  map_row<kCopy>(row);
}

void run_map(const spx::Map& map, const spx::Share& share) {
  const int last = map.dims - 1;
  int64_t rows = 1;
  for (int d = 0; d < last; d++) rows *= map.shape[d];
  int64_t first = 0, end = rows, from = 0, to = map.shape[last];
  if (rows >= share.parts) {
    first = cut(rows, share.part, share.parts);
    end = cut(rows, share.part + 1, share.parts);
  } else {
    from = cut(to, share.part, share.parts);
    to = cut(map.shape[last], share.part + 1, share.parts);
  }
  if (first >= end || from >= to) return;
  float *out = at(map.out, share), *a = at(map.a, share), *b = at(map.b, share), *c = at(map.c, share);
  int64_t index[spx::kMaxDims] = {0}, rest = first;
  int64_t o = from * map.out_stride[last], x = from * map.a_stride[last];
  int64_t y = from * map.b_stride[last], z = from * map.c_stride[last];
  const auto move = [&](int d, int64_t steps) {
    o += steps * map.out_stride[d];
    x += steps * map.a_stride[d];
    y += steps * map.b_stride[d];
    z += steps * map.c_stride[d];
  };
  for (int d = last - 1; d >= 0; d--) {
    index[d] = rest % map.shape[d];
    rest /= map.shape[d];
    move(d, index[d]);
  }
  for (int64_t count = end - first; count > 0; count--) {
    const Row row{out + o, a + x, b + y, c + z, map.out_stride[last], map.a_stride[last], map.b_stride[last],
                  map.c_stride[last], to - from};
    run_row(map.kind, row);
    activate_row(map.activation, row.out, row.out_step, row.count, Numbers{map.first, map.second});
    for (int d = last - 1; d >= 0; d--) {
      if (++index[d] < map.shape[d]) {
        move(d, 1);
        break;
      }
      move(d, 1 - map.shape[d]);
      index[d] = 0;
    }
  }
}

// Several maps often read the same pixels, as the phases of a stride do: a slice of each in turn, so that what one has
// read is still in the cache for the next.
void run_maps(const void* record, const spx::Share& share) {
  const auto& op = *static_cast<const spx::Maps*>(record);
  const int slices = op.count > 1 ? 16 : 1;
  for (int slice = 0; slice < slices; slice++)
    for (int64_t i = 0; i < op.count; i++)
      run_map(op.items[i], spx::Share{share.part * slices + slice, share.parts * slices, share.slots});
}

}  // namespace
