// The functions that Python calls, through `library.py`, which mirrors their structs.
//
// Knows: what may be asked for. Does not know: how it is computed.

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "decoder.h"
#include "draft.h"
#include "linear.h"
#include "noise.h"
#include "team.h"
#include "work.h"

namespace entmtp {

// Threads outlive static objects, and a forked process has none of its parent's.
Team& team_of(int size) {
  static std::mutex mutex;
  static auto* teams = new std::map<std::pair<pid_t, int>, std::unique_ptr<Team>>;
  std::lock_guard<std::mutex> lock(mutex);
  auto& team = (*teams)[{getpid(), size}];
  if (!team) team = std::make_unique<Team>(size);
  return *team;
}

// `take(worker, row, first, width, some)` gets outputs `first` to `first + width` of each row.
template <class Take>
void multiply_rows(const Matrix& matrix, const float* rows, int64_t num_rows, Team& team,
                   Take take) {
  Workspace& work = workspace();
  work.rows.fit(num_rows, matrix.num_inputs);
  const Rows taken = work.rows.rows(matrix);
  team.run(2, [&](Worker& self) {
    TinyIsZero tiny;
    Tiles tiles(num_rows);
    const Reading own = own_part(team, self.id, matrix, pairs_of(matrix));
    self.ahead.plan(&own, 1);
    share_put(team, self, rows, num_rows, taken);
    share_product(team, self, matrix, taken, num_rows,
                  [&](int64_t block, int64_t row, const float* some) {
                    const int64_t first = block * kBlock;
                    take(self, row, first, std::min<int64_t>(kBlock, matrix.num_outputs - first),
                         some);
                  });
  });
}

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

int64_t entmtp_packed_bytes(const Matrix* matrix) {
  return packed_bytes(*matrix);
}

// `weight` [O, I] to where `matrix` says, but for its constness.
void entmtp_pack(const float* weight, const Matrix* matrix, uint8_t* packed, int num_threads) {
  Team& team = team_of(num_threads);
  team.run(1, [&](Worker& self) {
    team.share(self, matrix->blocks(), 1,
               [&](int64_t block) { pack_block(weight, *matrix, block, packed); });
  });
}

void entmtp_forward(const Body* body, const Step* step, int num_threads) {
  Forward(*body, *step, team_of(num_threads), workspace()).run();
}

// `rows` [R, I] to `out` [R, O].
void entmtp_linear(const Matrix* matrix, const float* rows, int64_t num_rows, float* out,
                   int num_threads) {
  multiply_rows(*matrix, rows, num_rows, team_of(num_threads),
                [&](const Worker&, int64_t row, int64_t first, int64_t width, const float* some) {
                  std::memcpy(out + row * matrix->num_outputs + first, some, width * sizeof(float));
                });
}

// Which output of each of `rows` [R, I] is the largest, of equal ones the first: `places` [R].
void entmtp_largest(const Matrix* matrix, const float* rows, int64_t num_rows, int64_t* places,
                    int num_threads) {
  Team& team = team_of(num_threads);
  std::vector<Largest> found(team.size() * num_rows);
  multiply_rows(*matrix, rows, num_rows, team,
                [&](const Worker& self, int64_t row, int64_t first, int64_t width,
                    const float* some) {
                  found[self.id * num_rows + row].consider(some, width, first);
                });
  for (int64_t row = 0; row < num_rows; ++row) {
    Largest all = found[row];
    for (int id = 1; id < team.size(); ++id) all.consider(found[id * num_rows + row]);
    places[row] = all.place;
  }
}

// Top-1 probability and entropy `[R, 2]` of softmax(logits `[R, V]`).
void entmtp_root_signals(const float* logits, int64_t num_rows, int64_t size, float* out,
                         int num_threads) {
  constexpr int64_t kPart = 4096;  // so the sums do not depend on the number of threads
  const int64_t parts = (size + kPart - 1) / kPart;
  std::vector<Softmax> found(num_rows * parts);
  Team& team = team_of(num_threads);
  team.run(1, [&](Worker& self) {
    team.share(self, num_rows * parts, 1, [&](int64_t task) {
      const int64_t start = task % parts * kPart;
      found[task] = softmax_of(logits + task / parts * size + start, std::min(kPart, size - start));
    });
  });
  for (int64_t row = 0; row < num_rows; ++row) {
    Softmax all = found[row * parts];
    for (int64_t part = 1; part < parts; ++part) all = together(all, found[row * parts + part]);
    out[2 * row] = 1 / all.total;
    out[2 * row + 1] = std::max(0.0f, std::log(all.total) - all.weighted / all.total);
  }
}

// Gumbel noise `[R, V]` of rows' seeds and positions.
void entmtp_noise(const int64_t* seeds, const int64_t* positions, int64_t num_rows, int64_t size,
                  float* out, int num_threads) {
  constexpr int64_t kPart = 4096;
  const int64_t parts = (size + kPart - 1) / kPart;
  Team& team = team_of(num_threads);
  team.run(1, [&](Worker& self) {
    team.share(self, num_rows * parts, 1, [&](int64_t task) {
      const int64_t row = task / parts, start = task % parts * kPart;
      const uint64_t key = mixed(mixed(seeds[row] + kGolden) + positions[row] * kGolden);
      for (int64_t i = start; i < std::min(start + kPart, size); i += 16)
        make_noise(key, i, std::min<int64_t>(16, size - i), out + row * size + i);
    });
  });
}

void entmtp_fill(const Draft* draft, int num_threads) {
  fill(*draft, team_of(num_threads), workspace());
}

// Copy accepted rows `slots` of sequence `sequence` behind the committed ones.
void entmtp_commit(const BFloat16* new_keys, const BFloat16* new_values, int64_t num_layers,
                   int64_t num_sequences, int64_t sequence, int64_t num_kv_heads, int64_t num_rows,
                   int64_t head_size, const int64_t* slots, int64_t count, BFloat16* keys,
                   BFloat16* values, int64_t num_places, int64_t place, int64_t capacity,
                   int64_t length) {
  for (int64_t layer = 0; layer < num_layers; ++layer)
    for (int64_t head = 0; head < num_kv_heads; ++head) {
      const int64_t from =
          ((layer * num_sequences + sequence) * num_kv_heads + head) * num_rows * head_size;
      const int64_t lane = (layer * num_places + place) * num_kv_heads + head;
      const int64_t to = lane * capacity * head_size;
      for (int64_t i = 0; i < count; ++i) {
        put_key(new_keys + from + slots[i] * head_size, head_size, keys + to, length + i);
        put_value(new_values + from + slots[i] * head_size, head_size, values + to, length + i);
      }
    }
}

}  // extern "C"

}  // namespace entmtp
