// What the processes of an instance share. Numbers and text only: no pointers, no handles.
#pragma once

#include "pg/pg.hpp"

namespace snowflake::pg {

/// What the background worker is about. Whether IDs can be had is another matter: the fence and the
/// clock say that at any moment.
enum class Phase : int32_t {
  kStarting,  // zero: as shared memory comes up
  kDisabled,
  kStandby,
  kClockUnsafe,
  kClaiming,
  kQuarantined,
  kNoWorkerFree,
  kHolding,
};

/// What the background worker tells. Guarded by status_lock.
struct WorkerStatus {
  Phase phase;
  int32_t pid;
  int32_t worker;  // holds with lease_id != 0
  int64_t lease_id;  // 0: none
  int64_t claims;
  int64_t renewal_failures;
  int64_t clock_error_us;  // -1: the kernel does not say
  TimestampTz claimed_at;  // 0: never, as the next
  TimestampTz last_renewal;
  TimestampTz last_error_at;
  TimestampTz quarantined_until;  // holds in kQuarantined
  char reason[256];  // why there is no ID, or may soon be none: a sentence for DETAIL; "" for nothing
  char last_error[512];
  char endpoint[256];
};

/// What a superuser asks of the background worker. Guarded by status_lock; one at a time. Whoever asked
/// may be gone without a word, so it holds for some time only.
struct Command {
  enum Kind : int32_t { kNone, kInitRegion, kRaiseMarks } kind;
  uint64_t serial;        // of each a new one
  int64_t until_boot_ms;  // nothing of it is begun, and nobody waits, after that
  bool answered;
  bool good;
  int64_t until_unix_ms;  // kRaiseMarks
  char refusal[256];      // answered and not good: why
};

/// Counts of one process slot. Written by the process that has the slot, without a lock: relaxed
/// loads and stores, since nothing is ordered by them.
struct alignas(128) Counters {
  std::atomic<uint64_t> issued;
  std::atomic<uint64_t> refused_clock;
  std::atomic<uint64_t> refused_fence;
  std::atomic<uint64_t> refused_no_claim;
  std::atomic<uint64_t> waits;
  std::atomic<uint64_t> wait_us;
};

/// Starts anew, zeroed, after a crash of any process of the instance.
struct Shared {
  WorkerStatus status;
  Command command;
  int32_t slots;
  Counters counters[FLEXIBLE_ARRAY_MEMBER];
};

/// Lives as long as the postmaster, so also through a restart of its children after a crash, and
/// never touches the data directory: a copy of that must not carry an identity.
struct Surviving {
  /// The fence is withdrawn at each start; `last` stays, so IDs go on increasing.
  Generator generator;
  /// The lease of the life that is or was, to be revoked by the next one; 0: none.
  std::atomic<int64_t> lease;
};

/// Null unless the library was preloaded.
extern Surviving *surviving;
/// Null until shared memory is there.
extern Shared *shared;
extern LWLock *status_lock;

/// In the postmaster, from _PG_init only.
void request_shared_memory();

/// Adds to one of this process's own counters.
inline void count(std::atomic<uint64_t> &counter, uint64_t n) {
  counter.store(counter.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}

/// The counters of this process. Needs shared memory.
Counters &my_counters();

/// A consistent copy of what the background worker tells. Needs shared memory.
void read_status(WorkerStatus *out);

inline WallTime wall_now() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return {int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1000000};
}

inline BootTime boot_now() {
  timespec t;
  clock_gettime(CLOCK_BOOTTIME, &t);
  return {int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1000000};
}

inline TimestampTz timestamp_of_unix_ms(int64_t ms) {
  return ms * 1000 - (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;
}

}  // namespace snowflake::pg
