// A decoder's step: layers as Llama has them, for any rows of any sequences.
//
// Knows: the order of a layer's parts, and which thread computes what. Does not know: Python,
// tokens, trees, files.
//
// B sequences, T new rows of each, R = B T rows, H hidden size, N query heads, K key/value heads,
// D head size, F inner size, L layers, C capacity of the cache, P positions of the tables.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attention.h"
#include "embedding.h"
#include "linear.h"
#include "portions.h"
#include "team.h"
#include "vectors.h"
#include "work.h"

namespace entmtp {

extern "C" {

struct Layer {
  Matrix query_key_value;  // [(N + 2 K) D, H]
  Matrix output;           // [H, N D]
  Matrix gate_up;          // [2 F, H]: 16 rows of gate, the same 16 of up, and so on
  Matrix down;             // [H, F]
  const float* first_norm;   // [H]
  const float* second_norm;  // [H]
  const float* query_norm;   // [D], or null
  const float* key_norm;     // [D], or null
};

struct Body {
  const Layer* layers;
  const float* last_norm;  // [H]
  int64_t num_layers, hidden_size, num_heads, num_kv_heads, head_size, inner_size, rotary_size;
  float epsilon, scale;  // of norms, of scores
};

struct Step {
  float* hidden;              // [B, T, H] embeddings in, hidden states behind the last norm out
  const int64_t* ids;         // [B, T] whose embeddings are put into `hidden` first, or null
  Embedding embedding;        // of those
  const int64_t* positions;   // [B, T]
  const uint8_t* among;       // [B, T, T]: which new rows see which
  const float* cosines;       // [P, rotary size / 2]
  const float* sines;         // likewise
  const int64_t* lengths;     // [B]
  const BFloat16* keys;       // [L, *, K, C / 16, D / 2, 16, 2]
  const BFloat16* values;     // [L, *, K, C / 2, D, 2]
  const int64_t* places;      // [B] of sequences in the cache
  BFloat16* new_keys;         // [L, B, K, T, D]
  BFloat16* new_values;       // [L, B, K, T, D]
  int64_t num_sequences, num_rows, num_places, capacity;
};

}  // extern "C"

constexpr int64_t kLayerStages = 8;     // calls of `share` in one layer
constexpr int64_t kLinesBesideRow = 8;  // asked for while a row is worked on

// One forward of a body.
class Forward {
 public:
  Forward(const Body& body, const Step& step, Team& team, Workspace& work)
      : body_(body), step_(step), team_(team), work_(work),
        num_rows_(step.num_sequences * step.num_rows),
        query_size_(body.num_heads * body.head_size),
        key_blocks_((step.num_rows + kLanes - 1) / kLanes),
        portions_(step.num_sequences, body.num_kv_heads, num_queries(), team.size()) {
    const int64_t widest = std::max(body.hidden_size, query_size_);
    work.rows.fit(num_rows_, widest);
    work.inner.fit(num_rows_, body.inner_size);
    // Tiles read behind the last.
    room(work.queries, num_rows_ * query_size_ + kMostRows * body.head_size);
    room(work.attended, num_rows_ * query_size_);
    room(work.keys, step.num_sequences * body.num_kv_heads * key_blocks_ * body.head_size * kLanes);
    work.scratch.resize(team.size());
    find_seen();
    find_readings();
  }

  void run() {
    team_.run(num_stages(), [this](Worker& self) {
      TinyIsZero tiny;
      Tiles tiles(num_rows_);
      const auto& readings = work_.readings[self.id];
      self.ahead.plan(readings.data(), readings.size());
      if (step_.ids) embed_ids(self);
      for (int64_t index = 0; index < body_.num_layers; ++index) layer(self, index);
      team_.share(self, num_rows_, 1, [&](int64_t row) {
        float* state = step_.hidden + row * body_.hidden_size;
        normalise(state, body_.last_norm, body_.hidden_size, body_.epsilon, state);
      });
    });
  }

 private:
  int64_t group_size() const { return body_.num_heads / body_.num_kv_heads; }
  int64_t num_queries() const { return step_.num_rows * group_size(); }
  int64_t num_projected() const { return body_.num_heads + 2 * body_.num_kv_heads; }
  int num_stages() const { return static_cast<int>(kLayerStages * body_.num_layers + 2); }

  void find_seen() {
    work_.seen.resize(num_rows_);
    const int64_t count = step_.num_rows;
    for (int64_t row = 0; row < num_rows_; ++row) {
      auto& seen = work_.seen[row];
      seen.clear();
      for (int64_t other = 0; other < count; ++other)
        if (step_.among[row * count + other]) seen.push_back(static_cast<int32_t>(other));
    }
  }

