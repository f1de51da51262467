// Products of rows with an int8 weight matrix: whole numbers within a group, floats between groups.
//
// Knows: how matrix and rows are packed, and multiplied. Does not know: layers.
//
// Weights have one scale for each group and output, rows one for each group:
// y = sum over groups of s_x s_w (q_x . q_w). The inner sum is exact in any order, and groups are
// added in their order; so a row's result does not depend on how many rows there are.
//
// A packed matrix is a list of blocks: first 16 scales in bfloat16 for each group, up to a whole
// cache line, then the tiles, 16 x 64 bytes each (four inputs of 16 outputs, then the next four).
// Dot products of four bytes multiply unsigned by signed ones: they take q_w + 128, and start from
// what that adds, -128 times the sum of the row's numbers. Products of tiles take both signed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <immintrin.h>

#include "ahead.h"
#include "matrix.h"
#include "tiles.h"
#include "vectors.h"

namespace entmtp {

constexpr int64_t kLine = 64;
constexpr int64_t kLinesBesideSum = 4;  // asked for while sums of a row are taken up

inline int64_t scale_bytes(const Grouping& grouping) {
  const int64_t bytes = grouping.groups() * kBlock * sizeof(BFloat16);
  return (bytes + kLine - 1) / kLine * kLine;
}

inline int64_t block_bytes(const Grouping& grouping) {
  return scale_bytes(grouping) + grouping.tiles * kTileBytes;
}

// Sixteen outputs of a matrix.
struct Block {
  const BFloat16* scales;  // [groups, 16]
  const uint8_t* tiles;    // [tiles, 1024]

  Block(const uint8_t* packed, const Grouping& grouping, int64_t index) {
    const uint8_t* start = packed + index * block_bytes(grouping);
    scales = reinterpret_cast<const BFloat16*>(start);
    tiles = start + scale_bytes(grouping);
  }
};

// The next number that is not smaller: with it as a scale nothing is cut off.
inline BFloat16 round_up(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<BFloat16>((bits + 0xffff) >> 16);
}

// A group of one output's weights: its scale, and where its numbers lie in tiles.
inline BFloat16 pack_group(const float* weight, int64_t inputs, uint8_t* tiles, int output) {
  const __m512 sign = _mm512_set1_ps(-0.0f);
  __m512 largest = _mm512_set1_ps(1e-30f);
  for (int64_t i = 0; i < inputs; i += 16)
    largest = _mm512_max_ps(largest, _mm512_andnot_ps(sign, _mm512_loadu_ps(weight + i)));
  const BFloat16 scale = round_up(_mm512_reduce_max_ps(largest) / 127);
  const __m512 inverse = _mm512_set1_ps(1 / float_of(scale));
  for (int64_t i = 0; i < inputs; i += 16) {
    const __m512 numbers = _mm512_mul_ps(_mm512_loadu_ps(weight + i), inverse);
    alignas(16) int8_t whole[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(whole),
                    _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(numbers)));
    for (int k = 0; k < 4; ++k)
      std::memcpy(tiles + ((i / 4 + k) * kBlock + output) * 4, whole + 4 * k, 4);
  }
  return scale;
}

// Sixteen outputs' weights, to memory of zeros.
inline void pack_int8(const float* weight, const Matrix& matrix, int64_t block, uint8_t* packed) {
  const Grouping grouping = matrix.grouping();
  uint8_t* start = packed + block * block_bytes(grouping);
  auto* scales = reinterpret_cast<BFloat16*>(start);
  uint8_t* tiles = start + scale_bytes(grouping);
  for (int o = 0; o < kBlock && block * kBlock + o < matrix.num_outputs; ++o)
    for (int64_t g = 0; g < grouping.groups(); ++g)
      scales[g * kBlock + o] =
          pack_group(weight + (block * kBlock + o) * matrix.num_inputs + g * grouping.inputs(),
                     grouping.inputs(), tiles + g * grouping.span * kTileBytes, o);
}

