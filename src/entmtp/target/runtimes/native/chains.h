// Products of rows in bfloat16, added as a product of tiles adds them: with tiles or without.
//
// Knows: the order of sums, and how operands lie. Does not know: what is a key and what a value.
//
// Of every 32 products of a sum the even ones make one chain and the odd ones another; both begin
// at zero, are added to each other, and that to the sum so far. Numbers too small to be normal are
// zero (`TinyIsZero`).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <immintrin.h>

#include "ahead.h"
#include "tiles.h"
#include "vectors.h"

namespace entmtp {

constexpr int64_t kLanes = 16;
constexpr int64_t kMostRows = 16;  // the height of a tile
constexpr int64_t kChain = 32;     // products of two chains

// Rows of numbers, `stride` apart. Where tiles read them, memory reaches to the sixteenth row.
struct RowsOfTile {
  const BFloat16* numbers;
  int64_t stride;
};

struct Chains {
  __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();

  // Lane by lane, the products of pairs and two numbers.
  void add(__m512i pairs, float first, float second) {
    even = _mm512_fmadd_ps(first_of(pairs), _mm512_set1_ps(first), even);
    odd = _mm512_fmadd_ps(second_of(pairs), _mm512_set1_ps(second), odd);
  }
  __m512 added_to(__m512 sum) const { return _mm512_add_ps(sum, _mm512_add_ps(even, odd)); }

 private:
  static __m512 first_of(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
  }
  static __m512 second_of(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(0xffff0000)));
  }
};

// In its life, a thread's numbers are as tiles take them.
class TinyIsZero {
 public:
  TinyIsZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushResults | kFlushOperands); }
  ~TinyIsZero() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kFlushResults = 0x8000, kFlushOperands = 0x0040;
  const unsigned before_;
};

constexpr int64_t kRowsOfVectors = 6;  // for which a vector is loaded once

// Calls `work` with the number of rows, at most six, as a constant.
template <class Work>
inline void with_count(int64_t count, Work work) {
  switch (count) {
    case 1: work(std::integral_constant<int, 1>()); break;
    case 2: work(std::integral_constant<int, 2>()); break;
    case 3: work(std::integral_constant<int, 3>()); break;
    case 4: work(std::integral_constant<int, 4>()); break;
    case 5: work(std::integral_constant<int, 5>()); break;
    default: work(std::integral_constant<int, kRowsOfVectors>());
  }
}

// Up to 32 numbers, a multiple of 16, of some rows.
template <int R>
struct Numbers {
  alignas(64) float of_row[R][kChain];

  Numbers(const RowsOfTile& rows, int64_t first, int64_t at, int64_t count) {
    for (int r = 0; r < R; ++r)
      for (int64_t i = 0; i < count; i += kLanes)
        _mm512_store_ps(of_row[r] + i, load_floats(rows.numbers + (first + r) * rows.stride + at + i));
  }
};

// Scores [count, stride] of up to sixteen rows with blocks of sixteen keys, [size / 2, 16, 2].
inline void score_by_vectors(const RowsOfTile& rows, int64_t count, const BFloat16* keys,
                             int64_t blocks, int64_t size, float* scores, int64_t stride,
                             Ahead& ahead) {
  for (int64_t first = 0; first < count; first += kRowsOfVectors)
    with_count(count - first, [&](auto number) {
      constexpr int R = number();
      for (int64_t d = 0; d < size; d += kChain) {
        const int64_t length = std::min(kChain, size - d);
        const Numbers<R> some(rows, first, d, length);
        for (int64_t b = 0; b < blocks; ++b) {
          const BFloat16* from = keys + (b * size + d) * kLanes;
          ahead.used(kTileBytes);
          Chains chains[R];
          for (int64_t i = 0; i < length; i += 2) {
            const __m512i key = _mm512_loadu_si512(from + i * kLanes);
#pragma GCC unroll 6
            for (int r = 0; r < R; ++r)
              chains[r].add(key, some.of_row[r][i], some.of_row[r][i + 1]);
          }
          for (int r = 0; r < R; ++r) {
            float* score = scores + (first + r) * stride + b * kLanes;
            _mm512_storeu_ps(score,
                             chains[r].added_to(d ? _mm512_loadu_ps(score) : _mm512_setzero_ps()));
          }
        }
      }
    });
}

