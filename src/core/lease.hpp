// Claims a worker number in etcd, keeps it, and says which marks backends may use: the protocol of
// claim, mark and fence as a state machine without I/O. It is handed readings of the clocks and
// replies, and hands back requests and what to publish. The same code runs in the background
// worker, in unit tests and in a simulator.
//
// Thread safety: none; one owner.
//
// At most one request is under way. States, and what each reply leads to:
//
//   state         request         answered                          failed (no usable answer)
//   -----------   -------------   -------------------------------   -------------------------------
//   kIdle         -               (start: kRevoking, watch: kWatching)
//   kWatching     Status and ReadRegion, each renew_interval; holds nothing (start: kRevoking)
//   kRevoking     Revoke of the lease of an earlier claim, if there is one
//                                 kReading                          again after a pause
//   kReading      ReadRegion      a number is free: kGranting       again after a pause
//                                 none is: again after renew_interval
//   kGranting     Grant           kClaiming                         kReading after a pause
//   kClaiming     Claim           mine: kWitnessing; another's: the next candidate, else kReading
//                                                                   kRevoking: it may be applied later
//   kWitnessing   Status and ReadRegion, with a KeepAlive before each but the first
//                                 etcd's memory is current: kHolding; else again after
//                                 renew_interval, until reserve + 10 s after the claim
//                                                                   again after a pause
//   kHolding      KeepAlive and Raise, in turn, each renew_interval; Status before them when the last
//                 beat failed, or is long ago
//                                 claim gone: kRevoking, else stay  again after a pause
//   kWarning      RaiseNotBefore and Status
//                                 back to where it came from        again after a pause
//   kReleasing    Revoke          kIdle                             the next endpoint, then kIdle
//
// Why no mark is ever published that is not this instance's own:
//  1. A claim is one transaction: claim key absent (or already on my lease, when a resent request
//     meets its own effect), then mark and not_before as of the same revision. From there on nobody
//     else can move the mark, since every raise compares the LEASE of the claim key.
//  2. A raise also compares that the stored mark is LESS than the new one, so one that was sent
//     long ago and is applied late cannot lower a mark.
//  3. A mark is published only after etcd confirmed it: by the raise itself, or by its failure
//     branch finding an equal or higher mark under my lease (an earlier try whose reply was lost).
//  4. Each request carries a serial; a reply to any other than the one under way is dropped.
//  5. A claim whose reply never came may still be applied later. Its lease is revoked and never
//     used again, so the number is held at most until that lease ends.
//  6. The first tick is later than the mark and not_before as read in the claim (the floor),
//     whatever the local clock says.
//  7. Losing the number changes nothing for backends: they may use what is reserved, since the next
//     holder starts after the mark.
//
// And why that holds although etcd may be restored from a backup, which takes back claims and marks
// that a living instance still uses, while ids and revisions can all look right:
//  8. A holder that finds its own confirmed mark lower or absent, or the raft term gone back, or the
//     raft surplus (see Reply; a restored snapshot starts again at a low term and index), first puts not_before past everything that
//     etcd can have forgotten: clock + reserve + 10 s. Only then does it raise its mark, or claim
//     anew. Its claim may stand only because it was in the backup, and somebody else have held the
//     number since: so it too goes on above not_before only. The raise itself compares that the mark
//     is still the confirmed one or higher, and goes out only shortly after an answer of the same
//     endpoint that showed the term, and the surplus too if the beat before was not a good one.
//  9. A claim mints at once only with a witness that etcd remembers: some mark of the region that
//     is not past, so that its holder renewed lately and would have seen the loss (rule 8); or this
//     instance's own last mark, found exactly as a clean stop left it, under a term and a surplus
//     not lower; or all marks that a standby saw until now, when one was not past, and since, none
//     of them lower, likewise. The witness is read after the claim, and not_before with it.
//     Without one nothing is minted, and no mark raised (a false witness for others), until reserve
//     + 10 s after the claim: by then every holder that etcd forgot has run into its fence.
#pragma once

#include <array>
#include <cstdint>

#include "core/clock.hpp"
#include "core/layout.hpp"

