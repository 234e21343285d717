#include "core/generator.hpp"

#include <algorithm>

#include "core/clock_guard.hpp"

namespace snowflake {
namespace {

constexpr uint64_t kNodeMask = (uint64_t{1} << kNodeBits) - 1;

constexpr uint64_t pack(int64_t value, NodeId node) noexcept {
  return static_cast<uint64_t>(value) << kNodeBits | node;
}
constexpr int64_t value_of(uint64_t word) noexcept {
  return static_cast<int64_t>(word >> kNodeBits);
}
constexpr NodeId node_in(uint64_t word) noexcept { return static_cast<NodeId>(word & kNodeMask); }

constexpr Issue refuse(Refusal why, int64_t wait_ms = 0) noexcept { return {why, 0, 0, wait_ms}; }

/// Whether the wall clock gained more on the boot clock than was validated. Idle time passes this, a
/// jump does not.
bool jumped(WallTime now, BootTime boot, int64_t validated_offset_ms) noexcept {
  return validated_offset_ms != 0 && now.unix_ms - boot.ms - validated_offset_ms > kMaxJumpMs;
}

/// The rules of issue() on one reading of the words.
Issue judge(uint64_t last, uint64_t fence, const std::atomic<int64_t> &clock_offset_ms, WallTime now,
            BootClock boot_clock, int n) noexcept {
  const int64_t now_ms = now.unix_ms - kEpochUnixMs;
  if (now_ms < 0 || now_ms > kLastMs) return refuse(Refusal::kBadClock);
  // Invariant 3. The worker may be frozen in mid-change, so this is an answer, not a spin.
  if (fence == 0 || node_in(last) != node_in(fence)) return refuse(Refusal::kNoClaim);

  if (now_ms - ms_of_tick(value_of(last)) > kMaxJumpMs &&
      jumped(now, boot_clock(), clock_offset_ms.load(std::memory_order_relaxed)))
    return refuse(Refusal::kJump);

  const int64_t first = std::max(value_of(last) + 1, first_tick(now_ms));
  const int64_t end_ms = ms_of_tick(first + n - 1);
  if (end_ms - now_ms > kMaxLeadMs) return refuse(Refusal::kLead, end_ms - now_ms - kMaxLeadMs);
  // Invariant 2. A fence never passes kLastMs, so this also keeps the tick within its 53 bits.
  if (end_ms > value_of(fence)) return refuse(Refusal::kFence);
  return {Refusal::kNone, node_in(last), first, 0};
}

}  // namespace

Issue Generator::issue(WallTime now, BootClock boot_clock, int n) noexcept {
  // acquire on `last` pairs with the release of install()'s swap: whoever sees the new node in
  // `last` sees, in the load of `fence` that follows, nothing older than the fence that stood when
  // install() began. A fence of an earlier holding of the same number can't come back.
  uint64_t last_seen = last.value.load(std::memory_order_acquire);
  for (;;) {
    const uint64_t fence_seen = fence.value.load(std::memory_order_acquire);
    const Issue answer = judge(last_seen, fence_seen, clock_offset_ms, now, boot_clock, n);
    if (answer.refusal == Refusal::kNoClaim) {
      // A whole change of number between the two loads looks like one half done: look again.
      const uint64_t last_now = last.value.load(std::memory_order_acquire);
      if (last_now == last_seen) return answer;
      last_seen = last_now;
      continue;
    }
    if (answer.refusal != Refusal::kNone) return answer;
    // Invariant 1. On failure last_seen is the newer word (acquire again), and the fence is looked
    // at anew. `now` stays: a tick from a slightly older reading is as unique and as ordered.
    if (last.value.compare_exchange_weak(last_seen, pack(answer.first + n - 1, answer.node),
                                         std::memory_order_acq_rel, std::memory_order_acquire))
      return answer;
  }
}

Issue Generator::probe(WallTime now, BootClock boot_clock, int n) const noexcept {
  const uint64_t last_seen = last.value.load(std::memory_order_acquire);
  return judge(last_seen, fence.value.load(std::memory_order_acquire), clock_offset_ms, now,
               boot_clock, n);
}

void Generator::install(NodeId node, int64_t floor_ms, int64_t mark_ms) noexcept {
  // `last` first: between the two stores callers see two nodes and wait. The other way round a
  // caller could pair the old node's tick with a fence that was never its own.
  uint64_t seen = last.value.load(std::memory_order_relaxed);
  uint64_t start;
  do {
    start = pack(last_tick(std::max(floor_ms, ms_of_tick(value_of(seen)))), node);
  } while (!last.value.compare_exchange_weak(seen, start, std::memory_order_acq_rel,
                                             std::memory_order_relaxed));
  fence.value.store(pack(mark_ms, node), std::memory_order_release);
}

void Generator::raise_fence(int64_t mark_ms) noexcept {
  // The only writer may read what it wrote without an order. A withdrawn fence stays withdrawn.
  const uint64_t seen = fence.value.load(std::memory_order_relaxed);
  if (seen != 0 && mark_ms > value_of(seen))
    fence.value.store(pack(mark_ms, node_in(seen)), std::memory_order_release);
}

int64_t Generator::fence_ms() const noexcept {
  return value_of(fence.value.load(std::memory_order_acquire));
}
int64_t Generator::last_ms() const noexcept {
  return ms_of_tick(value_of(last.value.load(std::memory_order_acquire)));
}
NodeId Generator::node() const noexcept { return node_in(fence.value.load(std::memory_order_acquire)); }

}  // namespace snowflake
