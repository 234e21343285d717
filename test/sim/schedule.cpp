#include "schedule.hpp"

#include "core/layout.hpp"
#include "core/lease.hpp"
#include "random.hpp"

namespace snowflake::sim {
namespace {

constexpr int64_t kHour = 3600 * 1000;

/// Of a restored etcd the design promises something only where clocks agree within some seconds.
constexpr int64_t kNearMs = 3000;

class Maker {
 public:
  Maker(uint64_t seed, bool beyond, Schedule *out) : r_(seed), beyond_(beyond), s_(*out) {
    s_ = {};
    s_.faults.reserve(64);
  }

  void make() {
    const int which = r_.one_of(40);
    restoring_ = (which >= 12 && which < 16) || (which >= 20 && which <= 23);
    settings();
    at_ = s_.beginning == Beginning::kWitness || r_.percent(30)
              ? 2000
              : s_.reserve_ms + kForgottenMs + 2000;
    switch (which) {
      case 0: back_and_crash(); break;
      case 1: freeze_and_takeover(); break;
      case 2: lost_claim_and_restart(); break;
      case 3: revoke_and_frozen_call(); break;
      case 4: forward_and_back(); break;
      case 5: partition_and_restart(); break;
      case 6: stalled_leader_and_paused_holder(); break;
      case 7: crash_in_a_raise(); break;
      case 8: by_hand(); break;
      case 9: clones(); break;
      case 10: promotion(); break;
      case 11: crash_loop(); break;
      case 12: case 13: case 14: restored(); break;
      case 15: emptied(); break;
      case 16: strobe(); break;
      case 17: too_many(); break;
      case 18: freeze_and_takeover(); break;
      case 19: restart(); break;
      case 20: old_member(); break;
      case 21: late_warning(); break;
      case 22: restored_at_the_same_term(); break;
      case 23: thawed_before_a_raise(); break;
      default: s_.name = "random"; noise(static_cast<int>(r_.range(4, 40)), 40000); break;
    }
    if (which <= 23 && !quiet_ && r_.percent(50)) {
      at_ = 2000;
      noise(static_cast<int>(r_.range(1, 8)), std::max<int64_t>(end_ - 2000, 5000));
    }
    if (s_.beginning == Beginning::kEmpty && s_.numbers == kWorkers && r_.percent(50))
      add(r_.range(500, 5000), FaultKind::kInitRegion, someone());
    // A claim that is asked for twice, its key deleted by hand in between, is two claims with one lease.
    const auto any = [this](FaultKind kind) {
      return std::any_of(s_.faults.begin(), s_.faults.end(),
                         [kind](const Fault &f) { return f.kind == kind; });
    };
    if (!beyond_ && (any(FaultKind::kDeleteClaim) || any(FaultKind::kOverwriteClaim)))
      std::erase_if(s_.faults, [](const Fault &f) { return f.kind == FaultKind::kDoubled; });
    s_.cure_ms = end_ + r_.range(500, 4000);
    add(s_.cure_ms, FaultKind::kCure, -1);
    std::stable_sort(s_.faults.begin(), s_.faults.end(),
                     [](const Fault &a, const Fault &b) { return a.at_ms < b.at_ms; });
  }

 private:
  void settings() {
    constexpr int64_t kReserves[] = {2000, 2000, 3000, 3000, 3000, 4000, 4000, 6000, 10000, 30000};
    s_.instances = 2 + r_.one_of(3) + (r_.one_in(4) ? r_.one_of(3) : 0);
    s_.instances = std::min(s_.instances, kMostInstances);
    s_.endpoints = 1 + r_.one_of(kMostEndpoints);
    s_.backends = 2 + r_.one_of(2);
    s_.numbers = r_.percent(50) ? 1 + r_.one_of(s_.instances + 1) : r_.percent(50) ? 40 : kWorkers;
    s_.reserve_ms = kReserves[r_.one_of(r_.one_in(4) ? 10 : 8)];
    s_.ttl_ms = (s_.reserve_ms * r_.range(120, 250) / 100 / 1000 + 1) * 1000;
    s_.renew_ms = r_.percent(75) ? 1000 : r_.percent(50) ? 500 : s_.reserve_ms > 3000 ? 2000 : 700;
    s_.strict_clock = r_.percent(30);
    s_.status_denied = r_.percent(25);
    s_.beginning = r_.percent(80) ? Beginning::kWitness
                   : r_.percent(50) ? Beginning::kOld
                                    : Beginning::kEmpty;
    s_.term = r_.range(40, 60);
    s_.base_unix_ms = kEpochUnixMs + 10000000000;
    s_.call_ms = r_.range(150, 700);
    s_.first_offset_ms = s_.strict_clock ? 3 : r_.percent(70) ? r_.below(100) : r_.below(2000);
    if (restoring_) s_.first_offset_ms = std::min<int64_t>(s_.first_offset_ms, 400);
    if (r_.one_in(100) && !restoring_) {
      // The ends of the layout's time.
      s_.base_unix_ms = r_.percent(50) ? kEpochUnixMs + r_.below(10000)
                                       : kEpochUnixMs + kLastMs - r_.range(10000, 60000);
      s_.edge_of_time = true;
    }
  }

