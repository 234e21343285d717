// Whether the kernel vouches for the wall clock.
//
// From ntp_adjtime(2), which anyone may read. STA_UNSYNC is not asked: chronyd without rtcsync never
// clears it. The two bounds are asked together since each alone misleads: maxerror grows 500 us a
// second between polls and passes 10 ms on a perfect clock, and systemd-timesyncd keeps esterror
// at 0.
#pragma once

#include <cstdint>
#include <cstdlib>

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

}  // namespace snowflake
