// Memory that a thread is going to read, asked for while it works on something else.
//
// Knows: which memory comes in which order. Does not know: what lies there, who else reads it.
//
// A processor looks ahead within a page, and not while it computes. So each thread walks through
// what it is going to multiply with some way in front of itself, and has it brought into its second
// cache: as much as it uses up, and more where it has nothing to read.
#pragma once

#include <cstdint>

#include <immintrin.h>

namespace entmtp {

// Memory that is read from front to back.
struct Reading {
  const uint8_t* next;
  const uint8_t* stop;
};

class Ahead {
 public:
  // `count` readings that follow each other, and stay where they are.
  void plan(const Reading* readings, int64_t count) {
    reading_ = readings;
    behind_ = readings + count;
    now_ = count ? *readings : Reading{nullptr, nullptr};
    lead_ = 0;
  }

  // One of those planned begins now. What was not asked for before it is not any more.
  void enter(const Reading* reading) {
    if (reading > reading_) {
      reading_ = reading;
      now_ = *reading;
    }
    lead_ = now_.next - reading_->next;
    for (; reading < reading_; ++reading) lead_ += reading->stop - reading->next;
  }

  // Whether what is used from now on was used before.
  void again(bool is_again) { is_again_ = is_again; }

  // So many bytes of a reading were used: ask for as many.
  void used(int64_t bytes) {
    if (!is_again_) lead_ -= bytes;
    fetch(bytes / kLine);
  }

  void fetch(int64_t lines) {
    if (lead_ >= kFarthest) return;
    if (now_.stop - now_.next < lines * kLine && !turn_over()) return;
#pragma GCC unroll 8
    for (int64_t i = 0; i < lines; ++i)
      _mm_prefetch(reinterpret_cast<const char*>(now_.next + i * kLine), _MM_HINT_T1);
    now_.next += lines * kLine;
    lead_ += lines * kLine;
  }

 private:
  static constexpr int64_t kLine = 64;
  static constexpr int64_t kFarthest = 256 << 10;  // a small part of the second cache

  // To the next reading; what is left of this one is less than a few lines.
  bool turn_over() {
    if (behind_ - reading_ < 2) return false;
    now_ = *++reading_;
    return true;
  }

  const Reading* reading_ = nullptr;
  const Reading* behind_ = nullptr;
  Reading now_{nullptr, nullptr};
  int64_t lead_ = 0;  // bytes asked for and not used
  bool is_again_ = false;
};

}  // namespace entmtp