namespace snowflake {

/// A mark this far ahead of the clock is somebody's mistake: its number is skipped.
inline constexpr int64_t kAbsurdMarkMs = 24 * 3600 * 1000;
/// Beyond the reserve: clocks that differ, and a renewal under way when etcd was lost.
inline constexpr int64_t kForgottenMs = 10 * 1000;
/// A raise goes out at most so long after the request whose answer showed the raft term, and to the
/// endpoint that gave it.
inline constexpr int64_t kTermFreshMs = 2000;

constexpr bool in_layout(WallTime now) noexcept {
  return now.unix_ms >= kEpochUnixMs && now.unix_ms <= kEpochUnixMs + kLastMs;
}

/// A stored time as found in etcd. `unix_ms` holds when kind is kTime.
struct Mark {
  enum Kind : uint8_t { kAbsent, kTime, kGarbage } kind = kAbsent;
  int64_t unix_ms = 0;
  int64_t mod_revision = 0;
};

enum class RequestKind : uint8_t {
  kNone, kRevoke, kReadRegion, kGrant, kClaim, kKeepAlive, kRaise, kRaiseNotBefore, kRaiseOther,
  kStatus
};

/// One call of etcd. Which fields hold depends on the kind.
struct Request {
  RequestKind kind = RequestKind::kNone;
  uint64_t serial = 0;
  int64_t lease = 0;         // kRevoke, kClaim, kKeepAlive, kRaise
  int worker = 0;            // kClaim, kRaise, kRaiseOther
  int64_t mark_unix_ms = 0;  // kRaise*: the new value
  int64_t least_unix_ms = 0; // kRaise: compare that the stored mark is not lower; 0: don't
  bool first = false;        // kRaise, kRaiseNotBefore: compare that there is none, not that it is less
};

/// What etcd said. `failed`: nothing that could be understood, and a write may have been applied,
/// or may be applied later.
struct Reply {
  uint64_t serial = 0;
  bool failed = false;
  bool another_endpoint = false;  // failed: one that has not been tried yet stands ready
  int64_t term = 0;               // raft term of the answering member; 0: not said
  /// kStatus: the member's raft index minus its revision, if it may be asked. Every entry of the raft log
  /// is one more of the first and at most one more of the second, so this never falls, until a snapshot
  /// is restored: that keeps the revision and begins a log anew.
  int64_t surplus = 0;
  bool surplus_known = false;
  int64_t date_unix_ms = 0;       // the Date of the answer, whole seconds; 0: not said
  bool applied = false;           // kClaim, kRaise*: the transaction's compares held
  int64_t lease = 0;              // kGrant: the new lease; kClaim, kRaise not applied: whose key it is
  Mark mark;                      // kClaim always; kRaise, kRaiseNotBefore not applied: as stored.
                                  // kRaise applied: its mod_revision only
  Mark not_before;                // kClaim, kReadRegion
  std::array<bool, kWorkers> held{};   // kReadRegion
  std::array<Mark, kWorkers> marks{};  // kReadRegion
};

/// What backends may use from now on.
struct Publication {
  enum Kind : uint8_t { kNothing, kInstall, kRaiseFence } kind = kNothing;
  NodeId node = 0;       // kInstall
  int64_t floor_ms = 0;  // kInstall; ms since our epoch, as the next
  int64_t mark_ms = 0;
};

inline constexpr int64_t kNoSurplus = INT64_MIN;

/// This instance's own last mark, as it was confirmed before a clean stop. A hint, no identity: lost
/// or copied it only costs or saves a pause. worker < 0: none.
struct LastMark {
  int worker = -1;
  int64_t unix_ms = 0;
  int64_t mod_revision = 0;
  int64_t term = 0;
  int64_t surplus = kNoSurplus;  // not known
};

struct LeaseSettings {
  int region;
  int64_t reserve_ms;
  int64_t renew_interval_ms;
};

class Lease {
 public:
  enum class State : uint8_t {
    kIdle, kWatching, kRevoking, kReading, kGranting, kClaiming, kWitnessing, kHolding, kWarning,
    kReleasing
  };