  // What each thread is going to read, layer by layer: weights and keys of its own tasks.
  void find_readings() {
    work_.readings.resize(team_.size());
    for (int id = 0; id < team_.size(); ++id) {
      auto& readings = work_.readings[id];
      readings.clear();
      for (int64_t index = 0; index < body_.num_layers; ++index) {
        const Layer& layer = body_.layers[index];
        readings.push_back(own_part(team_, id, layer.query_key_value, num_projected()));
        add_keys(readings, id, index);
        readings.push_back(own_part(team_, id, layer.output, pairs_of(layer.output)));
        readings.push_back(own_part(team_, id, layer.gate_up, layer.down.grouping().groups()));
        readings.push_back(own_part(team_, id, layer.down, pairs_of(layer.down)));
      }
    }
  }

  void add_keys(std::vector<Reading>& readings, int id, int64_t index) const {
    int64_t last = -1;
    for (int64_t i = 0; i < portions_.per_thread(); ++i) {
      const Portion portion = portions_.of_task(id * portions_.per_thread() + i);
      const int64_t group = portion.sequence * body_.num_kv_heads + portion.kv_head;
      if (!portion.count || group == last) continue;
      last = group;
      const Keys keys = keys_of(index, portion.sequence, portion.kv_head);
      for (const BFloat16* memory : {keys.committed_keys, keys.committed_values}) {
        const auto* start = reinterpret_cast<const uint8_t*>(memory);
        readings.push_back({start, start + keys.length * keys.size * sizeof(BFloat16)});
      }
    }
  }

  enum class Part { kProjection, kAttention, kOutput, kGateUp, kDown };

  // A part of layer `index` begins.
  void enter(Worker& self, int64_t index, Part part) const {
    const auto& readings = work_.readings[self.id];
    const int64_t of_layer = static_cast<int64_t>(readings.size()) / body_.num_layers;
    const int64_t place = static_cast<int64_t>(part);
    const int64_t behind_keys = of_layer - 1 - static_cast<int64_t>(Part::kDown);
    self.ahead.enter(readings.data() + index * of_layer + place +
                     (part > Part::kAttention ? behind_keys : 0));
  }

  void embed_ids(Worker& self) {
    team_.share(self, num_rows_, 1, [&](int64_t row) {
      embed(step_.embedding, step_.ids[row], step_.hidden + row * body_.hidden_size);
    });
  }

  void layer(Worker& self, int64_t index) {
    const Layer& layer = body_.layers[index];
    const Rows attended = work_.rows.rows(layer.output);
    const Rows inner = work_.inner.rows(layer.down);
    normalise_and_put(self, layer.first_norm, work_.rows.rows(layer.query_key_value));
    enter(self, index, Part::kProjection);
    project_heads(self, layer, index);
    enter(self, index, Part::kAttention);
    attention(self, index);
    share_put(team_, self, work_.attended.data(), num_rows_, attended);
    enter(self, index, Part::kOutput);
    add_product(self, layer.output, attended);
    normalise_and_put(self, layer.second_norm, work_.rows.rows(layer.gate_up));
    enter(self, index, Part::kGateUp);
    gate_and_put(self, layer.gate_up, inner);
    enter(self, index, Part::kDown);
    add_product(self, layer.down, inner);
  }

  void normalise_and_put(Worker& self, const float* weight, const Rows& rows) {
    const int64_t size = body_.hidden_size;
    team_.share(self, num_rows_, 1, [&](int64_t row) {
      float* normal = room(work_.scratch[self.id].row, size);
      normalise(step_.hidden + row * size, weight, size, body_.epsilon, normal);
      self.ahead.fetch(kLinesBesideRow);
      put_row(normal, row, rows);
    });
  }

  void add_product(Worker& self, const Matrix& matrix, const Rows& rows) {
    share_product(team_, self, matrix, rows, num_rows_,
                  [&](int64_t block, int64_t row, const float* out) {
                    float* into = step_.hidden + row * body_.hidden_size + block * kBlock;
                    _mm512_storeu_ps(into,
                                     _mm512_add_ps(_mm512_loadu_ps(into), _mm512_loadu_ps(out)));
                  });
  }

  // A task is a head, of all rows: what one thread multiplies it also turns and puts away.
  void project_heads(Worker& self, const Layer& layer, int64_t index) {
    const int64_t size = body_.head_size, blocks = size / kBlock;
    const Rows rows = work_.rows.rows(layer.query_key_value);
    team_.share(self, num_projected(), 1, [&](int64_t head) {
      float* out = room(work_.scratch[self.id].row, kRowsAtOnce * size);
      by_sixteen(self, num_rows_, [&](int64_t first, int64_t count) {
        for (int64_t block = 0; block < blocks; block += 2)
          multiply(layer.query_key_value, head * blocks + block,
                   std::min<int64_t>(2, blocks - block), rows, first, count, out + block * kBlock,
                   size, self.ahead);
        for (int64_t r = 0; r < count; ++r) {
          self.ahead.fetch(kLinesBesideRow);
          place_head(layer, index, head, first + r, out + r * size);
        }
      });
    });
  }

