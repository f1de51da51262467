// Threads that work on one step together: they share out numbered tasks, stage by stage.
//
// Knows: threads. Does not know: what a task computes.
#pragma once

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "ahead.h"

namespace entmtp {

// A moment of waiting. Not the processor's own `pause`: on a virtual machine many of them in a row
// give the core away, for half a millisecond.
inline void rest() {
  for (int i = 0; i < 8; ++i) asm volatile("nop" ::: "memory");
}

// Waiting is first a busy loop, since the others are mostly microseconds away; on a machine that
// has other work it soon gives the core away instead.
template <class Ready>
inline void wait_until(Ready ready) {
  constexpr int patience = 20000;
  for (int i = 0; !ready(); ++i) {
    if (i < patience)
      rest();
    else
      sched_yield();
  }
}

// What one thread knows of itself inside a job.
struct Worker {
  int id;
  int stage = 0;  // how often it has shared
  Ahead ahead = {};
};

class Team {
 public:
  explicit Team(int size) : size_(size) {
    for (int id = 1; id < size; ++id) std::thread([this, id] { work(id); }).detach();
  }

  int size() const { return size_; }

  // Let every thread run `job`, which shares `num_stages` times at the most; one caller at a time.
  void run(int num_stages, const std::function<void(Worker&)>& job) {
    std::lock_guard<std::mutex> alone(callers_);
    const int num_counters = num_stages * (size_ + 1);
    if (num_counters > static_cast<int>(counters_.size()))
      counters_ = std::vector<Counter>(num_counters);
    for (int i = 0; i < num_counters; ++i) counters_[i].value.store(0, std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_ = &job;
      running_.store(size_ - 1, std::memory_order_relaxed);
      turn_.fetch_add(1, std::memory_order_release);
    }
    if (num_asleep_.load() > 0) wake_.notify_all();
    Worker self{0};
    job(self);
    wait_until([this] { return running_.load(std::memory_order_acquire) == 0; });
  }

  // Inside a job: share out tasks 0..count-1 in portions of `grain`, and wait for all of them.
  //
  // Each thread begins with tasks of its own, the same ones in every step, and then helps the
  // others with theirs. What is waited for are tasks and not threads: one that is not running just
  // now holds nobody up unless it has a task in hand. It passes over what was done without it.
  template <class Task>
  void share(Worker& self, int64_t count, int64_t grain, Task task) {
    if (size_ == 1) {
      for (int64_t i = 0; i < count; ++i) task(i);
      return;
    }
    Counter* const begun = counters_.data() + self.stage++ * (size_ + 1);
    std::atomic<int64_t>& done = begun[size_].value;
    for (int i = 0; i < size_ && done.load(std::memory_order_relaxed) < count; ++i) {
      const int whose = (self.id + i) % size_;
      const int64_t first = first_of(whose, count), length = first_of(whose + 1, count) - first;
      std::atomic<int64_t>& next = begun[whose].value;
      while (next.load(std::memory_order_relaxed) < length) {
        const int64_t start = next.fetch_add(grain, std::memory_order_relaxed);
        if (start >= length) break;
        const int64_t stop = start + grain < length ? start + grain : length;
        for (int64_t j = start; j < stop; ++j) task(first + j);
        done.fetch_add(stop - start, std::memory_order_acq_rel);
      }
    }
    self.ahead.fetch(kLinesBeforeWaiting);
    wait_until([&] { return done.load(std::memory_order_acquire) >= count; });
  }

  // The first task of a thread's own.
  int64_t first_of(int id, int64_t count) const { return count * id / size_; }

 private:
  static constexpr int kSpins = 400000;  // about a millisecond, the host's share of a step
  static constexpr int64_t kLinesBeforeWaiting = 16;

  struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
  };

  void work(int id) {
    uint32_t seen = 0;
    for (;;) {
      bool is_called = false;
      for (int i = 0; i < kSpins && !is_called; ++i) {
        is_called = turn_.load(std::memory_order_acquire) != seen;
        if (!is_called) rest();
      }
      if (!is_called) {
        std::unique_lock<std::mutex> lock(mutex_);
        num_asleep_.fetch_add(1);
        wake_.wait(lock, [&] { return turn_.load(std::memory_order_acquire) != seen; });
        num_asleep_.fetch_sub(1);
      }
      ++seen;
      Worker self{id};
      (*job_)(self);
      running_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }

  const int size_;
  std::vector<Counter> counters_;  // of each stage: begun tasks of each thread, and those done
  std::mutex callers_, mutex_;
  std::condition_variable wake_;
  const std::function<void(Worker&)>* job_ = nullptr;
  alignas(64) std::atomic<uint32_t> turn_{0};
  alignas(64) std::atomic<int> running_{0};
  alignas(64) std::atomic<int> num_asleep_{0};
};

}  // namespace entmtp