// Group `g` of row `index`.
inline void quantise_group(const float* from, int64_t index, int64_t g, const Rows& into) {
  const __m512 sign = _mm512_set1_ps(-0.0f);
  const int64_t inputs = into.grouping.inputs(), at = index * into.grouping.groups() + g;
  __m512 largest = _mm512_setzero_ps();
  for (int64_t i = 0; i < inputs; i += 16)
    largest = _mm512_max_ps(largest, _mm512_andnot_ps(sign, _mm512_loadu_ps(from + i)));
  const float scale = std::fmax(_mm512_reduce_max_ps(largest), 1e-30f) / 127;
  const __m512 inverse = _mm512_set1_ps(1 / scale);
  __m512i sum = _mm512_setzero_si512();
  int8_t* whole = into.whole + index * into.width + g * inputs;
  for (int64_t i = 0; i < inputs; i += 16) {
    const __m512i numbers = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(from + i), inverse));
    sum = _mm512_add_epi32(sum, numbers);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(whole + i), _mm512_cvtsepi32_epi8(numbers));
  }
  into.scale[at] = scale;
  into.opening[at] = -128 * _mm512_reduce_add_epi32(sum);
}

// What a group adds to sixteen outputs of a row.
inline __m512 add_group(__m512 total, __m512i sum, __m512 scales, float scale) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scales, _mm512_set1_ps(scale)),
                         total);
}

inline __m512 scales_of(const Block& block, int64_t group) {
  return load_floats(block.scales + group * kBlock);
}

// Up to four rows, by dot products of four bytes: `out` is [R, stride].
template <int R>
inline void multiply_few(const Block& block, const Rows& rows, int64_t first, float* out,
                         int64_t stride, Ahead& ahead) {
  const int64_t groups = rows.grouping.groups(), span = rows.grouping.span;
  const __m512i offset = _mm512_set1_epi8(-128);  // its bit turns q into q + 128
  __m512 total[R];
  for (int r = 0; r < R; ++r) total[r] = _mm512_setzero_ps();
  const int8_t* whole = rows.whole + first * rows.width;
  const uint8_t* tile = block.tiles;
  for (int64_t g = 0; g < groups; ++g) {
    __m512i sum[R];
    for (int r = 0; r < R; ++r)
      sum[r] = _mm512_set1_epi32(rows.opening[(first + r) * groups + g]);
    for (int64_t t = 0; t < span; ++t, tile += kTileBytes, whole += kTileInputs) {
      fetch_ahead(tile);
      ahead.used(kTileBytes);
#pragma GCC unroll 16
      for (int k = 0; k < 16; ++k) {
        const __m512i weight = _mm512_xor_si512(_mm512_loadu_si512(tile + 64 * k), offset);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          int32_t four;
          std::memcpy(&four, whole + r * rows.width + 4 * k, 4);
          sum[r] = _mm512_dpbusd_epi32(sum[r], weight, _mm512_set1_epi32(four));
        }
      }
    }
    const __m512 scales = scales_of(block, g);
    for (int r = 0; r < R; ++r)
      total[r] = add_group(total[r], sum[r], scales, rows.scale[(first + r) * groups + g]);
  }
  for (int r = 0; r < R; ++r) _mm512_storeu_ps(out + r * stride, total[r]);
}

#ifdef __AMX_INT8__
// Sums of a group of two blocks for up to sixteen rows: [2, 16, 16]. Which registers are used must
// be written out; two of these in turn do not wait for each other's.
#define ENTMTP_SUMS_OF_GROUP(NAME, ONE, OTHER)                                                   \
  inline void NAME(const uint8_t* one, const uint8_t* other, const int8_t* whole, int64_t width, \
                   int64_t span, int32_t* sums, Ahead& ahead) {                                  \
    settle();                                                                                    \
    _tile_zero(ONE);                                                                             \
    _tile_zero(OTHER);                                                                           \
    for (int64_t t = 0; t < span; ++t) {                                                         \
      fetch_ahead(one + t * kTileBytes);                                                         \
      fetch_ahead(other + t * kTileBytes);                                                       \
      ahead.used(2 * kTileBytes);                                                                \
      _tile_loadd(4, whole + t * kTileInputs, width);                                            \
      _tile_loadd(5, one + t * kTileBytes, 64);                                                  \
      _tile_dpbssd(ONE, 4, 5);                                                                   \
      _tile_loadd(6, other + t * kTileBytes, 64);                                                \
      _tile_dpbssd(OTHER, 4, 6);                                                                 \
    }                                                                                            \
    _tile_stored(ONE, sums, 64);                                                                 \
    _tile_stored(OTHER, sums + kBlock * kRowsAtOnce, 64);                                        \
  }
