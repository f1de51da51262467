// Draft heads in int8: features of rows, logits over a draft vocabulary, the best of them laid into
// the slots of trees.
//
// Knows: what Medusa's and Hydra's heads are made of, and tables of a tree's levels. Does not know:
// prefix layers, who chooses trees.
//
// P rows, H hidden size, W draft vocabulary.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "embedding.h"
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

// One level of a batch of trees: whose it is, who has children, and where those go.
struct Level {
  const Head* head;
  const Matrix* output;      // [W, H]
  const int64_t* ways;       // [B, P, D] slots from the root down to each parent
  const int64_t* slots;      // [B, S] of the children
  const int64_t* parents;    // [B, S] which of the parents each hangs under
  const int64_t* ranks;      // [B, S] which of its children each is
  int64_t num_parents, depth, num_slots, num_children;
};

// A batch of trees to be filled, some levels of it.
struct Draft {
  const Level* levels;
  const int64_t* draft_ids;  // [W] target ids of an output layer's rows, or null: they are the same
  Embedding embedding;       // for heads that see tokens
  const float* context;      // [B, H]
  int64_t* ids;              // [B, T] of all slots: read, and written at a level's `slots`
  float* log_probs;          // [B, T] likewise
  int64_t num_levels, num_sequences, width, hidden_size;
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

// The best children by heads of one shape and one output layer.
struct Question {
  const Head* heads;         // one, where it has a first block
  const Matrix* output;      // [W, H]
  const int64_t* draft_ids;  // [W], or null
  const float* rows;         // [P, I], the same for every head
  int64_t num_heads, num_rows, num_children;
};

// One question; the answer lies in `log_probs` and `ids` of the workspace, [heads, P, children].
class Drafting {
 public:
  Drafting(const Question& asked, Team& team, Workspace& work)
      : asked_(asked), team_(team), work_(work), size_(asked.output->num_inputs),
        num_rows_(asked.num_rows), total_(asked.num_heads * asked.num_rows) {
    // Tiles of the last head's rows may reach behind them.
    work.rows.fit(total_ + kRowsAtOnce, std::max(size_, asked.heads->first.num_inputs));
    room(work.state, total_ * size_);
    room(work.logits, total_ * asked.output->num_outputs);
    room(work.ids, total_ * asked.num_children);
    room(work.log_probs, total_ * asked.num_children);
    find_readings();
  }

  void run() {
    const int64_t num_blocks = asked_.heads->num_blocks;
    const bool is_projected = asked_.heads->projection.packed;
    team_.run(static_cast<int>(7 + 2 * num_blocks), [&](Worker& self) {
      Tiles tiles(total_);
      const auto& readings = work_.readings[self.id];
      self.ahead.plan(readings.data(), static_cast<int64_t>(readings.size()));
      if (asked_.heads->first.packed)
        share_first(self);
      else
        share_copy(self);
      for (int64_t b = 0; b < num_blocks; ++b)
        share_square(self, [b](const Head& head) -> const Matrix& { return head.blocks[b]; },
                     [](float* into, __m512 out) {
                       _mm512_storeu_ps(into, _mm512_add_ps(_mm512_loadu_ps(into), swish(out)));
                     });
      if (is_projected)
        share_square(self, [](const Head& head) -> const Matrix& { return head.projection; },
                     [](float* into, __m512 out) { _mm512_storeu_ps(into, out); });
      share_choice(self);
    });
  }

 private:
  void find_readings() {
    const Head& head = *asked_.heads;
    work_.readings.resize(team_.size());
    for (int id = 0; id < team_.size(); ++id) {
      auto& readings = work_.readings[id];
      readings.clear();
      if (head.first.packed)
        readings.push_back(own_part(team_, id, head.first, head.first.blocks() / 2));
      for (int64_t b = 0; b < head.num_blocks; ++b)
        add_squares(readings, id, [b](const Head& head) -> const Matrix& { return head.blocks[b]; });
      if (head.projection.packed)
        add_squares(readings, id, [](const Head& head) -> const Matrix& { return head.projection; });
      readings.push_back(own_part(team_, id, *asked_.output, pairs_of(*asked_.output)));
    }
  }

  // A thread's own tasks of `share_square` may be of several heads.
  template <class MatrixOf>
  void add_squares(std::vector<Reading>& readings, int id, MatrixOf matrix_of) const {
    const int64_t pairs = size_ / kPair, tasks = asked_.num_heads * pairs;
    for (int64_t head = 0; head < asked_.num_heads; ++head) {
      const int64_t first = std::max<int64_t>(team_.first_of(id, tasks) - head * pairs, 0);
      const int64_t last = std::min(team_.first_of(id + 1, tasks) - head * pairs, pairs);
      if (first < last)
        readings.push_back(part_of(matrix_of(asked_.heads[head]), pairs, first, last));
    }
  }

  float* state(int64_t row) const { return work_.state.data() + row * size_; }

  void share_first(Worker& self) {
    const Matrix& first = asked_.heads->first;
    const Rows rows = work_.rows.rows(first);
    share_put(team_, self, asked_.rows, num_rows_, rows);
    const int64_t pairs = first.blocks() / 2;
    team_.share(self, pairs, grain(team_, pairs), [&](int64_t pair) {
      by_sixteen(self, num_rows_, [&](int64_t start, int64_t count) {
        multiply_gated(
            first, pair, rows, start, count, state(start) + pair * kBlock, size_, self.ahead,
            [](__m512 gate, __m512 skip) { return _mm512_add_ps(skip, swish(gate)); });
      });
    });
  }

