// A weight matrix and the rows that it multiplies, in one of two kinds of numbers.
//
// Knows: how they lie in memory. Does not know: how they are multiplied.
//
// A block is 16 outputs, one cache line of a matrix's tiles at a time. In int8 a tile is 64 inputs
// of a block and a group one or a few neighbouring tiles, with one scale for each group and output;
// rows have one for each group (`linear_int8.h`). In bfloat16 a tile is 32 inputs, and there are no
// scales (`linear_bfloat16.h`).
#pragma once

#include <cstdint>

#include "vectors.h"

namespace entmtp {

constexpr int kTileInputs = 64;  // in int8; what widths are multiples of
constexpr int kBlock = 16;
constexpr int kRowsAtOnce = 16;

// How the inputs of a row are grouped: longer groups are faster, and coarser.
struct Grouping {
  int64_t tiles, span;  // of a row, of a group, which divides it

  Grouping(int64_t width, int64_t span) : tiles(width / kTileInputs), span(span) {}
  int64_t groups() const { return tiles / span; }
  int64_t inputs() const { return span * kTileInputs; }  // of a group
};

extern "C" {

struct Matrix {
  const uint8_t* packed;
  const float* bias;  // or null
  int64_t num_outputs;
  int64_t num_inputs;
  int64_t span;      // tiles of a group
  bool is_bfloat16;  // and not int8

  Grouping grouping() const { return Grouping(num_inputs, span); }
  int64_t blocks() const { return (num_outputs + kBlock - 1) / kBlock; }
};

}  // extern "C"

// Rows in the numbers of the matrix that they are to meet: `whole` and all below, or `halves`.
struct Rows {
  BFloat16* halves;   // [R, I]
  int8_t* whole;      // [R, I]
  float* scale;       // [R, groups]
  int32_t* opening;   // [R, groups]: -128 times the sum of a group
  int64_t width;      // I
  Grouping grouping;
  bool is_bfloat16;
};

}  // namespace entmtp
