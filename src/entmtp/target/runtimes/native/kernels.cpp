// A decoder's step in int8: layers as Llama has them, for any rows of any sequences.
//
// Knows: the order of a layer's parts, and which thread computes what. Does not know: Python,
// tokens, trees, files. Its callers see the structs and functions in `extern "C"`, and mirror them
// (`library.py`).
//
// B sequences, T new rows of each, R = B T rows, H hidden size, N query heads, K key/value heads,
// D head size, F inner size, L layers, C capacity of the cache.

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "team.h"

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
  const int64_t* positions;   // [B, T]
  const uint8_t* among;       // [B, T, T]: which new rows see which
  const float* cosines;       // [P, rotary size / 2]
  const float* sines;         // likewise
  const int64_t* lengths;     // [B]
  const float* keys;          // [L, *, K, C / 16, D, 16]
  const float* values;        // [L, *, K, C, D]
  const int64_t* places;      // [B] of sequences in the cache
  float* new_keys;            // [L, B, K, T, D]
  float* new_values;          // [L, B, K, T, D]
  int64_t num_sequences, num_rows, num_places, capacity;
};

}  // extern "C"

namespace {

constexpr int64_t kHeadRows = 4;     // rows of one task of attention
constexpr int64_t kLayerStages = 10;  // calls of `share` in one layer

Team& team_of(int size) {
  static std::mutex mutex;
  static auto* teams = new std::map<int, std::unique_ptr<Team>>;  // threads outlive static objects
  std::lock_guard<std::mutex> lock(mutex);
  auto& team = (*teams)[size];
  if (!team) team = std::make_unique<Team>(size);
  return *team;
}

// x / rms(x) * weight; `into` may be `row`.
inline void normalise(const float* row, const float* weight, int64_t size, float epsilon,
                      float* into) {
  __m512 squares = _mm512_setzero_ps();
  for (int64_t i = 0; i < size; i += 16) {
    const __m512 part = _mm512_loadu_ps(row + i);
    squares = _mm512_fmadd_ps(part, part, squares);
  }
  const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(size);
  const __m512 factor = _mm512_set1_ps(1 / std::sqrt(mean + epsilon));
  for (int64_t i = 0; i < size; i += 16)
    _mm512_storeu_ps(into + i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(row + i), factor),
                                             _mm512_loadu_ps(weight + i)));
}

inline void rotate(float* head, const float* cosines, const float* sines, int64_t rotary_size) {
  const int64_t half = rotary_size / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float first = head[i], second = head[i + half];
    head[i] = std::fma(first, cosines[i], -(second * sines[i]));
    head[i + half] = std::fma(second, cosines[i], first * sines[i]);
  }
}

inline __m512 swish(__m512 x) {
  // exp(-|x|) cannot overflow: x / (1 + e^-x) is x e^x / (1 + e^x) for x below 0.
  const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1.0f);
  const __m512 small = exponential(_mm512_or_ps(x, sign));
  const __mmask16 is_negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  const __m512 top = _mm512_mask_mul_ps(x, is_negative, x, small);
  return _mm512_div_ps(top, _mm512_add_ps(one, small));
}

// Memory of one step, kept for the next.
struct Workspace {
  std::vector<int8_t> whole;
  std::vector<float> scale;
  std::vector<int32_t> opening;
  std::vector<float> projected, attended, inner, keys;
  std::vector<std::vector<int32_t>> seen;  // [R] new rows that a row sees, ascending
  std::vector<Scratch> scratch;            // of each thread

  Rows rows(int64_t width) {
    return Rows{whole.data(), scale.data(), opening.data(), width};
  }

  void fit_rows(int64_t count, int64_t width) {
    count = (count + kRowsAtOnce - 1) / kRowsAtOnce * kRowsAtOnce;  // tiles read whole ones
    if (static_cast<int64_t>(whole.size()) < count * width) whole.resize(count * width);
    const int64_t groups = count * width / kGroup;
    if (static_cast<int64_t>(scale.size()) < groups) {
      scale.resize(groups);
      opening.resize(groups);
    }
  }
};

// One for each thread that calls; those of its team work in it.
Workspace& workspace() {
  static thread_local Workspace work;
  return work;
}

template <class T>
inline void fit(std::vector<T>& memory, int64_t size) {
  if (static_cast<int64_t>(memory.size()) < size) memory.resize(size);
}

