// Mints ticks from two atomic words in shared memory, without a lock.
//
// Thread safety: any number of processes call issue() at the same time; exactly one, the
// background worker, calls install(), raise_fence() and withdraw().
//
// Invariants, and why no ID is ever given out twice:
//  1. `last` = (tick, node) changes only by compare-and-swap, and its tick only ever rises, across
//     changes of node too. So a value of `last` never comes back, and whoever was frozen between
//     its load and its swap fails the swap if anything at all was given out, or the node changed,
//     in between. The tick and the node change together: nobody mints with a number that is gone.
//  2. `fence` = (mark, node) holds a mark that etcd has confirmed for that node while this instance
//     held it. A caller frozen between its look at the fence and its swap still uses a tick at or
//     below such a mark, and the next holder of the number starts after the mark.
//  3. A node change writes `last` first and `fence` after. A caller that sees different nodes in
//     the two words mints nothing.
//  4. A refusal changes nothing.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/clock.hpp"
#include "core/layout.hpp"

namespace snowflake {

/// How far the last tick may run ahead of the clock: part of the order promise, so a constant.
inline constexpr int64_t kMaxLeadMs = 1000;
/// The most IDs of one call: they fit the lead, and are consecutive ticks of one node.
inline constexpr int kMaxBatch = 1000;

enum class Refusal : uint8_t {
  kNone,      // granted
  kNoClaim,   // no fence, or the worker number is just changing: wait for the background worker
  kFence,     // the reserved time is used up: wait for the background worker
  kLead,      // the clock is behind the last tick, or a burst above 4,096,000 a second: wait
  kJump,      // the clock is ahead of what the background worker validated: wait for it
  kBadClock,  // the clock is before the epoch or past the layout's end
};

/// What issue() answers. `first` and `node` hold when granted: the ticks first .. first + n - 1 are
/// the caller's. `wait_ms` holds for kLead: the call would be granted when the clock has advanced
/// by so much and nobody else has asked.
struct Issue {
  Refusal refusal;
  NodeId node;
  int64_t first;
  int64_t wait_ms;
};

/// One word to a pair of cache lines: the adjacent-line prefetcher pulls lines in twos.
struct alignas(128) Word {
  std::atomic<uint64_t> value;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "must work between processes");

/// Reads CLOCK_BOOTTIME. Asked only when the wall clock is more than kMaxJumpMs past the last tick:
/// after idle time or a jump, never in a run of calls.
using BootClock = BootTime (*)();

/// All zero is a valid start: no claim.
struct Generator {
  /// tick (53 bits) | node (10 bits). Written by issue() and install(), by swap only.
  Word last;
  /// mark in ms since our epoch (41 bits) | node (10 bits); 0: no claim. Written by the background
  /// worker only.
  Word fence;
  /// Wall minus boot clock in ms as last validated, 0: not yet. Written by the background worker
  /// only. No more than a plausibility check, so nothing is ordered by it: relaxed.
  std::atomic<int64_t> clock_offset_ms;

  /// Takes the next n ticks, 1 <= n <= kMaxBatch.
  Issue issue(WallTime now, BootClock boot_clock, int n) noexcept;

  /// What issue() would answer now, taking nothing.
  Issue probe(WallTime now, BootClock boot_clock, int n) const noexcept;

  /// A new claim: from now on ticks later than every tick of `floor_ms` and of the last millisecond
  /// used by this instance, up to every tick of `mark_ms`, both in ms since our epoch. `floor_ms`
  /// is the mark (and not_before) as read in the claim, `mark_ms` is confirmed under that claim.
  void install(NodeId node, int64_t floor_ms, int64_t mark_ms) noexcept;

  /// A higher mark, confirmed for the node that is installed. Never lowers the fence.
  void raise_fence(int64_t mark_ms) noexcept;

  /// Mints nothing from now on (disabled, or the shared memory starts anew after a crash).
  void withdraw() noexcept { fence.value.store(0, std::memory_order_release); }

  /// Milliseconds since our epoch of the fence, 0 without a claim, and of the last tick given out.
  int64_t fence_ms() const noexcept;
  int64_t last_ms() const noexcept;
  /// The node whose fence stands; meaningless without a claim.
  NodeId node() const noexcept;
};

}  // namespace snowflake
