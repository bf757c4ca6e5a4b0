// Scratch memory, and how samples are shared out.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include "abi.h"

namespace {

using spr::Call;

constexpr int64_t kLine = 16;  // floats of a cache line

// Rows of scratch begin with a cache line, so that no vector lies in two.
constexpr int64_t pitch_of(int64_t width) { return (width + kLine - 1) / kLine * kLine; }

// Zeros at first.
struct Rows {
  int64_t pitch;
  float* values;

  Rows(int64_t count, int64_t width) : pitch(pitch_of(width)) {
    const size_t bytes = std::max<int64_t>(count * pitch, kLine) * sizeof(float);
    void* made = nullptr;
    if (posix_memalign(&made, kLine * sizeof(float), bytes)) throw std::bad_alloc();
    std::memset(made, 0, bytes);
    values = static_cast<float*>(made);
  }
  ~Rows() { std::free(values); }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  float* at(int64_t row) const { return values + row * pitch; }
};

SPX_INLINE void copy(const float* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) store(to + i, load(from + i));
  for (; i < count; i++) to[i] = from[i];
}

SPX_INLINE void copy_or_clear(const float* from, int64_t count, float* to) {
  if (from) copy(from, count, to);
  else std::fill(to, to + count, 0.0f);
}

// Samples that go through the steps together: enough for the matrix in the cache to serve many, few enough for their
// rows to stay there. The sizes depend on nothing but the batch, so no sum depends on the number of threads.
struct Groups {
  static constexpr int64_t kMost = 16, kAlike = 4;
  int64_t samples, count;

  explicit Groups(int64_t samples) : samples(samples) {
    const int64_t needed = (samples + kMost - 1) / kMost;
    // A multiple of four is the same work for two threads or four; a small batch is shared out in fours.
    count = needed > kAlike ? (needed + kAlike - 1) / kAlike * kAlike : std::min(kAlike, (samples + 3) / 4);
  }
  int64_t first(int64_t group) const { return samples * group / count; }
  int64_t size(int64_t group) const { return first(group + 1) - first(group); }
};

// One group in one call: where its rows are.
struct Group {
  const Call& call;
  int64_t first, size;

  const float* x(int64_t row, int64_t step) const {
    return call.x + ((first + row) * call.steps + step) * call.features;
  }
  int64_t state(int64_t row, int64_t step) const { return ((first + row) * call.steps + step) * call.hidden; }
  // The sums of one step lie together.
  int64_t sums(int64_t step) const { return (first * call.steps + step * size) * pitch_of(call.hidden); }
  int64_t only(int64_t row) const { return (first + row) * call.hidden; }
};

template <class Work>
void run(const spr::Team& team, int64_t count, Work work) {
  team.run(count, [](void* context, int64_t index) { (*static_cast<Work*>(context))(index); }, &work);
}

}  // namespace
