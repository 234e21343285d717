/* The page of memory by which a test owns the clock of an instance: a file that clockshim.so maps
 * into every process of it, and that clockctl writes. */
#ifndef CLOCK_PAGE_H
#define CLOCK_PAGE_H

#include <stdatomic.h>
#include <stdint.h>

enum { kClockPageBytes = 4096 };

/* Which discipline of the clock ntp_adjtime() shows. */
enum { kNtpReal = 0, kNtpFake = 1, kNtpError = 2 };

struct clock_page {
  /* Added to CLOCK_REALTIME. One word, so all processes step at the same moment. */
  _Atomic int64_t offset_ns;
  /* A step of a disciplined clock is written here first: whoever has seen the step sees that the
   * clock is not synchronised any more, as the kernel does it. */
  _Atomic int32_t ntp_mode;
  _Atomic int32_t ntp_errno;
  _Atomic int32_t ntp_status; /* STA_NANO is never set: offset is in us */
  _Atomic int64_t ntp_offset_us;
  _Atomic int64_t ntp_estimated_error_us;
  _Atomic int64_t ntp_max_error_us;
};

#endif
