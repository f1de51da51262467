// Draft heads in int8: features of rows, logits over a draft vocabulary, the best of them.
//
// Knows: what Medusa's and Hydra's heads are made of. Does not know: trees, paths, prefix layers.
//
// P rows, H hidden size, W draft vocabulary.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "linear.h"
#include "team.h"
#include "vectors.h"
#include "work.h"

namespace entmtp {

extern "C" {

struct Head {
  Matrix first;           // [2 H, I]: gate and skip, block by block; without it rows are the state
  const Matrix* blocks;   // [H, H] each: x + swish(block x)
  int64_t num_blocks;
  Matrix projection;      // [H, H], or without memory
};

struct Question {
  const Head* heads;
  const Matrix* output;      // [W, H], of all these heads
  const int64_t* draft_ids;  // [W] target ids of its rows, or null where they are the same
  const float* rows;         // [P, I], the same for every head
  float* logits;             // [heads, P, W]
  int64_t* ids;              // [heads, P, children] best first
  float* log_probs;          // likewise
  int64_t num_heads, num_rows, num_children;
};

// One level of a batch of trees: who has children, and where those go.
struct Level {
  const Head* head;          // one, which sees the tokens from the root down to its node
  const Matrix* output;      // [W, H]
  const int64_t* draft_ids;  // [W], or null
  const float* context;      // [B, H]
  const void* embedding;     // [V, H] in float32 or bfloat16
  const int64_t* ways;       // [B, P, D] slots from the root down to each parent
  const int64_t* slots;      // [B, S] of the children
  const int64_t* parents;    // [B, S] which of the parents each hangs under
  const int64_t* ranks;      // [B, S] which of its children each is
  int64_t* ids;              // [B, T] of all slots: read, and written at `slots`
  float* log_probs;          // [B, T] written at `slots`
  int64_t num_sequences, num_parents, depth, num_slots, width, num_children, hidden_size;
  bool is_bfloat16;          // the embedding
};

}  // extern "C"

// The most probable of a row's logits, best first; of equal ones the first.
inline void choose(const float* logits, int64_t count, const int64_t* draft_ids,
                   int64_t num_children, int64_t* ids, float* log_probs) {
  __m512 highest = _mm512_set1_ps(-INFINITY);
  const int64_t whole = count / 16 * 16;
  for (int64_t i = 0; i < whole; i += 16)
    highest = _mm512_max_ps(highest, _mm512_loadu_ps(logits + i));
  float top = _mm512_reduce_max_ps(highest);
  for (int64_t i = whole; i < count; ++i) top = std::max(top, logits[i]);
  int64_t num_found = 0;
  float least = -INFINITY;  // of those found, once there are enough
  const auto consider = [&](int64_t place) {
    const float value = logits[place];
    if (num_found == num_children && !(value > least)) return;
    int64_t at = num_found < num_children ? num_found++ : num_children - 1;
    for (; at > 0 && log_probs[at - 1] < value; --at) {
      log_probs[at] = log_probs[at - 1];
      ids[at] = ids[at - 1];
    }
    log_probs[at] = value;
    ids[at] = place;
    if (num_found == num_children) least = log_probs[num_children - 1];
  };
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < whole; i += 16) {
    const __m512 part = _mm512_loadu_ps(logits + i);
    sum = _mm512_add_ps(sum, exponential(_mm512_sub_ps(part, _mm512_set1_ps(top))));
    if (num_found < num_children) {
      for (int64_t j = i; j < i + 16; ++j) consider(j);
      continue;
    }
    for (unsigned better = _mm512_cmp_ps_mask(part, _mm512_set1_ps(least), _CMP_GT_OQ); better;
         better &= better - 1)
      consider(i + __builtin_ctz(better));
  }
  float total = _mm512_reduce_add_ps(sum);
  for (int64_t i = whole; i < count; ++i) {
    total += std::exp(logits[i] - top);
    consider(i);
  }
  const float normaliser = top + std::log(total);
  for (int64_t i = 0; i < num_children; ++i) {
    log_probs[i] -= normaliser;
    if (draft_ids) ids[i] = draft_ids[ids[i]];
  }
}

// One question to some heads.
class Drafting {
 public:
  Drafting(const Question& asked, Team& team, Workspace& work)
      : asked_(asked), team_(team), work_(work), size_(asked.output->num_inputs),
        num_rows_(asked.num_rows), total_(asked.num_heads * asked.num_rows) {
    int64_t widest = size_;
    for (int64_t h = 0; h < asked.num_heads; ++h)
      widest = std::max(widest, asked.heads[h].first.num_inputs);
    work.rows.fit(total_, widest);
    room(work.state, total_ * size_);
  }

