// Products of rows with an int8 weight matrix: whole numbers within a group, floats between groups.
//
// Knows: how a matrix and rows are held. Does not know: layers.
//
// A group is 64 neighbours of a row. Weights have one scale for each group and output, rows one for
// each group: y = sum over groups of s_x s_w (q_x . q_w). The inner sum is exact in any order, and
// groups are added in their order; so a row's result does not depend on how many rows there are.
//
// A packed matrix is a list of blocks of 16 outputs, a block a list of groups, and a group
// 16 x 64 bytes (four inputs of 16 outputs each, then the next four), then 16 scales in bfloat16.
// Dot products of four bytes multiply unsigned by signed ones: they take q_w + 128, and start from
// what that adds, -128 times the sum of the row's numbers. Products of tiles take both signed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <immintrin.h>

namespace entmtp {

constexpr int kGroup = 64;
constexpr int kBlock = 16;
constexpr int64_t kGroupBytes = kBlock * kGroup + kBlock * 2;
constexpr int kRowsAtOnce = 16;

struct Matrix {
  const uint8_t* packed;
  const float* bias;  // or null
  int64_t num_outputs;
  int64_t num_inputs;

  int64_t groups() const { return num_inputs / kGroup; }
  int64_t blocks() const { return (num_outputs + kBlock - 1) / kBlock; }
  const uint8_t* block(int64_t index) const { return packed + index * groups() * kGroupBytes; }
};

inline int64_t packed_bytes(int64_t num_outputs, int64_t num_inputs) {
  return (num_outputs + kBlock - 1) / kBlock * (num_inputs / kGroup) * kGroupBytes;
}

// The next bfloat16 that is not smaller: with it as a scale nothing is cut off.
inline uint16_t round_up_to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0xffff) >> 16);
}

inline void pack_matrix(const float* weight, int64_t num_outputs, int64_t num_inputs,
                        uint8_t* packed) {
  const int64_t groups = num_inputs / kGroup;
  const int64_t blocks = (num_outputs + kBlock - 1) / kBlock;
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t g = 0; g < groups; ++g) {
      uint8_t* tile = packed + (b * groups + g) * kGroupBytes;
      auto* scales = reinterpret_cast<uint16_t*>(tile + kBlock * kGroup);
      for (int o = 0; o < kBlock; ++o) {
        const int64_t output = b * kBlock + o;
        const float* row = nullptr;  // behind the last output
        if (output < num_outputs) row = weight + output * num_inputs + g * kGroup;
        float largest = 1e-30f;
        for (int i = 0; row && i < kGroup; ++i) largest = std::fmax(largest, std::fabs(row[i]));
        scales[o] = round_up_to_bfloat16(largest / 127);
        const uint32_t bits = static_cast<uint32_t>(scales[o]) << 16;
        float scale;
        std::memcpy(&scale, &bits, 4);
        for (int i = 0; i < kGroup; ++i) {
          const int whole = row ? static_cast<int>(std::nearbyint(row[i] / scale)) : 0;
          tile[(i / 4 * kBlock + o) * 4 + i % 4] = static_cast<uint8_t>(whole);
        }
      }
    }
}

// Rows in whole numbers.
struct Rows {
  int8_t* whole;      // [R, I]
  float* scale;       // [R, I / 64]
  int32_t* opening;   // [R, I / 64]: -128 times the sum of a group
  int64_t width;      // I

  int64_t groups() const { return width / kGroup; }
};

