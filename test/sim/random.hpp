// Numbers that look random and depend on nothing but the seed (splitmix64).
#pragma once

#include <cstdint>

namespace snowflake::sim {

class Random {
 public:
  explicit Random(uint64_t seed = 0) noexcept : state_(seed) {}

  uint64_t next() noexcept {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// 0 .. n - 1; needs n > 0.
  int64_t below(int64_t n) noexcept {
    return static_cast<int64_t>((static_cast<unsigned __int128>(next()) *
                                 static_cast<uint64_t>(n)) >> 64);
  }
  /// low .. high.
  int64_t range(int64_t low, int64_t high) noexcept { return low + below(high - low + 1); }
  int one_of(int n) noexcept { return static_cast<int>(below(n)); }
  bool percent(int64_t p) noexcept { return below(100) < p; }
  bool one_in(int64_t n) noexcept { return below(n) == 0; }

 private:
  uint64_t state_;
};

}  // namespace snowflake::sim
