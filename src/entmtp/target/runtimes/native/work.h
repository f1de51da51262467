// Memory that is kept from call to call, and products shared out among threads.
//
// Knows: rows, matrices and a team. Does not know: what layers are made of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "team.h"

namespace entmtp {

struct Workspace {
  std::vector<int8_t> whole;
  std::vector<float> scale;
  std::vector<int32_t> opening;
  std::vector<float> projected, attended, inner, keys;   // of a layer
  std::vector<float> state, rows_in, logits, log_probs;  // of draft heads
  std::vector<int64_t> ids;                              // likewise
  std::vector<std::vector<int32_t>> seen;                // [R] new rows that each sees, ascending
  std::vector<Scratch> scratch;                          // of each thread

  Rows rows(int64_t width) {
    return Rows{whole.data(), scale.data(), opening.data(), width};
  }

  void fit_rows(int64_t count, int64_t width) {
    count = (count + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce;  // tiles read whole ones
    room(whole, count * width);
    room(scale, count * width / kGroup);
    room(opening, count * width / kGroup);
  }
};

// One for each thread that calls; those of its team work in it.
inline Workspace& workspace() {
  static thread_local Workspace work;
  return work;
}

// Rows of floats to whole numbers. Two stages of these make a product.
inline void share_quantise(Team& team, Worker& self, const float* from, int64_t count,
                           const Rows& into) {
  team.share(self, count, 1,
             [&](int64_t row) { quantise_row(from + row * into.width, row, into); });
}

inline int64_t grain(const Team& team, int64_t count) {
  return std::max<int64_t>(1, count / (4 * team.size()));
}

// `take(block, row, out)` gets sixteen outputs of a row.
template <class Take>
inline void share_product(Team& team, Worker& self, const Matrix& matrix, const Rows& rows,
                          int64_t num_rows, Take take) {
  team.share(self, matrix.blocks(), grain(team, matrix.blocks()), [&](int64_t block) {
    float out[kRowsAtOnce * kBlock];
    for (int64_t first = 0; first < num_rows; first += kRowsAtOnce) {
      const int64_t count = std::min<int64_t>(kRowsAtOnce, num_rows - first);
      multiply(matrix, block, rows, first, count, out);
      for (int64_t r = 0; r < count; ++r) take(block, first + r, out + r * kBlock);
    }
  });
}

// The same for a matrix that is two, block by block: `take(block, row, gate, other)`.
template <class Take>
inline void share_pair(Team& team, Worker& self, const Matrix& matrix, const Rows& rows,
                       int64_t num_rows, Take take) {
  const int64_t pairs = matrix.blocks() / 2;
  team.share(self, pairs, grain(team, pairs), [&](int64_t pair) {
    float gate[kRowsAtOnce * kBlock], other[kRowsAtOnce * kBlock];
    for (int64_t first = 0; first < num_rows; first += kRowsAtOnce) {
      const int64_t count = std::min<int64_t>(kRowsAtOnce, num_rows - first);
      multiply(matrix, 2 * pair, rows, first, count, gate);
      multiply(matrix, 2 * pair + 1, rows, first, count, other);
      for (int64_t r = 0; r < count; ++r)
        take(pair, first + r, _mm512_loadu_ps(gate + r * kBlock),
             _mm512_loadu_ps(other + r * kBlock));
    }
  });
}

}  // namespace entmtp