inline void quantise_row(const float* row, int64_t index, const Rows& into) {
  const __m512 sign = _mm512_set1_ps(-0.0f);
  for (int64_t g = 0; g < into.groups(); ++g) {
    const float* from = row + g * kGroup;
    __m512 part[4], largest = _mm512_setzero_ps();
    for (int i = 0; i < 4; ++i) {
      part[i] = _mm512_loadu_ps(from + 16 * i);
      largest = _mm512_max_ps(largest, _mm512_andnot_ps(sign, part[i]));
    }
    const float scale = std::fmax(_mm512_reduce_max_ps(largest), 1e-30f) / 127;
    const __m512 inverse = _mm512_set1_ps(1 / scale);
    __m512i sum = _mm512_setzero_si512();
    int8_t* whole = into.whole + index * into.width + g * kGroup;
    for (int i = 0; i < 4; ++i) {
      const __m512i numbers = _mm512_cvtps_epi32(_mm512_mul_ps(part[i], inverse));
      sum = _mm512_add_epi32(sum, numbers);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(whole + 16 * i), _mm512_cvtsepi32_epi8(numbers));
    }
    into.scale[index * into.groups() + g] = scale;
    into.opening[index * into.groups() + g] = -128 * _mm512_reduce_add_epi32(sum);
  }
}

// Ask for the group a few behind this one: the next block's follow at once.
inline void fetch_ahead(const uint8_t* tile) {
  constexpr int kAhead = 4;
#pragma GCC unroll 17
  for (int64_t i = 0; i < kGroupBytes; i += 64)
    _mm_prefetch(reinterpret_cast<const char*>(tile + kAhead * kGroupBytes + i), _MM_HINT_T0);
}

// What a group adds to sixteen outputs of a row.
inline __m512 add_group(__m512 total, __m512i sum, __m512 scales, float scale) {
  return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scales, _mm512_set1_ps(scale)),
                         total);
}

inline __m512 scales_of(const uint8_t* tile) {
  const auto* halves = reinterpret_cast<const __m256i*>(tile + kBlock * kGroup);
  const __m512i numbers = _mm512_cvtepu16_epi32(_mm256_loadu_si256(halves));
  return _mm512_castsi512_ps(_mm512_slli_epi32(numbers, 16));
}

// A few rows, by dot products of four bytes.
template <int R>
inline void multiply_few(const uint8_t* block, const Rows& rows, int64_t first, float* out) {
  const int64_t groups = rows.groups();
  const __m512i offset = _mm512_set1_epi8(-128);  // its bit turns q into q + 128
  __m512 total[R];
  for (int r = 0; r < R; ++r) total[r] = _mm512_setzero_ps();
  const int8_t* whole = rows.whole + first * rows.width;
  for (int64_t g = 0; g < groups; ++g) {
    const uint8_t* tile = block + g * kGroupBytes;
    fetch_ahead(tile);
    const __m512 scales = scales_of(tile);
    __m512i sum[R];
    for (int r = 0; r < R; ++r)
      sum[r] = _mm512_set1_epi32(rows.opening[(first + r) * groups + g]);
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) {
      const __m512i weight = _mm512_xor_si512(_mm512_loadu_si512(tile + 64 * k), offset);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        int32_t four;
        std::memcpy(&four, whole + r * rows.width + g * kGroup + 4 * k, 4);
        sum[r] = _mm512_dpbusd_epi32(sum[r], weight, _mm512_set1_epi32(four));
      }
    }
    for (int r = 0; r < R; ++r)
      total[r] = add_group(total[r], sum[r], scales, rows.scale[(first + r) * groups + g]);
  }
  for (int r = 0; r < R; ++r) _mm512_storeu_ps(out + r * kBlock, total[r]);
}

#ifdef __AMX_INT8__
constexpr int kFewRows = 2;  // with more, tiles are faster

// Tiles of 64 bytes' width for the thread that holds this: 0 to 3 as high as there are rows, which
// are read, multiplied and written one by one, and 4 and 5 for weights.
class Tiles {
 public:
  explicit Tiles(int64_t num_rows) {
    alignas(64) uint8_t config[64] = {1};  // palette 1; from byte 16 on widths, from 48 on heights
    for (int i = 0; i < 6; ++i) {
      config[16 + 2 * i] = 64;
      config[48 + i] = static_cast<uint8_t>(i < 4 ? std::min<int64_t>(num_rows, 16) : 16);
    }
    _tile_loadconfig(config);
  }
  ~Tiles() { _tile_release(); }
};

