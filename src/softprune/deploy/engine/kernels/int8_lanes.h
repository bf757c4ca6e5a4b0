// Sums of unsigned bytes times signed weights, for the instruction set of this translation unit: each lane is a pixel.
//
// A quad is four nonzero weights of one output channel. Four rows of pixels are interleaved in registers, so that the
// four bytes of one pixel lie side by side, and one instruction multiplies them by the four weights and adds the
// products to a sum of 32 bits:
//
//     a0 a1 a2 ..      a0 b0 a1 b1 ..
//     b0 b1 b2 ..  ->                  ->  a0 b0 c0 d0  a1 b1 c1 d1 ..   times   wa wb wc wd, four sums of one pixel
//     c0 c1 c2 ..      c0 d0 c1 d1 ..
//     d0 d1 d2 ..
//
// The interleaving permutes the pixels; packing the sums to bytes undoes just that. The portable version below has no
// permutation and is the definition of what the others compute: all of them give the same bytes.
//
// A sum becomes a byte by float32 arithmetic, each operation rounded by itself: this unit must not be compiled with
// contraction of multiplications and additions.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "abi.h"

#if defined(SPX_VNNI512) || defined(SPX_VNNI256)
#include <immintrin.h>
#endif

#define SPX_INLINE static inline __attribute__((always_inline))

