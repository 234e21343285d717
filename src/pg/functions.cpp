// The SQL functions: minting, decoding, and the bounds of ranges.
#include "core/lease.hpp"
#include "pg/pg.hpp"
#include "pg/settings.hpp"
#include "pg/shmem.hpp"
#include "pg/stats.hpp"

namespace snowflake::pg {
namespace {

/// Between looks at the two words while the background worker is awaited.
constexpr int64_t kPollMs = 5;

/// The first wait of a call that is ahead of the clock. Sessions at the ceiling then take turns with
/// some thousand IDs each, rather than all fight for each millisecond's 4096.
constexpr int64_t kBreathMs = 10;

int64_t steady_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000000 + t.tv_nsec / 1000;
}

const char *time_text(int64_t unix_ms) {
  // timestamptz_to_str has one static buffer, and a message may need two times.
  return pstrdup(timestamptz_to_str(timestamp_of_unix_ms(unix_ms)));
}

[[noreturn]] void refuse_not_loaded() {
  ereport(ERROR,
          (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
           errmsg("this server mints no IDs: snowflake is not loaded at server start"),
           errdetail("\"shared_preload_libraries\" does not contain \"snowflake\"."),
           errhint("Add \"snowflake\" to \"shared_preload_libraries\", set "
                   "\"snowflake.etcd_endpoints\", and restart the server.")));
  pg_unreachable();
}

/// No claim, and the background worker's reason for it.
[[noreturn]] void refuse_no_claim(const WorkerStatus &status) {
  constexpr int kState = ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
  switch (status.phase) {
    case Phase::kDisabled:
      ereport(ERROR, (errcode(kState), errmsg("this server mints no IDs"),
                      errdetail("\"snowflake.etcd_endpoints\" is empty."),
                      errhint("Set it to the etcd endpoints of region %d and reload the "
                              "configuration.",
                              settings.region)));
      break;
    case Phase::kStandby:
      ereport(ERROR, (errcode(kState), errmsg("this standby mints no IDs"),
                      errdetail("The server is in recovery, and \"snowflake.on_standby\" is off."),
                      errhint("Call the primary, or set \"snowflake.on_standby\" to on and reload "
                              "the configuration.")));
      break;
    case Phase::kClockUnsafe:
      ereport(ERROR,
              (errcode(kState), errmsg("no ID can be minted before the clock is good enough"),
               errdetail("%s", status.reason),
               errhint("Let chrony or another NTP client synchronise this machine. Where none can "
                       "run, set \"snowflake.max_clock_error\" to 0 and reload the "
                       "configuration.")));
      break;
    case Phase::kQuarantined:
      ereport(ERROR,
              (errcode(kState), errmsg("no ID can be minted before %s",
                                       timestamptz_to_str(status.quarantined_until)),
               errdetail("Nothing shows that etcd remembers all that it has confirmed: it may be new, "
                         "wiped, or restored from a backup. By that time every server that it could "
                         "have forgotten has used up its reserve."),
               errhint("Minting then starts by itself. If this etcd never held IDs of region %d, a "
                       "superuser can start it now with SELECT snowflake_init_region().",
                       settings.region)));
      break;
    case Phase::kNoWorkerFree:
      ereport(ERROR,
              (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
               errmsg("no worker number is free in region %d", settings.region),
               errdetail("All %d are held by other instances, or have a mark that can't be trusted.",
                         kWorkers),
               errhint("A number that becomes free is taken at once. Stop an instance, or let this "
                       "one use another region.")));
      break;
    case Phase::kStarting:
      if (status.pid != 0) break;
      ereport(ERROR,
              (errcode(kState), errmsg("this server has no worker number"),
               errdetail("The background worker of snowflake does not run."),
               errhint("It starts a moment after the server. If it stays away, the server log says "
                       "why; \"max_worker_processes\" may be too low.")));
      break;
    case Phase::kClaiming:
    case Phase::kHolding:
      break;
  }
  ereport(ERROR,
          (errcode(kState), errmsg("this server has no worker number yet"),
           status.reason[0] != '\0' ? errdetail("%s", status.reason)
                                    : errdetail("It is being claimed in etcd."),
           errhint("Minting starts by itself when etcd answers; pg_stat_snowflake shows the last "
                   "error.")));
  pg_unreachable();
}

/// The call is refused. Nothing has changed by it, and the next one may succeed.
[[noreturn]] void refuse(const Issue &answer, WallTime now) {
  constexpr int kState = ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
  WorkerStatus status;
  read_status(&status);
  switch (answer.refusal) {
    case Refusal::kBadClock:
      ereport(ERROR, (errcode(kState), errmsg("the clock shows a time that no ID can carry"),
                      errdetail("It is %s; IDs reach from %s to %s.", time_text(now.unix_ms),
                                time_text(kEpochUnixMs), time_text(kEpochUnixMs + kLastMs)),
                      errhint("Set the clock of this machine right.")));
      break;
    case Refusal::kJump:
      ereport(ERROR,
              (errcode(kState), errmsg("the clock jumped ahead and is not believed"),
               errdetail("It shows %s, " INT64_FORMAT " ms more than the time since boot accounts for.",
                         time_text(now.unix_ms),
                         now.unix_ms - boot_now().ms -
                             surviving->generator.clock_offset_ms.load(std::memory_order_relaxed)),
               errhint("Minting goes on when the clock is set back, or vouched for by the kernel's "
                       "time discipline or, where that is not asked, by etcd.")));
      break;
    case Refusal::kLead: {
      const int64_t lead = surviving->generator.last_ms() + kEpochUnixMs - now.unix_ms;
      ereport(ERROR,
              (errcode(kState), errmsg("the last ID is too far ahead of the clock"),
               errdetail("It is %.3f s ahead, %.3f s are allowed; waiting takes %.3f s more, "
                         "\"snowflake.max_wait\" is %d ms.",
                         static_cast<double>(lead) / 1e3, static_cast<double>(kMaxLeadMs) / 1e3,
                         static_cast<double>(answer.wait_ms) / 1e3, settings.max_wait_ms),
               errhint("The clock was set back, or more than 4096 IDs a millisecond are asked for. "
                       "Try again after that time, or raise \"snowflake.max_wait\".")));
      break;
    }
    case Refusal::kFence:
      if (status.phase == Phase::kNoWorkerFree || status.phase == Phase::kQuarantined)
        refuse_no_claim(status);
      ereport(ERROR,
              (errcode(kState),
               errmsg("the reserved time of worker number %d is used up",
                      worker_of(surviving->generator.node())),
               errdetail("It was reserved until %s, now it is %s; etcd last confirmed it at %s.",
                         time_text(surviving->generator.fence_ms() + kEpochUnixMs),
                         time_text(now.unix_ms),
                         pstrdup(timestamptz_to_str(status.last_renewal))),
               errhint("Minting goes on by itself when etcd confirms again; pg_stat_snowflake shows "
                       "the last error.")));
      break;
    case Refusal::kNoClaim:
    case Refusal::kNone:
      refuse_no_claim(status);
  }
  pg_unreachable();
}

void count_refusal(Refusal why) {
  Counters &mine = my_counters();
  switch (why) {
    case Refusal::kBadClock:
    case Refusal::kJump:
    case Refusal::kLead:
      return count(mine.refused_clock, 1);
    case Refusal::kFence:
      return count(mine.refused_fence, 1);
    case Refusal::kNoClaim:
    case Refusal::kNone:
      return count(mine.refused_no_claim, 1);
  }
}

/// The background worker is about no claim.
bool nothing_to_wait_for() {
  WorkerStatus status;
  read_status(&status);
  return status.phase == Phase::kDisabled || status.phase == Phase::kStandby;
}

/// The first try was refused: waits while that can help, up to snowflake.max_wait, without a lock
/// and open to cancellation.
Issue wait_and_issue(int n, Issue answer, WallTime now) {
  const int64_t start = steady_us();
  const int64_t limit = int64_t{settings.max_wait_ms} * 1000;
  bool waited = false;
  while (answer.refusal != Refusal::kNone) {
    const int64_t left = limit - (steady_us() - start);
    int64_t pause_ms = kPollMs;
    if (answer.refusal == Refusal::kLead) {
      // This one passes with the clock, so it is known whether waiting is of use.
      if (answer.wait_ms * 1000 > left) break;
      pause_ms = waited ? answer.wait_ms : std::max(answer.wait_ms, kBreathMs);
    }
    if (left <= 0 || answer.refusal == Refusal::kBadClock ||
        (answer.refusal == Refusal::kNoClaim && !waited && nothing_to_wait_for()))
      break;
    if (!waited) count(my_counters().waits, 1);
    waited = true;
    (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
                    static_cast<long>(std::min(pause_ms, (left + 999) / 1000)), PG_WAIT_EXTENSION);
    ResetLatch(MyLatch);
    CHECK_FOR_INTERRUPTS();
    now = wall_now();
    answer = surviving->generator.issue(now, boot_now, n);
  }
  if (waited) count(my_counters().wait_us, static_cast<uint64_t>(steady_us() - start));
  if (answer.refusal != Refusal::kNone) {
    count_refusal(answer.refusal);
    refuse(answer, now);
  }
  return answer;
}

/// n consecutive ticks, or an error.
Issue issue_or_refuse(int n) {
  if (unlikely(shared == nullptr)) refuse_not_loaded();
  const WallTime now = wall_now();
  Issue answer = surviving->generator.issue(now, boot_now, n);
  if (unlikely(answer.refusal != Refusal::kNone)) answer = wait_and_issue(n, answer, now);
  count(my_counters().issued, static_cast<uint64_t>(n));
  return answer;
}

/// Has the background worker do what only it can, and waits for it.
void ask_worker(Command::Kind kind, int64_t until_unix_ms) {
  constexpr int64_t kLongestUs = 15 * 1000 * 1000;
  constexpr long kLookMs = 50;
  if (shared == nullptr) refuse_not_loaded();
  LWLockAcquire(status_lock, LW_EXCLUSIVE);
  Command &command = shared->command;
  const bool busy = command.kind != Command::kNone && !command.answered &&
                    boot_now().ms < command.until_boot_ms;
  const uint64_t serial = command.serial + 1;
  if (!busy) {
    memset(&command, 0, sizeof command);
    command.kind = kind;
    command.serial = serial;
    command.until_boot_ms = boot_now().ms + kLongestUs / 1000;
    command.until_unix_ms = until_unix_ms;
  }
  LWLockRelease(status_lock);
  if (busy)
    ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
                    errmsg("another command to the snowflake worker is under way"),
                    errhint("Try again in some seconds.")));

  Command result = {};
  WorkerStatus status = {};
  const int64_t start = steady_us();
  PG_TRY();
  {
    while (!result.answered && steady_us() - start < kLongestUs) {
      (void)WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, kLookMs,
                      PG_WAIT_EXTENSION);
      ResetLatch(MyLatch);
      CHECK_FOR_INTERRUPTS();
      LWLockAcquire(status_lock, LW_SHARED);
      if (command.serial == serial) result = command;
      status = shared->status;
      LWLockRelease(status_lock);
    }
  }
  PG_FINALLY();
  {
    // Answered, given up or cancelled: the place is free. (Not if this session is terminated.)
    LWLockAcquire(status_lock, LW_EXCLUSIVE);
    if (command.serial == serial) command.kind = Command::kNone;
    LWLockRelease(status_lock);
  }
  PG_END_TRY();
  if (result.answered && result.good) return;
  ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                  result.answered ? errmsg("%s", result.refusal)
                                  : errmsg("the snowflake worker did not get to it within 15 s"),
                  errhint("pg_stat_snowflake shows the worker's state and its last error.")));
}