  explicit Lease(const LeaseSettings &settings) noexcept : settings_(settings) {}

  /// Holds nothing, but looks at the region now and then, so as to be its own witness (rule 9) when
  /// start() comes. Only from kIdle.
  void watch() noexcept;

  /// Starts to claim a number. `earlier_lease` is that of a previous life, revoked first; 0: none.
  void start(int64_t earlier_lease, const LastMark &last_mark = {}) noexcept;

  /// Gives the number back: asks each endpoint once to revoke the lease, until one does. Then kIdle.
  void release() noexcept;

  void set_renew_interval(int64_t ms) noexcept { settings_.renew_interval_ms = ms; }

  /// Somebody who knows says that this etcd never held IDs of the region: the pause of rule 9 ends
  /// at the next look, if the region then holds neither a mark nor a claim of others.
  void vouch_for_empty_region() noexcept;

  /// Raises not_before and every mark that there is in the region to this time, between two beats.
  /// Needs kHolding; false otherwise.
  bool raise_all_marks(int64_t unix_ms, Times now) noexcept;
  /// How many numbers are still to be looked at.
  int marks_to_raise() const noexcept { return marks_to_raise_; }

  /// The request to send now, if any. Nothing while one is under way.
  Request next_request(Times now) noexcept;

  /// When next_request() or publication() may have something, unless a reply comes first.
  BootTime wake_at(Times now) const noexcept;

  /// Takes the answer to the request under way; any other is dropped (rule 4).
  void on_reply(const Reply &reply, Times now) noexcept;

  /// What may be published now, at most once each.
  Publication publication(Times now) noexcept;

  State state() const noexcept { return state_; }
  /// The lease that a later life must revoke if this one ends here; 0: none.
  int64_t lease() const noexcept { return lease_ != 0 ? lease_ : earlier_lease_; }
  /// Holds in kWitnessing and kHolding.
  int worker() const noexcept { return worker_; }
  /// Whether backends have been handed this claim.
  bool installed() const noexcept { return installed_; }
  /// The latest confirmed mark of this claim in Unix ms; 0: none yet.
  int64_t mark() const noexcept { return confirmed_; }
  /// What to keep over a clean stop: the mark as confirmed, or what start() got and was not used.
  LastMark last_mark() const noexcept {
    if (state_ != State::kHolding || confirmed_ == 0) return last_mark_;
    return {worker_, confirmed_, mark_revision_, term_, surplus_};
  }
  /// Every ID of this claim is later; Unix ms.
  int64_t floor() const noexcept { return floor_; }
  /// Boot time at which the pause of rule 9 ends; 0: there is none.
  BootTime quarantined_until() const noexcept {
    return {state_ == State::kWitnessing && no_witness_ ? quarantined_until_ : 0};
  }
  /// Whether the vouching for an empty region has still to be looked at.
  bool vouched_empty() const noexcept { return vouched_empty_; }
  /// All numbers of the region were held by others at the last look.
  bool none_free() const noexcept { return none_free_; }
  /// Claims won since construction.
  uint64_t claims() const noexcept { return claims_; }
  /// The lowest number skipped at the last look since its mark can't be trusted; -1: none.
  int skipped() const noexcept { return skipped_; }
  /// not_before as last read was no number, or absurd: no claim is possible.
  bool bad_not_before() const noexcept { return bad_not_before_; }
  /// Numbers lost since construction: the claim was gone, or its mark no number any more.
  uint64_t losses() const noexcept { return losses_; }
  /// How often etcd was found to have forgotten what it had confirmed (rule 8).
  uint64_t rollbacks() const noexcept { return rollbacks_; }

 private:
  void enter(State state, Times now, int64_t pause_ms = 0) noexcept;
  void pause(Times now, const Reply &reply) noexcept;
  int pick(Times now) noexcept;
  void forget_claim() noexcept;
  void give_up_claim(Times now, int64_t pause_ms) noexcept;
  int64_t forgotten_until(Times now) const noexcept;
  void warn(State afterwards, int64_t proof_below, Times now) noexcept;
  bool still_mine(bool claimed, const Mark &mark, Times now) noexcept;
  bool alive(const Mark &mark, const Mark &not_before, Times now) const noexcept;
  bool witnessed(const Reply &reply, Times now) const noexcept;
  bool as_watched(const Reply &reply, Times now) const noexcept;
  void on_watched(const Reply &reply, Times now) noexcept;