// One forward of a body.
class Forward {
 public:
  Forward(const Body& body, const Step& step, Team& team, Workspace& work)
      : body_(body), step_(step), team_(team), work_(work),
        num_rows_(step.num_sequences * step.num_rows),
        query_size_(body.num_heads * body.head_size),
        kv_size_(body.num_kv_heads * body.head_size),
        projected_size_(query_size_ + 2 * kv_size_),
        key_blocks_((step.num_rows + kLanes - 1) / kLanes) {
    const int64_t widest = std::max({body.hidden_size, query_size_, body.inner_size});
    work.fit_rows(num_rows_, widest);
    fit(work.projected, num_rows_ * projected_size_);
    fit(work.attended, num_rows_ * query_size_);
    fit(work.inner, num_rows_ * body.inner_size);
    fit(work.keys, step.num_sequences * body.num_kv_heads * key_blocks_ * body.head_size * kLanes);
    work.scratch.resize(team.size());
    find_seen();
  }

  void run() {
    team_.run(num_stages(), [this](Worker& self) {
      Tiles tiles;
      for (int64_t index = 0; index < body_.num_layers; ++index) layer(self, index);
      team_.share(self, num_rows_, 1, [&](int64_t row) {
        float* state = step_.hidden + row * body_.hidden_size;
        normalise(state, body_.last_norm, body_.hidden_size, body_.epsilon, state);
      });
    });
  }

 private:
  int num_stages() const { return static_cast<int>(kLayerStages * body_.num_layers + 1); }

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

  void layer(Worker& self, int64_t index) {
    const Layer& layer = body_.layers[index];
    normalise_and_quantise(self, layer.first_norm);
    const Rows narrow = work_.rows(body_.hidden_size);
    product(self, layer.query_key_value, narrow, [&](int64_t block, int64_t row, const float* out) {
      store(work_.projected.data() + row * projected_size_ + block * kBlock, out);
    });
    place_heads(self, layer, index);
    attention(self, index);
    quantise(self, work_.attended.data(), query_size_);
    add_product(self, layer.output, work_.rows(query_size_));
    normalise_and_quantise(self, layer.second_norm);
    gated_product(self, layer.gate_up, narrow);
    quantise(self, work_.inner.data(), body_.inner_size);
    add_product(self, layer.down, work_.rows(body_.inner_size));
  }

  static void store(float* into, const float* out) {
    _mm512_storeu_ps(into, _mm512_loadu_ps(out));
  }

  void normalise_and_quantise(Worker& self, const float* weight) {
    const int64_t size = body_.hidden_size;
    const Rows rows = work_.rows(size);
    team_.share(self, num_rows_, 1, [&](int64_t row) {
      auto& scratch = work_.scratch[self.id].fresh;
      fit(scratch, size);
      normalise(step_.hidden + row * size, weight, size, body_.epsilon, scratch.data());
      quantise_row(scratch.data(), row, rows);
    });
  }

  void quantise(Worker& self, const float* from, int64_t width) {
    const Rows rows = work_.rows(width);
    team_.share(self, num_rows_, 1,
                [&](int64_t row) { quantise_row(from + row * width, row, rows); });
  }

  int64_t grain(int64_t blocks) const {
    return std::max<int64_t>(1, blocks / (4 * team_.size()));
  }

  template <class Take>
  void product(Worker& self, const Matrix& matrix, const Rows& rows, Take take) {
    team_.share(self, matrix.blocks(), grain(matrix.blocks()), [&](int64_t block) {
      float out[kRowsAtOnce * kBlock];
      for (int64_t first = 0; first < num_rows_; first += kRowsAtOnce) {
        const int64_t count = std::min<int64_t>(kRowsAtOnce, num_rows_ - first);
        multiply(matrix, block, rows, first, count, out);
        for (int64_t r = 0; r < count; ++r) take(block, first + r, out + r * kBlock);
      }
    });
  }

  void add_product(Worker& self, const Matrix& matrix, const Rows& rows) {
    product(self, matrix, rows, [&](int64_t block, int64_t row, const float* out) {
      float* into = step_.hidden + row * body_.hidden_size + block * kBlock;
      _mm512_storeu_ps(into, _mm512_add_ps(_mm512_loadu_ps(into), _mm512_loadu_ps(out)));
    });
  }