namespace {

// How the sums of a layer become bytes.
struct Store8 {
  int32_t zero, low, high;
  float residual_factor;
  int32_t residual_zero;
};

#if defined(SPX_VNNI512)

constexpr int kLanes = 64;
using Bytes = __m512i;
struct Sums {
  __m512i part[4];
};

// One line of assembly: as an intrinsic GCC 12 copies the sum around every instruction.
SPX_INLINE void multiply_add(__m512i& sum, __m512i x, __m512i w) { asm("vpdpbusd %2,%1,%0" : "+v"(sum) : "v"(x), "v"(w)); }
// Opaque, or the compiler would load an operand once for each of its uses.
SPX_INLINE Bytes load_bytes(const uint8_t* p) {
  Bytes v = _mm512_loadu_si512(p);
  asm("" : "+v"(v));
  return v;
}
SPX_INLINE void copy_bytes(uint8_t* to, const uint8_t* from) { _mm512_storeu_si512(to, _mm512_loadu_si512(from)); }
SPX_INLINE Bytes splat_weights(int32_t w) { return _mm512_set1_epi32(w); }
SPX_INLINE void set(Sums& s, int32_t x) {
  for (int i = 0; i < 4; i++) s.part[i] = _mm512_set1_epi32(x);
}
SPX_INLINE void load_sums(Sums& s, const int32_t* p) {
  for (int i = 0; i < 4; i++) s.part[i] = _mm512_loadu_si512(p + 16 * i);
}
SPX_INLINE void store_sums(const Sums& s, int32_t* p) {
  for (int i = 0; i < 4; i++) _mm512_storeu_si512(p + 16 * i, s.part[i]);
}
SPX_INLINE void add_sums(Sums& s, const Sums& t) {
  for (int i = 0; i < 4; i++) s.part[i] = _mm512_add_epi32(s.part[i], t.part[i]);
}
SPX_INLINE void quad(Sums& s, Bytes a, Bytes b, Bytes c, Bytes d, Bytes w) {
  const Bytes ab = _mm512_unpacklo_epi8(a, b), ab_high = _mm512_unpackhi_epi8(a, b);
  const Bytes cd = _mm512_unpacklo_epi8(c, d), cd_high = _mm512_unpackhi_epi8(c, d);
  multiply_add(s.part[0], _mm512_unpacklo_epi16(ab, cd), w);
  multiply_add(s.part[1], _mm512_unpackhi_epi16(ab, cd), w);
  multiply_add(s.part[2], _mm512_unpacklo_epi16(ab_high, cd_high), w);
  multiply_add(s.part[3], _mm512_unpackhi_epi16(ab_high, cd_high), w);
}

SPX_INLINE void store_bytes(const Sums& s, float factor, const Store8& to, const uint8_t* residual, const uint8_t* mask,
                            uint8_t* out) {
  const __m512 times = _mm512_set1_ps(factor);
  __m512 y[4];
  for (int i = 0; i < 4; i++) y[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(s.part[i]), times);
  if (residual) {
    // A byte below the upper half of 2^23 as a float is that number of 2^23 plus the byte: no conversion is needed.
    const __m512i none = _mm512_setzero_si512(), upper = _mm512_set1_epi16(0x4B00), x = _mm512_loadu_si512(residual);
    const __m512i low = _mm512_unpacklo_epi8(x, none), high = _mm512_unpackhi_epi8(x, none);
    const __m512i wide[4] = {_mm512_unpacklo_epi16(low, upper), _mm512_unpackhi_epi16(low, upper),
                             _mm512_unpacklo_epi16(high, upper), _mm512_unpackhi_epi16(high, upper)};
    const __m512 zero = _mm512_set1_ps((float)(8388608 + to.residual_zero)), scale = _mm512_set1_ps(to.residual_factor);
    for (int i = 0; i < 4; i++)
      y[i] = _mm512_add_ps(y[i], _mm512_mul_ps(_mm512_sub_ps(_mm512_castsi512_ps(wide[i]), zero), scale));
  }
  const __m512i zero = _mm512_set1_epi16((short)to.zero);
  const __m512i low = _mm512_packs_epi32(_mm512_cvtps_epi32(y[0]), _mm512_cvtps_epi32(y[1]));
  const __m512i high = _mm512_packs_epi32(_mm512_cvtps_epi32(y[2]), _mm512_cvtps_epi32(y[3]));
  Bytes q = _mm512_packus_epi16(_mm512_adds_epi16(low, zero), _mm512_adds_epi16(high, zero));
  if (to.low > 0 || to.high < 255)
    q = _mm512_min_epu8(_mm512_max_epu8(q, _mm512_set1_epi8((char)to.low)), _mm512_set1_epi8((char)to.high));
  // Lanes between the pixels hold the zero of the value.
  if (mask) q = _mm512_ternarylogic_epi32(_mm512_loadu_si512(mask), q, _mm512_set1_epi8((char)to.zero), 0xCA);
  _mm512_storeu_si512(out, q);
}

// The sums times a factor, in the order of the pixels.
SPX_INLINE void store_floats(const Sums& s, float factor, float* out) {
  const __m512 times = _mm512_set1_ps(factor);
  __m512 y[4];
  for (int i = 0; i < 4; i++) y[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(s.part[i]), times);
  const __m512 a = _mm512_shuffle_f32x4(y[0], y[1], 0x44), b = _mm512_shuffle_f32x4(y[2], y[3], 0x44);
  const __m512 c = _mm512_shuffle_f32x4(y[0], y[1], 0xEE), d = _mm512_shuffle_f32x4(y[2], y[3], 0xEE);
  _mm512_storeu_ps(out, _mm512_shuffle_f32x4(a, b, 0x88));
  _mm512_storeu_ps(out + 16, _mm512_shuffle_f32x4(a, b, 0xDD));
  _mm512_storeu_ps(out + 32, _mm512_shuffle_f32x4(c, d, 0x88));
  _mm512_storeu_ps(out + 48, _mm512_shuffle_f32x4(c, d, 0xDD));
}

// Sum of x[i] * w[i]; both are padded to whole registers.
SPX_INLINE int32_t dot(const uint8_t* x, const int8_t* w, int64_t count) {
  __m512i a = _mm512_setzero_si512(), b = a;
  int64_t i = 0;
  for (; i + 128 <= count; i += 128) {
    multiply_add(a, _mm512_loadu_si512(x + i), _mm512_loadu_si512(w + i));
    multiply_add(b, _mm512_loadu_si512(x + i + 64), _mm512_loadu_si512(w + i + 64));
  }
  for (; i < count; i += 64) multiply_add(a, _mm512_loadu_si512(x + i), _mm512_loadu_si512(w + i));
  return _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
}

SPX_INLINE __mmask64 first_bytes(int64_t count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

// The even bytes of a row, and if wanted the odd ones; up to 31 bytes behind them become `behind`, or none if `exact`.
SPX_INLINE void split_bytes(uint8_t* even, uint8_t* odd, const uint8_t* from, int64_t count, int64_t odd_count,
                            uint8_t behind, bool exact) {
  const __m512i rest = _mm512_set1_epi8((char)behind);
  const int64_t bytes = odd_count < count ? 2 * count - 1 : 2 * count;
  for (int64_t i = 0; i < count; i += 32) {
    const __m512i v = _mm512_mask_loadu_epi8(rest, first_bytes(bytes - 2 * i), from + 2 * i);
    const __m256i evens = _mm512_cvtepi16_epi8(v), odds = _mm512_cvtepi16_epi8(_mm512_srli_epi16(v, 8));
    if (exact) {
      _mm256_mask_storeu_epi8(even + i, (__mmask32)first_bytes(count - i), evens);
      if (odd && odd_count > i) _mm256_mask_storeu_epi8(odd + i, (__mmask32)first_bytes(odd_count - i), odds);
    } else {
      _mm256_storeu_si256((__m256i*)(even + i), evens);
      if (odd) _mm256_storeu_si256((__m256i*)(odd + i), odds);
    }
  }
}

// One row of the largest bytes of windows: of `count` rows of an image and, in each, of the columns that a window has.
SPX_INLINE void pool_row(const uint8_t* in, int64_t row_step, int64_t count, const spx::Pool8& op, uint8_t* out,
                         uint8_t* scratch) {
  const int64_t wanted = (op.out_columns - 1) * op.stride_w + 1;
  for (int64_t i = 0; i < wanted; i += 64) {
    __m512i v = _mm512_setzero_si512();
    for (int64_t x = 0; x < op.kernel_w; x++) {
      // Lane l is column begin + l of the image, if there is one.
      const int64_t begin = i + x * op.dilation_w - op.pad_w, last = op.columns - begin;
      if (last <= 0 || begin <= -64) continue;
      const __mmask64 inside = first_bytes(last) & (begin < 0 ? ~first_bytes(-begin) : ~0ull);
      for (int64_t y = 0; y < count; y++)
        v = _mm512_max_epu8(v, _mm512_maskz_loadu_epi8(inside, in + y * row_step + begin));
    }
    if (op.stride_w == 1) _mm512_mask_storeu_epi8(out + i, first_bytes(wanted - i), v);
    else if (op.stride_w == 2)
      _mm256_mask_storeu_epi8(out + i / 2, (__mmask32)first_bytes(op.out_columns - i / 2), _mm512_cvtepi16_epi8(v));
    else _mm512_storeu_si512(scratch + i, v);
  }
  if (op.stride_w > 2)
    for (int64_t x = 0; x < op.out_columns; x++) out[x] = scratch[x * op.stride_w];
}

// The entry of the table at each byte: of 16 registers with 16 entries each the one that the upper half of it names.
SPX_INLINE void lookup_bytes(uint8_t* to, const uint8_t* from, const uint8_t* table, int64_t count) {
  __m512i entries[16];
#pragma GCC unroll 16
  for (int t = 0; t < 16; t++) entries[t] = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)(table + 16 * t)));
  const __m512i half = _mm512_set1_epi8(15);
  for (int64_t i = 0; i < count; i += 64) {
    const __mmask64 kept = first_bytes(count - i);
    const __m512i x = _mm512_maskz_loadu_epi8(kept, from + i);
    const __m512i low = _mm512_and_si512(x, half), high = _mm512_and_si512(_mm512_srli_epi16(x, 4), half);
    __m512i found = _mm512_setzero_si512();
#pragma GCC unroll 16
    for (int t = 0; t < 16; t++)
      found = _mm512_mask_shuffle_epi8(found, _mm512_cmpeq_epi8_mask(high, _mm512_set1_epi8((char)t)), entries[t], low);
    _mm512_mask_storeu_epi8(to + i, kept, found);
  }
}