  void share_copy(Worker& self) {
    team_.share(self, total_, 1, [&](int64_t row) {
      std::memcpy(state(row), asked_.rows + row % num_rows_ * size_, size_ * sizeof(float));
    });
  }

  // A square matrix of each head and the head's rows of the state: `take(into, out)`.
  template <class MatrixOf, class Take>
  void share_square(Worker& self, MatrixOf matrix_of, Take take) {
    const Rows rows = work_.rows.rows(matrix_of(*asked_.heads));
    share_put(team_, self, work_.state.data(), total_, rows);
    const int64_t pairs = size_ / kPair, tasks = asked_.num_heads * pairs;
    team_.share(self, tasks, grain(team_, tasks), [&](int64_t task) {
      const int64_t head = task / pairs, pair = task % pairs;
      by_sixteen(self, num_rows_, [&](int64_t start, int64_t count) {
        alignas(64) float out[kRowsAtOnce * kPair];
        const int64_t front = head * num_rows_ + start;
        multiply(matrix_of(asked_.heads[head]), 2 * pair, 2, rows, front, count, out, kPair,
                 self.ahead);
        for (int64_t i = 0; i < count * 2; ++i)
          take(state(front + i / 2) + (2 * pair + i % 2) * kBlock,
               _mm512_load_ps(out + i * kBlock));
      });
    });
  }

  void share_choice(Worker& self) {
    const Rows rows = work_.rows.rows(*asked_.output);
    share_put(team_, self, work_.state.data(), total_, rows);
    const int64_t count = asked_.output->num_outputs;
    float* logits = work_.logits.data();
    share_product(team_, self, *asked_.output, rows, total_,
                  [&](int64_t block, int64_t row, const float* out) {
                    const int64_t width = std::min<int64_t>(kBlock, count - block * kBlock);
                    std::memcpy(logits + row * count + block * kBlock, out, width * sizeof(float));
                  });
    team_.share(self, total_, 1, [&](int64_t row) {
      const int64_t at = row * asked_.num_children;
      choose(logits + row * count, count, asked_.draft_ids, asked_.num_children,
             work_.ids.data() + at, work_.log_probs.data() + at);
    });
  }

  const Question& asked_;
  Team& team_;
  Workspace& work_;
  const int64_t size_, num_rows_, total_;
};

// Context and path of every parent, side by side: [B P, (D + 1) H].
inline void gather_rows(const Draft& draft, const Level& level, float* rows) {
  const int64_t size = draft.hidden_size;
  for (int64_t b = 0; b < draft.num_sequences; ++b)
    for (int64_t p = 0; p < level.num_parents; ++p) {
      std::memcpy(rows, draft.context + b * size, size * sizeof(float));
      rows += size;
      const int64_t* way = level.ways + (b * level.num_parents + p) * level.depth;
      for (int64_t d = 0; d < level.depth; ++d, rows += size)
        embed(draft.embedding, draft.ids[b * draft.width + way[d]], rows);
    }
}

// Lay children, `num_children` for each of the rows `[B, num_rows]`, into the slots of a level.
// Where a sequence has one row, all parents share it.
inline void lay(const Draft& draft, const Level& level, const int64_t* ids, const float* log_probs,
                int64_t num_rows, int64_t num_children) {
  for (int64_t b = 0; b < draft.num_sequences; ++b)
    for (int64_t i = 0; i < level.num_slots; ++i) {
      const int64_t at = b * level.num_slots + i, slot = b * draft.width + level.slots[at];
      const int64_t row = b * num_rows + (num_rows == 1 ? 0 : level.parents[at]);
      draft.ids[slot] = ids[row * num_children + level.ranks[at]];
      draft.log_probs[slot] = log_probs[row * num_children + level.ranks[at]];
    }
}

// A level whose head sees the tokens from the root down to each parent.
inline void fill_level(const Draft& draft, const Level& level, Team& team, Workspace& work) {
  const int64_t count = draft.num_sequences * level.num_parents;
  float* rows = room(work.rows_in, count * (level.depth + 1) * draft.hidden_size);
  gather_rows(draft, level, rows);
  const Question question{level.head, level.output, draft.draft_ids, rows,
                          1,          count,        level.num_children};
  Drafting(question, team, work).run();
  lay(draft, level, work.ids.data(), work.log_probs.data(), level.num_parents, level.num_children);
}

// Neighbouring levels whose heads see the context alone, and share an output layer.
inline void fill_levels(const Draft& draft, const Level* levels, int64_t num_levels, Team& team,
                        Workspace& work) {
  int64_t most = 0;
  for (int64_t i = 0; i < num_levels; ++i) most = std::max(most, levels[i].num_children);
  const Question question{levels->head, levels->output, draft.draft_ids, draft.context,
                          num_levels,   draft.num_sequences, most};
  Drafting(question, team, work).run();
  for (int64_t i = 0; i < num_levels; ++i) {
    const int64_t at = i * draft.num_sequences * most;
    lay(draft, levels[i], work.ids.data() + at, work.log_probs.data() + at, 1, most);
  }
}

inline void fill(const Draft& draft, Team& team, Workspace& work) {
  const Level* const end = draft.levels + draft.num_levels;
  for (const Level *level = draft.levels, *next; level < end; level = next) {
    next = level + 1;
    if (level->head->first.packed) {
      fill_level(draft, *level, team, work);
      continue;
    }
    while (next < end && next->output == level->output) ++next;
    fill_levels(draft, level, next - level, team, work);
  }
}

}  // namespace entmtp