  void gated_product(Worker& self, const Matrix& matrix, const Rows& rows) {
    const int64_t pairs = matrix.blocks() / 2;
    team_.share(self, pairs, grain(pairs), [&](int64_t pair) {
      float gate[kRowsAtOnce * kBlock], up[kRowsAtOnce * kBlock];
      for (int64_t first = 0; first < num_rows_; first += kRowsAtOnce) {
        const int64_t count = std::min<int64_t>(kRowsAtOnce, num_rows_ - first);
        multiply(matrix, 2 * pair, rows, first, count, gate);
        multiply(matrix, 2 * pair + 1, rows, first, count, up);
        for (int64_t r = 0; r < count; ++r)
          _mm512_storeu_ps(work_.inner.data() + (first + r) * body_.inner_size + pair * kBlock,
                           _mm512_mul_ps(swish(_mm512_loadu_ps(gate + r * kBlock)),
                                         _mm512_loadu_ps(up + r * kBlock)));
      }
    });
  }

  // Norms of heads, rotation, and keys and values to where attention and the caller find them.
  void place_heads(Worker& self, const Layer& layer, int64_t index) {
    const int64_t size = body_.head_size, heads = body_.num_heads + 2 * body_.num_kv_heads;
    team_.share(self, heads, 1, [&](int64_t head) {
      for (int64_t row = 0; row < num_rows_; ++row) {
        float* given = work_.projected.data() + row * projected_size_ + head * size;
        const bool is_query = head < body_.num_heads;
        const int64_t kv_head = head - body_.num_heads;
        if (kv_head >= body_.num_kv_heads) {
          std::memcpy(new_row(step_.new_values, index, row, kv_head - body_.num_kv_heads), given,
                      size * sizeof(float));
          continue;
        }
        const float* weight = is_query ? layer.query_norm : layer.key_norm;
        if (weight) normalise(given, weight, size, body_.epsilon, given);
        const int64_t place = step_.positions[row] * (body_.rotary_size / 2);
        rotate(given, step_.cosines + place, step_.sines + place, body_.rotary_size);
        if (is_query) {
          for (int64_t d = 0; d < size; ++d) given[d] *= body_.scale;
          continue;
        }
        std::memcpy(new_row(step_.new_keys, index, row, kv_head), given, size * sizeof(float));
        const int64_t slot = row % step_.num_rows;
        float* block = key_blocks(row / step_.num_rows, kv_head) + slot / kLanes * size * kLanes;
        for (int64_t d = 0; d < size; ++d) block[d * kLanes + slot % kLanes] = given[d];
      }
    });
  }

  float* new_row(float* memory, int64_t index, int64_t row, int64_t kv_head) const {
    const int64_t sequence = row / step_.num_rows, slot = row % step_.num_rows;
    const int64_t head = (index * step_.num_sequences + sequence) * body_.num_kv_heads + kv_head;
    return memory + (head * step_.num_rows + slot) * body_.head_size;
  }

  float* key_blocks(int64_t sequence, int64_t kv_head) const {
    return work_.keys.data() + (sequence * body_.num_kv_heads + kv_head) * key_blocks_ *
                                   body_.head_size * kLanes;
  }

  void attention(Worker& self, int64_t index) {
    const int64_t portions = (step_.num_rows + kHeadRows - 1) / kHeadRows;
    const int64_t count = step_.num_sequences * body_.num_heads * portions;
    team_.share(self, count, 1, [&](int64_t task) {
      const int64_t first = task % portions * kHeadRows;
      const int64_t head = task / portions % body_.num_heads;
      attend_rows(self, index, task / portions / body_.num_heads, head, first);
    });
  }

