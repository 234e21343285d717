// The entry points that Postgres calls to load the library and to start the background worker.
#include "pg/pg.hpp"
#include "pg/settings.hpp"
#include "pg/shmem.hpp"
#include "pg/worker.hpp"

extern "C" {

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);
PGDLLEXPORT void snowflake_worker_main(Datum);

void _PG_init(void) {
  using namespace snowflake::pg;
  // In a session there is nothing to set up: decoding needs nothing, minting says what to do.
  if (!process_shared_preload_libraries_in_progress) return;
  define_settings();
  // pg_upgrade starts the server too, and must neither claim nor mint.
  if (IsBinaryUpgrade) return;
  request_shared_memory();

  BackgroundWorker worker;
  memset(&worker, 0, sizeof worker);
  worker.bgw_flags = BGWORKER_SHMEM_ACCESS;
  // Also on a standby: it waits there for promotion, or mints if it may.
  worker.bgw_start_time = BgWorkerStart_ConsistentState;
  worker.bgw_restart_time = 1;
  strlcpy(worker.bgw_library_name, "snowflake", sizeof worker.bgw_library_name);
  strlcpy(worker.bgw_function_name, "snowflake_worker_main", sizeof worker.bgw_function_name);
  strlcpy(worker.bgw_name, "snowflake worker", sizeof worker.bgw_name);
  strlcpy(worker.bgw_type, "snowflake worker", sizeof worker.bgw_type);
  RegisterBackgroundWorker(&worker);
}

void snowflake_worker_main(Datum) {
  using namespace snowflake::pg;
  const WorkerContext context = {{}, &settings, shared, status_lock, surviving};
  const auto run = reinterpret_cast<WorkerRun>(
      load_external_function(kWorkerLibrary, kWorkerFunction, true, nullptr));
  run(&context);
  // Exit 0 would unregister the worker for ever.
  proc_exit(1);
}

}  // extern "C"
