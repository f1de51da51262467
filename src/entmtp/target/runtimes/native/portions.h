// How attention is shared out: which queries with which keys make a task, and whose it is.
//
// Knows: counts. Does not know: where queries and keys lie, what is computed.
#pragma once

#include <cstdint>

#include "chains.h"

namespace entmtp {

// Some queries of the heads that share keys, of one sequence.
struct Portion {
  int64_t sequence, kv_head, first, count;
  bool is_first;  // of those that read these keys
};

// Queries with the same keys lie row by row, and up to sixteen, a tile's height, are a portion, so
// that keys are read as seldom as can be. Every thread has as many portions; those left over are
// split among all of them.
class Portions {
 public:
  Portions(int64_t num_sequences, int64_t num_kv_heads, int64_t num_queries, int64_t num_threads)
      : num_kv_heads_(num_kv_heads), num_queries_(num_queries), num_threads_(num_threads),
        per_group_((num_queries + kMostRows - 1) / kMostRows) {
    const int64_t all = num_sequences * num_kv_heads * per_group_;
    whole_ = all / num_threads;
    per_thread_ = whole_ + all % num_threads;
  }

  int64_t per_thread() const { return per_thread_; }
  int64_t num_tasks() const { return per_thread_ * num_threads_; }

  // A task's; it may be empty.
  Portion of_task(int64_t task) const {
    const int64_t thread = task / per_thread_, place = task % per_thread_;
    const bool is_whole = place < whole_;
    const int64_t portion =
        is_whole ? thread * whole_ + place : whole_ * (num_threads_ - 1) + place;
    const int64_t group = portion / per_group_, index = portion % per_group_;
    const int64_t start = num_queries_ * index / per_group_;
    const int64_t count = num_queries_ * (index + 1) / per_group_ - start;
    const int64_t parts = is_whole ? 1 : num_threads_, part = is_whole ? 0 : thread;
    const int64_t first = start + count * part / parts;
    return {group / num_kv_heads_, group % num_kv_heads_, first,
            start + count * (part + 1) / parts - first, index == 0};
  }

 private:
  const int64_t num_kv_heads_, num_queries_, num_threads_, per_group_;
  int64_t whole_, per_thread_;
};

}  // namespace entmtp