// Sums of a group for sixteen rows. Which tiles are used must be written out; two of these in turn
// do not wait for each other's.
inline void multiply_even(const uint8_t* tile, const int8_t* whole, int64_t width, int32_t* sums) {
  _tile_zero(0);
  _tile_loadd(2, whole, width);
  _tile_loadd(4, tile, 64);
  _tile_dpbssd(0, 2, 4);
  _tile_stored(0, sums, 64);
}

inline void multiply_odd(const uint8_t* tile, const int8_t* whole, int64_t width, int32_t* sums) {
  _tile_zero(1);
  _tile_loadd(3, whole, width);
  _tile_loadd(5, tile, 64);
  _tile_dpbssd(1, 3, 5);
  _tile_stored(1, sums, 64);
}

// Up to sixteen rows at once, by products of tiles. The same whole numbers, the same floats.
template <int R>
inline void multiply_many(const uint8_t* block, const Rows& rows, int64_t first, float* out) {
  constexpr int kAhead = 2;  // groups that are multiplied before the sums of one are taken up
  const int64_t groups = rows.groups();
  alignas(64) int32_t sums[2 * kAhead][kBlock * kBlock];
  __m512 total[R];
  for (int r = 0; r < R; ++r) total[r] = _mm512_setzero_ps();
  const int8_t* whole = rows.whole + first * rows.width;
  const float* scale = rows.scale + first * groups;
  const auto begin = [&](int64_t g) {
    if (g >= groups) return;
    const uint8_t* tile = block + g * kGroupBytes;
    fetch_ahead(tile);
    if (g % 2)
      multiply_odd(tile, whole + g * kGroup, rows.width, sums[g % (2 * kAhead)]);
    else
      multiply_even(tile, whole + g * kGroup, rows.width, sums[g % (2 * kAhead)]);
  };
  for (int64_t g = 0; g < kAhead; ++g) begin(g);
  for (int64_t g = 0; g < groups; ++g) {
    begin(g + kAhead);
    const int32_t* sum = sums[g % (2 * kAhead)];
    const __m512 scales = scales_of(block + g * kGroupBytes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
      total[r] = add_group(total[r], _mm512_load_si512(sum + r * kBlock), scales,
                           scale[r * groups + g]);
  }
  for (int r = 0; r < R; ++r) _mm512_storeu_ps(out + r * kBlock, total[r]);
}
#else
class Tiles {
 public:
  explicit Tiles(int64_t) {}
};
#endif

// Sixteen outputs of up to sixteen rows: `out` is [count, 16]. Memory of `rows` reaches to the next
// multiple of sixteen.
inline void multiply(const Matrix& matrix, int64_t block, const Rows& rows, int64_t first,
                     int64_t count, float* out) {
  const uint8_t* packed = matrix.block(block);
#ifdef __AMX_INT8__
  if (count > kFewRows) {
    if (count <= 4)
      multiply_many<4>(packed, rows, first, out);
    else if (count <= 8)
      multiply_many<8>(packed, rows, first, out);
    else if (count <= 12)
      multiply_many<12>(packed, rows, first, out);
    else
      multiply_many<16>(packed, rows, first, out);
  } else if (count == 1) {
    multiply_few<1>(packed, rows, first, out);
  } else {
    multiply_few<2>(packed, rows, first, out);
  }
#else
  for (int64_t done = 0; done < count; done += 4) {
    float* some = out + done * kBlock;
    switch (count - done) {
      case 1: multiply_few<1>(packed, rows, first + done, some); break;
      case 2: multiply_few<2>(packed, rows, first + done, some); break;
      case 3: multiply_few<3>(packed, rows, first + done, some); break;
      default: multiply_few<4>(packed, rows, first + done, some);
    }
  }
#endif
  if (matrix.bias) {
    const __m512 bias = _mm512_loadu_ps(matrix.bias + block * kBlock);
    for (int64_t r = 0; r < count; ++r)
      _mm512_storeu_ps(out + r * kBlock, _mm512_add_ps(_mm512_loadu_ps(out + r * kBlock), bias));
  }
}

}  // namespace entmtp
