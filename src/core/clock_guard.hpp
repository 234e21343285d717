// Whether the wall clock can be believed: whether the kernel vouches for it, and whether it jumped.
//
// From ntp_adjtime(2), which anyone may read. STA_UNSYNC is not asked: chronyd without rtcsync never
// clears it. The two bounds are asked together since each alone misleads: maxerror grows 500 us a
// second between polls and passes 10 ms on a perfect clock, and systemd-timesyncd keeps esterror
// at 0.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "core/clock.hpp"

namespace snowflake {

/// What the kernel says of its clock, in microseconds.
struct KernelClock {
  bool readable;
  int64_t offset_us;
  int64_t estimated_error_us;
  int64_t max_error_us;
};

/// The kernel's maxerror of a clock that was never synchronised (NTP_PHASE_LIMIT).
inline constexpr int64_t kNeverSynchronisedUs = 16'000'000;
/// The bound on |offset| + maxerror.
inline constexpr int64_t kMaxErrorUs = 1'500'000;

enum class ClockVerdict : uint8_t { kGood, kUnreadable, kNeverSynchronised, kTooUncertain };

/// |offset| + esterror: the error that is held against snowflake.max_clock_error.
inline int64_t clock_error_us(const KernelClock &k) noexcept {
  return std::abs(k.offset_us) + k.estimated_error_us;
}

/// max_clock_error_us 0: don't ask.
inline ClockVerdict judge_clock(const KernelClock &k, int64_t max_clock_error_us) noexcept {
  if (max_clock_error_us == 0) return ClockVerdict::kGood;
  if (!k.readable) return ClockVerdict::kUnreadable;
  if (k.max_error_us >= kNeverSynchronisedUs) return ClockVerdict::kNeverSynchronised;
  if (clock_error_us(k) > max_clock_error_us || std::abs(k.offset_us) + k.max_error_us > kMaxErrorUs)
    return ClockVerdict::kTooUncertain;
  return ClockVerdict::kGood;
}

/// How far the wall clock may gain on the boot clock from one look to the next.
inline constexpr int64_t kMaxJumpMs = 1000;

/// Holds the wall clock against CLOCK_BOOTTIME, which runs on through a suspend and never steps. A
/// jump ahead of more than kMaxJumpMs is not believed until it is undone or vouched for: IDs from a
/// time that was never true could not be taken back, and a mark made from it would close the worker
/// number for as long. A step back needs no such care: the lead refuses until it has passed. Slow
/// changes (slewing, small steps) are followed.
class ClockGuard {
 public:
  /// `offset_ms`: as validated by an earlier life of this instance; 0: none.
  explicit ClockGuard(int64_t offset_ms = 0) noexcept : offset_ms_(offset_ms) {}

  /// A reading. `vouched`: somebody who knows says that this wall clock is right.
  void observe(Times now, bool vouched) noexcept {
    const int64_t offset = now.wall.unix_ms - now.boot.ms;
    const int64_t gain = offset - offset_ms_;
    if (offset_ms_ == 0 || vouched || std::abs(gain) <= kMaxJumpMs) offset_ms_ = offset;
    jumped_ms_ = offset - offset_ms_ > kMaxJumpMs ? offset - offset_ms_ : 0;
  }

  /// How far the wall clock jumped ahead of what is believed; 0: it did not.
  int64_t jumped_ms() const noexcept { return jumped_ms_; }

  /// The wall clock, or what it would show had it not jumped.
  WallTime believed(Times now) const noexcept {
    if (jumped_ms_ == 0) return now.wall;
    return {std::min(now.wall.unix_ms, now.boot.ms + offset_ms_)};
  }

  /// Wall clock minus boot clock as last validated; 0: nothing was observed yet.
  int64_t offset_ms() const noexcept { return offset_ms_; }

 private:
  int64_t offset_ms_;
  int64_t jumped_ms_ = 0;
};

}  // namespace snowflake
