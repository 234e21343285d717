// Claims a worker number in etcd, keeps it, and says which marks backends may use: the protocol of
// claim, mark and fence as a state machine without I/O. It is handed readings of the clocks and
// replies, and hands back requests and what to publish. The same code runs in the background
// worker, in unit tests and in a simulator.
//
// Thread safety: none; one owner.
//
// At most one request is under way. States, and what each reply leads to:
//
//   state       request     answered                            failed (no usable answer)
//   ---------   ---------   ---------------------------------   ---------------------------------
//   kIdle       -           (start: kRevoking)
//   kRevoking   Revoke of the lease of an earlier claim, if there is one
//                           kReading                            again after a pause
//   kReading    ReadRegion  a number is free: kGranting         again after a pause
//                           none is: again after renew_interval
//   kGranting   Grant       kClaiming                           again after a pause (kReading)
//   kClaiming   Claim       mine: kHolding; another's: the next candidate, else kReading
//                                                               kRevoking: it may be applied later
//   kHolding    KeepAlive and Raise, in turn, each renew_interval
//                           claim gone: kRevoking, else stay    Raise again after a pause
//   kReleasing  Revoke      kIdle                               kIdle
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
#pragma once

#include <array>
#include <cstdint>

#include "core/clock.hpp"
#include "core/layout.hpp"

namespace snowflake {

/// A mark this far ahead of the clock is somebody's mistake: its number is skipped.
inline constexpr int64_t kAbsurdMarkMs = 24 * 3600 * 1000;

/// A stored time as found in etcd. `unix_ms` holds when kind is kTime.
struct Mark {
  enum Kind : uint8_t { kAbsent, kTime, kGarbage } kind = kAbsent;
  int64_t unix_ms = 0;
};

enum class RequestKind : uint8_t { kNone, kRevoke, kReadRegion, kGrant, kClaim, kKeepAlive, kRaise };

/// One call of etcd. Which fields hold depends on the kind.
struct Request {
  RequestKind kind = RequestKind::kNone;
  uint64_t serial = 0;
  int64_t lease = 0;          // all but kReadRegion and kGrant
  int worker = 0;             // kClaim, kRaise
  int64_t mark_unix_ms = 0;   // kRaise: the new mark
  bool first_mark = false;    // kRaise: compare that there is none, instead of that it is less
};

/// What etcd said. `failed`: nothing that could be understood, and a write may have been applied,
/// or may be applied later.
struct Reply {
  uint64_t serial = 0;
  bool failed = false;
  bool another_endpoint = false;  // failed: one that has not been tried yet stands ready
  bool applied = false;           // kClaim, kRaise: the transaction's compares held
  int64_t lease = 0;              // kGrant: the new lease; kClaim, kRaise not applied: whose key it is
  Mark mark;                      // kClaim always, kRaise not applied
  Mark not_before;                // kClaim
  std::array<bool, kWorkers> held{};   // kReadRegion
  std::array<Mark, kWorkers> marks{};  // kReadRegion
};

/// What backends may use from now on.
struct Publication {
  enum Kind : uint8_t { kNothing, kInstall, kRaiseFence } kind = kNothing;
  NodeId node = 0;         // kInstall
  int64_t floor_ms = 0;  // kInstall; ms since our epoch, as the next
  int64_t mark_ms = 0;
};

struct LeaseSettings {
  int region;
  int64_t reserve_ms;
  int64_t renew_interval_ms;
};

class Lease {
 public:
  enum class State : uint8_t {
    kIdle, kRevoking, kReading, kGranting, kClaiming, kHolding, kReleasing
  };

  explicit Lease(const LeaseSettings &settings) noexcept : settings_(settings) {}

  /// Starts to claim a number. `earlier_lease` is that of a previous life, revoked first; 0: none.
  void start(int64_t earlier_lease) noexcept;

  /// Gives the number back: revokes the lease, once, whatever comes of it. Then kIdle.
  void release() noexcept;

  void set_renew_interval(int64_t ms) noexcept { settings_.renew_interval_ms = ms; }

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
  /// Holds in kHolding.
  int worker() const noexcept { return worker_; }
  /// Whether backends have been handed this claim.
  bool installed() const noexcept { return installed_; }
  /// The latest confirmed mark of this claim in Unix ms; 0: none yet.
  int64_t mark() const noexcept { return confirmed_; }
  /// Every ID of this claim is later; Unix ms.
  int64_t floor() const noexcept { return floor_; }
  /// All numbers of the region were held by others at the last look.
  bool none_free() const noexcept { return none_free_; }
  /// Claims won since construction.
  uint64_t claims() const noexcept { return claims_; }
  /// The lowest number skipped at the last look since its mark can't be trusted; -1: none.
  int skipped() const noexcept { return skipped_; }
  /// not_before as read in the last claim was no number, or absurd: no claim is possible.
  bool bad_not_before() const noexcept { return bad_not_before_; }
  /// Numbers lost since construction: the claim was gone, or its mark no number any more.
  uint64_t losses() const noexcept { return losses_; }

 private:
  void enter(State state, Times now, int64_t pause_ms = 0) noexcept;
  void pause(Times now, const Reply &reply) noexcept;
  int pick(Times now) noexcept;
  void give_up_claim(Times now, int64_t pause_ms) noexcept;

  void on_revoked(const Reply &reply, Times now) noexcept;
  void on_region(const Reply &reply, Times now) noexcept;
  void on_granted(const Reply &reply, Times now) noexcept;
  void on_claimed(const Reply &reply, Times now) noexcept;
  void on_kept_alive(const Reply &reply, Times now) noexcept;
  void on_raised(const Reply &reply, Times now) noexcept;

  LeaseSettings settings_;
  State state_ = State::kIdle;
  Request under_way_;       // kNone: nothing
  uint64_t serial_ = 0;
  int64_t due_ = 0;         // boot ms of the next request
  int64_t beat_ = 0;        // boot ms of the beat under way: the next one is renew_interval later
  int64_t earlier_lease_ = 0;
  int64_t lease_ = 0;       // granted to this claim
  int worker_ = 0;
  bool raise_next_ = false; // kHolding: the beat's keepalive is done
  bool first_mark_ = false; // kHolding: etcd holds no mark of this number yet
  bool installed_ = false;
  int64_t floor_ = 0;       // Unix ms
  int64_t confirmed_ = 0;   // Unix ms
  int64_t published_ = 0;   // Unix ms
  std::array<bool, kWorkers> taken_{};  // not to be tried: held, or a mark that can't be trusted
  std::array<Mark, kWorkers> marks_{};
  bool none_free_ = false;
  bool bad_not_before_ = false;
  int skipped_ = -1;
  uint64_t claims_ = 0;
  uint64_t losses_ = 0;
};

}  // namespace snowflake
