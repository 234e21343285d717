// Included before everything else (-include): gives the core, in place of std::atomic, a plain word
// whose every access the simulator sees.
//
// So the core's own code runs unchanged, and a process can still be frozen between any two of its
// accesses. What a call does between them has no effect that anybody sees, so freezing it in the
// middle and running it as a whole at the thaw, with the words that it had read before in place of
// those that stand now, is the same. And a change of two words that is frozen after the first is one
// whose second write comes later.
//
// The macro needs each standard header that the core and the simulator use to be read before it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace snowflake::sim {

/// What stands between the code that runs now and the words.
struct Interference {
  struct Stale {
    const void *word = nullptr;  // null: none
    uint64_t value = 0;
  };
  struct Held {
    void *word = nullptr;
    uint64_t value = 0;
  };
  static constexpr int kMost = 3;

  bool stale_loads = false;
  Stale stale[kMost];          // each is seen by the first load of its word
  int writes_before_hold = -1; // so many writes go through, later ones are held; -1: all go through
  Held held[kMost];
  int held_count = 0;
  unsigned swaps = 0;

  uint64_t seen(const void *word, uint64_t value) noexcept {
    for (Stale &s : stale)
      if (s.word == word) {
        s.word = nullptr;
        return s.value;
      }
    return value;
  }
  /// Whether a write goes through now.
  bool write(void *word, uint64_t value) noexcept {
    if (writes_before_hold < 0) return true;
    if (writes_before_hold > 0) {
      writes_before_hold--;
      return true;
    }
    if (held_count < kMost) held[held_count++] = {word, value};
    return false;
  }
};
inline Interference interference;

}  // namespace snowflake::sim

namespace std {

template <class T>
class simulated_atomic {
  static_assert(sizeof(T) == sizeof(uint64_t));

 public:
  static constexpr bool is_always_lock_free = true;

  T load(memory_order = memory_order_seq_cst) const noexcept {
    auto &between = snowflake::sim::interference;
    if (!between.stale_loads) return value_;
    return static_cast<T>(between.seen(&value_, static_cast<uint64_t>(value_)));
  }
  void store(T value, memory_order = memory_order_seq_cst) noexcept {
    if (snowflake::sim::interference.write(&value_, static_cast<uint64_t>(value))) value_ = value;
  }
  /// Weak: fails now and then for no reason.
  bool compare_exchange_weak(T &expected, T desired, memory_order, memory_order) noexcept {
    auto &between = snowflake::sim::interference;
    if (value_ != expected || ++between.swaps % 61 == 0) {
      expected = value_;
      return false;
    }
    if (between.write(&value_, static_cast<uint64_t>(desired))) value_ = desired;
    return true;
  }

 private:
  T value_ = 0;
};

}  // namespace std

#define atomic simulated_atomic