// Sum of the 64 bytes where the mask is 255.
SPX_INLINE int64_t sum_tile(const uint8_t* x, const uint8_t* mask) {
  const __m512i v = _mm512_and_si512(_mm512_loadu_si512(x), _mm512_loadu_si512(mask));
  return _mm512_reduce_add_epi64(_mm512_sad_epu8(v, _mm512_setzero_si512()));
}

#elif defined(SPX_VNNI256)

constexpr int kLanes = 32;
using Bytes = __m256i;
struct Sums {
  __m256i part[4];
};

SPX_INLINE void multiply_add(__m256i& sum, __m256i x, __m256i w) {
  asm("%{vex%} vpdpbusd %2,%1,%0" : "+x"(sum) : "x"(x), "x"(w));
}
SPX_INLINE Bytes load_bytes(const uint8_t* p) {
  Bytes v = _mm256_loadu_si256((const __m256i*)p);
  asm("" : "+x"(v));
  return v;
}
SPX_INLINE void copy_bytes(uint8_t* to, const uint8_t* from) {
  _mm256_storeu_si256((__m256i*)to, _mm256_loadu_si256((const __m256i*)from));
}
SPX_INLINE Bytes splat_weights(int32_t w) { return _mm256_set1_epi32(w); }
SPX_INLINE void set(Sums& s, int32_t x) {
  for (int i = 0; i < 4; i++) s.part[i] = _mm256_set1_epi32(x);
}
SPX_INLINE void load_sums(Sums& s, const int32_t* p) {
  for (int i = 0; i < 4; i++) s.part[i] = _mm256_loadu_si256((const __m256i*)(p + 8 * i));
}
SPX_INLINE void store_sums(const Sums& s, int32_t* p) {
  for (int i = 0; i < 4; i++) _mm256_storeu_si256((__m256i*)(p + 8 * i), s.part[i]);
}
SPX_INLINE void add_sums(Sums& s, const Sums& t) {
  for (int i = 0; i < 4; i++) s.part[i] = _mm256_add_epi32(s.part[i], t.part[i]);
}
SPX_INLINE void quad(Sums& s, Bytes a, Bytes b, Bytes c, Bytes d, Bytes w) {
  const Bytes ab = _mm256_unpacklo_epi8(a, b), ab_high = _mm256_unpackhi_epi8(a, b);
  const Bytes cd = _mm256_unpacklo_epi8(c, d), cd_high = _mm256_unpackhi_epi8(c, d);
  multiply_add(s.part[0], _mm256_unpacklo_epi16(ab, cd), w);
  multiply_add(s.part[1], _mm256_unpackhi_epi16(ab, cd), w);
  multiply_add(s.part[2], _mm256_unpacklo_epi16(ab_high, cd_high), w);
  multiply_add(s.part[3], _mm256_unpackhi_epi16(ab_high, cd_high), w);
}

