#include "pg/stats.hpp"

#include "pg/settings.hpp"
#include "pg/shmem.hpp"

namespace snowflake::pg {

bool would_succeed(WallTime now) {
  const Issue answer = surviving->generator.probe(now, boot_now, 1);
  return answer.refusal == Refusal::kNone ||
         (answer.refusal == Refusal::kLead && answer.wait_ms <= settings.max_wait_ms);
}

namespace {

/// From the two words and the clock at this moment; the worker's phase only says why not.
const char *state_text(Phase phase, WallTime now) {
  if (would_succeed(now)) return "issuing";
  const Refusal why = surviving->generator.probe(now, boot_now, 1).refusal;
  if (why == Refusal::kLead || why == Refusal::kJump || why == Refusal::kBadClock)
    return "clock_unsafe";
  switch (phase) {
    case Phase::kStarting:
      return "starting";
    case Phase::kDisabled:
      return "disabled";
    case Phase::kStandby:
      return "standby";
    case Phase::kClockUnsafe:
      return "clock_unsafe";
    case Phase::kQuarantined:
      return "quarantined";
    case Phase::kNoWorkerFree:
      return "no_worker_free";
    case Phase::kClaiming:
    case Phase::kHolding:
      break;
  }
  return why == Refusal::kFence ? "fenced" : "claiming";
}

/// One row of results, filled column by column, so that a column and its value stand together.
struct Row {
  static constexpr int kColumns = 24;
  Datum values[kColumns];
  bool nulls[kColumns];
  int n;

  void add(Datum value, bool present = true) {
    Assert(n < kColumns);
    values[n] = value;
    nulls[n++] = !present;
  }
  void add_number(int64_t value, bool present = true) { add(Int64GetDatum(value), present); }
  void add_time(TimestampTz t, bool present) { add(TimestampTzGetDatum(t), present && t != 0); }
  void add_text(const char *text, bool present) {
    add(CStringGetTextDatum(text), present && text[0] != '\0');
  }
};

uint64_t total(std::atomic<uint64_t> Counters::*counter) {
  uint64_t sum = 0;
  for (int i = 0; i < shared->slots; i++)
    sum += (shared->counters[i].*counter).load(std::memory_order_relaxed);
  return sum;
}

}  // namespace
}  // namespace snowflake::pg

using namespace snowflake;
using namespace snowflake::pg;

extern "C" {

PGDLLEXPORT Datum snowflake_stat(PG_FUNCTION_ARGS);
PG_FUNCTION_INFO_V1(snowflake_stat);

/// The row of pg_stat_snowflake. Details of the infrastructure are for members of
/// pg_read_all_stats (pg_monitor is one), as in pg_stat_activity.
Datum snowflake_stat(PG_FUNCTION_ARGS) {
  TupleDesc descriptor;
  if (get_call_result_type(fcinfo, nullptr, &descriptor) != TYPEFUNC_COMPOSITE)
    elog(ERROR, "return type must be a row type");
  Row row = {};
  if (descriptor->natts != Row::kColumns)
    elog(ERROR, "snowflake_stat: %d columns asked for, there are %d", descriptor->natts,
         Row::kColumns);

  if (shared == nullptr) {
    row.add(CStringGetTextDatum("disabled"));
    while (row.n < Row::kColumns - 1) row.add(Datum{0}, false);
    row.add_text("\"shared_preload_libraries\" does not contain \"snowflake\".", true);
  } else {
    const bool all = has_privs_of_role(GetUserId(), ROLE_PG_READ_ALL_STATS);
    WorkerStatus status;
    read_status(&status);
    const Generator &generator = surviving->generator;
    const int64_t fence = generator.fence_ms();
    const bool claimed = fence != 0;
    const int64_t last = generator.last_ms();
    const WallTime now = wall_now();  // the last: sessions move on meanwhile

    row.add(CStringGetTextDatum(state_text(status.phase, now)));
    row.add(Int32GetDatum(settings.region));
    row.add(Int32GetDatum(worker_of(generator.node())), claimed);
    row.add_text(settings.holder, all);
    row.add_number(status.lease_id, all && status.lease_id != 0);
    row.add_time(status.claimed_at, true);
    row.add_time(timestamp_of_unix_ms(fence + kEpochUnixMs), claimed);
    row.add_number(std::max<int64_t>(0, fence + kEpochUnixMs - now.unix_ms), claimed);
    row.add_time(status.last_renewal, true);
    row.add_number(status.renewal_failures);
    row.add_text(status.last_error, all);
    row.add_time(status.last_error_at, true);
    row.add_text(status.endpoint, all);
    row.add_number(std::max<int64_t>(0, last + kEpochUnixMs - now.unix_ms), claimed);
    row.add(Float8GetDatum(static_cast<double>(status.clock_error_us) / 1000),
            status.clock_error_us >= 0);
    row.add_number(static_cast<int64_t>(total(&Counters::issued)));
    row.add_number(static_cast<int64_t>(total(&Counters::refused_clock)));
    row.add_number(static_cast<int64_t>(total(&Counters::refused_fence)));
    row.add_number(static_cast<int64_t>(total(&Counters::refused_no_claim)));
    row.add_number(static_cast<int64_t>(total(&Counters::waits)));
    row.add(Float8GetDatum(static_cast<double>(total(&Counters::wait_us)) / 1000));
    row.add_number(status.claims);
    row.add(Int32GetDatum(status.pid), all && status.pid != 0);
    row.add_text(status.pid == 0 ? "The background worker of snowflake does not run." : status.reason,
                 all);
  }
  PG_RETURN_DATUM(HeapTupleGetDatum(
      heap_form_tuple(BlessTupleDesc(descriptor), row.values, row.nulls)));
}

}  // extern "C"
