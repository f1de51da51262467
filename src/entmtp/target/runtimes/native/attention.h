// Attention of new rows to committed keys and to one another, each row for itself.
//
// Knows: where keys and values lie. Does not know: weights, layers, who is accepted.
//
// A row's keys are, in the order of their positions, the committed ones and then the new rows that
// it sees. Each score is one chain of products over the head's numbers, weights are added in 16
// lanes by position, and values in the order of positions. None of that depends on which other rows
// there are, or on whether a key is committed by now. So a tree's row has the bits of plain
// decoding's row, at any length.
//
// Committed keys lie in blocks of 16 positions, [D, 16] each, so that one vector holds 16 scores.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include <immintrin.h>

#include "vectors.h"

namespace entmtp {

constexpr int kLanes = 16;
constexpr int kMostQueries = 32;  // of one call

// The keys of one head of one sequence.
struct Keys {
  const Half* committed_keys;    // [C / 16, D, 16]
  const Half* committed_values;  // [C, D]
  int64_t length;                // committed
  const Half* new_keys;          // [T / 16, D, 16]
  const Half* new_values;        // [T, D]
  int64_t num_new;
  int64_t size;                  // D, a multiple of 16
};

struct Scratch {
  std::vector<float> scores, fresh, sums, row;
};

// Some rows of some heads that share keys.
struct Queries {
  int count;
  const float* const* rows;                  // [count] of D numbers, scaled
  const std::vector<int32_t>* const* seen;   // [count] new rows that each sees, ascending
  float* const* outputs;                     // [count] of D numbers
};

constexpr int kAtOnce = 6;        // queries for which a vector of keys or values is loaded once
constexpr int64_t kTile = 64;     // positions of values that stay in the nearest cache

// Calls `work` with the number of queries, at most six, as a constant.
template <class Work>
inline void with_count(int count, Work work) {
  switch (count) {
    case 1: work(std::integral_constant<int, 1>()); break;
    case 2: work(std::integral_constant<int, 2>()); break;
    case 3: work(std::integral_constant<int, 3>()); break;
    case 4: work(std::integral_constant<int, 4>()); break;
    case 5: work(std::integral_constant<int, 5>()); break;
    default: work(std::integral_constant<int, 6>());
  }
}

// Scores of R queries with N blocks of 16 keys: [R, stride].
template <int R, int N>
inline void score_blocks(const float* const* queries, const Half* keys, int64_t size,
                         float* scores, int64_t stride) {
  __m512 sum[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) sum[r][n] = _mm512_setzero_ps();
  for (int64_t d = 0; d < size; ++d)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const __m512 key = load_halves(keys + (n * size + d) * kLanes);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r)
        sum[r][n] = _mm512_fmadd_ps(key, _mm512_set1_ps(queries[r][d]), sum[r][n]);
    }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) _mm512_storeu_ps(scores + r * stride + n * kLanes, sum[r][n]);
}

// Scores of all queries with `blocks` blocks of keys: [count, stride].
inline void score_all(const Queries& queries, const Half* keys, int64_t blocks, int64_t size,
                      float* scores, int64_t stride) {
  for (int64_t b = 0; b < blocks;) {
    const bool is_many = b + 4 <= blocks;
    for (int q = 0; q < queries.count; q += kAtOnce)
      with_count(queries.count - q, [&](auto count) {
        const Half* from = keys + b * size * kLanes;
        float* into = scores + q * stride + b * kLanes;
        if (is_many)
          score_blocks<count(), 4>(queries.rows + q, from, size, into, stride);
        else
          score_blocks<count(), 1>(queries.rows + q, from, size, into, stride);
      });
    b += is_many ? 4 : 1;
  }
}

