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

void Lease::start(int64_t earlier_lease, const LastMark &last_mark) noexcept {
  if (state_ != State::kIdle) return;
  earlier_lease_ = earlier_lease;
  last_mark_ = last_mark;
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

void Lease::vouch_for_empty_region() noexcept {
  if (state_ != State::kWitnessing) return;
  vouched_empty_ = kept_alive_ = true;
  due_ = 0;
}

bool Lease::raise_all_marks(int64_t unix_ms, Times now) noexcept {
  if (state_ != State::kHolding || under_way_.kind != RequestKind::kNone) return false;
  raise_all_to_ = unix_ms;
  marks_to_raise_ = kWorkers;
  warn(State::kHolding, now);
  not_before_ = std::max(not_before_, unix_ms);
  return true;
}

Request Lease::next_request(Times now) noexcept {
  if (state_ == State::kRevoking && earlier_lease_ == 0) state_ = State::kReading;
  if (state_ == State::kIdle || under_way_.kind != RequestKind::kNone) return {};

  Request request;
  request.lease = lease_;
  request.worker = worker_;
  if (now.boot.ms < due_) {
    if (state_ != State::kHolding || marks_to_raise_ == 0 || now.boot.ms < raise_all_due_) return {};
    request.kind = RequestKind::kRaiseOther;
    request.worker = marks_to_raise_ - 1;
    request.mark_unix_ms = raise_all_to_;
  } else {
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
      case State::kWitnessing:
        if (!kept_alive_) beat_ = now.boot.ms;
        request.kind = kept_alive_ ? RequestKind::kReadRegion : RequestKind::kKeepAlive;
        break;
      case State::kHolding:
        // Rule 8: whoever was frozen here asks again before it raises.
        if (!kept_alive_ || now.boot.ms - term_shown_ > kTermFreshMs) {
          if (!kept_alive_) beat_ = now.boot.ms;
          request.kind = RequestKind::kKeepAlive;
          break;
        }
        // A clock outside the layout raises nothing; the claim is looked at all the same.
        request.kind = RequestKind::kRaise;
        request.first = stored_ == 0;
        request.least_unix_ms = stored_;
        request.mark_unix_ms = std::max(
            {confirmed_, floor_,
             in_layout(now.wall)
                 ? std::min(now.wall.unix_ms + settings_.reserve_ms, kEpochUnixMs + kLastMs)
                 : kEpochUnixMs});
        break;
      case State::kWarning:
        request.kind = RequestKind::kRaiseNotBefore;
        request.first = first_not_before_;
        request.mark_unix_ms = not_before_;
        break;
      case State::kReleasing:
        request.kind = RequestKind::kRevoke;
        break;
    }
  }
  request.serial = ++serial_;
  sent_ = now.boot.ms;
  under_way_ = request;
  return request;
}

BootTime Lease::wake_at(Times now) const noexcept {
  constexpr BootTime kNever{INT64_MAX};
  if (state_ == State::kIdle) return kNever;
  BootTime at = under_way_.kind == RequestKind::kNone ? BootTime{due_} : kNever;
  if (state_ != State::kHolding) return at;
  if (marks_to_raise_ != 0 && under_way_.kind == RequestKind::kNone)
    at.ms = std::min(at.ms, raise_all_due_);
  // A claim whose mark is ahead of the clock is handed out when the clock has caught up.
  if (!installed_ && confirmed_ != 0)
    at.ms = std::min(at.ms, now.boot.ms + std::max<int64_t>(
                                              1, floor_ - kMaxLeadMs - now.wall.unix_ms));
  return at;
}

void Lease::on_reply(const Reply &reply, Times now) noexcept {
  if (under_way_.kind == RequestKind::kNone || reply.serial != under_way_.serial) return;
  const State asked_in = state_;
  const bool rolled_back = !reply.failed && reply.term != 0 && reply.term < term_;
  if (!reply.failed && reply.term != 0) {
    term_shown_ = sent_;
    term_ = std::max(term_, reply.term);
  }
  switch (under_way_.kind) {
    case RequestKind::kNone:
      break;
    case RequestKind::kRevoke:
      on_revoked(reply, now);
      break;
    case RequestKind::kReadRegion:
      state_ == State::kWitnessing ? on_witness(reply, now) : on_region(reply, now);
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
    case RequestKind::kRaiseNotBefore:
      on_warned(reply, now);
      break;
    case RequestKind::kRaiseOther:
      on_other_raised(reply, now);
      break;
  }
  under_way_ = {};
  // Rule 8. One that is giving its number back warns nobody: it will not raise again.
  if (rolled_back && asked_in != State::kWarning && asked_in != State::kReleasing &&
      state_ != State::kWarning) {
    rollbacks_++;
    warn(state_, now);
  }
}

