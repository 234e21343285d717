/* LD_PRELOAD library: the time of day of a whole instance, moved at will.
 *
 * CLOCKSHIM_PAGE names the file of a clock_page, made by clockctl. Its offset is added to
 * CLOCK_REALTIME in every process that was started with this library, at the same moment in all of
 * them, as a kernel steps its clock. CLOCK_MONOTONIC and CLOCK_BOOTTIME are left alone, as a kernel
 * leaves them. A read costs some ns more. ntp_adjtime() tells what the page says.
 *
 * What waits for an absolute CLOCK_REALTIME in the kernel (timerfd, sem_timedwait) does not see the
 * offset; Postgres has no such waits. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#include "clock_page.h"

/* The library's own declarations say that these never see a null pointer; callers do pass one. */
#pragma GCC diagnostic ignored "-Wnonnull-compare"

static struct clock_page *page;
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_adjtimex)(struct timex *);

static void find_real(void) {
  /* POSIX's way to turn what dlsym returns into a function. */
  *(void **)&real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
  *(void **)&real_adjtimex = dlsym(RTLD_NEXT, "adjtimex");
}

__attribute__((constructor)) static void map_page(void) {
  if (real_clock_gettime == NULL) find_real();
  const char *path = getenv("CLOCKSHIM_PAGE");
  if (path == NULL) return;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  void *mapped = fd < 0 ? MAP_FAILED : mmap(NULL, kClockPageBytes, PROT_READ, MAP_SHARED, fd, 0);
  if (fd >= 0) close(fd);
  if (mapped == MAP_FAILED) {
    /* A test that believes it owns the clock and does not is worth nothing. */
    static const char text[] = "clockshim: the file of CLOCKSHIM_PAGE can't be mapped\n";
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(126);
    _exit(126);
  }
  page = mapped;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
  /* Other libraries' constructors may run before ours. */
  if (__builtin_expect(real_clock_gettime == NULL, 0)) find_real();
  const int result = real_clock_gettime(clock, t);
  if (page == NULL || result != 0 || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
    return result;
  const int64_t ns = t->tv_sec * INT64_C(1000000000) + t->tv_nsec +
                     atomic_load_explicit(&page->offset_ns, memory_order_acquire);
  t->tv_sec = ns / 1000000000;
  t->tv_nsec = ns % 1000000000;
  return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
  if (zone != NULL) memset(zone, 0, sizeof(struct timezone));
  if (t == NULL) return 0;
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec;
  t->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *t) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (t != NULL) *t = now.tv_sec;
  return now.tv_sec;
}

int timespec_get(struct timespec *t, int base) {
  if (base != TIME_UTC) return 0;
  clock_gettime(CLOCK_REALTIME, t);
  return base;
}

int adjtimex(struct timex *t) {
  if (real_adjtimex == NULL) find_real();
  const int mode = page == NULL ? kNtpReal : atomic_load(&page->ntp_mode);
  if (mode == kNtpReal || t->modes != 0) return real_adjtimex(t);
  if (mode == kNtpError) {
    errno = atomic_load(&page->ntp_errno);
    return -1;
  }
  memset(t, 0, sizeof *t);
  t->offset = atomic_load(&page->ntp_offset_us);
  t->esterror = atomic_load(&page->ntp_estimated_error_us);
  t->maxerror = atomic_load(&page->ntp_max_error_us);
  t->status = atomic_load(&page->ntp_status);
  gettimeofday(&t->time, NULL);
  return (t->status & STA_UNSYNC) != 0 ? TIME_ERROR : TIME_OK;
}

int ntp_adjtime(struct timex *t) { return adjtimex(t); }
