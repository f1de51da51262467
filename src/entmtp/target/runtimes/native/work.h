// Memory that is kept from call to call, and products shared out among threads.
//
// Knows: rows, matrices and a team. Does not know: what layers are made of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "team.h"

namespace entmtp {

constexpr int64_t kPair = 2 * kBlock;

// Memory on whole cache lines, which tiles are read from.
template <class T>
struct Aligned {
  using value_type = T;
  T* allocate(size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(64)));
  }
  void deallocate(T* memory, size_t) { ::operator delete(memory, std::align_val_t(64)); }
  bool operator==(const Aligned&) const { return true; }
  bool operator!=(const Aligned&) const { return false; }
};

// Rows where a product reads them.
struct RowMemory {
  std::vector<BFloat16, Aligned<BFloat16>> halves;
  std::vector<int8_t, Aligned<int8_t>> whole;
  std::vector<float> scale;
  std::vector<int32_t> opening;

  Rows rows(const Matrix& matrix) {
    return Rows{halves.data(),     whole.data(),      scale.data(),      opening.data(),
                matrix.num_inputs, matrix.grouping(), matrix.is_bfloat16};
  }

  void fit(int64_t count, int64_t width) {
    count = (count + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce;  // tiles read whole ones
    room(halves, count * width);
    room(whole, count * width);
    room(scale, count * width / kTileInputs);
    room(opening, count * width / kTileInputs);
  }
};

struct Workspace {
  RowMemory rows, inner;                                 // `inner`: between two products
  std::vector<BFloat16> queries, keys;                   // of a layer
  std::vector<float> attended;                           // likewise
  std::vector<float> state, rows_in, logits, log_probs;  // of draft heads
  std::vector<int64_t> ids;                              // likewise
  std::vector<std::vector<int32_t>> seen;                // [R] new rows that each sees, ascending
  std::vector<std::vector<Reading>> readings;            // that each thread is going to make
  std::vector<Scratch> scratch;                          // of each thread
};

// One for each thread that calls; those of its team work in it.
inline Workspace& workspace() {
  static thread_local Workspace work;
  return work;
}

// Rows of floats to those that a product takes.
inline void share_put(Team& team, Worker& self, const float* from, int64_t count,
                           const Rows& into) {
  team.share(self, count, 1,
             [&](int64_t row) { put_row(from + row * into.width, row, into); });
}

inline int64_t grain(const Team& team, int64_t count) {
  return std::max<int64_t>(1, count / (16 * team.size()));
}

// Calls `work(first, count)` for up to sixteen rows at a time; all of them read the same weights.
template <class Work>
inline void by_sixteen(Worker& self, int64_t num_rows, Work work) {
  for (int64_t first = 0; first < num_rows; first += kRowsAtOnce) {
    self.ahead.again(first > 0);
    work(first, std::min<int64_t>(kRowsAtOnce, num_rows - first));
  }
}

// Of a matrix whose outputs are shared out as so many tasks the part that some of them read.
inline Reading part_of(const Matrix& matrix, int64_t tasks, int64_t first, int64_t last) {
  const int64_t bytes = packed_bytes(matrix) / matrix.blocks();
  const int64_t blocks = (matrix.blocks() + tasks - 1) / tasks;  // of a task
  return {matrix.packed + first * blocks * bytes,
          matrix.packed + std::min(last * blocks, matrix.blocks()) * bytes};
}

inline Reading own_part(const Team& team, int id, const Matrix& matrix, int64_t tasks) {
  return part_of(matrix, tasks, team.first_of(id, tasks), team.first_of(id + 1, tasks));
}

inline int64_t pairs_of(const Matrix& matrix) { return (matrix.blocks() + 1) / 2; }

// `take(block, row, out)` gets sixteen outputs of a row.
template <class Take>
inline void share_product(Team& team, Worker& self, const Matrix& matrix, const Rows& rows,
                          int64_t num_rows, Take take) {
  const int64_t blocks = matrix.blocks(), pairs = pairs_of(matrix);
  team.share(self, pairs, grain(team, pairs), [&](int64_t pair) {
    const int64_t count_blocks = std::min<int64_t>(2, blocks - 2 * pair);
    by_sixteen(self, num_rows, [&](int64_t first, int64_t count) {
      alignas(64) float out[kRowsAtOnce * kPair];
      multiply(matrix, 2 * pair, count_blocks, rows, first, count, out, kPair, self.ahead);
      for (int64_t r = 0; r < count; ++r)
        for (int64_t i = 0; i < count_blocks; ++i)
          take(2 * pair + i, first + r, out + r * kPair + i * kBlock);
    });
  });
}

// Sixteen gated outputs of some rows, `[count, stride]`: `gate(a, b)` of each pair of blocks.
template <class Gate>
inline void multiply_gated(const Matrix& matrix, int64_t pair, const Rows& rows, int64_t first,
                           int64_t count, float* into, int64_t stride, Ahead& ahead, Gate gate) {
  alignas(64) float out[kRowsAtOnce * kPair];
  multiply(matrix, 2 * pair, 2, rows, first, count, out, kPair, ahead);
  for (int64_t r = 0; r < count; ++r) {
    const float* both = out + r * kPair;
    ahead.fetch(kLinesBesideSum);
    _mm512_storeu_ps(into + r * stride,
                     gate(_mm512_load_ps(both), _mm512_load_ps(both + kBlock)));
  }
}

}  // namespace entmtp