SPX_INLINE void store_bytes(const Sums& s, float factor, const Store8& to, const uint8_t* residual, const uint8_t* mask,
                            uint8_t* out) {
  const __m256 times = _mm256_set1_ps(factor);
  __m256 y[4];
  for (int i = 0; i < 4; i++) y[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(s.part[i]), times);
  if (residual) {
    // A byte below the upper half of 2^23 as a float is that number of 2^23 plus the byte: no conversion is needed.
    const __m256i none = _mm256_setzero_si256(), upper = _mm256_set1_epi16(0x4B00), x = _mm256_loadu_si256((const __m256i*)residual);
    const __m256i low = _mm256_unpacklo_epi8(x, none), high = _mm256_unpackhi_epi8(x, none);
    const __m256i wide[4] = {_mm256_unpacklo_epi16(low, upper), _mm256_unpackhi_epi16(low, upper),
                             _mm256_unpacklo_epi16(high, upper), _mm256_unpackhi_epi16(high, upper)};
    const __m256 zero = _mm256_set1_ps((float)(8388608 + to.residual_zero)), scale = _mm256_set1_ps(to.residual_factor);
    for (int i = 0; i < 4; i++)
      y[i] = _mm256_add_ps(y[i], _mm256_mul_ps(_mm256_sub_ps(_mm256_castsi256_ps(wide[i]), zero), scale));
  }
  const __m256i zero = _mm256_set1_epi16((short)to.zero);
  const __m256i low = _mm256_packs_epi32(_mm256_cvtps_epi32(y[0]), _mm256_cvtps_epi32(y[1]));
  const __m256i high = _mm256_packs_epi32(_mm256_cvtps_epi32(y[2]), _mm256_cvtps_epi32(y[3]));
  Bytes q = _mm256_packus_epi16(_mm256_adds_epi16(low, zero), _mm256_adds_epi16(high, zero));
  if (to.low > 0 || to.high < 255)
    q = _mm256_min_epu8(_mm256_max_epu8(q, _mm256_set1_epi8((char)to.low)), _mm256_set1_epi8((char)to.high));
  if (mask) q = _mm256_blendv_epi8(_mm256_set1_epi8((char)to.zero), q, _mm256_loadu_si256((const __m256i*)mask));
  _mm256_storeu_si256((__m256i*)out, q);
}

