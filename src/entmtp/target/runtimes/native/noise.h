// Gumbel noise keyed by (seed, position, token id), as `decode/noise.py` defines it.
//
// Knows: integers and logarithms. Does not know: logits. Uniform numbers are the same to the bit as
// there, and logarithms to the last bit or two.
#pragma once

#include <cstdint>

#include <immintrin.h>

namespace entmtp {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // 2^64 / golden ratio
constexpr uint64_t kMixOne = 0xBF58476D1CE4E5B9, kMixOther = 0x94D049BB133111EB;
constexpr int kNoiseBits = 40;

// SplitMix64's finaliser.
inline uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * kMixOne;
  x = (x ^ (x >> 27)) * kMixOther;
  return x ^ (x >> 31);
}

inline __m512i mixed(__m512i x) {
  x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 30)), _mm512_set1_epi64(kMixOne));
  x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 27)),
                         _mm512_set1_epi64(kMixOther));
  return _mm512_xor_si512(x, _mm512_srli_epi64(x, 31));
}

// log x of normal numbers: that of the power of two, and on [sqrt 1/2, sqrt 2] a polynomial whose
// coefficients are those of Cephes' logf.
inline __m512 logarithm(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f);
  __m512 power = _mm512_getexp_ps(x);
  __m512 m = _mm512_getmant_ps(x, _MM_MANT_NORM_1_2, _MM_MANT_SIGN_src);
  const __mmask16 is_large = _mm512_cmp_ps_mask(m, _mm512_set1_ps(1.41421356f), _CMP_GT_OQ);
  m = _mm512_mask_mul_ps(m, is_large, m, _mm512_set1_ps(0.5f));
  power = _mm512_mask_add_ps(power, is_large, power, one);
  m = _mm512_sub_ps(m, one);
  const __m512 square = _mm512_mul_ps(m, m);
  __m512 p = _mm512_set1_ps(7.0376836292e-2f);
  p = _mm512_fmadd_ps(p, m, _mm512_set1_ps(-1.1514610310e-1f));
  p = _mm512_fmadd_ps(p, m, _mm512_set1_ps(1.1676998740e-1f));
  p = _mm512_fmadd_ps(p, m, _mm512_set1_ps(-1.2420140846e-1f));
  p = _mm512_fmadd_ps(p, m, _mm512_set1_ps(1.4249322787e-1f));
  p = _mm512_fmadd_ps(p, m, _mm512_set1_ps(-1.6668057665e-1f));
  p = _mm512_fmadd_ps(p, m, _mm512_set1_ps(2.0000714765e-1f));
  p = _mm512_fmadd_ps(p, m, _mm512_set1_ps(-2.4999993993e-1f));
  p = _mm512_fmadd_ps(p, m, _mm512_set1_ps(3.3333331174e-1f));
  p = _mm512_mul_ps(_mm512_mul_ps(p, m), square);
  p = _mm512_fmadd_ps(power, _mm512_set1_ps(-2.12194440e-4f), p);
  p = _mm512_fnmadd_ps(square, _mm512_set1_ps(0.5f), p);
  return _mm512_fmadd_ps(power, _mm512_set1_ps(0.693359375f), _mm512_add_ps(m, p));
}

// -log(1 - x), exact to a few bits also where 1 - x is rounded: what rounding changes 1 - x by, it
// changes the logarithm by, and that is divided out.
inline __m512 negative_log_of_rest(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f), rest = _mm512_sub_ps(one, x);
  const __mmask16 is_seen = _mm512_cmp_ps_mask(rest, one, _CMP_LT_OQ);
  const __m512 change = _mm512_sub_ps(one, rest);
  const __m512 exact = _mm512_mul_ps(logarithm(rest), _mm512_div_ps(x, change));
  return _mm512_mask_sub_ps(x, is_seen, _mm512_setzero_ps(), exact);
}

// Noise of the ids `first` to `first + count`, at most 16.
inline void make_noise(uint64_t key, int64_t first, int64_t count, float* into) {
  const __m512i steps = _mm512_mullo_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0),
                                           _mm512_set1_epi64(kGolden));
  const __m512i mask = _mm512_set1_epi64((int64_t{1} << kNoiseBits) - 1);
  const auto eight = [&](int64_t id) {
    const __m512i start = _mm512_set1_epi64(key + static_cast<uint64_t>(id) * kGolden);
    return _mm512_cvtepi64_ps(_mm512_and_si512(mixed(_mm512_add_epi64(start, steps)), mask));
  };
  const __m512 bits = _mm512_insertf32x8(_mm512_castps256_ps512(eight(first)), eight(first + 8), 1);
  const __m512 unit = _mm512_set1_ps(1.0f / (int64_t{1} << kNoiseBits));
  const __m512 uniform = _mm512_min_ps(
      _mm512_mul_ps(_mm512_add_ps(bits, _mm512_set1_ps(0.5f)), unit),
      _mm512_set1_ps(1 - 1.0f / (1 << 24)));
  const __m512 noise = _mm512_sub_ps(_mm512_setzero_ps(), logarithm(negative_log_of_rest(uniform)));
  _mm512_mask_storeu_ps(into, static_cast<__mmask16>(count < 16 ? (1 << count) - 1 : 0xffff), noise);
}

}  // namespace entmtp
