// A vector of floats for the instruction set of this translation unit. Everything is static: the linker must never
// merge code that was compiled for different instruction sets.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(SPX_AVX512) || defined(SPX_AVX2)
#include <immintrin.h>
#endif

#define SPX_INLINE static inline __attribute__((always_inline))

namespace {

#if defined(SPX_AVX512)

constexpr int kWidth = 16;
using Vec = __m512;
SPX_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
SPX_INLINE void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
SPX_INLINE Vec splat(float x) { return _mm512_set1_ps(x); }
SPX_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
SPX_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
// The bound comes first: if v is not a number, v is returned.
SPX_INLINE Vec clamp(Vec low, Vec high, Vec v) { return _mm512_min_ps(high, _mm512_max_ps(low, v)); }
SPX_INLINE Vec load_lanes(const float* p, unsigned mask) { return _mm512_maskz_loadu_ps((__mmask16)mask, p); }
SPX_INLINE void store_lanes(float* p, unsigned mask, Vec v) { _mm512_mask_storeu_ps(p, (__mmask16)mask, v); }
SPX_INLINE float sum(Vec v) { return _mm512_reduce_add_ps(v); }
// Every second lane of two vectors.
SPX_INLINE Vec even_lanes(Vec a, Vec b) {
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  return _mm512_permutex2var_ps(a, even, b);
}

#elif defined(SPX_AVX2)

constexpr int kWidth = 8;
using Vec = __m256;
SPX_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
SPX_INLINE void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
SPX_INLINE Vec splat(float x) { return _mm256_set1_ps(x); }
SPX_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
SPX_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
SPX_INLINE Vec clamp(Vec low, Vec high, Vec v) { return _mm256_min_ps(high, _mm256_max_ps(low, v)); }

#else

constexpr int kWidth = 8;
typedef float Vec __attribute__((vector_size(32)));
SPX_INLINE Vec load(const float* p) {
  Vec v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
SPX_INLINE void store(float* p, Vec v) { __builtin_memcpy(p, &v, sizeof v); }
SPX_INLINE Vec splat(float x) { return Vec{x, x, x, x, x, x, x, x}; }
SPX_INLINE Vec add(Vec a, Vec b) { return a + b; }
SPX_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
SPX_INLINE Vec clamp(Vec low, Vec high, Vec v) {
  v = v < low ? low : v;
  return v > high ? high : v;
}

#endif

#if !defined(SPX_AVX512)
SPX_INLINE float sum(Vec v) {
  float lanes[kWidth], total = 0;
  store(lanes, v);
  for (int i = 0; i < kWidth; i++) total += lanes[i];
  return total;
}

typedef int32_t Ints __attribute__((vector_size(32)));
// Reads the whole vector if any lane is wanted: there must be memory around the wanted ones.
SPX_INLINE Vec load_lanes(const float* p, unsigned mask) {
  if (!mask) return splat(0.0f);
  const Ints bits = {1, 2, 4, 8, 16, 32, 64, 128}, wish = bits & (int32_t)mask, wanted = wish == bits;
  const Vec v = load(p);
  Ints lanes;
  __builtin_memcpy(&lanes, &v, sizeof v);
  lanes &= wanted;
  Vec kept;
  __builtin_memcpy(&kept, &lanes, sizeof v);
  return kept;
}

// The wanted lanes must be the first ones.
SPX_INLINE void store_lanes(float* p, unsigned mask, Vec v) {
  if (mask == (1u << kWidth) - 1) return store(p, v);
  float lanes[kWidth];
  store(lanes, v);
  for (int i = 0; mask >> i; i++) p[i] = lanes[i];
}

SPX_INLINE Vec even_lanes(Vec a, Vec b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14);
#else
  return __builtin_shuffle(a, b, Ints{0, 2, 4, 6, 8, 10, 12, 14});
#endif
}
#endif

// The share of `count` units that belongs to a part: [first, last).
SPX_INLINE int64_t cut(int64_t count, int part, int parts) { return count * part / parts; }

}  // namespace