int64_t checked_id(int64_t id) {
  if (id < 0)
    ereport(ERROR, (errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
                    errmsg("a snowflake ID is never negative"),
                    errdetail("The value is " INT64_FORMAT ".", id),
                    errhint("It was not minted by snowflake_nextval().")));
  return id;
}

/// Milliseconds since our epoch of the millisecond that `t` lies in.
int64_t checked_ms(TimestampTz t) {
  int64_t ms = -1;
  if (!TIMESTAMP_NOT_FINITE(t)) {
    const int64_t us = t - timestamp_of_unix_ms(kEpochUnixMs);
    ms = us < 0 ? -1 : us / 1000;
  }
  if (ms < 0 || ms > kLastMs)
    ereport(ERROR, (errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
                    errmsg("no snowflake ID carries the time %s", timestamptz_to_str(t)),
                    errdetail("IDs reach from %s to %s.", time_text(kEpochUnixMs),
                              time_text(kEpochUnixMs + kLastMs)),
                    errhint("Take a time within, or MINVALUE and MAXVALUE for the outer bounds of "
                            "partitions.")));
  return ms;
}

int checked_field(const char *name, int value, int limit) {
  if (value < 0 || value >= limit)
    ereport(ERROR, (errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
                    errmsg("%s %d is out of range", name, value),
                    errdetail("A snowflake ID has room for 0 to %d.", limit - 1),
                    errhint("Give a value within that range.")));
  return value;
}