// Sums [count, size] of `length` values, a multiple of 32, by up to sixteen rows of weights; values
// are pairs, [size, 2].
inline void sum_by_vectors(const RowsOfTile& weights, int64_t count, const BFloat16* values,
                           int64_t length, int64_t size, float* sums, Ahead& ahead) {
  std::memset(sums, 0, count * size * sizeof(float));
  for (int64_t first = 0; first < count; first += kRowsOfVectors)
    with_count(count - first, [&](auto number) {
      constexpr int R = number();
      for (int64_t start = 0; start < length; start += kChain) {
        const Numbers<R> some(weights, first, start, kChain);
        ahead.used(kChain * size * sizeof(BFloat16));
        for (int64_t d = 0; d < size; d += kLanes) {
          Chains chains[R];
          for (int64_t i = 0; i < kChain; i += 2) {
            const __m512i value = _mm512_loadu_si512(values + (start + i) * size + 2 * d);
#pragma GCC unroll 6
            for (int r = 0; r < R; ++r)
              chains[r].add(value, some.of_row[r][i], some.of_row[r][i + 1]);
          }
          for (int r = 0; r < R; ++r) {
            float* sum = sums + (first + r) * size + d;
            _mm512_storeu_ps(sum, chains[r].added_to(_mm512_loadu_ps(sum)));
          }
        }
      }
    });
}

#if defined(__AMX_INT8__) && defined(__AMX_BF16__)
// Registers are as `Tiles` (tiles.h) has them: 0 to 3 sums, 4 rows, 5 and 6 what multiplies them.
// Which are used must be written out.
#define ENTMTP_FOUR_TIMES(DO) DO(0, 5) DO(1, 6) DO(2, 5) DO(3, 6)
#define ENTMTP_ZERO(SUM, OPERAND) _tile_zero(SUM);

// The same by tiles: all sixteen rows, and rubbish behind the last one.
inline void score_by_tiles(const RowsOfTile& rows, int64_t, const BFloat16* keys, int64_t blocks,
                           int64_t size, float* scores, int64_t stride, Ahead& ahead) {
  settle();
  for (int64_t b = 0; b < blocks; b += 4) {
    const BFloat16* from = keys + b * size * kLanes;
    ENTMTP_FOUR_TIMES(ENTMTP_ZERO)
    for (int64_t d = 0; d < size; d += kChain) {
      _tile_loadd(4, rows.numbers + d, rows.stride * sizeof(BFloat16));
#define ENTMTP_SCORE(SUM, OPERAND)                                          \
  if (b + SUM < blocks) {                                                   \
    fetch_ahead(from + (SUM * size + d) * kLanes);                          \
    ahead.used(kTileBytes);                                                 \
    _tile_loadd(OPERAND, from + (SUM * size + d) * kLanes, 64);             \
    _tile_dpbf16ps(SUM, 4, OPERAND);                                        \
  }
      ENTMTP_FOUR_TIMES(ENTMTP_SCORE)
#undef ENTMTP_SCORE
    }
#define ENTMTP_STORE(SUM, OPERAND) \
  if (b + SUM < blocks) _tile_stored(SUM, scores + (b + SUM) * kLanes, stride * sizeof(float));
    ENTMTP_FOUR_TIMES(ENTMTP_STORE)
#undef ENTMTP_STORE
  }
}

inline void sum_by_tiles(const RowsOfTile& weights, int64_t, const BFloat16* values,
                         int64_t length, int64_t size, float* sums, Ahead& ahead) {
  settle();
  for (int64_t first = 0; first < size; first += 4 * kLanes) {
    ENTMTP_FOUR_TIMES(ENTMTP_ZERO)
    for (int64_t j = 0; j < length; j += kChain) {
      _tile_loadd(4, weights.numbers + j, weights.stride * sizeof(BFloat16));
      const BFloat16* from = values + j * size + 2 * first;
#define ENTMTP_SUM(SUM, OPERAND)                                                      \
  if (first + SUM * kLanes < size) {                                                  \
    fetch_ahead(values + j * size + (first / kLanes + SUM) * kTileBytes / 2);           \
    ahead.used(kTileBytes);                                                           \
    _tile_loadd(OPERAND, from + 2 * SUM * kLanes, 2 * size * sizeof(BFloat16));       \
    _tile_dpbf16ps(SUM, 4, OPERAND);                                                  \
  }
      ENTMTP_FOUR_TIMES(ENTMTP_SUM)
#undef ENTMTP_SUM
    }
#define ENTMTP_STORE(SUM, OPERAND)       \
  if (first + SUM * kLanes < size)       \
    _tile_stored(SUM, sums + first + SUM * kLanes, size * sizeof(float));
    ENTMTP_FOUR_TIMES(ENTMTP_STORE)
#undef ENTMTP_STORE
  }
}
#undef ENTMTP_ZERO
#undef ENTMTP_FOUR_TIMES

// Rows of so many numbers are made of whole chains, as tiles need them.
inline bool tiles_take(int64_t size) { return size % kChain == 0; }
#else
constexpr auto score_by_tiles = score_by_vectors;
constexpr auto sum_by_tiles = sum_by_vectors;
inline bool tiles_take(int64_t) { return false; }
#endif

}  // namespace entmtp
