#include "core/lease.hpp"

#include <algorithm>

#include "core/generator.hpp"

namespace snowflake {
namespace {

/// Between tries while etcd fails: short enough to be minting again within 2 s of its return.
constexpr int64_t kRetryMs = 250;

constexpr bool in_layout(WallTime now) noexcept {
  return now.unix_ms >= kEpochUnixMs && now.unix_ms <= kEpochUnixMs + kLastMs;
}
constexpr bool trusted(const Mark &mark, WallTime now) noexcept {
  return mark.kind == Mark::kAbsent ||
         (mark.kind == Mark::kTime && mark.unix_ms < now.unix_ms + kAbsurdMarkMs);
}
/// An absent mark is as good as one long past.
constexpr int64_t passes_at(const Mark &mark) noexcept {
  return mark.kind == Mark::kTime ? mark.unix_ms : 0;
}

}  // namespace

void Lease::enter(State state, Times now, int64_t pause_ms) noexcept {
  state_ = state;
  due_ = now.boot.ms + pause_ms;
}

void Lease::pause(Times now, const Reply &reply) noexcept {
  due_ = now.boot.ms +
         (reply.another_endpoint ? 0 : std::min(kRetryMs, settings_.renew_interval_ms));
}

void Lease::start(int64_t earlier_lease) noexcept {
  if (state_ != State::kIdle) return;
  earlier_lease_ = earlier_lease;
  none_free_ = bad_not_before_ = false;
  skipped_ = -1;
  due_ = 0;
  state_ = State::kRevoking;
}

void Lease::release() noexcept {
  if (state_ == State::kIdle || state_ == State::kReleasing) return;
  // Whatever is under way is forgotten: its reply is dropped (rule 4), and if it is applied later it
  // finds its lease revoked.
  under_way_ = {};
  if (lease_ == 0) lease_ = earlier_lease_;
  earlier_lease_ = 0;
  due_ = 0;
  state_ = lease_ != 0 ? State::kReleasing : State::kIdle;
}

Request Lease::next_request(Times now) noexcept {
  if (state_ == State::kRevoking && earlier_lease_ == 0) state_ = State::kReading;
  if (state_ == State::kIdle || under_way_.kind != RequestKind::kNone || now.boot.ms < due_)
    return {};

  Request request;
  request.lease = lease_;
  request.worker = worker_;
  switch (state_) {
    case State::kIdle:
      break;
    case State::kRevoking:
      request.kind = RequestKind::kRevoke;
      request.lease = earlier_lease_;
      break;
    case State::kReading:
      request.kind = RequestKind::kReadRegion;
      break;
    case State::kGranting:
      request.kind = RequestKind::kGrant;
      break;
    case State::kClaiming:
      request.kind = RequestKind::kClaim;
      break;
    case State::kHolding:
      if (!raise_next_) {
        beat_ = now.boot.ms;
        request.kind = RequestKind::kKeepAlive;
        break;
      }
      // A clock outside the layout raises nothing; the claim is looked at all the same.
      request.kind = RequestKind::kRaise;
      request.first_mark = first_mark_;
      request.mark_unix_ms = std::max(
          {confirmed_, floor_,
           in_layout(now.wall)
               ? std::min(now.wall.unix_ms + settings_.reserve_ms, kEpochUnixMs + kLastMs)
               : kEpochUnixMs});
      break;
    case State::kReleasing:
      request.kind = RequestKind::kRevoke;
      break;
  }
  request.serial = ++serial_;
  under_way_ = request;
  return request;
}

BootTime Lease::wake_at(Times now) const noexcept {
  constexpr BootTime kNever{INT64_MAX};
  if (state_ == State::kIdle) return kNever;
  BootTime at = under_way_.kind == RequestKind::kNone ? BootTime{due_} : kNever;
  // A claim whose mark is ahead of the clock is handed out when the clock has caught up.
  if (state_ == State::kHolding && !installed_ && confirmed_ != 0)
    at.ms = std::min(at.ms, now.boot.ms + std::max<int64_t>(
                                              1, floor_ - kMaxLeadMs - now.wall.unix_ms));
  return at;
}

void Lease::on_reply(const Reply &reply, Times now) noexcept {
  if (under_way_.kind == RequestKind::kNone || reply.serial != under_way_.serial) return;
  switch (under_way_.kind) {
    case RequestKind::kNone:
      break;
    case RequestKind::kRevoke:
      on_revoked(reply, now);
      break;
    case RequestKind::kReadRegion:
      on_region(reply, now);
      break;
    case RequestKind::kGrant:
      on_granted(reply, now);
      break;
    case RequestKind::kClaim:
      on_claimed(reply, now);
      break;
    case RequestKind::kKeepAlive:
      on_kept_alive(reply, now);
      break;
    case RequestKind::kRaise:
      on_raised(reply, now);
      break;
  }
  under_way_ = {};
}

void Lease::on_revoked(const Reply &reply, Times now) noexcept {
  if (state_ == State::kReleasing) {
    // Failed or not: there is one try. A lease that may still stand is for the next life to revoke.
    earlier_lease_ = reply.failed ? lease_ : 0;
    lease_ = 0;
    installed_ = false;
    confirmed_ = published_ = floor_ = 0;
    enter(State::kIdle, now);
  } else if (reply.failed) {
    pause(now, reply);
  } else {
    earlier_lease_ = 0;
    enter(State::kReading, now);
  }
}

/// Of the free numbers the lowest whose mark is past, so that a restart does not wait; else the one
/// whose mark passes first; -1: none.
int Lease::pick(Times now) noexcept {
  int best = -1;
  for (int n = 0; n < kWorkers; n++) {
    const auto i = static_cast<size_t>(n);
    if (taken_[i]) continue;
    if (passes_at(marks_[i]) < now.wall.unix_ms) return n;
    if (best < 0 || passes_at(marks_[i]) < passes_at(marks_[static_cast<size_t>(best)])) best = n;
  }
  return best;
}

void Lease::on_region(const Reply &reply, Times now) noexcept {
  if (reply.failed) return pause(now, reply);
  marks_ = reply.marks;
  taken_ = reply.held;
  skipped_ = -1;
  for (int n = kWorkers - 1; n >= 0; n--) {
    const auto i = static_cast<size_t>(n);
    if (taken_[i] || trusted(marks_[i], now.wall)) continue;
    taken_[i] = true;
    skipped_ = n;
  }
  const int picked = pick(now);
  none_free_ = picked < 0;
  if (none_free_) return enter(State::kReading, now, settings_.renew_interval_ms);
  worker_ = picked;
  enter(State::kGranting, now);
}

void Lease::on_granted(const Reply &reply, Times now) noexcept {
  if (reply.failed) {
    state_ = State::kReading;
    return pause(now, reply);
  }
  lease_ = reply.lease;
  enter(State::kClaiming, now);
}

/// Rule 5. Also for a claim that is of no use: the number is freed with its lease.
void Lease::give_up_claim(Times now, int64_t pause_ms) noexcept {
  earlier_lease_ = lease_;
  lease_ = 0;
  installed_ = false;
  confirmed_ = published_ = floor_ = 0;
  enter(State::kRevoking, now, pause_ms);
}

void Lease::on_claimed(const Reply &reply, Times now) noexcept {
  if (reply.failed) {
    give_up_claim(now, 0);
    return pause(now, reply);
  }
  if (!reply.applied && reply.lease != lease_) {
    // Somebody was faster. The next candidate of the same reading; when there is none, a new look.
    taken_[static_cast<size_t>(worker_)] = true;
    worker_ = pick(now);
    if (worker_ < 0) give_up_claim(now, kRetryMs);
    return;
  }
  bad_not_before_ = !trusted(reply.not_before, now.wall);
  if (bad_not_before_ || !trusted(reply.mark, now.wall))
    return give_up_claim(now, settings_.renew_interval_ms);
  first_mark_ = reply.mark.kind == Mark::kAbsent;
  floor_ = std::max({passes_at(reply.mark), passes_at(reply.not_before), kEpochUnixMs});
  confirmed_ = published_ = 0;
  installed_ = false;
  claims_++;
  raise_next_ = true;
  beat_ = now.boot.ms;
  enter(State::kHolding, now);
}

void Lease::on_kept_alive(const Reply &, Times now) noexcept {
  // Neither its success nor its failure proves anything about the claim: the raise decides.
  raise_next_ = true;
  due_ = now.boot.ms;
}

void Lease::on_raised(const Reply &reply, Times now) noexcept {
  if (reply.failed) return pause(now, reply);
  const int64_t asked = under_way_.mark_unix_ms;
  if (!reply.applied) {
    if (reply.lease != lease_ || reply.mark.kind == Mark::kGarbage) {
      losses_++;
      // At once, unless claims are lost as fast as they are made.
      return give_up_claim(now, installed_ ? 0 : settings_.renew_interval_ms);
    }
    if (passes_at(reply.mark) < asked) {
      // Mine, but not the compare that was sent: an earlier first mark was applied after all, or
      // somebody deleted the mark. Nobody else can move it while the claim stands: put it at once.
      const bool first = reply.mark.kind == Mark::kAbsent;
      due_ = now.boot.ms + (first != first_mark_ ? 0 : kRetryMs);
      first_mark_ = first;
      return;
    }
    // Rule 3: mine, and at least what was asked: an earlier try whose reply was lost.
  }
  first_mark_ = false;
  confirmed_ = asked;
  raise_next_ = false;
  due_ = std::max(beat_ + settings_.renew_interval_ms, now.boot.ms);
}

Publication Lease::publication(Times now) noexcept {
  Publication out;
  if (state_ != State::kHolding || confirmed_ <= published_) return out;
  if (!installed_) {
    // The old number's reserve goes on while this one's mark is ahead of the clock.
    if (now.wall.unix_ms < floor_ - kMaxLeadMs) return out;
    out.kind = Publication::kInstall;
    installed_ = true;
  } else {
    out.kind = Publication::kRaiseFence;
  }
  out.node = node_of(settings_.region, worker_);
  out.floor_ms = std::min(floor_ - kEpochUnixMs, kLastMs);
  out.mark_ms = std::min(confirmed_ - kEpochUnixMs, kLastMs);
  published_ = confirmed_;
  return out;
}

}  // namespace snowflake