ENTMTP_SUMS_OF_GROUP(sums_of_even_group, 0, 1)
ENTMTP_SUMS_OF_GROUP(sums_of_odd_group, 2, 3)
#undef ENTMTP_SUMS_OF_GROUP

// Up to sixteen rows of two blocks at once, by products of tiles: the same whole numbers, the same
// floats. `out` is [count, stride], of the first or of both, one block's outputs behind the other's.
inline void multiply_many(const Block (&blocks)[2], int64_t num_blocks, const Rows& rows,
                          int64_t first, int64_t count, float* out, int64_t stride, Ahead& ahead) {
  constexpr int64_t kMostGroups = 12;  // whose sums wait, in the nearest cache, to be taken up
  constexpr int64_t kSums = kRowsAtOnce * kBlock;
  const int64_t groups = rows.grouping.groups(), span = rows.grouping.span;
  alignas(64) int32_t sums[kMostGroups][2][kSums];
  for (int64_t start = 0; start < groups; start += kMostGroups) {
    const int64_t stop = std::min(groups, start + kMostGroups);
    for (int64_t g = start; g < stop; ++g) {
      const int8_t* whole = rows.whole + first * rows.width + g * rows.grouping.inputs();
      const int64_t at = g * span * kTileBytes;
      const auto sums_of_group = g % 2 ? sums_of_odd_group : sums_of_even_group;
      sums_of_group(blocks[0].tiles + at, blocks[1].tiles + at, whole, rows.width, span,
                    sums[g - start][0], ahead);
    }
    for (int64_t i = 0; i < num_blocks; ++i) {
      __m512 scales[kMostGroups];
      for (int64_t g = start; g < stop; ++g) scales[g - start] = scales_of(blocks[i], g);
      for (int64_t r = 0; r < count; ++r) {
        ahead.fetch(kLinesBesideSum);
        float* into = out + r * stride + i * kBlock;
        __m512 total = start ? _mm512_loadu_ps(into) : _mm512_setzero_ps();
        for (int64_t g = start; g < stop; ++g)
          total = add_group(total, _mm512_load_si512(sums[g - start][i] + r * kBlock),
                            scales[g - start], rows.scale[(first + r) * groups + g]);
        _mm512_storeu_ps(into, total);
      }
    }
  }
}
#endif

// Outputs `[count, stride]` of one or two neighbouring blocks for up to sixteen rows.
inline void multiply_int8(const Matrix& matrix, int64_t block, int64_t num_blocks, const Rows& rows,
                          int64_t first, int64_t count, float* out, int64_t stride, Ahead& ahead) {
  const Block blocks[2] = {Block(matrix.packed, rows.grouping, block),
                           Block(matrix.packed, rows.grouping, block + num_blocks - 1)};
#ifdef __AMX_INT8__
  if (count > kFewRows) {
    multiply_many(blocks, num_blocks, rows, first, count, out, stride, ahead);
    return;
  }
#endif
  for (int64_t i = 0; i < num_blocks; ++i)
    for (int64_t done = 0; done < count; done += 4) {
      float* some = out + done * stride + i * kBlock;
      switch (count - done) {
        case 1: multiply_few<1>(blocks[i], rows, first + done, some, stride, ahead); break;
        case 2: multiply_few<2>(blocks[i], rows, first + done, some, stride, ahead); break;
        case 3: multiply_few<3>(blocks[i], rows, first + done, some, stride, ahead); break;
        default: multiply_few<4>(blocks[i], rows, first + done, some, stride, ahead);
      }
    }
}

}  // namespace entmtp