  void add(int64_t at, FaultKind kind, int who, int64_t a = 0, int64_t b = 0, int64_t c = 0) {
    s_.faults.push_back({std::max<int64_t>(at, 0), kind, who, a, b, c});
    s_.wrong_clocks |= (kind == FaultKind::kStepClock && a > kNearMs) ||
                       (kind == FaultKind::kDriftClock && a > 20000) ||
                       kind == FaultKind::kKernelLies || kind == FaultKind::kDateWrong ||
                       kind == FaultKind::kRaiseAllMarks;
    const bool down = kind == FaultKind::kRestore || kind == FaultKind::kWipe ||
                      kind == FaultKind::kReplace || kind == FaultKind::kEtcdDown;
    if (kind != FaultKind::kCure) end_ = std::max(end_, at + (down ? b : 0));
  }

  int someone() { return r_.one_of(s_.instances); }
  int another(int than) { return (than + 1 + r_.one_of(s_.instances - 1)) % s_.instances; }

  int64_t step_back() {
    constexpr int64_t kSizes[] = {50, 300, 700, 950, 990, 1100, 2000, 5000, 20000, kHour};
    return -std::min(kSizes[r_.one_of(10)], restoring_ ? kNearMs - 500 : kHour);
  }
  int64_t step_forward() {
    constexpr int64_t kSizes[] = {50, 300, 500, 900, 1500, 2000, 5000, 29000, 31000, kHour};
    return std::min(kSizes[r_.one_of(10)], restoring_ ? kNearMs - 500 : kHour);
  }
  /// Where a worker may be frozen for long. Between the look at the clock and the sending of what
  /// was decided by it nothing can protect a restored etcd, since only etcd could.
  int worker_step() {
    for (;;) {
      const int step = r_.one_of(kWorkerSteps);
      if (restoring_ && !beyond_ && (step == kLooked || step == kAsked)) continue;
      return step;
    }
  }
  int64_t freeze_ms() {
    return r_.percent(40) ? r_.range(10, 2000)
           : r_.percent(60) ? r_.range(s_.reserve_ms / 2, s_.reserve_ms + 2000)
                            : r_.range(s_.ttl_ms, s_.ttl_ms + 12000);
  }
  int64_t down_ms() {
    return r_.percent(50) ? r_.range(100, 2000) : r_.range(500, s_.ttl_ms + 5000);
  }
  int kind_of_request() {
    constexpr RequestKind kKinds[] = {RequestKind::kClaim, RequestKind::kRaise, RequestKind::kRaise,
                                      RequestKind::kGrant, RequestKind::kKeepAlive,
                                      RequestKind::kRevoke, RequestKind::kReadRegion,
                                      RequestKind::kRaiseNotBefore};
    return static_cast<int>(kKinds[r_.one_of(8)]);
  }
  int endpoints() { return r_.percent(50) ? kAllEndpoints : 1 + r_.one_of(kAllEndpoints); }

  /// A crash, an exit of the worker, a dead postmaster or a clean stop.
  void end_life(int64_t at, int who) {
    switch (r_.one_of(4)) {
      case 0: return add(at, FaultKind::kCrashInstance, who);
      case 1: return add(at, FaultKind::kExitWorker, who);
      case 2: return add(at, FaultKind::kLosePostmaster, who, 0, down_ms());
      default: return add(at, FaultKind::kStop, who, 0, down_ms());
    }
  }
  void start(int64_t at, int who) { add(at, FaultKind::kCloneFrom, who, who, 0); }
  void hit_call(int64_t at, int who, int64_t ms) {
    add(at, FaultKind::kHitCall, who, r_.one_of(kCallSteps), ms, r_.one_of(s_.backends));
  }

