// The 64-bit ID: its fields, its epoch, and the conversions between ID, tick and fields.
//
//   bit 63     sign, always 0
//   62 .. 22   milliseconds since 2026-01-01T00:00:00Z   (41 bits)
//   21 .. 19   region                                    ( 3 bits)
//   18 .. 12   worker                                    ( 7 bits)
//   11 ..  0   sequence                                  (12 bits)
//
// The layout and the epoch are constants: decode functions are IMMUTABLE and partition bounds
// depend on them, so an ID minted once must decode the same way for ever.
#pragma once

#include <cstdint>

namespace snowflake {

inline constexpr int kTimeBits = 41;
inline constexpr int kRegionBits = 3;
inline constexpr int kWorkerBits = 7;
inline constexpr int kSequenceBits = 12;
inline constexpr int kNodeBits = kRegionBits + kWorkerBits;
inline constexpr int kTickBits = kTimeBits + kSequenceBits;

static_assert(kTimeBits + kRegionBits + kWorkerBits + kSequenceBits == 63, "an ID is 63 bits");
static_assert(kTickBits + kNodeBits == 63, "tick and node fit one 64-bit atomic word");

inline constexpr int kRegions = 1 << kRegionBits;
inline constexpr int kWorkers = 1 << kWorkerBits;
inline constexpr int64_t kIdsPerMs = int64_t{1} << kSequenceBits;

/// Milliseconds of 2026-01-01T00:00:00Z since the Unix epoch.
inline constexpr int64_t kEpochUnixMs = 1767225600000;
/// The last millisecond that an ID can carry, since our epoch; 2095-09-07T15:47:35.551Z.
inline constexpr int64_t kLastMs = (int64_t{1} << kTimeBits) - 1;
static_assert(kEpochUnixMs + kLastMs == 3966248855551);

/// What an ID says. `ms` counts from kEpochUnixMs.
struct Fields {
  int64_t ms;
  int region;
  int worker;
  int sequence;

  friend constexpr bool operator==(const Fields &, const Fields &) = default;
};

/// Region and worker together: who may use a tick.
using NodeId = uint32_t;

constexpr NodeId node_of(int region, int worker) noexcept {
  return static_cast<NodeId>(region << kWorkerBits | worker);
}
constexpr int region_of(NodeId node) noexcept { return static_cast<int>(node >> kWorkerBits); }
constexpr int worker_of(NodeId node) noexcept { return static_cast<int>(node & (kWorkers - 1)); }

/// Whether every field is within its bits; only then may encode() be called.
constexpr bool valid(const Fields &f) noexcept {
  return f.ms >= 0 && f.ms <= kLastMs && f.region >= 0 && f.region < kRegions && f.worker >= 0 &&
         f.worker < kWorkers && f.sequence >= 0 && f.sequence < kIdsPerMs;
}

/// Needs valid(f). Never negative.
constexpr int64_t encode(const Fields &f) noexcept {
  return f.ms << (kNodeBits + kSequenceBits) |
         static_cast<int64_t>(node_of(f.region, f.worker)) << kSequenceBits | f.sequence;
}

/// Needs id >= 0; every such ID has fields, and encode() gives it back.
constexpr Fields decode(int64_t id) noexcept {
  const auto node = static_cast<NodeId>(id >> kSequenceBits & ((1 << kNodeBits) - 1));
  return {id >> (kNodeBits + kSequenceBits), region_of(node), worker_of(node),
          static_cast<int>(id & (kIdsPerMs - 1))};
}

/// A tick is ms * 4096 + sequence: the resource of which no worker number uses any twice.
constexpr int64_t first_tick(int64_t ms) noexcept { return ms << kSequenceBits; }
constexpr int64_t last_tick(int64_t ms) noexcept { return ms << kSequenceBits | (kIdsPerMs - 1); }
constexpr int64_t ms_of_tick(int64_t tick) noexcept { return tick >> kSequenceBits; }

constexpr int64_t id_of(int64_t tick, NodeId node) noexcept {
  return ms_of_tick(tick) << (kNodeBits + kSequenceBits) |
         static_cast<int64_t>(node) << kSequenceBits | (tick & (kIdsPerMs - 1));
}

}  // namespace snowflake