TimestampTz time_of_id(int64_t id) {
  return timestamp_of_unix_ms(decode(checked_id(id)).ms + kEpochUnixMs);
}

}  // namespace
}  // namespace snowflake::pg

using namespace snowflake;
using namespace snowflake::pg;

extern "C" {

#define SQL_FUNCTION(name)                    \
  PGDLLEXPORT Datum name(PG_FUNCTION_ARGS);   \
  PG_FUNCTION_INFO_V1(name);                  \
  Datum name(PG_FUNCTION_ARGS)

SQL_FUNCTION(snowflake_nextval) {
  (void)fcinfo;
  const Issue answer = issue_or_refuse(1);
  PG_RETURN_INT64(id_of(answer.first, answer.node));
}

/// Takes all its IDs in one step at the first row: they are one worker number's and consecutive
/// ticks, and whoever reads only some of the rows loses nothing but IDs.
SQL_FUNCTION(snowflake_nextvals) {
  FuncCallContext *call;
  if (SRF_IS_FIRSTCALL()) {
    call = SRF_FIRSTCALL_INIT();
    const int n = PG_GETARG_INT32(0);
    if (n < 1 || n > kMaxBatch)
      ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                      errmsg("%d IDs can't be minted in one call", n),
                      errdetail("The count must be from 1 to %d.", kMaxBatch),
                      errhint("Call it several times for more.")));
    const Issue answer = issue_or_refuse(n);
    call->max_calls = static_cast<uint64>(n);
    call->user_fctx = MemoryContextAlloc(call->multi_call_memory_ctx, sizeof(Issue));
    *static_cast<Issue *>(call->user_fctx) = answer;
  }
  call = SRF_PERCALL_SETUP();
  if (call->call_cntr < call->max_calls) {
    // Before the macro, which counts on before it evaluates its argument.
    const auto *answer = static_cast<const Issue *>(call->user_fctx);
    const int64_t id =
        id_of(answer->first + static_cast<int64_t>(call->call_cntr), answer->node);
    SRF_RETURN_NEXT(call, Int64GetDatum(id));
  }
  SRF_RETURN_DONE(call);
}