  /// Single faults at random.
  void noise(int count, int64_t within_ms) {
    for (int i = 0; i < count; i++) {
      const int64_t at = at_ + r_.below(within_ms);
      const int who = someone();
      switch (r_.one_of(42)) {
        case 0: case 1: add(at, FaultKind::kStepClock, who, step_back()); break;
        case 2: case 3:
          if (restoring_) break;
          add(at, FaultKind::kStepClock, who, step_forward());
          break;
        case 4:
          add(at, FaultKind::kDriftClock, who, restoring_ ? r_.range(-9000, 9000)
                                                          : r_.range(-80000, 80000));
          break;
        case 5: add(at, FaultKind::kRightClock, who); break;
        case 6:
          add(at, FaultKind::kStrobeClock, who, r_.range(10, 400), r_.range(10, 200), r_.below(100));
          break;
        case 7:
          if (restoring_) break;
          add(at, FaultKind::kKernelLies, who, r_.percent(60));
          break;
        case 8: case 9:
          add(at, FaultKind::kHitWorker, who, worker_step(), freeze_ms(), kFreeze);
          break;
        case 10: case 11:
          add(at, FaultKind::kHitWorker, who, r_.one_of(kWorkerSteps), down_ms(), 1 + r_.one_of(3));
          break;
        case 12: case 13: case 14: hit_call(at, who, freeze_ms()); break;
        case 15: case 16: add(at, FaultKind::kFreezeInstance, who, 0, freeze_ms()); break;
        case 17:
          if (restoring_) break;
          add(at, FaultKind::kPauseMachine, who, 0, freeze_ms());
          break;
        case 18: case 19: add(at, FaultKind::kCrashInstance, who); break;
        case 20: add(at, FaultKind::kExitWorker, who); break;
        case 21: add(at, FaultKind::kLosePostmaster, who, 0, down_ms()); break;
        case 22: add(at, FaultKind::kStop, who, 0, down_ms()); break;
        case 23: case 24: add(at, FaultKind::kBurst, who); break;
        case 25:
          add(at, FaultKind::kStandby, who, 1);
          add(at + r_.range(100, 8000), FaultKind::kStandby, who, 0);
          break;
        case 26:
          add(at, FaultKind::kDisable, who, 1);
          add(at + r_.range(1, 5000), FaultKind::kDisable, who, 0);
          break;
        case 27:
          if (restoring_ || !r_.one_in(4)) break;
          add(at, FaultKind::kRaiseAllMarks, who, r_.range(1000, 20000));
          break;
        case 28: add(at, FaultKind::kElection, -1); break;
        case 29: case 30: add(at, FaultKind::kEndLease, who); break;
        case 31: add(at, FaultKind::kDeleteClaim, who); break;
        case 32: add(at, FaultKind::kNoQuorum, -1, 0, r_.range(200, s_.ttl_ms)); break;
        case 33:
          add(at, FaultKind::kStallMember, -1, r_.one_of(s_.endpoints), r_.range(200, s_.ttl_ms * 2));
          break;
        case 34: case 35:
          add(at, FaultKind::kCutPath, r_.percent(80) ? who : -1, endpoints(),
              r_.range(100, s_.ttl_ms + 5000), r_.one_of(4));
          break;
        case 36:
          add(at, FaultKind::kLossy, r_.percent(50) ? who : -1, r_.range(5, 70),
              r_.range(500, 10000));
          break;
        case 37:
          add(at, FaultKind::kSlow, r_.percent(50) ? who : -1, r_.range(10, 1500),
              r_.range(500, 10000));
          break;
        case 38:
          add(at, FaultKind::kLate, r_.percent(50) ? who : -1, r_.range(5, 60),
              r_.range(500, 10000), r_.range(500, 20000));
          break;
        case 39:
          add(at, FaultKind::kDoubled, r_.percent(50) ? who : -1, r_.range(5, 60),
              r_.range(500, 10000), r_.range(10, 3000));
          break;
        case 40:
          if (r_.percent(50))
            add(at, FaultKind::kLoseReply, who, kind_of_request());
          else
            add(at, FaultKind::kHoldRequest, who, kind_of_request(), r_.range(900, 20000));
          break;
        default:
          if (r_.percent(40) && !restoring_)
            add(at, FaultKind::kDateWrong, -1, r_.percent(50) ? step_forward() : step_back());
          else if (r_.one_in(3))
            add(at, FaultKind::kGarbageMark, -1, r_.one_of(s_.numbers));
          else
            add(at, FaultKind::kEtcdDown, -1, 0, r_.range(500, 8000));
          break;
      }
    }
  }

  void back_and_crash() {
    s_.name = "back and crash";
    const int who = someone();
    for (int64_t i = r_.range(1, 5); i > 0; i--) {
      if (r_.percent(60)) add(at_, FaultKind::kBurst, who);
      add(at_ + r_.below(5), FaultKind::kStepClock, who, step_back());
      end_life(at_ + r_.below(8), who);
      if (r_.percent(40)) add(at_ + r_.range(500, 3000), FaultKind::kRightClock, who);
      at_ += r_.range(1500, 8000);
    }
  }

