#include "pg/shmem.hpp"

#include <sys/mman.h>

namespace snowflake::pg {

Surviving *surviving;
Shared *shared;
LWLock *status_lock;

namespace {

constexpr const char *kName = "snowflake";

shmem_startup_hook_type earlier_startup_hook;

Size shared_size() {
  return add_size(offsetof(Shared, counters),
                  mul_size(static_cast<Size>(process_slots()), sizeof(Counters)));
}

void request() {
  RequestAddinShmemSpace(add_size(shared_size(), alignof(Shared)));
  RequestNamedLWLockTranche(kName, 1);
}

#if PG_VERSION_NUM >= 150000
shmem_request_hook_type earlier_request_hook;

void on_request() {
  if (earlier_request_hook) earlier_request_hook();
  request();
}
#endif

void on_startup() {
  if (earlier_startup_hook) earlier_startup_hook();
  // At server start, and again after a crash, when every child is gone: a new life must claim before
  // anyone mints. `last` stays.
  surviving->generator.withdraw();

  LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
  bool found;
  void *raw = ShmemInitStruct(kName, add_size(shared_size(), alignof(Shared)), &found);
  shared = reinterpret_cast<Shared *>(TYPEALIGN(alignof(Shared), raw));
  status_lock = &GetNamedLWLockTranche(kName)->lock;
  if (!found) {
    memset(static_cast<void *>(shared), 0, shared_size());
    shared->slots = process_slots();
  }
  LWLockRelease(AddinShmemInitLock);
}

}  // namespace

void request_shared_memory() {
  // Postgres has no shared memory of its own that outlives a crash of a child.
  void *page = mmap(nullptr, sizeof(Surviving), PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED)
    ereport(FATAL, (errcode(ERRCODE_OUT_OF_MEMORY),
                    errmsg("could not map %zu bytes of shared memory: %m", sizeof(Surviving))));
  surviving = static_cast<Surviving *>(page);

#if PG_VERSION_NUM >= 150000
  earlier_request_hook = shmem_request_hook;
  shmem_request_hook = on_request;
#else
  request();
#endif
  earlier_startup_hook = shmem_startup_hook;
  shmem_startup_hook = on_startup;
}

Counters &my_counters() {
  static Counters *mine;
  if (unlikely(mine == nullptr)) mine = &shared->counters[process_slot() % shared->slots];
  return *mine;
}

void read_status(WorkerStatus *out) {
  LWLockAcquire(status_lock, LW_SHARED);
  *out = shared->status;
  LWLockRelease(status_lock);
}

}  // namespace snowflake::pg
