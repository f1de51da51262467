// Rows of an embedding as floats.
//
// Knows: the formats that models hold numbers in. Does not know: what tokens are.
#pragma once

#include <cstdint>
#include <cstring>

#include <immintrin.h>

#include "vectors.h"

namespace entmtp {

extern "C" {

struct Embedding {
  const void* rows;  // [V, H]
  int64_t size;      // H, a multiple of 16
  int64_t format;    // 0: float32, 1: bfloat16, 2: float16
};

}  // extern "C"

inline void embed(const Embedding& embedding, int64_t id, float* into) {
  const int64_t size = embedding.size;
  if (embedding.format == 0) {
    std::memcpy(into, static_cast<const float*>(embedding.rows) + id * size, size * sizeof(float));
    return;
  }
  const uint16_t* from = static_cast<const uint16_t*>(embedding.rows) + id * size;
  for (int64_t i = 0; i < size; i += 16) {
    const auto* halves = reinterpret_cast<const __m256i*>(from + i);
    _mm512_storeu_ps(into + i, embedding.format == 1 ? load_floats(from + i)
                                                     : _mm512_cvtph_ps(_mm256_loadu_si256(halves)));
  }
}

}  // namespace entmtp