  void run() {
    team_.run(num_stages(), [this](Worker& self) {
      Tiles tiles(total_);
      for (int64_t h = 0; h < asked_.num_heads; ++h) features(self, h);
      const Rows rows = work_.rows.rows(size_);
      share_quantise(team_, self, work_.state.data(), total_, rows);
      const int64_t count = asked_.output->num_outputs;
      share_product(team_, self, *asked_.output, rows, total_,
                    [&](int64_t block, int64_t row, const float* out) {
                      const int64_t width = std::min<int64_t>(kBlock, count - block * kBlock);
                      std::memcpy(asked_.logits + row * count + block * kBlock, out,
                                  width * sizeof(float));
                    });
      team_.share(self, total_, 1, [&](int64_t row) {
        const int64_t at = row * asked_.num_children;
        choose(asked_.logits + row * count, count, asked_.draft_ids, asked_.num_children,
               asked_.ids + at, asked_.log_probs + at);
      });
    });
  }

 private:
  int num_stages() const {
    int64_t count = 3;
    for (int64_t h = 0; h < asked_.num_heads; ++h) count += 6 + 2 * asked_.heads[h].num_blocks;
    return static_cast<int>(count);
  }

  // A head's rows of `state`.
  void features(Worker& self, int64_t index) {
    const Head& head = asked_.heads[index];
    float* state = work_.state.data() + index * num_rows_ * size_;
    const Rows rows = work_.rows.rows(size_);
    if (head.first.packed) {
      const Rows wide = work_.rows.rows(head.first.num_inputs);
      share_quantise(team_, self, asked_.rows, num_rows_, wide);
      const int64_t pairs = head.first.blocks() / 2;
      team_.share(self, pairs, grain(team_, pairs), [&](int64_t pair) {
        by_sixteen(num_rows_, [&](int64_t start, int64_t count) {
          multiply_gated(head.first, pair, wide, start, count, state + start * size_ + pair * kBlock,
                         size_, [](__m512 gate, __m512 skip) {
                           return _mm512_add_ps(skip, swish(gate));
                         });
        });
      });
    } else {
      team_.share(self, num_rows_, 1, [&](int64_t row) {
        std::memcpy(state + row * size_, asked_.rows + row * size_, size_ * sizeof(float));
      });
    }
    for (int64_t b = 0; b < head.num_blocks; ++b) {
      share_quantise(team_, self, state, num_rows_, rows);
      share_product(team_, self, head.blocks[b], rows, num_rows_,
                    [&](int64_t block, int64_t row, const float* out) {
                      float* into = state + row * size_ + block * kBlock;
                      _mm512_storeu_ps(into, _mm512_add_ps(_mm512_loadu_ps(into),
                                                           swish(_mm512_loadu_ps(out))));
                    });
    }
    if (head.projection.packed) {
      share_quantise(team_, self, state, num_rows_, rows);
      share_product(team_, self, head.projection, rows, num_rows_,
                    [&](int64_t block, int64_t row, const float* out) {
                      std::memcpy(state + row * size_ + block * kBlock, out,
                                  kBlock * sizeof(float));
                    });
    }
  }

  const Question& asked_;
  Team& team_;
  Workspace& work_;
  const int64_t size_, num_rows_, total_;
};

// A row of an embedding as floats.
inline void embed(const Level& level, int64_t id, float* into) {
  const int64_t size = level.hidden_size;
  if (!level.is_bfloat16) {
    std::memcpy(into, static_cast<const float*>(level.embedding) + id * size, size * sizeof(float));
    return;
  }
  const uint16_t* from = static_cast<const uint16_t*>(level.embedding) + id * size;
  for (int64_t i = 0; i < size; i += 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m512i whole = _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
    _mm512_storeu_ps(into + i, _mm512_castsi512_ps(whole));
  }
}

// Context and path of every parent, side by side: [B P, (D + 1) H].
inline void gather_rows(const Level& level, float* rows) {
  const int64_t size = level.hidden_size;
  for (int64_t b = 0; b < level.num_sequences; ++b)
    for (int64_t p = 0; p < level.num_parents; ++p) {
      std::memcpy(rows, level.context + b * size, size * sizeof(float));
      rows += size;
      const int64_t* way = level.ways + (b * level.num_parents + p) * level.depth;
      for (int64_t d = 0; d < level.depth; ++d, rows += size)
        embed(level, level.ids[b * level.width + way[d]], rows);
    }
}

// Draft one level, and lay the children into their slots.
inline void fill_level(const Level& level, Team& team, Workspace& work) {
  const int64_t count = level.num_sequences * level.num_parents;
  float* rows = room(work.rows_in, count * (level.depth + 1) * level.hidden_size);
  gather_rows(level, rows);
  float* logits = room(work.logits, count * level.output->num_outputs);
  int64_t* ids = room(work.ids, count * level.num_children);
  float* log_probs = room(work.log_probs, count * level.num_children);
  const Question question{level.head, level.output, level.draft_ids, rows, logits, ids, log_probs,
                          1, count, level.num_children};
  Drafting(question, team, work).run();
  for (int64_t b = 0; b < level.num_sequences; ++b)
    for (int64_t i = 0; i < level.num_slots; ++i) {
      const int64_t at = b * level.num_slots + i;
      const int64_t child =
          (b * level.num_parents + level.parents[at]) * level.num_children + level.ranks[at];
      level.ids[b * level.width + level.slots[at]] = ids[child];
      level.log_probs[b * level.width + level.slots[at]] = log_probs[child];
    }
}

}  // namespace entmtp