SPX_INLINE void store_floats(const Sums& s, float factor, float* out) {
  const __m256 times = _mm256_set1_ps(factor);
  __m256 y[4];
  for (int i = 0; i < 4; i++) y[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(s.part[i]), times);
  _mm256_storeu_ps(out, _mm256_permute2f128_ps(y[0], y[1], 0x20));
  _mm256_storeu_ps(out + 8, _mm256_permute2f128_ps(y[2], y[3], 0x20));
  _mm256_storeu_ps(out + 16, _mm256_permute2f128_ps(y[0], y[1], 0x31));
  _mm256_storeu_ps(out + 24, _mm256_permute2f128_ps(y[2], y[3], 0x31));
}

SPX_INLINE int32_t dot(const uint8_t* x, const int8_t* w, int64_t count) {
  __m256i a = _mm256_setzero_si256(), b = a;
  for (int64_t i = 0; i < count; i += 64) {
    multiply_add(a, _mm256_loadu_si256((const __m256i*)(x + i)), _mm256_loadu_si256((const __m256i*)(w + i)));
    multiply_add(b, _mm256_loadu_si256((const __m256i*)(x + i + 32)), _mm256_loadu_si256((const __m256i*)(w + i + 32)));
  }
  int32_t lanes[8], total = 0;
  _mm256_storeu_si256((__m256i*)lanes, _mm256_add_epi32(a, b));
  for (int i = 0; i < 8; i++) total += lanes[i];
  return total;
}

#else

constexpr int kLanes = 64;
struct Bytes {
  uint8_t lane[kLanes];
};
struct Sums {
  int32_t lane[kLanes];
};