/// Tells the planner how many rows snowflake_nextvals(constant) returns.
SQL_FUNCTION(snowflake_nextvals_support) {
  auto *asked = reinterpret_cast<Node *>(PG_GETARG_POINTER(0));
  if (!IsA(asked, SupportRequestRows)) PG_RETURN_POINTER(nullptr);
  auto *request = reinterpret_cast<SupportRequestRows *>(asked);
  if (!is_funcclause(request->node)) PG_RETURN_POINTER(nullptr);
  const auto *call = reinterpret_cast<FuncExpr *>(request->node);
  const auto *count = static_cast<Node *>(linitial(call->args));
  if (!IsA(count, Const)) PG_RETURN_POINTER(nullptr);
  const auto *constant = reinterpret_cast<const Const *>(count);
  request->rows = constant->constisnull ? 0 : DatumGetInt32(constant->constvalue);
  PG_RETURN_POINTER(request);
}

SQL_FUNCTION(snowflake_ready) {
  (void)fcinfo;
  PG_RETURN_BOOL(shared != nullptr && would_succeed(wall_now()));
}

SQL_FUNCTION(snowflake_init_region) {
  (void)fcinfo;
  ask_worker(Command::kInitRegion, 0);
  PG_RETURN_VOID();
}

SQL_FUNCTION(snowflake_raise_marks) {
  const int64_t until = checked_ms(PG_GETARG_TIMESTAMPTZ(0)) + kEpochUnixMs;
  // One a day ahead would be taken for a mistake, and close its worker number.
  if (until >= wall_now().unix_ms + kAbsurdMarkMs)
    ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                    errmsg("marks can be raised by less than a day"),
                    errdetail("The time is %s, now it is %s.", time_text(until),
                              time_text(wall_now().unix_ms))));
  ask_worker(Command::kRaiseMarks, until);
  PG_RETURN_VOID();
}

