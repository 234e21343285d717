// The two clocks, as something handed in: the core never reads one.
#pragma once

#include <cstdint>

namespace snowflake {

/// The time of day in ms since the Unix epoch. May step, jump and be plainly wrong.
struct WallTime {
  int64_t unix_ms;
};

/// CLOCK_BOOTTIME in ms: never goes back, runs on while the machine sleeps. For deadlines.
struct BootTime {
  int64_t ms;
};

struct Times {
  WallTime wall;
  BootTime boot;
};

}  // namespace snowflake