  // Norm and rotation of a row of a head, and the way to where attention and the caller find it.
  void place_head(const Layer& layer, int64_t index, int64_t head, int64_t row, float* given) {
    const int64_t size = body_.head_size, kv_head = head - body_.num_heads;
    if (kv_head >= body_.num_kv_heads) {
      put_rounded(given, 1, new_row(step_.new_values, index, row, kv_head - body_.num_kv_heads));
      return;
    }
    const bool is_query = head < body_.num_heads;
    const float* weight = is_query ? layer.query_norm : layer.key_norm;
    if (weight) normalise(given, weight, size, body_.epsilon, given);
    const int64_t place = step_.positions[row] * (body_.rotary_size / 2);
    rotate(given, step_.cosines + place, step_.sines + place, body_.rotary_size);
    if (is_query) {
      const int64_t at = row % step_.num_rows * group_size() + head % group_size();
      put_rounded(given, body_.scale,
                  queries(row / step_.num_rows, head / group_size()) + at * size);
      return;
    }
    BFloat16* key = new_row(step_.new_keys, index, row, kv_head);
    put_rounded(given, 1, key);
    put_key(key, size, key_blocks(row / step_.num_rows, kv_head), row % step_.num_rows);
  }

  void put_rounded(const float* given, float factor, BFloat16* into) const {
    for (int64_t d = 0; d < body_.head_size; d += kLanes)
      store_upper(into + d, rounded(_mm512_mul_ps(_mm512_loadu_ps(given + d),
                                                  _mm512_set1_ps(factor))));
  }

  // A task is a group of the inner numbers, so that the thread that has them all can put them away.
  void gate_and_put(Worker& self, const Matrix& matrix, const Rows& inner) {
    const Rows rows = work_.rows.rows(matrix);
    const int64_t size = inner.grouping.inputs(), pairs = size / kBlock;
    team_.share(self, inner.grouping.groups(), 1, [&](int64_t group) {
      float* out = room(work_.scratch[self.id].row, kRowsAtOnce * size);
      by_sixteen(self, num_rows_, [&](int64_t first, int64_t count) {
        for (int64_t pair = 0; pair < pairs; ++pair)
          multiply_gated(
              matrix, group * pairs + pair, rows, first, count, out + pair * kBlock, size,
              self.ahead,
              [](__m512 gate, __m512 up) { return _mm512_mul_ps(swish(gate), up); });
        for (int64_t r = 0; r < count; ++r) {
          self.ahead.fetch(kLinesBesideRow);
          put_group(out + r * size, first + r, group, inner);
        }
      });
    });
  }

  BFloat16* new_row(BFloat16* memory, int64_t index, int64_t row, int64_t kv_head) const {
    const int64_t sequence = row / step_.num_rows, slot = row % step_.num_rows;
    const int64_t head = (index * step_.num_sequences + sequence) * body_.num_kv_heads + kv_head;
    return memory + (head * step_.num_rows + slot) * body_.head_size;
  }

  BFloat16* key_blocks(int64_t sequence, int64_t kv_head) const {
    return work_.keys.data() + (sequence * body_.num_kv_heads + kv_head) * key_blocks_ *
                                   body_.head_size * kLanes;
  }

  void attention(Worker& self, int64_t index) {
    Tiles::set(num_queries());
    team_.share(self, portions_.num_tasks(), 1, [&](int64_t task) {
      const Portion portion = portions_.of_task(task);
      if (portion.count) attend_portion(self, index, portion);
    });
    Tiles::set(num_rows_);
  }

  void attend_portion(Worker& self, int64_t index, const Portion& portion) {
    const int64_t size = body_.head_size, row = portion.sequence * step_.num_rows;
    const int64_t front = portion.kv_head * group_size() * size;
    self.ahead.again(!portion.is_first);
    attend(keys_of(index, portion.sequence, portion.kv_head),
           Queries{{queries(portion.sequence, portion.kv_head) + portion.first * size, size},
                   portion.first,
                   portion.count,
                   group_size(),
                   &work_.seen[row],
                   work_.attended.data() + row * query_size_ + front,
                   query_size_},
           work_.scratch[self.id], self.ahead);
  }

  // A sequence's queries for one head of keys, [T, heads, D].
  BFloat16* queries(int64_t sequence, int64_t kv_head) const {
    return work_.queries.data() + sequence * step_.num_rows * query_size_ +
           kv_head * num_queries() * body_.head_size;
  }

  Keys keys_of(int64_t index, int64_t sequence, int64_t kv_head) const {
    const int64_t lane = (index * step_.num_places + step_.places[sequence]) * body_.num_kv_heads;
    const int64_t start = (lane + kv_head) * step_.capacity * body_.head_size;
    return Keys{step_.keys + start,
                step_.values + start,
                step_.lengths[sequence],
                key_blocks(sequence, kv_head),
                new_row(step_.new_values, index, sequence * step_.num_rows, kv_head),
                step_.num_rows,
                body_.head_size};
  }

  const Body& body_;
  const Step& step_;
  Team& team_;
  Workspace& work_;
  const int64_t num_rows_, query_size_, key_blocks_;
  const Portions portions_;
};

}  // namespace entmtp