  void freeze_and_takeover() {
    s_.name = "freeze, take-over and thaw";
    s_.numbers = 1 + r_.one_of(s_.instances);
    const int who = someone();
    const int thief = another(who);
    if (r_.percent(50)) s_.down_at_first[thief] = true;
    for (int64_t i = r_.range(1, 3); i > 0; i--) {
      const int64_t ms = r_.range(s_.ttl_ms / 2, s_.ttl_ms + 8000);
      for (int64_t calls = r_.range(0, 3); calls > 0; calls--)
        hit_call(at_ - 1500, who, ms + r_.range(-1000, 5000));
      if (r_.percent(50))
        add(at_, FaultKind::kFreezeInstance, who, 0, ms);
      else
        add(at_, FaultKind::kHitWorker, who, worker_step(), ms, kFreeze);
      if (r_.percent(40)) add(at_ + r_.below(ms), FaultKind::kStepClock, who, step_back());
      if (r_.percent(40)) add(at_ + r_.below(ms), FaultKind::kStepClock, thief, step_back());
      if (r_.percent(40)) add(at_ + r_.below(ms), FaultKind::kEndLease, who);
      if (s_.down_at_first[thief])
        start(at_ + r_.below(ms), thief);
      else if (r_.percent(50))
        end_life(at_ + r_.below(ms), thief);
      at_ += ms + r_.range(1000, 5000);
    }
  }

  void lost_claim_and_restart() {
    s_.name = "lost reply to a claim, and restart";
    const int who = someone();
    for (int64_t i = r_.range(1, 4); i > 0; i--) {
      if (r_.percent(50))
        add(at_, FaultKind::kLoseReply, who, static_cast<int>(RequestKind::kClaim));
      else
        add(at_, FaultKind::kHoldRequest, who, static_cast<int>(RequestKind::kClaim),
            r_.range(500, 15000));
      if (r_.percent(50)) add(at_ + r_.below(2), FaultKind::kEndLease, who);
      end_life(at_ + r_.below(5), who);
      if (r_.percent(60)) end_life(at_ + r_.range(1000, 4000), who);
      if (r_.percent(40)) end_life(at_ + r_.range(0, 4000), another(who));
      at_ += r_.range(2000, 10000);
    }
  }

  void revoke_and_frozen_call() {
    s_.name = "revoked lease and frozen call";
    s_.numbers = 1 + r_.one_of(s_.instances + 2);
    const int who = someone();
    for (int64_t i = r_.range(1, 4); i > 0; i--) {
      for (int64_t calls = r_.range(1, 3); calls > 0; calls--)
        hit_call(at_, who, r_.range(500, s_.ttl_ms + 8000));
      add(at_ + r_.range(0, 2000), r_.percent(70) ? FaultKind::kEndLease : FaultKind::kDeleteClaim,
          who);
      if (r_.percent(40)) end_life(at_ + r_.range(0, 2000), another(who));
      if (r_.percent(40))
        add(at_ + r_.range(0, 3000), FaultKind::kHitWorker, who, worker_step(), freeze_ms(), kFreeze);
      if (r_.percent(30)) add(at_ + r_.range(0, 3000), FaultKind::kStepClock, who, step_back());
      at_ += r_.range(2000, 10000);
    }
  }

  void forward_and_back() {
    s_.name = "forward and back";
    const int who = someone();
    if (r_.percent(20)) add(at_, FaultKind::kDateWrong, -1, step_forward());
    for (int64_t i = r_.range(1, 4); i > 0; i--) {
      const int64_t by = step_forward();
      const int64_t for_ms = r_.range(5, 12000);
      if (r_.percent(50)) add(at_ - 1, FaultKind::kBurst, who);
      add(at_, FaultKind::kStepClock, who, by);
      if (r_.percent(60)) add(at_ + r_.below(10), FaultKind::kBurst, who);
      if (r_.percent(40)) end_life(at_ + r_.below(for_ms), who);
      if (r_.percent(30)) add(at_ + r_.below(for_ms), FaultKind::kEndLease, who);
      if (r_.percent(70))
        add(at_ + for_ms, FaultKind::kStepClock, who, -by);
      else
        add(at_ + for_ms, FaultKind::kRightClock, who);
      at_ += for_ms + r_.range(500, 6000);
    }
  }

