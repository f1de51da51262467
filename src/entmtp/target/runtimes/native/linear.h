// Products of rows with a weight matrix of either kind of numbers.
//
// Knows: which kind a matrix is of. Does not know: how it is multiplied, layers.
#pragma once

#include <cstdint>
#include <cstring>

#include <immintrin.h>

#include "linear_bfloat16.h"
#include "linear_int8.h"
#include "matrix.h"

namespace entmtp {

inline int64_t packed_bytes(const Matrix& matrix) {
  const int64_t bytes = matrix.is_bfloat16
                            ? kBlock * matrix.num_inputs * static_cast<int64_t>(sizeof(BFloat16))
                            : block_bytes(matrix.grouping());
  return matrix.blocks() * bytes;
}

// Sixteen outputs' weights; those behind the last one are zero.
inline void pack_block(const float* weight, const Matrix& matrix, int64_t block, uint8_t* packed) {
  const int64_t bytes = packed_bytes(matrix) / matrix.blocks();
  std::memset(packed + block * bytes, 0, bytes);
  (matrix.is_bfloat16 ? pack_bfloat16 : pack_int8)(weight, matrix, block, packed);
}

// Group `g` of row `index`, in the numbers of the matrix that it is to meet.
inline void put_group(const float* from, int64_t index, int64_t g, const Rows& into) {
  const int64_t inputs = into.grouping.inputs();
  if (into.is_bfloat16)
    round_part(from, index, g * inputs, inputs, into);
  else
    quantise_group(from, index, g, into);
}

inline void put_row(const float* row, int64_t index, const Rows& into) {
  for (int64_t g = 0; g < into.grouping.groups(); ++g)
    put_group(row + g * into.grouping.inputs(), index, g, into);
}

// Outputs of one or two neighbouring blocks for up to sixteen rows: `out` is [count, stride].
// Memory of `rows` and `out` reaches to the next multiple of sixteen.
inline void multiply(const Matrix& matrix, int64_t block, int64_t num_blocks, const Rows& rows,
                     int64_t first, int64_t count, float* out, int64_t stride, Ahead& ahead) {
  (matrix.is_bfloat16 ? multiply_bfloat16 : multiply_int8)(matrix, block, num_blocks, rows, first,
                                                           count, out, stride, ahead);
  if (!matrix.bias) return;
  for (int64_t i = 0; i < num_blocks; ++i) {
    const __m512 bias = _mm512_loadu_ps(matrix.bias + (block + i) * kBlock);
    for (int64_t r = 0; r < count; ++r) {
      float* into = out + r * stride + i * kBlock;
      _mm512_storeu_ps(into, _mm512_add_ps(_mm512_loadu_ps(into), bias));
    }
  }
}

}  // namespace entmtp
