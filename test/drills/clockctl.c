/* Sets the clock of all processes that run under clockshim.so. Every change of the offset is also
 * appended to PAGE.log, "before after offset": CLOCK_MONOTONIC around it, and the new value, all in
 * ns. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

#include "clock_page.h"

static struct clock_page *page;
static FILE *history;

static void fail(const char *what) {
  fprintf(stderr, "clockctl: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void usage(void) {
  fputs(
      "usage: clockctl PAGE init\n"
      "       clockctl PAGE set SECONDS [kill SIGNAL PID...]    off the true time by so much\n"
      "       clockctl PAGE step SECONDS [kill SIGNAL PID...]   by so much from where it is\n"
      "       clockctl PAGE strobe SECONDS PERIOD TIMES         forth and back, PERIOD apart\n"
      "       clockctl PAGE slew RATE SECONDS                   0.08: 8% too fast for so long\n"
      "       clockctl PAGE sync real|good|never|EPERM          what ntp_adjtime() says\n"
      "       clockctl PAGE sync OFFSET_US ESTERROR_US MAXERROR_US STATUS\n"
      "       clockctl PAGE show\n"
      "A signal follows a step within some us. A step ends a faked synchronisation, as in the\n"
      "kernel, unless CLOCKCTL_VOUCHED is set.\n",
      stderr);
  exit(2);
}

static int64_t monotonic_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int64_t ns_of(const char *seconds) {
  char *end;
  const double value = strtod(seconds, &end);
  if (end == seconds || *end != '\0') usage();
  return (int64_t)(value * 1e9 + (value < 0 ? -0.5 : 0.5));
}

static void sync_as(int64_t offset, int64_t estimated, int64_t most, int status) {
  atomic_store(&page->ntp_offset_us, offset);
  atomic_store(&page->ntp_estimated_error_us, estimated);
  atomic_store(&page->ntp_max_error_us, most);
  atomic_store(&page->ntp_status, status);
  atomic_store(&page->ntp_mode, kNtpFake);
}

static void never_synchronised(void) { sync_as(0, 16000000, 16000000, STA_UNSYNC); }

static void set_offset(int64_t ns) {
  const int64_t before = monotonic_ns();
  atomic_store_explicit(&page->offset_ns, ns, memory_order_release);
  const int64_t after = monotonic_ns();
  fprintf(history, "%lld %lld %lld\n", (long long)before, (long long)after, (long long)ns);
}

static void step_to(int64_t ns) {
  if (atomic_load(&page->ntp_mode) == kNtpFake && getenv("CLOCKCTL_VOUCHED") == NULL)
    never_synchronised();
  set_offset(ns);
}

static void sleep_ns(int64_t ns) {
  const struct timespec t = {ns / 1000000000, ns % 1000000000};
  nanosleep(&t, NULL);
}

/* "kill SIGNAL PID...", or nothing. */
static void kill_all(int count, char **words) {
  if (count == 0) return;
  if (count < 2 || strcmp(words[0], "kill") != 0) usage();
  for (int i = 2; i < count; i++) kill((pid_t)atol(words[i]), atoi(words[1]));
}

int main(int argc, char **argv) {
  if (argc < 3) usage();
  const char *path = argv[1], *verb = argv[2];
  const int left = argc - 3;
  char **rest = argv + 3;

  const int fd = open(path, O_RDWR | O_CREAT, 0644);
  if (fd < 0 || ftruncate(fd, kClockPageBytes) != 0) fail(path);
  page = mmap(NULL, kClockPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) fail(path);
  char log[4096];
  snprintf(log, sizeof log, "%s.log", path);
  history = fopen(log, "a");
  if (history == NULL) fail(log);
  const int64_t now = atomic_load(&page->offset_ns);

  if (strcmp(verb, "init") == 0 && left == 0) {
    set_offset(0);
  } else if (strcmp(verb, "set") == 0 && left >= 1) {
    step_to(ns_of(rest[0]));
    kill_all(left - 1, rest + 1);
  } else if (strcmp(verb, "step") == 0 && left >= 1) {
    step_to(now + ns_of(rest[0]));
    kill_all(left - 1, rest + 1);
  } else if (strcmp(verb, "strobe") == 0 && left == 3) {
    const int64_t by = ns_of(rest[0]), period = ns_of(rest[1]);
    for (long n = 0; n < atol(rest[2]); n++) {
      step_to(n % 2 == 0 ? now + by : now - by);
      sleep_ns(period);
    }
    step_to(now);
  } else if (strcmp(verb, "slew") == 0 && left == 2) {
    /* In steps of 5 ms; no kernel ends a synchronisation for that. */
    const double rate = (double)ns_of(rest[0]) / 1e9;
    const int64_t start = monotonic_ns(), upto = ns_of(rest[1]);
    for (int64_t passed = 0; passed < upto; passed = monotonic_ns() - start) {
      set_offset(now + (int64_t)(rate * (double)passed));
      sleep_ns(5000000);
    }
  } else if (strcmp(verb, "sync") == 0 && left == 4) {
    sync_as(atoll(rest[0]), atoll(rest[1]), atoll(rest[2]), atoi(rest[3]));
  } else if (strcmp(verb, "sync") == 0 && left == 1) {
    if (strcmp(rest[0], "real") == 0) {
      atomic_store(&page->ntp_mode, kNtpReal);
    } else if (strcmp(rest[0], "good") == 0) {
      sync_as(0, 500, 20000, 0);
    } else if (strcmp(rest[0], "never") == 0) {
      never_synchronised();
    } else if (strcmp(rest[0], "EPERM") == 0) {
      atomic_store(&page->ntp_errno, EPERM);
      atomic_store(&page->ntp_mode, kNtpError);
    } else {
      usage();
    }
  } else if (strcmp(verb, "show") == 0 && left == 0) {
    printf("offset_s=%.9f sync=%d offset_us=%lld esterror_us=%lld maxerror_us=%lld status=%d\n",
           (double)now / 1e9, atomic_load(&page->ntp_mode),
           (long long)atomic_load(&page->ntp_offset_us),
           (long long)atomic_load(&page->ntp_estimated_error_us),
           (long long)atomic_load(&page->ntp_max_error_us), atomic_load(&page->ntp_status));
  } else {
    usage();
  }
  if (fclose(history) != 0) fail(log);
  return 0;
}