  void partition_and_restart() {
    s_.name = "partition and restart";
    const int who = someone();
    for (int64_t i = r_.range(1, 3); i > 0; i--) {
      const int64_t ms = r_.range(500, s_.ttl_ms + 8000);
      add(at_, FaultKind::kCutPath, r_.percent(80) ? who : -1, kAllEndpoints, ms, r_.one_of(4));
      end_life(at_ + r_.below(ms), who);
      if (r_.percent(40)) end_life(at_ + r_.below(ms), another(who));
      at_ += ms + r_.range(500, 5000);
    }
  }

  void stalled_leader_and_paused_holder() {
    s_.name = "stalled leader and paused holder";
    s_.numbers = 1 + r_.one_of(s_.instances);
    const int who = someone();
    for (int64_t i = r_.range(1, 3); i > 0; i--) {
      const int64_t ms = r_.range(1000, s_.ttl_ms + 10000);
      if (r_.percent(50))
        add(at_, FaultKind::kStallMember, -1, r_.one_of(s_.endpoints), ms);
      else
        add(at_, FaultKind::kHoldRequest, who,
            static_cast<int>(r_.percent(70) ? RequestKind::kRaise : RequestKind::kClaim), ms);
      if (r_.percent(60)) add(at_ + r_.range(0, 2500), FaultKind::kEndLease, who);
      if (r_.percent(60))
        add(at_ + r_.range(0, 3000), FaultKind::kHitWorker, who, worker_step(),
            r_.range(500, ms + 3000), kFreeze);
      if (r_.percent(50)) end_life(at_ + r_.below(ms), another(who));
      if (r_.percent(30)) add(at_ + r_.below(ms), FaultKind::kElection, -1);
      if (r_.percent(40)) add(at_ + r_.below(ms), FaultKind::kStepClock, someone(), step_back());
      at_ += ms + r_.range(500, 4000);
    }
  }

  void crash_in_a_raise() {
    s_.name = "crash in the middle of a raise";
    const int who = someone();
    for (int64_t i = r_.range(2, 8); i > 0; i--) {
      add(at_, FaultKind::kHitWorker, who, r_.one_of(kWorkerSteps), down_ms(), 1 + r_.one_of(3));
      if (r_.percent(40)) add(at_ + r_.below(500), FaultKind::kEndLease, who);
      if (r_.percent(30)) hit_call(at_, who, r_.range(500, 10000));
      if (r_.percent(30)) add(at_ + r_.below(1500), FaultKind::kStepClock, who, step_back());
      if (r_.percent(30))
        add(at_ + r_.below(1000), FaultKind::kLoseReply, who, static_cast<int>(RequestKind::kRaise));
      at_ += r_.range(800, 5000);
    }
  }

  void by_hand() {
    s_.name = "keys changed by hand";
    const int who = someone();
    for (int64_t i = r_.range(1, 4); i > 0; i--) {
      const int kind = r_.one_of(4);
      if (kind == 0) {
        // Seen within a beat, unless something else is wrong at the time: then it is out of scope.
        add(at_, FaultKind::kDropMark, who, r_.percent(50));
        at_ += 3 * s_.renew_ms + 2000;
        quiet_ = true;
        continue;
      }
      if (beyond_ && kind == 1 && r_.percent(50)) {
        // A claim asked for twice; between the two its key is deleted, and another has come and gone.
        s_.numbers = 1 + r_.one_of(2);
        add(at_, FaultKind::kDoubled, who, 100, 500, r_.range(2000, 8000));
        add(at_ + 1, FaultKind::kEndLease, who);
        const int64_t deleted = at_ + s_.renew_ms + r_.range(100, 1000);
        add(deleted, FaultKind::kHitWorker, who, worker_step(), r_.range(1000, 8000), kFreeze);
        add(deleted + 1, FaultKind::kDeleteClaim, who);
        add(deleted + r_.range(500, 3000), FaultKind::kEndLease, another(who));
        at_ += 9000;
        continue;
      }
      add(at_, kind == 1 ? FaultKind::kOverwriteClaim : FaultKind::kDeleteClaim, who);
      if (r_.percent(40)) add(at_ - 1500, FaultKind::kFreezeInstance, who, 0, freeze_ms());
      if (r_.percent(40)) end_life(at_ + r_.range(-1000, 1500), another(who));
      if (r_.percent(40))
        add(at_ - r_.range(500, 3000), FaultKind::kDoubled, -1, 60, 8000, r_.range(500, 8000));
      if (r_.percent(30))
        add(at_, FaultKind::kGarbageMark, -1, r_.one_of(s_.numbers));
      at_ += r_.range(1500, 8000);
    }
  }

