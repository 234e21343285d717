#include "core/lease.hpp"

#include <algorithm>

#include "core/generator.hpp"

namespace snowflake {
namespace {

/// Between tries while etcd fails: short enough to be minting again within 2 s of its return.
constexpr int64_t kRetryMs = 250;

constexpr bool trusted(const Mark &mark, WallTime now) noexcept {
  return mark.kind == Mark::kAbsent ||
         (mark.kind == Mark::kTime && mark.unix_ms < now.unix_ms + kAbsurdMarkMs);
}
/// A member reads its index a moment after its revision: writes in between make the surplus so much
/// too high at most. A restored snapshot makes it lower by about its revision.
constexpr int64_t kSurplusSlack = 8;
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

void Lease::watch() noexcept {
  if (state_ != State::kIdle) return;
  asked_ = 0;
  due_ = 0;
  state_ = State::kWatching;
}

/// Rule 8: the next try may go to another endpoint, which has to show its term and surplus first.
void Lease::doubt(Times now, const Reply &reply) noexcept {
  kept_alive_ = false;
  asked_ = 0;
  good_ = 0;
  pause(now, reply);
}

void Lease::start(int64_t earlier_lease, const LastMark &last_mark) noexcept {
  if (state_ != State::kIdle && state_ != State::kWatching) return;
  under_way_ = {};
  asked_ = 0;
  earlier_lease_ = earlier_lease;
  last_mark_ = last_mark;
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

void Lease::vouch_for_empty_region() noexcept {
  if (state_ != State::kWitnessing) return;
  vouched_empty_ = kept_alive_ = true;
  due_ = 0;
}

bool Lease::raise_all_marks(int64_t unix_ms, Times now) noexcept {
  if (state_ != State::kHolding || under_way_.kind != RequestKind::kNone) return false;
  raise_all_to_ = unix_ms;
  marks_to_raise_ = kWorkers;
  warn(State::kHolding, 0, now);
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
    // Nothing of the kind to an etcd in doubt.
    if (state_ != State::kHolding || marks_to_raise_ == 0 || good_ == 0 ||
        now.boot.ms < raise_all_due_)
      return {};
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
      case State::kWatching:
        request.kind = asked(now) ? RequestKind::kReadRegion : RequestKind::kStatus;
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
        request.kind = !kept_alive_ ? RequestKind::kKeepAlive
                       : asked(now) ? RequestKind::kReadRegion
                                    : RequestKind::kStatus;
        break;
      case State::kHolding:
        // Rule 8: whoever was frozen here asks again before it raises.
        if (!asked(now) && (good_ == 0 ||
                            now.boot.ms - good_ > settings_.renew_interval_ms + kTermFreshMs)) {
          request.kind = RequestKind::kStatus;
          break;
        }
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
        request.kind = warned_ ? RequestKind::kStatus : RequestKind::kRaiseNotBefore;
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
  if (marks_to_raise_ != 0 && good_ != 0 && under_way_.kind == RequestKind::kNone)
    at.ms = std::min(at.ms, raise_all_due_);
  // A claim whose mark is ahead of the clock is handed out when the clock has caught up.
  if (!installed_ && confirmed_ != 0)
    at.ms = std::min(at.ms, now.boot.ms + std::max<int64_t>(
                                              1, floor_ - kMaxLeadMs - now.wall.unix_ms));
  return at;
}

void Lease::on_reply(const Reply &reply, Times now) noexcept {
  if (under_way_.kind == RequestKind::kNone || reply.serial != under_way_.serial) return;
  // The lower term is believed from here on, so that one lower still is noticed, too.
  const bool shown = !reply.failed && reply.term != 0;
  const int64_t term_before = term_;
  const bool term_went_back = shown && reply.term < term_before;
  if (shown) {
    term_shown_ = sent_;
    term_ = reply.term;
  }
  switch (under_way_.kind) {
    case RequestKind::kNone:
      break;
    case RequestKind::kStatus:
      on_status(reply, now);
      break;
    case RequestKind::kRevoke:
      on_revoked(reply, now);
      break;
    case RequestKind::kReadRegion:
      if (state_ == State::kWatching)
        on_watched(reply, now);
      else if (state_ == State::kWitnessing)
        on_witness(reply, now);
      else
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
    case RequestKind::kRaiseNotBefore:
      on_warned(reply, term_went_back, now);
      break;
    case RequestKind::kRaiseOther:
      on_other_raised(reply, now);
      break;
  }
  under_way_ = {};
  // Rule 8. One that gives its number back warns nobody, since it will not raise again; nor does one
  // that never had a number.
  if (!term_went_back || state_ == State::kIdle || state_ == State::kWatching ||
      state_ == State::kReleasing)
    return;
  if (state_ != State::kWarning) return warn(state_, term_before, now);
  // Restored while the warning was on its way: again, for those it has forgotten since.
  warned_ = false;
  proof_below_ = std::max(proof_below_, term_before);
  not_before_ = std::max(not_before_, forgotten_until(now));
}

void Lease::on_revoked(const Reply &reply, Times now) noexcept {
  if (state_ == State::kReleasing) {
    if (reply.failed && reply.another_endpoint) return pause(now, reply);
    // Failed or not: each endpoint is tried once. A lease that may still stand is for the next life
    // to revoke.
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
  good_ = 0;
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
  asked_ = 0;
  beat_ = now.boot.ms;
  quarantined_until_ = now.boot.ms + settings_.reserve_ms + kForgottenMs;
  enter(State::kWitnessing, now);
}

/// Whoever holds it renewed within the reserve. Further ahead it may stand since a clock was wrong, and
/// up to not_before since all marks were raised, or a holder goes on above it: that is no renewal.
bool Lease::alive(const Mark &mark, const Mark &not_before, Times now) const noexcept {
  return mark.kind == Mark::kTime && mark.unix_ms > now.wall.unix_ms &&
         mark.unix_ms > passes_at(not_before) &&
         mark.unix_ms <= now.wall.unix_ms + 2 * settings_.reserve_ms;
}

/// Rule 9, on a reading of the region made after the claim.
bool Lease::witnessed(const Reply &reply, Times now) const noexcept {
  bool empty = reply.not_before.kind == Mark::kAbsent;
  for (int n = 0; n < kWorkers; n++) {
    const auto i = static_cast<size_t>(n);
    const Mark &mark = reply.marks[i];
    if (alive(mark, reply.not_before, now)) return true;
    if (n == last_mark_.worker && mark.kind == Mark::kTime &&
        mark.unix_ms == last_mark_.unix_ms && mark.mod_revision == last_mark_.mod_revision &&
        reply.term >= last_mark_.term &&
        (last_mark_.surplus == kNoSurplus || surplus_ >= last_mark_.surplus - kSurplusSlack))
      return true;
    if (mark.kind != Mark::kAbsent || (reply.held[i] && n != worker_)) empty = false;
  }
  return (empty && vouched_empty_) || as_watched(reply, now);
}

/// Whether nothing of what was watched is forgotten. What was claimed since the last look could be, and
/// only the surplus shows that in any case: so it must be told.
bool Lease::as_watched(const Reply &reply, Times now) const noexcept {
  if (watched_.boot_ms == 0 || surplus_ == kNoSurplus || now.boot.ms - watched_.boot_ms > settings_.reserve_ms ||
      reply.term < watched_.term || passes_at(reply.not_before) < passes_at(watched_.not_before))
    return false;
  for (size_t i = 0; i < kWorkers; i++)
    if (passes_at(reply.marks[i]) < passes_at(watched_.marks[i])) return false;
  return true;
}

void Lease::on_watched(const Reply &reply, Times now) noexcept {
  if (reply.failed) return doubt(now, reply);
  asked_ = 0;
  const bool counts = as_watched(reply, now) ||
                      std::any_of(reply.marks.begin(), reply.marks.end(),
                                  [&](const Mark &mark) { return alive(mark, reply.not_before, now); });
  watched_ = counts ? Watched{sent_, reply.term, reply.not_before, reply.marks} : Watched{};
  enter(State::kWatching, now, settings_.renew_interval_ms);
}

/// What etcd shows of the own claim and mark. False: lost, or forgotten, and dealt with.
bool Lease::still_mine(bool claimed, const Mark &mark, Times now) noexcept {
  const int64_t found = passes_at(mark);
  const bool lost = !claimed || mark.kind == Mark::kGarbage;
  const bool forgotten = mark.kind != Mark::kGarbage && found < stored_;
  if (lost) {
    losses_++;
    // At once, unless claims are lost as fast as they are made.
    give_up_claim(now, installed_ ? 0 : settings_.renew_interval_ms);
  } else if (forgotten) {
    // What is found now is what the next raise compares with.
    stored_ = found;
  }
  if (forgotten) warn(state_, INT64_MAX, now);
  return !lost && !forgotten;
}

void Lease::on_witness(const Reply &reply, Times now) noexcept {
  if (reply.failed) {
    asked_ = 0;
    return pause(now, reply);
  }
  bad_not_before_ = !trusted(reply.not_before, now.wall);
  if (bad_not_before_) return give_up_claim(now, settings_.renew_interval_ms);
  const auto own = static_cast<size_t>(worker_);
  if (!still_mine(reply.held[own], reply.marks[own], now)) return;
  floor_ = std::max(floor_, passes_at(reply.not_before));
  const bool enough = witnessed(reply, now) || now.boot.ms >= quarantined_until_;
  vouched_empty_ = false;
  if (enough) {
    // The file speaks of one start only: from here on etcd has seen more.
    last_mark_ = {};
    watched_ = {};
    kept_alive_ = true;
    return enter(State::kHolding, now);
  }
  no_witness_ = true;
  kept_alive_ = false;
  asked_ = 0;
  due_ = std::clamp(beat_ + settings_.renew_interval_ms, now.boot.ms, quarantined_until_);
}

void Lease::on_kept_alive(const Reply &reply, Times now) noexcept {
  // Its success proves nothing about the claim, nor does a lease that it says is gone: the raise
  // decides. But its answer shows the raft term, without which there is no raise (rule 8).
  if (reply.failed) return doubt(now, reply);
  kept_alive_ = true;
  due_ = now.boot.ms;
}

void Lease::on_raised(const Reply &reply, Times now) noexcept {
  if (reply.failed) return doubt(now, reply);
  const int64_t asked = under_way_.mark_unix_ms;
  if (!reply.applied) {
    if (!still_mine(reply.lease == lease_, reply.mark, now)) return;
    const int64_t found = passes_at(reply.mark);
    if (found < asked) {
      // An earlier first mark was applied after all. Nobody else can move it while the claim
      // stands: put it at once; paced, if what is found is what was compared with.
      due_ = now.boot.ms + (found != stored_ ? 0 : kRetryMs);
      stored_ = found;
      return;
    }
    // Rule 3: mine, and at least what was asked: an earlier try whose reply was lost.
    stored_ = found;
  } else {
    stored_ = asked;
  }
  confirmed_ = asked;
  highest_ = std::max(highest_, asked);
  mark_revision_ = reply.mark.mod_revision;
  kept_alive_ = false;
  asked_ = 0;
  good_ = sent_;
  due_ = std::max(beat_ + settings_.renew_interval_ms, now.boot.ms);
}

/// Until then a holder that etcd has forgotten may use its reserve; Unix ms. One's own marks are known,
/// and may be later: of a clock that was ahead.
int64_t Lease::forgotten_until(Times now) const noexcept {
  return std::max(highest_, std::min(now.wall.unix_ms + settings_.reserve_ms + kForgottenMs,
                                     kEpochUnixMs + kLastMs));
}

/// Rule 8: not_before first, then on as before. A quorum that shows a term below `proof_below` proves
/// that etcd has forgotten; INT64_MAX: that is proven already.
void Lease::warn(State afterwards, int64_t proof_below, Times now) noexcept {
  after_warning_ = afterwards;
  proof_below_ = proof_below;
  warned_ = first_not_before_ = false;
  not_before_ = forgotten_until(now);
  enter(State::kWarning, now);
}

void Lease::on_warned(const Reply &reply, bool term_went_back, Times now) noexcept {
  if (reply.failed) return pause(now, reply);
  due_ = now.boot.ms;
  if (!reply.applied && reply.mark.kind != Mark::kGarbage && passes_at(reply.mark) < not_before_) {
    const bool first = reply.mark.kind == Mark::kAbsent;
    if (first == first_not_before_) due_ += kRetryMs;
    first_not_before_ = first;
    return;
  }
  // Garbage is left alone: it stops every claim as well.
  if (term_went_back) {
    due_ += kRetryMs;
    return;
  }
  // A member that lags may show an older term or surplus, but not one that has just put a key.
  if (reply.term < proof_below_) proof_below_ = INT64_MAX;
  warned_ = true;
}

void Lease::end_warning(Times now) noexcept {
  kept_alive_ = false;
  asked_ = 0;
  good_ = 0;
  enter(after_warning_, now);
  if (proof_below_ != INT64_MAX) return;
  rollbacks_++;
  // Neither speaks of this etcd.
  last_mark_ = {};
  watched_ = {};
  if (state_ != State::kHolding) return;
  // The claim may stand only since it was restored, and another, forgotten, have held the number
  // since: so on above not_before only, as by a new claim.
  floor_ = std::max(floor_, not_before_);
  installed_ = false;
  confirmed_ = published_ = 0;
}

void Lease::on_status(const Reply &reply, Times now) noexcept {
  if (reply.failed) {
    warned_ = false;
    return doubt(now, reply);
  }
  due_ = now.boot.ms;
  asked_ = sent_;
  const int64_t surplus = reply.surplus_known ? reply.surplus : kNoSurplus;
  // Also when it is told no more.
  const bool went_back = surplus_ != kNoSurplus && surplus < surplus_ - kSurplusSlack;
  if (went_back && state_ == State::kHolding) return warn(state_, 0, now);
  surplus_ = surplus;
  if (!went_back) {
    if (state_ == State::kWarning) end_warning(now);
  } else if (state_ != State::kWarning) {
    // It uses nothing that this etcd could have forgotten, but knows nothing of it either; and its
    // claim may stand only because it was in the backup.
    last_mark_ = {};
    watched_ = {};
    if (state_ == State::kWitnessing) give_up_claim(now, 0);
  } else {
    // Proven. Once more, in case this etcd came after the one that not_before was put in.
    proof_below_ = INT64_MAX;
    warned_ = first_not_before_ = false;
    not_before_ = std::max(not_before_, forgotten_until(now));
    due_ += kRetryMs;
  }
}

void Lease::on_other_raised(const Reply &reply, Times now) noexcept {
  raise_all_due_ = now.boot.ms + (reply.failed ? kRetryMs : 0);
  if (!reply.failed) {
    marks_to_raise_--;
    return;
  }
  const int64_t due = due_;
  doubt(now, reply);
  due_ = due;
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
