// What mint writes and audit reads, in one folder. For each instance NAME:
//
//   NAME.sN.ids     every ID that session N was handed, in order, 8 bytes each
//   NAME.sN.calls   a Call for each statement and each failed connection
//   NAME.texts      the outcomes of calls: "SQLSTATE<tab>message", figures masked; first success
//   NAME.states     pg_stat_snowflake, seen about five times a second
//   NAME.clock.log  what clockctl did to its clock; none: the true time
//   NAME.windows    "from to what" in ns: when a stop of it is expected; none: never
//
// Moments are CLOCK_MONOTONIC in ns, which all processes of a machine share and no test steps.
#pragma once

#include <cstdint>

namespace drills {

enum class Kind : uint8_t { kConnect, kOrdered, kUnordered };

struct Call {
  int64_t begin_ns;  // before it was sent
  int64_t end_ns;    // after its last answer
  uint32_t ids;      // so many follow in the file of IDs, also if it failed in the end
  uint16_t outcome;  // line of NAME.texts; 0: success
  Kind kind;         // kUnordered: of a parallel plan, whose IDs come as its processes finish
  uint8_t unused;
  uint32_t connection;
  uint32_t life;  // which postmaster answered
};
static_assert(sizeof(Call) == 32);

}  // namespace drills