  void clones() {
    s_.name = "clones of a data directory";
    const int who = someone();
    const int clone = another(who);
    s_.down_at_first[clone] = true;
    const int64_t down = r_.range(300, s_.ttl_ms + 5000);
    add(at_, FaultKind::kStop, who, 0, down);
    add(at_ + r_.range(1100, 2000), FaultKind::kCloneFrom, clone, who, r_.range(0, down + 3000));
    at_ += down + r_.range(2000, 5000);
    end_life(at_, r_.percent(50) ? who : clone);
    at_ += 4000;
  }

  /// The only instance of its region, stopped cleanly: it pays no pause.
  void restart() {
    s_.name = "restart";
    s_.instances = 1;
    s_.numbers = kWorkers;
    s_.beginning = Beginning::kOld;
    s_.first_offset_ms = 3;
    quiet_ = true;
    at_ = s_.reserve_ms + kForgottenMs + 4000;
    for (int64_t i = r_.range(1, 3); i > 0; i--) {
      const int64_t down = r_.percent(50) ? r_.range(500, 6000) : r_.range(6000, 300000);
      add(at_, FaultKind::kStop, 0, 0, down);
      at_ += down + s_.renew_ms + 4000;
    }
    end_ = at_ - 4000;
    s_.prompt_ms = 3500;
  }

  void promotion() {
    s_.name = "promotion";
    const int old_primary = someone();
    const int standby = another(old_primary);
    add(0, FaultKind::kStandby, standby, 1);
    const bool alive = r_.percent(60);
    if (r_.percent(50)) hit_call(at_ - 500, old_primary, freeze_ms());
    if (!alive) end_life(at_, old_primary);
    if (alive && r_.percent(50))
      add(at_, FaultKind::kFreezeInstance, old_primary, 0, freeze_ms());
    add(at_ + r_.below(3000), FaultKind::kStandby, standby, 0);
    if (r_.percent(50)) add(at_ + r_.range(3000, 6000), FaultKind::kStandby, old_primary, 1);
    at_ += 8000;
    end_ = std::max(end_, at_);
  }

  void crash_loop() {
    s_.name = "crash loop";
    const int who = someone();
    if (r_.percent(40)) {
      // Nothing else is wrong: each life frees the number of the one before, so they suffice.
      s_.name = "crashes alone";
      s_.numbers = s_.instances + r_.one_of(2);
      s_.beginning = Beginning::kWitness;
      quiet_ = true;
      for (int64_t i = r_.range(10, 30); i > 0; i--) {
        add(at_, r_.percent(70) ? FaultKind::kCrashInstance : FaultKind::kExitWorker, who);
        at_ += r_.range(200, 2500);
      }
      s_.prompt_ms = s_.reserve_ms + 1500 + 2 * s_.first_offset_ms;
      return;
    }
    for (int64_t i = r_.range(10, 30); i > 0; i--) {
      if (r_.percent(80))
        add(at_, FaultKind::kCrashInstance, who);
      else
        end_life(at_, who);
      at_ += r_.range(300, 2500);
    }
  }

  /// A backup, IDs that it knows nothing of, the restore.
  void restored() {
    s_.name = "restored etcd";
    s_.instances = std::max(s_.instances, 3);
    const int64_t backup = at_ + r_.range(0, 5000);
    // Older than the reserve, by the clocks of everybody.
    const int64_t restore = backup + s_.reserve_ms + 2 * kNearMs + 1000 + r_.below(8000);
    const int64_t down = r_.range(3500, 7000);
    const int64_t up = restore + down;
    add(backup, FaultKind::kBackup, -1);
    add(restore, FaultKind::kRestore, -1, r_.one_of(3), down, same_term());
    if (r_.percent(25)) {
      const int mask = 1 + r_.one_of(3);
      if (s_.endpoints > 1)
        add(restore - r_.range(0, 2000), FaultKind::kOldMember, -1, mask, down + r_.range(0, 9000));
    }
    around_a_loss(backup, restore, up);
  }

  /// A member of the lost cluster still answers keepalives, and shows the old term, while the others are
  /// restored. One frozen since before the backup could take that for etcd's word.
  void old_member() {
    s_.name = "old member beside a restored etcd";
    const Loss loss = three_parts();
    const int64_t thaw = loss.up + r_.range(100, 1500);
    add(loss.backup - r_.range(0, 500), FaultKind::kFreezeInstance, 0, 0, thaw - loss.backup);
    if (r_.percent(70))
      add(loss.down - 100, FaultKind::kOldMember, -1, 1,
          loss.up - loss.down + r_.range(2000, 8000));
    if (r_.percent(70)) add(thaw - 20, FaultKind::kLoseReply, 0, static_cast<int>(RequestKind::kRaise));
    start(thaw + r_.range(-500, 1500), 2);
    end_ = std::max(end_, thaw + 10000);
  }

