// Attention of new rows to committed keys and to one another, each row for itself.
//
// Knows: where keys and values lie. Does not know: weights, layers, who is accepted.
//
// A row's keys are, in the order of their positions, the committed ones and then the new rows that
// it sees. Numbers are in bfloat16 and sums in float32, in the order in which a product of tiles
// adds (Intel's manual, TDPBF16PS; measured to be so): of every 32 numbers the even ones make one
// chain of products and the odd ones another, and both are added to the sum so far. A score adds
// over a head's numbers like that, a row's values over absolute positions. Without tiles the same is
// done by vectors. None of it depends on which other rows there are, or on whether a key is
// committed by now. So a tree's row has the bits of plain decoding's row, at any length.
//
// Committed keys lie in blocks of 16 positions, [D / 2, 16, 2] each, and values in pairs of
// positions, [D, 2] each: as tiles and vectors take them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <immintrin.h>

#include "chains.h"
#include "vectors.h"

namespace entmtp {

// The keys of one head of one sequence.
struct Keys {
  const BFloat16* committed_keys;    // [C / 16, D / 2, 16, 2]
  const BFloat16* committed_values;  // [C / 2, D, 2]
  int64_t length;                    // committed
  const BFloat16* new_keys;          // [T / 16, D / 2, 16, 2]
  const BFloat16* new_values;        // [T, D]
  int64_t num_new;
  int64_t size;                      // D, a multiple of 16
};

inline void put_key(const BFloat16* key, int64_t size, BFloat16* keys, int64_t position) {
  BFloat16* block = keys + position / kLanes * size * kLanes + 2 * (position % kLanes);
  const __m256i lines = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                                           _mm256_set1_epi32(kLanes));
  for (int64_t d = 0; d < size; d += 16)
    _mm256_i32scatter_epi32(block + d * kLanes, lines,
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(key + d)), 4);
}

inline void put_value(const BFloat16* value, int64_t size, BFloat16* values, int64_t position) {
  BFloat16* pairs = values + position / 2 * 2 * size;
  const bool is_odd = position % 2;
  for (int64_t d = 0; d < size; d += 16)
    _mm512_mask_storeu_epi16(pairs + 2 * d, is_odd ? 0xaaaaaaaa : 0x55555555,
                             _mm512_slli_epi32(load_halves(value + d), is_odd ? 16 : 0));
}

// Some queries of the heads that share keys: of each row its heads, row by row.
struct Queries {
  RowsOfTile rows;                   // [count, D], scaled
  int64_t first, count;              // which of the group's they are; at most 16
  int64_t heads;                     // of a row
  const std::vector<int32_t>* seen;  // [T] new rows that each row sees, ascending
  float* outputs;                    // [T, stride], of each row its heads' numbers from the front
  int64_t stride;

  const std::vector<int32_t>& seen_by(int64_t query) const { return seen[(first + query) / heads]; }
  float* output_of(int64_t query) const {
    const int64_t row = (first + query) / heads, head = (first + query) % heads;
    return outputs + row * stride + head * rows.stride;
  }
};

struct Scratch {
  std::vector<float> scores, fresh, sums, row;
  std::vector<BFloat16> weights;
};

template <class T, class Allocator>
inline T* room(std::vector<T, Allocator>& memory, int64_t size) {
  if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
  return memory.data();
}

// Turns a row's scores into weights `into`, with zeros up to a whole vector; their sum.
inline float weigh(const float* scores, int64_t count, BFloat16* into) {
  const int64_t rest = count % kLanes, whole = count - rest;
  const __mmask16 tail = static_cast<__mmask16>((1 << rest) - 1);
  const __m512 least = _mm512_set1_ps(-100.0f), lowest = _mm512_set1_ps(-INFINITY);
  __m512 highest = _mm512_mask_loadu_ps(lowest, tail, scores + whole);
  for (int64_t i = 0; i < whole; i += kLanes)
    highest = _mm512_max_ps(highest, _mm512_loadu_ps(scores + i));
  const __m512 log2_of_e = _mm512_set1_ps(1.44269504f);
  const __m512 top = _mm512_mul_ps(_mm512_set1_ps(_mm512_reduce_max_ps(highest)), log2_of_e);
  const auto weight_of = [&](__m512 part) {
    const __m512 power = _mm512_fmsub_ps(part, log2_of_e, top);
    return rounded(roughly_two_to(_mm512_max_ps(power, least)));
  };
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < whole; i += kLanes) {
    const __m512 weight = weight_of(_mm512_loadu_ps(scores + i));
    store_upper(into + i, weight);
    sum = _mm512_add_ps(sum, weight);
  }
  if (rest) {
    const __m512 given = _mm512_maskz_loadu_ps(tail, scores + whole);
    const __m512 weight = _mm512_maskz_mov_ps(tail, weight_of(given));
    store_upper(into + whole, weight);
    sum = _mm512_add_ps(sum, weight);
  }
  return _mm512_reduce_add_ps(sum);
}

