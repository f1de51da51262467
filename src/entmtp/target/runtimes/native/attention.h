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

#include <cmath>
#include <cstdint>
#include <vector>

#include <immintrin.h>

#include "vectors.h"

namespace entmtp {

constexpr int kLanes = 16;

// The keys of one head of one sequence.
struct Keys {
  const float* committed_keys;    // [C / 16, D, 16]
  const float* committed_values;  // [C, D]
  int64_t length;                 // committed
  const float* new_keys;          // [T / 16, D, 16]
  const float* new_values;        // [T, D]
  int64_t num_new;
  int64_t size;                   // D, a multiple of 16
};

struct Scratch {
  std::vector<float> scores, fresh;
};

// Scores of R queries with blocks of 16 keys: [R, stride].
template <int R, int N>
inline void score_blocks(const float* const* queries, const float* keys, int64_t size,
                         float* scores, int64_t stride) {
  __m512 sum[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) sum[r][n] = _mm512_setzero_ps();
  for (int64_t d = 0; d < size; ++d)
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) {
      const __m512 key = _mm512_loadu_ps(keys + (n * size + d) * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
        sum[r][n] = _mm512_fmadd_ps(key, _mm512_set1_ps(queries[r][d]), sum[r][n]);
    }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) _mm512_storeu_ps(scores + r * stride + n * kLanes, sum[r][n]);
}

template <int R>
inline void score_all(const float* const* queries, const float* keys, int64_t blocks, int64_t size,
                      float* scores, int64_t stride) {
  int64_t b = 0;
  for (; b + 4 <= blocks; b += 4)
    score_blocks<R, 4>(queries, keys + b * size * kLanes, size, scores + b * kLanes, stride);
  for (; b < blocks; ++b)
    score_blocks<R, 1>(queries, keys + b * size * kLanes, size, scores + b * kLanes, stride);
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

// Weighted sums of values, W vectors of 16 numbers at a time.
template <int R, int W>
inline void add_values(const Keys& keys, const float* scores, int64_t stride,
                       const std::vector<int32_t>* const* seen, const float* sums, int64_t at,
                       float* const* outputs) {
  __m512 total[R][W];
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w) total[r][w] = _mm512_setzero_ps();
  for (int64_t j = 0; j < keys.length; ++j) {
    const float* value = keys.committed_values + j * keys.size + at;
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w) {
      const __m512 part = _mm512_loadu_ps(value + w * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
        total[r][w] = _mm512_fmadd_ps(part, _mm512_set1_ps(scores[r * stride + j]), total[r][w]);
    }
  }
  for (int r = 0; r < R; ++r) {
    const float* own = scores + r * stride + keys.length;
    for (size_t i = 0; i < seen[r]->size(); ++i) {
      const float* value = keys.new_values + (*seen[r])[i] * keys.size + at;
      const __m512 weight = _mm512_set1_ps(own[i]);
      for (int w = 0; w < W; ++w)
        total[r][w] = _mm512_fmadd_ps(_mm512_loadu_ps(value + w * kLanes), weight, total[r][w]);
    }
    const __m512 sum = _mm512_set1_ps(sums[r]);
    for (int w = 0; w < W; ++w)
      _mm512_storeu_ps(outputs[r] + at + w * kLanes, _mm512_div_ps(total[r][w], sum));
  }
}

// `R` rows of one head: `queries` are scaled, `seen[r]` are the new rows that row r sees, ascending.
template <int R>
inline void attend_some(const Keys& keys, const float* const* queries,
                        const std::vector<int32_t>* const* seen, float* const* outputs,
                        Scratch& scratch) {
  const int64_t past = (keys.length + kLanes - 1) / kLanes;
  const int64_t fresh = (keys.num_new + kLanes - 1) / kLanes;
  const int64_t stride = (past + 4) * kLanes + keys.num_new;
  if (static_cast<int64_t>(scratch.scores.size()) < R * stride) scratch.scores.resize(R * stride);
  if (static_cast<int64_t>(scratch.fresh.size()) < R * fresh * kLanes)
    scratch.fresh.resize(R * fresh * kLanes);
  float* scores = scratch.scores.data();
  score_all<R>(queries, keys.committed_keys, past, keys.size, scores, stride);
  score_all<R>(queries, keys.new_keys, fresh, keys.size, scratch.fresh.data(), fresh * kLanes);
  float sums[R];
  for (int r = 0; r < R; ++r) {
    float* own = scores + r * stride + keys.length;
    const float* given = scratch.fresh.data() + r * fresh * kLanes;
    for (size_t i = 0; i < seen[r]->size(); ++i) own[i] = given[(*seen[r])[i]];
    sums[r] = weigh(scores + r * stride, keys.length + static_cast<int64_t>(seen[r]->size()));
  }
  int64_t at = 0;
  for (; at + 4 * kLanes <= keys.size; at += 4 * kLanes)
    add_values<R, 4>(keys, scores, stride, seen, sums, at, outputs);
  for (; at < keys.size; at += kLanes)
    add_values<R, 1>(keys, scores, stride, seen, sums, at, outputs);
}

inline void attend(const Keys& keys, int count, const float* const* queries,
                   const std::vector<int32_t>* const* seen, float* const* outputs,
                   Scratch& scratch) {
  switch (count) {
    case 1: attend_some<1>(keys, queries, seen, outputs, scratch); break;
    case 2: attend_some<2>(keys, queries, seen, outputs, scratch); break;
    case 3: attend_some<3>(keys, queries, seen, outputs, scratch); break;
    default: attend_some<4>(keys, queries, seen, outputs, scratch);
  }
}

}  // namespace entmtp
