// The one include of Postgres's headers, and the one place that knows its versions (14 to 18).
#pragma once

// Standard and project headers first: postgres.h redefines names that they use.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "core/clock.hpp"
#include "core/generator.hpp"
#include "core/layout.hpp"

extern "C" {
#include "postgres.h"

#include "access/parallel.h"
#include "access/xlog.h"
#include "catalog/pg_authid.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "nodes/nodeFuncs.h"
#include "nodes/supportnodes.h"
#include "pgstat.h"
#include "port.h"
#include "postmaster/autovacuum.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "postmaster/postmaster.h"
#include "replication/walsender.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/guc_tables.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"
#if PG_VERSION_NUM >= 180000
#include "storage/waiteventset.h"
#endif
}

// Before version 16 PGDLLEXPORT is empty, which -fvisibility=hidden would then hide.
#if PG_VERSION_NUM < 160000
#undef PGDLLEXPORT
#define PGDLLEXPORT __attribute__((visibility("default")))
#endif

namespace snowflake::pg {

#if PG_VERSION_NUM < 150000
inline void reserve_setting_prefix(const char *prefix) { EmitWarningsOnPlaceholders(prefix); }
#else
inline void reserve_setting_prefix(const char *prefix) { MarkGUCPrefixReserved(prefix); }
#endif

/// Every setting of this server, *n of them.
inline config_generic **all_settings(int *n) {
#if PG_VERSION_NUM >= 160000
  return get_guc_variables(n);
#else
  *n = GetNumConfigOptions();
  return get_guc_variables();
#endif
}

/// How many processes may run SQL at once. Valid once Postgres asks for the size of shared memory.
inline int process_slots() {
#if PG_VERSION_NUM < 150000
  // MaxBackends is not known yet when version 14 asks.
  return MaxConnections + autovacuum_max_workers + 1 + max_worker_processes + max_wal_senders;
#else
  return MaxBackends;
#endif
}

/// The number of this process among them.
inline int process_slot() {
#if PG_VERSION_NUM >= 170000
  return MyProcNumber;
#else
  return MyProc->pgprocno;
#endif
}

inline WaitEventSet *make_wait_set(int events) {
#if PG_VERSION_NUM >= 170000
  return CreateWaitEventSet(nullptr, events);
#else
  return CreateWaitEventSet(CurrentMemoryContext, events);
#endif
}

}  // namespace snowflake::pg