// Adds a row's weighted values from position `start` on, a multiple of 32, to W vectors of its sums.
template <int W>
inline void add_border(const Keys& keys, const std::vector<int32_t>& seen, const BFloat16* weights,
                       int64_t start, int64_t d, float* sums) {
  const int64_t size = keys.size, stop = keys.length + static_cast<int64_t>(seen.size());
  const auto fresh = [&](int64_t position, int w) {  // those behind the last one are zero
    const int64_t i = position - keys.length;
    if (position >= stop) return _mm512_setzero_si512();
    return load_halves(keys.new_values + seen[i] * size + d + w * kLanes);
  };
  for (; start < stop; start += kChain) {
    Chains chains[W];
    const auto add = [&](int64_t j, auto pair_of) {
      const float first = float_of(weights[j]), second = float_of(weights[j + 1]);
      for (int w = 0; w < W; ++w) chains[w].add(pair_of(w), first, second);
    };
    const auto committed = [&](int64_t j, int w) {
      return _mm512_loadu_si512(keys.committed_values + j * size + 2 * (d + w * kLanes));
    };
    int64_t j = start;
    const int64_t end = std::min(start + kChain, stop);
    for (; j + 1 < keys.length && j < end; j += 2) add(j, [&](int w) { return committed(j, w); });
    if (j < keys.length && j < end) {
      add(j, [&](int w) {
        const __m512i first = _mm512_and_si512(committed(j, w), _mm512_set1_epi32(0xffff));
        return _mm512_or_si512(first, _mm512_slli_epi32(fresh(j + 1, w), 16));
      });
      j += 2;
    }
    for (; j < end; j += 2)
      add(j, [&](int w) {
        return _mm512_or_si512(fresh(j, w), _mm512_slli_epi32(fresh(j + 1, w), 16));
      });
    for (int w = 0; w < W; ++w) {
      float* sum = sums + d + w * kLanes;
      _mm512_storeu_ps(sum, chains[w].added_to(_mm512_loadu_ps(sum)));
    }
  }
}

inline void attend(const Keys& keys, const Queries& queries, Scratch& scratch, Ahead& ahead) {
  const int64_t past = (keys.length + kLanes - 1) / kLanes;
  const int64_t fresh = (keys.num_new + kLanes - 1) / kLanes;
  const int64_t stride = (past + fresh + 1) * kLanes, size = keys.size;
  const int64_t whole = keys.length / kChain * kChain;  // positions in whole chains
  float* scores = room(scratch.scores, kMostRows * stride);
  float* given = room(scratch.fresh, kMostRows * fresh * kLanes);
  float* sums = room(scratch.sums, kMostRows * size);
  BFloat16* weights = room(scratch.weights, kMostRows * stride);
  const auto score = tiles_take(size) ? score_by_tiles : score_by_vectors;
  const auto sum_values = tiles_take(size) ? sum_by_tiles : sum_by_vectors;
  score(queries.rows, queries.count, keys.committed_keys, past, size, scores, stride, ahead);
  score(queries.rows, queries.count, keys.new_keys, fresh, size, given, fresh * kLanes, ahead);
  float totals[kMostRows];
  for (int64_t q = 0; q < queries.count; ++q) {
    const auto& seen = queries.seen_by(q);
    float* own = scores + q * stride;
    for (size_t i = 0; i < seen.size(); ++i)
      own[keys.length + i] = given[q * fresh * kLanes + seen[i]];
    totals[q] = weigh(own, keys.length + static_cast<int64_t>(seen.size()), weights + q * stride);
  }
  sum_values({weights, stride}, queries.count, keys.committed_values, whole, size, sums, ahead);
  for (int64_t q = 0; q < queries.count; ++q) {
    const auto& seen = queries.seen_by(q);
    int64_t at = 0;
    for (; at + 4 * kLanes <= size; at += 4 * kLanes)
      add_border<4>(keys, seen, weights + q * stride, whole, at, sums + q * size);
    for (; at < size; at += kLanes)
      add_border<1>(keys, seen, weights + q * stride, whole, at, sums + q * size);
    const __m512 total = _mm512_set1_ps(totals[q]);
    for (int64_t d = 0; d < size; d += kLanes)
      _mm512_storeu_ps(queries.output_of(q) + d,
                       _mm512_div_ps(_mm512_loadu_ps(sums + q * size + d), total));
  }
}

}  // namespace entmtp