// Turns a row's scores into weights in place; their sum.
inline float weigh(float* scores, int64_t count) {
  const int64_t rest = count % kLanes, whole = count - rest;
  const __mmask16 tail = static_cast<__mmask16>((1u << rest) - 1);
  const __m512 lowest = _mm512_set1_ps(-INFINITY);
  __m512 highest = lowest;
  for (int64_t i = 0; i < whole; i += kLanes)
    highest = _mm512_max_ps(highest, _mm512_loadu_ps(scores + i));
  if (rest) highest = _mm512_max_ps(highest, _mm512_mask_loadu_ps(lowest, tail, scores + whole));
  const __m512 top = _mm512_set1_ps(_mm512_reduce_max_ps(highest));
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < whole; i += kLanes) {
    const __m512 weight = exponential(_mm512_sub_ps(_mm512_loadu_ps(scores + i), top));
    _mm512_storeu_ps(scores + i, weight);
    sum = _mm512_add_ps(sum, weight);
  }
  if (rest) {
    const __m512 given = _mm512_maskz_loadu_ps(tail, scores + whole);
    const __m512 weight = _mm512_maskz_mov_ps(tail, exponential(_mm512_sub_ps(given, top)));
    _mm512_mask_storeu_ps(scores + whole, tail, weight);
    sum = _mm512_add_ps(sum, weight);
  }
  return _mm512_reduce_add_ps(sum);
}

// Adds `count` weighted values to sums of R queries, W vectors of 16 numbers: [R, size].
template <int R, int W>
inline void add_values(const Half* values, int64_t size, int64_t count, const float* weights,
                       int64_t stride, float* sums) {
  __m512 total[R][W];
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w) total[r][w] = _mm512_loadu_ps(sums + r * size + w * kLanes);
  for (int64_t j = 0; j < count; ++j)
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w) {
      const __m512 value = load_halves(values + j * size + w * kLanes);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r)
        total[r][w] =
            _mm512_fmadd_ps(value, _mm512_set1_ps(weights[r * stride + j]), total[r][w]);
    }
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w) _mm512_storeu_ps(sums + r * size + w * kLanes, total[r][w]);
}

// The same for all numbers of R values' rows.
template <int R>
inline void add_rows(const Half* values, int64_t size, int64_t count, const float* weights,
                     int64_t stride, float* sums) {
  int64_t at = 0;
  for (; at + 4 * kLanes <= size; at += 4 * kLanes)
    add_values<R, 4>(values + at, size, count, weights, stride, sums + at);
  for (; at < size; at += kLanes)
    add_values<R, 1>(values + at, size, count, weights, stride, sums + at);
}

template <class T, class Allocator>
inline T* room(std::vector<T, Allocator>& memory, int64_t size) {
  if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
  return memory.data();
}

inline void attend(const Keys& keys, const Queries& queries, Scratch& scratch) {
  const int64_t past = (keys.length + kLanes - 1) / kLanes;
  const int64_t fresh = (keys.num_new + kLanes - 1) / kLanes;
  const int64_t stride = past * kLanes + keys.num_new, size = keys.size;
  float* scores = room(scratch.scores, queries.count * stride + kLanes);
  float* given = room(scratch.fresh, queries.count * fresh * kLanes);
  float* sums = room(scratch.sums, queries.count * size);
  score_all(queries, keys.committed_keys, past, size, scores, stride);
  score_all(queries, keys.new_keys, fresh, size, given, fresh * kLanes);
  float weights[kMostQueries];
  for (int q = 0; q < queries.count; ++q) {
    const auto& seen = *queries.seen[q];
    float* own = scores + q * stride;
    for (size_t i = 0; i < seen.size(); ++i)
      own[keys.length + i] = given[q * fresh * kLanes + seen[i]];
    weights[q] = weigh(own, keys.length + static_cast<int64_t>(seen.size()));
  }
  std::memset(sums, 0, queries.count * size * sizeof(float));
  for (int64_t start = 0; start < keys.length; start += kTile) {
    const int64_t count = std::min(kTile, keys.length - start);
    for (int q = 0; q < queries.count; q += kAtOnce)
      with_count(queries.count - q, [&](auto number) {
        add_rows<number()>(keys.committed_values + start * size, size, count,
                           scores + q * stride + start, stride, sums + q * size);
      });
  }
  for (int q = 0; q < queries.count; ++q) {
    const auto& seen = *queries.seen[q];
    const float* own = scores + q * stride + keys.length;
    for (size_t i = 0; i < seen.size(); ++i)
      add_rows<1>(keys.new_values + seen[i] * size, size, 1, own + i, stride, sums + q * size);
    const __m512 sum = _mm512_set1_ps(weights[q]);
    for (int64_t d = 0; d < size; d += kLanes)
      _mm512_storeu_ps(queries.outputs[q] + d,
                       _mm512_div_ps(_mm512_loadu_ps(sums + q * size + d), sum));
  }
}

}  // namespace entmtp