SQL_FUNCTION(snowflake_time) { PG_RETURN_TIMESTAMPTZ(time_of_id(PG_GETARG_INT64(0))); }

SQL_FUNCTION(snowflake_region) {
  PG_RETURN_INT32(decode(checked_id(PG_GETARG_INT64(0))).region);
}

SQL_FUNCTION(snowflake_worker) {
  PG_RETURN_INT32(decode(checked_id(PG_GETARG_INT64(0))).worker);
}

SQL_FUNCTION(snowflake_sequence) {
  PG_RETURN_INT32(decode(checked_id(PG_GETARG_INT64(0))).sequence);
}

SQL_FUNCTION(snowflake_decode) {
  TupleDesc row;
  if (get_call_result_type(fcinfo, nullptr, &row) != TYPEFUNC_COMPOSITE)
    elog(ERROR, "return type must be a row type");
  const int64_t id = PG_GETARG_INT64(0);
  const Fields fields = decode(checked_id(id));
  Datum values[] = {TimestampTzGetDatum(time_of_id(id)), Int32GetDatum(fields.region),
                    Int32GetDatum(fields.worker), Int32GetDatum(fields.sequence)};
  bool nulls[lengthof(values)] = {};
  PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(row), values, nulls)));
}

SQL_FUNCTION(snowflake_floor) {
  PG_RETURN_INT64(encode({checked_ms(PG_GETARG_TIMESTAMPTZ(0)), 0, 0, 0}));
}

SQL_FUNCTION(snowflake_ceil) {
  PG_RETURN_INT64(encode({checked_ms(PG_GETARG_TIMESTAMPTZ(0)), kRegions - 1, kWorkers - 1,
                          static_cast<int>(kIdsPerMs - 1)}));
}

SQL_FUNCTION(snowflake_make) {
  PG_RETURN_INT64(encode({checked_ms(PG_GETARG_TIMESTAMPTZ(0)),
                          checked_field("region", PG_GETARG_INT32(1), kRegions),
                          checked_field("worker", PG_GETARG_INT32(2), kWorkers),
                          checked_field("sequence", PG_GETARG_INT32(3),
                                        static_cast<int>(kIdsPerMs))}));
}

}  // extern "C"
