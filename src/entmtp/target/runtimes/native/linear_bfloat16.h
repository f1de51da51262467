// Products of rows with a bfloat16 weight matrix, added up in float32.
//
// Knows: how matrix and rows are packed, and multiplied. Does not know: layers.
//
// A block of 16 outputs lies as 16 keys of attention do, [I / 2, 16, 2], and a row's numbers add to
// an output in the same two chains (`chains.h`): with tiles or without, the same bits in any company.
#pragma once

#include <cstdint>
#include <cstring>

#include <immintrin.h>

#include "chains.h"
#include "matrix.h"
#include "vectors.h"

namespace entmtp {

// The nearest bfloat16 of each, in the upper half; of two the one whose last bit is 0, as PyTorch
// has it. Weights that are bfloat16 stay what they are.
inline __m512 nearest(__m512 numbers) {
  const __m512i bits = _mm512_castps_si512(numbers);
  const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_castsi512_ps(
      _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7fff))));
}

// Sixteen outputs' weights, to memory of zeros.
inline void pack_bfloat16(const float* weight, const Matrix& matrix, int64_t block,
                          uint8_t* packed) {
  const int64_t width = matrix.num_inputs;
  auto* halves = reinterpret_cast<BFloat16*>(packed) + block * kBlock * width;
  for (int o = 0; o < kBlock && block * kBlock + o < matrix.num_outputs; ++o)
    for (int64_t i = 0; i < width; i += kLanes) {
      BFloat16 some[kLanes];
      store_upper(some, nearest(_mm512_loadu_ps(weight + (block * kBlock + o) * width + i)));
      for (int64_t k = 0; k < kLanes; k += 2)
        std::memcpy(halves + (i + k) * kBlock + 2 * o, some + k, 2 * sizeof(BFloat16));
    }
}

// Numbers of row `index` from `start` on, a multiple of 16 of them.
inline void round_part(const float* from, int64_t index, int64_t start, int64_t count,
                       const Rows& into) {
  BFloat16* halves = into.halves + index * into.width + start;
  for (int64_t i = 0; i < count; i += kLanes)
    store_upper(halves + i, nearest(_mm512_loadu_ps(from + i)));
}

// Outputs `[count, stride]` of one or two neighbouring blocks for up to sixteen rows; memory of
// `out` reaches to the sixteenth.
inline void multiply_bfloat16(const Matrix& matrix, int64_t block, int64_t num_blocks,
                              const Rows& rows, int64_t first, int64_t count, float* out,
                              int64_t stride, Ahead& ahead) {
  const auto* halves = reinterpret_cast<const BFloat16*>(matrix.packed);
  score_by_tiles({rows.halves + first * rows.width, rows.width}, count,
                 halves + block * kBlock * rows.width, num_blocks, rows.width, out, stride, ahead);
}

}  // namespace entmtp