  /// This beat's endpoint has shown its surplus, not too long ago.
  bool asked(Times now) const noexcept {
    return asked_ != 0 && now.boot.ms - asked_ <= kTermFreshMs;
  }
  void doubt(Times now, const Reply &reply) noexcept;
  void end_warning(Times now) noexcept;

  void on_status(const Reply &reply, Times now) noexcept;
  void on_revoked(const Reply &reply, Times now) noexcept;
  void on_region(const Reply &reply, Times now) noexcept;
  void on_granted(const Reply &reply, Times now) noexcept;
  void on_claimed(const Reply &reply, Times now) noexcept;
  void on_witness(const Reply &reply, Times now) noexcept;
  void on_kept_alive(const Reply &reply, Times now) noexcept;
  void on_raised(const Reply &reply, Times now) noexcept;
  void on_warned(const Reply &reply, bool term_went_back, Times now) noexcept;
  void on_other_raised(const Reply &reply, Times now) noexcept;

  LeaseSettings settings_;
  State state_ = State::kIdle;
  Request under_way_;         // kNone: nothing
  uint64_t serial_ = 0;
  int64_t due_ = 0;           // boot ms of the next request
  int64_t beat_ = 0;          // boot ms of the beat under way: the next one is renew_interval later
  int64_t earlier_lease_ = 0;
  int64_t lease_ = 0;         // granted to this claim
  int worker_ = 0;
  bool kept_alive_ = false;   // kWitnessing, kHolding: the beat's keepalive is done
  int64_t term_ = 0;          // raft term as last seen
  int64_t sent_ = 0;          // boot ms of the request under way
  int64_t term_shown_ = 0;    // boot ms of the last request whose answer showed the term
  int64_t surplus_ = kNoSurplus;  // the highest seen
  int64_t asked_ = 0;         // boot ms at which this endpoint was asked for its status; 0: not yet
  int64_t good_ = 0;          // kHolding: boot ms of the last raise, if nothing failed since; else 0
  // kWarning:
  bool warned_ = false;       // not_before is put; the status is to be asked
  bool first_not_before_ = false;  // compare that there is none
  int64_t not_before_ = 0;    // Unix ms to put
  int64_t proof_below_ = 0;   // an answer of a quorum at a lower raft term proves the loss
  State after_warning_ = State::kIdle;
  bool installed_ = false;
  int64_t floor_ = 0;         // Unix ms
  int64_t confirmed_ = 0;     // Unix ms
  int64_t stored_ = 0;        // the mark as etcd last showed it, Unix ms; 0: absent
  int64_t mark_revision_ = 0; // at which it was put
  int64_t published_ = 0;     // Unix ms
  int64_t highest_ = 0;       // of all that were ever confirmed, under whichever number; Unix ms
  int64_t quarantined_until_ = 0;  // kWitnessing: boot ms
  bool no_witness_ = false;        // kWitnessing: none at the last look
  bool vouched_empty_ = false;
  LastMark last_mark_;
  struct Watched {
    int64_t boot_ms = 0;  // of the last look; 0: nothing that counts was seen
    int64_t term = 0;
    Mark not_before;
    std::array<Mark, kWorkers> marks{};
  } watched_;
  int marks_to_raise_ = 0;    // n: of the numbers n - 1 and below
  int64_t raise_all_to_ = 0;  // Unix ms
  int64_t raise_all_due_ = 0; // boot ms
  std::array<bool, kWorkers> taken_{};  // not to be tried: held, or a mark that can't be trusted
  std::array<Mark, kWorkers> marks_{};
  bool none_free_ = false;
  bool bad_not_before_ = false;
  int skipped_ = -1;
  uint64_t claims_ = 0;
  uint64_t losses_ = 0;
  uint64_t rollbacks_ = 0;
};

}  // namespace snowflake