SPX_INLINE Bytes load_bytes(const uint8_t* p) {
  Bytes v;
  std::memcpy(v.lane, p, kLanes);
  return v;
}
SPX_INLINE void copy_bytes(uint8_t* to, const uint8_t* from) { std::memcpy(to, from, kLanes); }
SPX_INLINE int32_t splat_weights(int32_t w) { return w; }
SPX_INLINE void set(Sums& s, int32_t x) {
  for (int l = 0; l < kLanes; l++) s.lane[l] = x;
}
SPX_INLINE void load_sums(Sums& s, const int32_t* p) { std::memcpy(s.lane, p, sizeof s); }
SPX_INLINE void store_sums(const Sums& s, int32_t* p) { std::memcpy(p, s.lane, sizeof s); }
SPX_INLINE void add_sums(Sums& s, const Sums& t) {
  for (int l = 0; l < kLanes; l++) s.lane[l] = (int32_t)((uint32_t)s.lane[l] + (uint32_t)t.lane[l]);
}
SPX_INLINE void quad(Sums& s, const Bytes& a, const Bytes& b, const Bytes& c, const Bytes& d, int32_t w) {
  const int32_t first = (int8_t)w, second = (int8_t)(w >> 8), third = (int8_t)(w >> 16), fourth = (int8_t)(w >> 24);
  // What lies between may leave the range of 32 bits and come back, as it does in the instructions.
  for (int l = 0; l < kLanes; l++)
    s.lane[l] = (int32_t)((uint32_t)s.lane[l] +
                          (uint32_t)(a.lane[l] * first + b.lane[l] * second + c.lane[l] * third + d.lane[l] * fourth));
}

SPX_INLINE void store_bytes(const Sums& s, float factor, const Store8& to, const uint8_t* residual, const uint8_t* mask,
                            uint8_t* out) {
  for (int l = 0; l < kLanes; l++) {
    float y = (float)s.lane[l] * factor;
    if (residual) y = y + ((float)residual[l] - (float)to.residual_zero) * to.residual_factor;
    int32_t q = (int32_t)std::rint(y) + to.zero;
    q = q < to.low ? to.low : q > to.high ? to.high : q;
    out[l] = (uint8_t)(mask && !mask[l] ? to.zero : q);
  }
}

SPX_INLINE void store_floats(const Sums& s, float factor, float* out) {
  for (int l = 0; l < kLanes; l++) out[l] = (float)s.lane[l] * factor;
}

SPX_INLINE int32_t dot(const uint8_t* x, const int8_t* w, int64_t count) {
  uint32_t total = 0;
  for (int64_t i = 0; i < count; i++) total += (uint32_t)(x[i] * w[i]);
  return (int32_t)total;
}

#endif

#if !defined(SPX_VNNI512)
SPX_INLINE void split_bytes(uint8_t* __restrict even, uint8_t* __restrict odd, const uint8_t* __restrict from,
                            int64_t count, int64_t odd_count, uint8_t behind, bool exact) {
  for (int64_t i = 0; i < count; i++) even[i] = from[2 * i];
  if (odd)
    for (int64_t i = 0; i < odd_count; i++) odd[i] = from[2 * i + 1];
}

SPX_INLINE void raise_bytes(uint8_t* __restrict to, const uint8_t* __restrict from, int64_t count) {
  for (int64_t i = 0; i < count; i++) to[i] = to[i] > from[i] ? to[i] : from[i];
}

SPX_INLINE void pool_row(const uint8_t* in, int64_t row_step, int64_t count, const spx::Pool8& op, uint8_t* out,
                         uint8_t* scratch) {
  uint8_t *largest = scratch, *wide = scratch + op.scratch_stride / 2;
  const int64_t wanted = (op.out_columns - 1) * op.stride_w + 1;
  std::memset(largest, 0, op.scratch_stride / 2);  // the columns beside the image
  for (int64_t y = 0; y < count; y++) raise_bytes(largest + op.pad_w, in + y * row_step, op.columns);
  std::memcpy(wide, largest, wanted);
  for (int64_t x = 1; x < op.kernel_w; x++) raise_bytes(wide, largest + x * op.dilation_w, wanted);
  for (int64_t x = 0; x < op.out_columns; x++) out[x] = wide[x * op.stride_w];
}

SPX_INLINE void lookup_bytes(uint8_t* __restrict to, const uint8_t* __restrict from, const uint8_t* __restrict table,
                             int64_t count) {
  for (int64_t i = 0; i < count; i++) to[i] = table[from[i]];
}

SPX_INLINE int64_t sum_tile(const uint8_t* x, const uint8_t* mask) {
  int32_t sum = 0;
  for (int i = 0; i < 64; i++) sum += x[i] & mask[i];
  return sum;
}
#endif

}  // namespace