  void attend_rows(Worker& self, int64_t index, int64_t sequence, int64_t head, int64_t first) {
    const int64_t size = body_.head_size;
    const int64_t kv_head = head / (body_.num_heads / body_.num_kv_heads);
    const int64_t lane = (index * step_.num_places + step_.places[sequence]) * body_.num_kv_heads;
    const int64_t start = (lane + kv_head) * step_.capacity * size;
    const Keys keys{step_.keys + start,
                    step_.values + start,
                    step_.lengths[sequence],
                    key_blocks(sequence, kv_head),
                    new_row(step_.new_values, index, sequence * step_.num_rows, kv_head),
                    step_.num_rows,
                    size};
    const float* queries[kHeadRows];
    const std::vector<int32_t>* seen[kHeadRows];
    float* outputs[kHeadRows];
    const int64_t count = std::min(kHeadRows, step_.num_rows - first);
    for (int64_t r = 0; r < count; ++r) {
      const int64_t row = sequence * step_.num_rows + first + r;
      queries[r] = work_.projected.data() + row * projected_size_ + head * size;
      seen[r] = &work_.seen[row];
      outputs[r] = work_.attended.data() + row * query_size_ + head * size;
    }
    attend(keys, static_cast<int>(count), queries, seen, outputs, work_.scratch[self.id]);
  }

  const Body& body_;
  const Step& step_;
  Team& team_;
  Workspace& work_;
  const int64_t num_rows_, query_size_, kv_size_, projected_size_, key_blocks_;
};

}  // namespace

extern "C" {

// Ask the system for what the kernels use beyond ordinary registers; false if it does not give it.
bool entmtp_prepare() {
#ifdef __AMX_INT8__
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return true;
#endif
}

int64_t entmtp_packed_bytes(int64_t num_outputs, int64_t num_inputs) {
  return packed_bytes(num_outputs, num_inputs);
}

void entmtp_pack(const float* weight, int64_t num_outputs, int64_t num_inputs, uint8_t* packed) {
  pack_matrix(weight, num_outputs, num_inputs, packed);
}

void entmtp_forward(const Body* body, const Step* step, int num_threads) {
  Forward(*body, *step, team_of(num_threads), workspace()).run();
}

// `rows` [R, I] to `out` [R, O].
void entmtp_linear(const Matrix* matrix, const float* rows, int64_t num_rows, float* out,
                   int num_threads) {
  Team& team = team_of(num_threads);
  Workspace& work = workspace();
  work.fit_rows(num_rows, matrix->num_inputs);
  const Rows whole = work.rows(matrix->num_inputs);
  const int64_t blocks = matrix->blocks();
  const int64_t grain = std::max<int64_t>(1, blocks / (8 * team.size()));
  team.run(2, [&](Worker& self) {
    Tiles tiles;
    team.share(self, num_rows, 1,
               [&](int64_t row) { quantise_row(rows + row * matrix->num_inputs, row, whole); });
    team.share(self, blocks, grain, [&](int64_t block) {
      float some[kRowsAtOnce * kBlock];
      const int64_t width = std::min<int64_t>(kBlock, matrix->num_outputs - block * kBlock);
      for (int64_t first = 0; first < num_rows; first += kRowsAtOnce) {
        const int64_t count = std::min<int64_t>(kRowsAtOnce, num_rows - first);
        multiply(*matrix, block, whole, first, count, some);
        for (int64_t r = 0; r < count; ++r)
          std::memcpy(out + (first + r) * matrix->num_outputs + block * kBlock, some + r * kBlock,
                      width * sizeof(float));
      }
    });
  });
}

// Copy accepted rows `slots` of sequence `sequence` behind the committed ones.
void entmtp_commit(const float* new_keys, const float* new_values, int64_t num_layers,
                   int64_t num_sequences, int64_t sequence, int64_t num_kv_heads, int64_t num_rows,
                   int64_t head_size, const int64_t* slots, int64_t count, float* keys,
                   float* values, int64_t num_places, int64_t place, int64_t capacity,
                   int64_t length) {
  for (int64_t layer = 0; layer < num_layers; ++layer)
    for (int64_t head = 0; head < num_kv_heads; ++head) {
      const int64_t from =
          ((layer * num_sequences + sequence) * num_kv_heads + head) * num_rows * head_size;
      const int64_t to = ((layer * num_places + place) * num_kv_heads + head) * capacity * head_size;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t position = length + i;
        const float* key = new_keys + from + slots[i] * head_size;
        float* block = keys + to + position / kLanes * head_size * kLanes + position % kLanes;
        for (int64_t d = 0; d < head_size; ++d) block[d * kLanes] = key[d];
        std::memcpy(values + to + position * head_size, new_values + from + slots[i] * head_size,
                    head_size * sizeof(float));
      }
    }
}

}  // extern "C"
}  // namespace entmtp
