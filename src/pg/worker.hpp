// The background worker's library, apart from the one that backends load: it brings libcurl, and
// with it some thirty libraries.
#pragma once

#include "pg/settings.hpp"
#include "pg/shmem.hpp"

namespace snowflake::pg {

/// What the two libraries must agree on. `make install` under a running server replaces both files, but
/// only the worker's is loaded anew when the worker is: it must not write into a layout of before.
struct Layout {
  /// To be raised when what is shared changes its meaning and not its size.
  uint32_t version = 1;
  uint32_t sizes[4] = {sizeof(Settings), sizeof(Shared), sizeof(Counters), sizeof(Surviving)};
  friend bool operator==(const Layout &, const Layout &) = default;
};

/// What the worker's library is handed by the other one, which owns it.
struct WorkerContext {
  Layout layout;  // the first for ever
  const Settings *settings;
  Shared *shared;
  LWLock *status_lock;
  Surviving *surviving;
};

inline constexpr const char *kWorkerLibrary = "$libdir/snowflake_worker";
inline constexpr const char *kWorkerFunction = "snowflake_worker_run";
using WorkerRun = void (*)(const WorkerContext *);

}  // namespace snowflake::pg
