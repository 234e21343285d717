// The background worker's library, apart from the one that backends load: it brings libcurl, and
// with it some thirty libraries.
#pragma once

#include "pg/settings.hpp"
#include "pg/shmem.hpp"

namespace snowflake::pg {

/// What the worker's library is handed by the other one, which owns it.
struct WorkerContext {
  const Settings *settings;
  Shared *shared;
  LWLock *status_lock;
  Surviving *surviving;
};

inline constexpr const char *kWorkerLibrary = "$libdir/snowflake_worker";
inline constexpr const char *kWorkerFunction = "snowflake_worker_run";
using WorkerRun = void (*)(const WorkerContext *);

}  // namespace snowflake::pg