void Lease::on_revoked(const Reply &reply, Times now) noexcept {
  if (state_ == State::kReleasing) {
    // Failed or not: there is one try. A lease that may still stand is for the next life to revoke.
    earlier_lease_ = reply.failed ? lease_ : 0;
    forget_claim();
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

void Lease::forget_claim() noexcept {
  lease_ = 0;
  installed_ = false;
  confirmed_ = published_ = floor_ = stored_ = mark_revision_ = 0;
  quarantined_until_ = 0;
  no_witness_ = vouched_empty_ = false;
  marks_to_raise_ = 0;
}

/// Rule 5. Also for a claim that is of no use: the number is freed with its lease.
void Lease::give_up_claim(Times now, int64_t pause_ms) noexcept {
  earlier_lease_ = lease_;
  forget_claim();
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
  stored_ = passes_at(reply.mark);
  floor_ = std::max({stored_, passes_at(reply.not_before), kEpochUnixMs});
  claims_++;
  kept_alive_ = true;
  beat_ = now.boot.ms;
  quarantined_until_ = now.boot.ms + settings_.reserve_ms + kForgottenMs;
  enter(State::kWitnessing, now);
}

/// Rule 9, on a reading of the region made after the claim.
bool Lease::witnessed(const Reply &reply, Times now) noexcept {
  bool empty = reply.not_before.kind == Mark::kAbsent;
  for (int n = 0; n < kWorkers; n++) {
    const auto i = static_cast<size_t>(n);
    const Mark &mark = reply.marks[i];
    if (mark.kind == Mark::kTime && mark.unix_ms > now.wall.unix_ms &&
        mark.unix_ms <= now.wall.unix_ms + 2 * settings_.reserve_ms)
      return true;
    if (n == last_mark_.worker && mark.kind == Mark::kTime &&
        mark.unix_ms == last_mark_.unix_ms && mark.mod_revision == last_mark_.mod_revision &&
        reply.term >= last_mark_.term)
      return true;
    if (mark.kind != Mark::kAbsent || (reply.held[i] && n != worker_)) empty = false;
  }
  return empty && vouched_empty_;
}

void Lease::on_witness(const Reply &reply, Times now) noexcept {
  if (reply.failed) return pause(now, reply);
  bad_not_before_ = !trusted(reply.not_before, now.wall);
  if (bad_not_before_) return give_up_claim(now, settings_.renew_interval_ms);
  floor_ = std::max(floor_, passes_at(reply.not_before));
  const bool enough = witnessed(reply, now) || now.boot.ms >= quarantined_until_;
  vouched_empty_ = false;
  if (enough) {
    // The file speaks of one start only: from here on etcd has seen more.
    last_mark_ = {};
    kept_alive_ = true;
    return enter(State::kHolding, now);
  }
  no_witness_ = true;
  kept_alive_ = false;
  due_ = std::clamp(beat_ + settings_.renew_interval_ms, now.boot.ms, quarantined_until_);
}

void Lease::on_kept_alive(const Reply &reply, Times now) noexcept {
  // Its success proves nothing about the claim, nor does a lease that it says is gone: the raise
  // decides. But its answer shows the raft term, without which there is no raise (rule 8).
  if (reply.failed) return pause(now, reply);
  kept_alive_ = true;
  due_ = now.boot.ms;
}

void Lease::on_raised(const Reply &reply, Times now) noexcept {
  if (reply.failed) return pause(now, reply);
  const int64_t asked = under_way_.mark_unix_ms;
  if (!reply.applied) {
    const int64_t found = passes_at(reply.mark);
    const bool mine = reply.lease == lease_;
    const bool lost = !mine || reply.mark.kind == Mark::kGarbage;
    const bool rolled_back = reply.mark.kind != Mark::kGarbage && found < stored_;
    if (lost) {
      losses_++;
      // At once, unless claims are lost as fast as they are made.
      give_up_claim(now, installed_ ? 0 : settings_.renew_interval_ms);
    }
    if (rolled_back) {
      // Rule 8. What is found now is what the next raise compares with.
      if (!lost) stored_ = found;
      rollbacks_++;
      return warn(state_, now);
    }
    if (lost) return;
    if (found < asked) {
      // An earlier first mark was applied after all.
      stored_ = found;
      due_ = now.boot.ms;
      return;
    }
    // Rule 3: mine, and at least what was asked: an earlier try whose reply was lost.
    stored_ = found;
  } else {
    stored_ = asked;
  }
  confirmed_ = asked;
  mark_revision_ = reply.mark.mod_revision;
  kept_alive_ = false;
  due_ = std::max(beat_ + settings_.renew_interval_ms, now.boot.ms);
}

/// Rule 8: not_before first, then on as before.
void Lease::warn(State afterwards, Times now) noexcept {
  after_warning_ = afterwards;
  first_not_before_ = false;
  not_before_ = std::min(now.wall.unix_ms + settings_.reserve_ms + kForgottenMs,
                         kEpochUnixMs + kLastMs);
  enter(State::kWarning, now);
}

void Lease::on_warned(const Reply &reply, Times now) noexcept {
  if (reply.failed) return pause(now, reply);
  if (!reply.applied && reply.mark.kind != Mark::kGarbage && passes_at(reply.mark) < not_before_) {
    first_not_before_ = reply.mark.kind == Mark::kAbsent;
    due_ = now.boot.ms;
    return;
  }
  // Garbage is left alone: it stops every claim as well.
  term_ = reply.term;
  kept_alive_ = false;
  enter(after_warning_, now);
}

void Lease::on_other_raised(const Reply &reply, Times now) noexcept {
  raise_all_due_ = now.boot.ms + (reply.failed ? kRetryMs : 0);
  if (!reply.failed) marks_to_raise_--;
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