  /// One that has to raise not_before, since its mark is gone or by command, but is cut off before it
  /// can, does it at last in an etcd that has forgotten more since.
  void late_warning() {
    s_.name = "late warning";
    const int64_t dropped = at_;
    at_ += 2 * s_.renew_ms;
    const Loss loss = three_parts();
    quiet_ = true;  // as with every key changed by hand
    const int64_t healed = loss.up + r_.range(100, 3000);
    if (r_.percent(30))
      add(dropped, FaultKind::kDropMark, 0, 1);
    else
      add(dropped, FaultKind::kRaiseAllMarks, 0, 1000);
    add(dropped, FaultKind::kHoldRequest, 0, static_cast<int>(RequestKind::kRaiseNotBefore), 1000000);
    const int64_t cut = dropped + s_.renew_ms + r_.range(0, 300);
    add(cut, FaultKind::kCutPath, 0, kAllEndpoints, healed - cut, kNothing);
    start(healed + r_.range(-500, 1500), 2);
    end_ = std::max(end_, healed + 10000);
  }

  /// One frozen since before the backup, often between a keepalive and the raise that it is for, so that
  /// the answer which showed the term is of the etcd of before.
  void thawed_before_a_raise() {
    s_.name = "thawed before a raise";
    s_.numbers = kWorkers;
    const Loss loss = three_parts();
    quiet_ = true;
    const int64_t from = loss.backup - s_.renew_ms - r_.range(0, 500);
    const int64_t thaw = loss.up + r_.range(100, 1500);
    add(from, FaultKind::kHitWorker, 0, r_.percent(50) ? kAnswered : kDecided, thaw - from, kFreeze);
    add(loss.down, FaultKind::kLoseReply, 0, static_cast<int>(RequestKind::kRaise));
    start(thaw + r_.range(-1000, 1000), 2);
    end_ = std::max(end_, thaw + 10000);
  }

  /// Neither the raft term nor the surplus tells anything, but whoever lives has confirmed more than the
  /// backup knows.
  void restored_at_the_same_term() {
    s_.name = "restored at the same term";
    s_.status_denied = true;
    const Loss loss = three_parts(true);
    quiet_ = true;
    if (r_.percent(50)) {
      start(loss.up + r_.range(100, 3000), 2);
    } else {
      // Stopped cleanly, but after the backup.
      s_.down_at_first[2] = false;
      add(loss.backup + s_.renew_ms + 500 + r_.below(2000), FaultKind::kStop, 2, 0,
          loss.up - loss.backup + r_.range(-2000, 2000));
    }
    end_ = std::max(end_, loss.up + 8000);
  }

  struct Loss {
    int64_t backup, down, up;
  };
  /// Instance 0 has its claim in the backup; 1 claims after that and sees nothing of the restore, but
  /// mints on; 2 comes new when etcd is back.
  /// Where the raft term tells nothing of a restore, the surplus does, if it may be asked.
  bool same_term() { return !s_.status_denied && r_.percent(50); }
  Loss three_parts(bool same = false) {
    s_.instances = std::max(s_.instances, 3);
    s_.endpoints = std::max(s_.endpoints, 2);
    s_.reserve_ms = r_.percent(70) ? 10000 : 15000;
    s_.ttl_ms = s_.reserve_ms + r_.range(1000, 15000) / 1000 * 1000;
    s_.down_at_first[1] = s_.down_at_first[2] = true;
    Loss loss;
    loss.backup = at_ + r_.range(500, 2000);
    loss.down = loss.backup + s_.reserve_ms + 2 * kNearMs + 1000 + r_.below(3000);
    loss.up = loss.down + r_.range(3500, 5000);
    add(loss.backup, FaultKind::kBackup, -1);
    add(loss.down, FaultKind::kRestore, -1, r_.one_of(3), loss.up - loss.down,
        same || same_term());
    start(loss.backup + r_.below(loss.down - loss.backup - 2000), 1);
    add(loss.down - r_.below(400), FaultKind::kCutPath, 1, kAllEndpoints, s_.reserve_ms + 12000,
        kNothing);
    if (r_.percent(30)) quiet_ = true;
    return loss;
  }

  void emptied() {
    s_.name = "emptied etcd";
    s_.instances = std::max(s_.instances, 3);
    const int64_t loss = at_ + r_.range(1000, 12000);
    const int64_t down = r_.range(3500, 7000);
    if (r_.percent(50))
      add(loss, FaultKind::kWipe, -1, 0, down);
    else
      add(loss, FaultKind::kReplace, -1, r_.range(2, 500), down);
    around_a_loss(loss - r_.range(0, 6000), loss, loss + down);
  }

