// What is done to single rows of floats.
//
// Knows: vectors of 16 numbers. Does not know: layers, threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <immintrin.h>

namespace entmtp {

// exp for numbers up to 87: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2], whose
// coefficients are those of Cephes' expf (about one unit in the last place).
inline __m512 exponential(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
  p = _mm512_fmadd_ps(p, _mm512_mul_ps(r, r), _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
  return _mm512_scalef_ps(p, n);
}

// 2^x for numbers from -100 up: 2^n times the first terms of a series, one part in 10^4 off.
inline __m512 roughly_two_to(__m512 x) {
  const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 r = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(9.6181291e-3f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5504109e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022651e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9314718e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

// The upper half of a float's bits: what caches hold, and scales of weights. Sums are of floats.
using BFloat16 = uint16_t;

inline float float_of(BFloat16 number) {
  const uint32_t bits = static_cast<uint32_t>(number) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Sixteen of them, each in the lower half of a lane.
inline __m512i load_halves(const BFloat16* from) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

inline __m512 load_floats(const BFloat16* from) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(load_halves(from), 16));
}

// To the nearest that a bfloat16 holds; a half goes up in size.
inline __m512 rounded(__m512 numbers) {
  const __m512i up = _mm512_add_epi32(_mm512_castps_si512(numbers), _mm512_set1_epi32(0x8000));
  return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32(0xffff0000)));
}

inline void store_upper(BFloat16* into, __m512 numbers) {
  const __m512i bits = _mm512_castps_si512(numbers);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(into),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}

// x / rms(x) * weight; `into` may be `row`.
inline void normalise(const float* row, const float* weight, int64_t size, float epsilon,
                      float* into) {
  __m512 squares = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += 16) {
    const __m512 part = _mm512_loadu_ps(row + i);
    squares = _mm512_fmadd_ps(part, part, squares);
  }
  const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(size);
  const __m512 factor = _mm512_set1_ps(1 / std::sqrt(mean + epsilon));
  for (int64_t i = 0; i < size; i += 16)
    _mm512_storeu_ps(into + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(row + i), factor),
                                             _mm512_loadu_ps(weight + i)));
}

inline void rotate(float* head, const float* cosines, const float* sines, int64_t rotary_size) {
  const int64_t half = rotary_size / 2;
  for (int64_t i = 0; i < half; i += 16) {
    const __mmask16 part = static_cast<__mmask16>(half - i < 16 ? (1 << (half - i)) - 1 : 0xffff);
    const __m512 first = _mm512_maskz_loadu_ps(part, head + i);
    const __m512 second = _mm512_maskz_loadu_ps(part, head + i + half);
    const __m512 cosine = _mm512_maskz_loadu_ps(part, cosines + i);
    const __m512 sine = _mm512_maskz_loadu_ps(part, sines + i);
    _mm512_mask_storeu_ps(head + i, part,
                          _mm512_fmsub_ps(first, cosine, _mm512_mul_ps(second, sine)));
    _mm512_mask_storeu_ps(head + i + half, part,
                          _mm512_fmadd_ps(second, cosine, _mm512_mul_ps(first, sine)));
  }
}

// x / (1 + e^-x). Its reciprocal is an estimate of 14 bits and one step of Newton's, which is
// several times as fast as a division and right to the last bit or two.
inline __m512 swish(__m512 x) {
  const __m512 least = _mm512_set1_ps(-87.0f), one = _mm512_set1_ps(1.0f);
  const __m512 negative = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_max_ps(x, least));
  const __m512 bottom = _mm512_add_ps(one, exponential(negative));
  const __m512 estimate = _mm512_rcp14_ps(bottom);
  const __m512 rest = _mm512_fnmadd_ps(bottom, estimate, one);
  return _mm512_mul_ps(x, _mm512_fmadd_ps(estimate, rest, estimate));
}

// Of some numbers x with the largest m: the sums of e^(x - m), and of that times x - m.
struct Softmax {
  float largest, total, weighted;
};

inline Softmax softmax_of(const float* numbers, int64_t count) {
  const __m512 lowest = _mm512_set1_ps(-INFINITY), least = _mm512_set1_ps(-87.0f);
  const auto part = [&](int64_t i) {
    const __mmask16 here = static_cast<__mmask16>(count - i < 16 ? (1 << (count - i)) - 1 : 0xffff);
    return _mm512_mask_loadu_ps(lowest, here, numbers + i);
  };
  __m512 highest = lowest, total = _mm512_setzero_ps(), weighted = total;
  for (int64_t i = 0; i < count; i += 16) highest = _mm512_max_ps(highest, part(i));
  const float largest = _mm512_reduce_max_ps(highest);
  for (int64_t i = 0; i < count; i += 16) {
    const __m512 below = _mm512_sub_ps(part(i), _mm512_set1_ps(largest));
    // What would weigh less than a rounding of the sum weighs nothing.
    const __mmask16 counts = _mm512_cmp_ps_mask(below, least, _CMP_GT_OQ);
    const __m512 weight = _mm512_maskz_mov_ps(counts, exponential(below));
    total = _mm512_add_ps(total, weight);
    weighted = _mm512_add_ps(weighted, _mm512_maskz_mul_ps(counts, weight, below));
  }
  return {largest, _mm512_reduce_add_ps(total), _mm512_reduce_add_ps(weighted)};
}

inline Softmax together(const Softmax& one, const Softmax& other) {
  const float largest = std::max(one.largest, other.largest);
  Softmax sum{largest, 0, 0};
  for (const Softmax* each : {&one, &other}) {
    const float below = std::max(each->largest - largest, -87.0f), factor = std::exp(below);
    sum.total += each->total * factor;
    sum.weighted += (each->weighted + below * each->total) * factor;
  }
  return sum;
}

// The largest of the numbers seen so far, and where it stands; of equal ones the first place.
struct Largest {
  float value = -INFINITY;
  int64_t place = 0;

  // Up to sixteen numbers, the first of which stands at `first`.
  void consider(const float* some, int64_t count, int64_t first) {
    const __mmask16 real = static_cast<__mmask16>(count < 16 ? (1 << count) - 1 : 0xffff);
    unsigned as_good = _mm512_mask_cmp_ps_mask(real, _mm512_loadu_ps(some), _mm512_set1_ps(value),
                                               _CMP_GE_OQ);
    for (; as_good; as_good &= as_good - 1) {
      const int at = __builtin_ctz(as_good);
      consider(Largest{some[at], first + at});
    }
  }

  void consider(const Largest& other) {
    if (other.value > value || (other.value == value && other.place < place)) *this = other;
  }
};

}  // namespace entmtp
