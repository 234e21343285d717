// One schedule: the instances, and what is done to them when. Made from a seed and nothing else.
#pragma once

#include <cstdint>
#include <vector>

namespace snowflake::sim {

inline constexpr int kMostInstances = 6;
inline constexpr int kMostEndpoints = 3;
inline constexpr int kMostBackends = 3;
inline constexpr int kAllEndpoints = (1 << kMostEndpoints) - 1;

/// Where a background worker can be caught. Everything from one step to the next happens at once.
enum WorkerStep : int {
  kWaiting,        // for a reply or a deadline
  kBetweenClocks,  // the wall clock is read, the boot clock not yet
  kLooked,         // both are
  kAsked,          // the lease was asked for a request, which is not sent yet
  kWoken,          // between the clocks again, after the wait
  kAnswered,       // a reply is there, the lease has not seen it
  kDecided,        // the lease has seen it, nothing is published
  kHalfInstalled,  // the first of the two words is written
  kPublished,      // both are, the lease's id is not noted
  kWorkerSteps,
};

/// Where a call of snowflake_nextval() can be caught: what it has read so far.
enum CallStep : int { kWall, kLastWord, kFenceWord, kBootToo, kCallSteps };

/// What befalls a worker at a step.
enum Blow : int { kFreeze, kCrash, kExit, kKillPostmaster };

/// How a network path is broken.
enum Cut : int { kNoRequests, kNoReplies, kNothing, kRefused };

enum class FaultKind : uint8_t {
  // clocks of `who`
  kStepClock,       // a: ms
  kDriftClock,      // a: ppm
  kRightClock,
  kStrobeClock,     // a: ms, b: period ms, c: how often
  kKernelLies,      // a: 1 yes; the kernel vouches for whatever the clock shows
  // processes of `who`
  kHitWorker,       // a: step, b: ms, c: blow
  kHitCall,         // a: step, b: ms, c: backend
  kFreezeInstance,  // b: ms
  kPauseMachine,    // b: ms; the clocks stop too
  kCrashInstance,   // a backend dies: shared memory anew
  kExitWorker,
  kLosePostmaster,  // b: ms until it is started again
  kStop,            // cleanly; b: likewise
  kBurst,
  kStandby,         // a: 1 yes
  kDisable,         // a: 1 yes
  kCloneFrom,       // a: whose data directory `who`, which is down, starts with; b: ms until then
  kRaiseAllMarks,   // a: ms ahead
  kInitRegion,
  // etcd
  kElection,
  kEndLease,        // of who's claim
  kDeleteClaim,     // of who's number
  kOverwriteClaim,
  kDropMark,        // of who's number, while it lives to see it; a: 1 lower it, 0 delete it
  kGarbageMark,     // a: number
  kEtcdDown,        // b: ms
  kNoQuorum,        // b: ms
  kStallMember,     // a: endpoint, b: ms; what it is asked is done when it wakes
  kOldMember,       // a: endpoints (mask), b: ms; of a lost quorum, still answers keepalives
  kDateWrong,       // a: ms
  kBackup,
  kRestore,         // a: 0 the backup's revision, 1 as high as before, 2 bumped; b: ms down; c: 1 at
                    // the same term
  kWipe,            // b: ms down
  kReplace,         // a: term of the other cluster; b: ms down
  // network of `who`, -1: of all
  kCutPath,         // a: endpoints (mask), b: ms, c: how
  kLossy,           // a: percent, b: ms
  kSlow,            // a: ms, b: ms
  kLate,            // a: percent of requests, b: ms, c: ms by which they are applied late
  kDoubled,         // likewise applied a second time
  kLoseReply,       // a: RequestKind; of the next such request
  kHoldRequest,     // a: RequestKind; the next such is applied b ms later
  kCure,            // of everything
};

struct Fault {
  int64_t at_ms;
  FaultKind kind;
  int who = -1;
  int64_t a = 0;
  int64_t b = 0;
  int64_t c = 0;
};

/// How etcd is found at the beginning.
enum class Beginning : uint8_t {
  kWitness,  // with a mark that is not past
  kOld,      // with one that is
  kEmpty,
};

struct Schedule {
  const char *name = "";
  int instances = 2;
  int endpoints = 1;
  int backends = 2;
  int numbers = 8;             // of the 128 those that are not held by others for ever
  int64_t reserve_ms = 0;
  int64_t ttl_ms = 0;
  int64_t renew_ms = 1000;
  bool status_denied = false;  // etcd does not tell its raft index
  bool strict_clock = false;   // snowflake.max_clock_error is not 0
  Beginning beginning = Beginning::kWitness;
  int64_t term = 50;
  int64_t base_unix_ms = 0;    // the true time at 0
  int64_t call_ms = 400;       // mean time between calls of a backend
  int64_t first_offset_ms = 0; // of each clock, at most
  bool down_at_first[kMostInstances] = {};
  bool wrong_clocks = false;   // ones may be believed that are ahead by more than seconds
  bool edge_of_time = false;   // no liveness is asked
  int64_t cure_ms = 0;
  int64_t prompt_ms = 0;       // so long after that all mint again; 0: as long as pauses take
  std::vector<Fault> faults;   // in order of time
};

/// `beyond`: also what the design declares out of scope.
void make_schedule(uint64_t seed, bool beyond, Schedule *out);

}  // namespace snowflake::sim