  /// Each instance has a part of its own.
  void around_a_loss(int64_t backup, int64_t loss, int64_t up) {
    const int64_t later = up + s_.reserve_ms + kForgottenMs;
    if (r_.percent(15))
      add(backup - r_.below(1500), FaultKind::kRaiseAllMarks, someone(), loss - backup + r_.range(0, 20000));
    for (int i = 0; i < s_.instances; i++) {
      switch (r_.one_of(10)) {
        case 0:  // frozen since before the backup, until some time around the restore
          freeze_until(i, backup - r_.range(-200, 2500), up + r_.range(-3000, s_.reserve_ms + 8000));
          break;
        case 1:  // claims after the backup, and does not see the restore
          s_.down_at_first[i] = true;
          start(backup + r_.below(loss - backup), i);
          if (r_.percent(50))
            add(loss - r_.range(-500, 2000), FaultKind::kCutPath, i, kAllEndpoints,
                r_.range(3000, s_.reserve_ms + 12000), r_.one_of(4));
          else
            freeze_until(i, loss - r_.range(0, 2000), up + r_.range(-1000, s_.reserve_ms + 8000));
          break;
        case 2:  // likewise, and sees it
          s_.down_at_first[i] = true;
          start(backup + r_.below(loss - backup), i);
          break;
        case 3:  // starts in the same second
          s_.down_at_first[i] = true;
          start(up + r_.range(-1500, 1000), i);
          break;
        case 4:  // starts while the others wait
          s_.down_at_first[i] = true;
          start(up + r_.below(later - up), i);
          break;
        case 5:  // stopped cleanly about the time of the backup, its last mark kept
          add(backup - r_.range(-500, 3000), FaultKind::kStop, i, 0,
              up - backup + r_.range(-1000, 6000));
          break;
        case 6:  // restarted about the time of the restore
          end_life(loss + r_.range(-3000, 6000), i);
          break;
        case 7:  // loses its claim between backup and restore
          add(backup + r_.below(loss - backup), FaultKind::kEndLease, i);
          break;
        case 8:  // a standby that watched, promoted about the time of the restore
          add(0, FaultKind::kStandby, i, 1);
          add(up + r_.range(-4000, 4000), FaultKind::kStandby, i, 0);
          break;
        default:
          break;
      }
      if (r_.percent(20)) add(r_.below(up), FaultKind::kStepClock, i,
                              r_.percent(50) ? -r_.below(kNearMs - 500) : r_.below(1000));
    }
    end_ = std::max(end_, later - r_.below(s_.reserve_ms + kForgottenMs));
  }
  void freeze_until(int who, int64_t from, int64_t until) {
    const int64_t ms = std::max<int64_t>(until - from, 100);
    if (r_.percent(60))
      add(from, FaultKind::kFreezeInstance, who, 0, ms);
    else
      add(from, FaultKind::kHitWorker, who, worker_step(), ms, kFreeze);
    if (r_.percent(30)) hit_call(from - 500, who, ms);
  }

  void strobe() {
    s_.name = "strobing clock";
    for (int i = 0; i < s_.instances; i++)
      if (r_.percent(60))
        add(at_ + r_.below(1000), FaultKind::kStrobeClock, i, r_.range(50, 600), r_.range(10, 100),
            r_.range(100, 400));
    for (int64_t i = r_.range(2, 8); i > 0; i--) {
      add(at_, FaultKind::kBurst, someone());
      if (r_.percent(40)) end_life(at_ + r_.below(20), someone());
      if (r_.percent(40)) hit_call(at_, someone(), freeze_ms());
      at_ += r_.range(500, 4000);
    }
  }

  void too_many() {
    s_.name = "more instances than numbers";
    s_.instances = kMostInstances - r_.one_of(3);
    s_.numbers = 1 + r_.one_of(3);
    for (int64_t i = r_.range(3, 10); i > 0; i--) {
      if (r_.percent(70))
        end_life(at_, someone());
      else
        add(at_, FaultKind::kEndLease, someone());
      at_ += r_.range(300, 4000);
    }
  }

  Random r_;
  const bool beyond_;
  Schedule &s_;
  bool restoring_ = false;
  bool quiet_ = false;  // no other faults
  int64_t at_ = 0;
  int64_t end_ = 0;
};

}  // namespace

void make_schedule(uint64_t seed, bool beyond, Schedule *out) { Maker(seed, beyond, out).make(); }

}  // namespace snowflake::sim
