/* LD_PRELOAD library: a name server that does not answer.
 *
 * A look-up of hangs.invalid takes SLOWDNS_SECONDS (60) and then fails, as with name servers that can't
 * be reached; all other names are looked up as ever. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int getaddrinfo(const char *restrict node, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict found) {
  if (node != NULL && strcmp(node, "hangs.invalid") == 0) {
    const char *seconds = getenv("SLOWDNS_SECONDS");
    struct timespec left = {seconds != NULL ? atol(seconds) : 60, 0};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
    return EAI_AGAIN;
  }
  int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
  /* POSIX's way to turn what dlsym returns into a function. */
  *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
  return real(node, service, hints, found);
}
