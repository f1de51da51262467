// The processor's tile registers, where it has them.
//
// Knows: how they are laid out for products of up to sixteen rows. Does not know: what is multiplied.
#pragma once

#include <algorithm>
#include <cstdint>

#include <immintrin.h>

namespace entmtp {

constexpr int64_t kTileBytes = 1024;
constexpr int64_t kFewRows = 2;  // with more, tiles are faster than vectors

// Ask for a tile a few behind this one: the next block's follow at once.
inline void fetch_ahead(const void* tile) {
  constexpr int kAhead = 4;
#pragma GCC unroll 16
  for (int64_t i = 0; i < kTileBytes; i += 64)
    _mm_prefetch(static_cast<const char*>(tile) + kAhead * kTileBytes + i, _MM_HINT_T0);
}

// What was stored so far is in memory: that tile instructions read it is not said to the compiler.
inline void settle() { asm volatile("" ::: "memory"); }

#ifdef __AMX_INT8__
// Tile registers of 64 bytes' width for the thread that holds this: 0 to 4 as high as there are
// rows (0 to 3 for sums, 4 for rows), and 5 and 6 for weights.
class Tiles {
 public:
  explicit Tiles(int64_t num_rows) { set(num_rows); }
  ~Tiles() { _tile_release(); }

  static void set(int64_t num_rows) {
    // No tile has a width and no height, whoever multiplies nothing.
    const int64_t height = std::min<int64_t>(std::max<int64_t>(num_rows, 1), 16);
    alignas(64) uint8_t config[64] = {1};  // palette 1; from byte 16 on widths, from 48 on heights
    for (int i = 0; i < 7; ++i) {
      config[16 + 2 * i] = 64;
      config[48 + i] = static_cast<uint8_t>(i < 5 ? height : 16);
    }
    settle();
    _tile_loadconfig(config);
  }
};
#else
class Tiles {
 public:
  explicit Tiles(int64_t) {}
  static void set(int64_t) {}
};
#endif

}  // namespace entmtp
