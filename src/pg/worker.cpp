// The background worker: drives the lease over the network, and publishes what it confirms.
//
// One latch loop, which never blocks on the network. Signals stay blocked while libcurl is driven,
// since it may start a resolver thread, which inherits the mask and must run no handler of ours.
#include "pg/worker.hpp"

#include <sys/timex.h>
#include <unistd.h>

#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <string>

#include "core/clock_guard.hpp"
#include "core/lease.hpp"
#include "etcd/client.hpp"
#include "etcd/endpoint.hpp"
#include "pg/guard.hpp"

namespace snowflake::pg {
namespace {

/// A stop waits so long for etcd to take the number back.
constexpr int64_t kFarewellMs = 1500;
/// Between looks at what no signal tells: the end of recovery, the kernel's clock.
constexpr int64_t kLookMs = 250;
/// The loop is not left alone for longer, for no reason but caution.
constexpr int64_t kLongestMs = 60 * 1000;
/// An outage of etcd is logged when it begins, when it ends, and so often in between.
constexpr int64_t kRepeatMs = 60 * 1000;
/// Where the kernel is not asked, an answer of etcd whose Date is this near vouches for the clock.
constexpr int64_t kDateMs = 2000;
/// A warning is due when less than this is left before the mark (or half of a short reserve).
constexpr int64_t kWarnMs = 10 * 1000;

/// Three renewals must fit the reserve, or it would run out between two of them.
int64_t beat_ms(const Settings &settings) {
  return std::min<int64_t>(settings.renew_interval_ms, settings.reserve_ms / 3);
}

/// Everything that the loop keeps. Made once, never destroyed: Postgres leaves this process by
/// longjmp and exit.
struct Agent {
  const WorkerContext *context;
  Lease lease;
  etcd::Client *client = nullptr;  // null: no endpoints yet
  bool reload = true;              // the client is to be made anew from the settings
  Phase phase = Phase::kStarting;
  WorkerStatus status = {};
  KernelClock kernel = {};
  ClockGuard guard;
  bool jumped = false;             // as far as it has been logged
  uint64_t rollbacks = 0;          // likewise
  int64_t standby_read_at = 0;    // boot ms
  bool standby = true;
  RequestKind sent = RequestKind::kNone;  // the last request
  uint64_t losses = 0;             // as far as they have been logged
  int skipped = -1;                // likewise
  bool failing = false;           // etcd has not answered since failing_since
  int64_t failing_since = 0;      // boot ms, as the next
  int64_t failure_logged_at = 0;
  bool started = false;           // the lease of an earlier life is handed to `lease`
  uint64_t obeying = 0;           // serial of the command under way
  bool warned = false;            // of a mark that comes near
  bool fenced = false;            // the log says that the reserve is used up
  bool behind = false;            // the log says that the clock was set back
  char fault[512] = "";           // of contain()

  explicit Agent(const WorkerContext *c)
      : context(c),
        lease({c->settings->region, c->settings->reserve_ms, beat_ms(*c->settings)}),
        guard(c->surviving->generator.clock_offset_ms.load(std::memory_order_relaxed)) {}
};

/// Drives C++ that uses libcurl, with all signals blocked. What it throws ends this process; the
/// next one starts within a second and revokes the lease.
template <class Work>
void drive(Agent *agent, Work &&work) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const bool good = contain(agent->fault, work);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!good)
    ereport(FATAL, (errcode(ERRCODE_INTERNAL_ERROR), errmsg("snowflake worker: %s", agent->fault)));
}

KernelClock read_kernel_clock() {
  timex t;
  memset(&t, 0, sizeof t);
  if (ntp_adjtime(&t) < 0) return {};
  const int64_t unit = (t.status & STA_NANO) != 0 ? 1000 : 1;
  return {true, t.offset / unit, t.esterror, t.maxerror};
}

/// Tells backends which clock is believed, and the log when it changes.
void take_guard(Agent *agent) {
  agent->context->surviving->generator.clock_offset_ms.store(agent->guard.offset_ms(),
                                                             std::memory_order_relaxed);
  const int64_t jump = agent->guard.jumped_ms();
  if ((jump != 0) == agent->jumped) return;
  agent->jumped = jump != 0;
  if (agent->jumped)
    ereport(WARNING, (errmsg("the clock jumped ahead by %.3f s; snowflake does not believe it",
                             static_cast<double>(jump) / 1000),
                      errhint("Minting goes on when it is set back, or vouched for by the kernel's time "
                              "discipline or, where that is not asked, by etcd.")));
  else
    ereport(LOG, (errmsg("snowflake believes the clock again")));
}

/// Reads the clocks. The wall clock is what is believed of it: all that the lease decides, it
/// decides by that.
Times look(Agent *agent) {
  const Times now = {wall_now(), boot_now()};
  agent->kernel = read_kernel_clock();
  const int64_t limit_us = int64_t{agent->context->settings->max_clock_error_ms} * 1000;
  // The first look at a time that no ID can carry is nothing to hold later ones against.
  if (agent->guard.offset_ms() != 0 || in_layout(now.wall))
    agent->guard.observe(
        now, limit_us != 0 && judge_clock(agent->kernel, limit_us) == ClockVerdict::kGood);
  take_guard(agent);
  return {agent->guard.believed(now), now.boot};
}

void publish_status(Agent *agent) {
  WorkerStatus &status = agent->status;
  const Lease &lease = agent->lease;
  status.phase = agent->phase;
  status.lease_id = lease.lease();
  status.worker = lease.worker();
  status.claims = static_cast<int64_t>(lease.claims());
  status.clock_error_us = agent->kernel.readable && agent->kernel.max_error_us < kNeverSynchronisedUs
                              ? clock_error_us(agent->kernel)
                              : -1;
  LWLockAcquire(agent->context->status_lock, LW_EXCLUSIVE);
  agent->context->shared->status = status;
  LWLockRelease(agent->context->status_lock);
  // In memory that the next life finds, before a claim can be made with it.
  if (agent->started)
    agent->context->surviving->lease.store(lease.lease(), std::memory_order_release);
}

void set_phase(Agent *agent, Phase phase) {
  if (agent->phase == phase) return;
  agent->phase = phase;
  switch (phase) {
    case Phase::kStarting:
      break;
    case Phase::kDisabled:
      ereport(LOG, (errmsg("snowflake mints no IDs: \"snowflake.etcd_endpoints\" is empty")));
      break;
    case Phase::kStandby:
      ereport(LOG, (errmsg("snowflake mints no IDs while this server is a standby")));
      break;
    case Phase::kClockUnsafe:
      ereport(LOG, (errmsg("snowflake waits for a clock that is good enough"),
                    errdetail("%s", agent->status.reason)));
      break;
    case Phase::kClaiming:
      ereport(LOG, (errmsg("snowflake is claiming a worker number in region %d",
                           agent->context->settings->region)));
      break;
    case Phase::kQuarantined:
      ereport(LOG,
              (errmsg("snowflake mints no new worker number before %s",
                      timestamptz_to_str(agent->status.quarantined_until)),
               errdetail("Nothing shows that etcd remembers all that it has confirmed: it may be new, "
                         "wiped, or restored from a backup."),
               errhint("If it never held IDs of region %d, SELECT snowflake_init_region() ends the "
                       "pause.",
                       agent->context->settings->region)));
      break;
    case Phase::kNoWorkerFree:
      ereport(LOG, (errmsg("no worker number is free in region %d",
                           agent->context->settings->region)));
      break;
    case Phase::kHolding:
      break;  // said with its figures when it is published
  }
}

/// The text for a clock that can't be started from; "" when it can.
void judge_clock_now(Agent *agent, Times now) {
  char *reason = agent->status.reason;
  constexpr size_t kSize = sizeof agent->status.reason;
  reason[0] = '\0';
  if (!in_layout(now.wall)) {
    snprintf(reason, kSize, "The clock shows %s, a time that no ID can carry.",
             timestamptz_to_str(timestamp_of_unix_ms(now.wall.unix_ms)));
    return;
  }
  const int limit_ms = agent->context->settings->max_clock_error_ms;
  const KernelClock &k = agent->kernel;
  switch (judge_clock(k, int64_t{limit_ms} * 1000)) {
    case ClockVerdict::kGood:
      break;
    case ClockVerdict::kUnreadable:
      snprintf(reason, kSize, "The kernel does not let this process read its clock's state "
                              "(ntp_adjtime).");
      break;
    case ClockVerdict::kNeverSynchronised:
      snprintf(reason, kSize, "The kernel says that its clock was never synchronised (maximum error "
                              "%.0f s).",
               static_cast<double>(k.max_error_us) / 1e6);
      break;
    case ClockVerdict::kTooUncertain:
      snprintf(reason, kSize, "The kernel's clock has an estimated error of %.3f ms and a maximum "
                              "error of %.3f ms; \"snowflake.max_clock_error\" allows %d ms, and "
                              "%.0f ms.",
               static_cast<double>(clock_error_us(k)) / 1e3,
               static_cast<double>(k.max_error_us) / 1e3, limit_ms,
               static_cast<double>(kMaxErrorUs) / 1e3);
      break;
  }
}

/// Makes the client anew from the settings, files read again. Needs endpoints.
void configure_client(Agent *agent) {
  drive(agent, [agent] {
    const Settings &from = *agent->context->settings;
    etcd::ClientSettings to;
    std::string fault;
    to.endpoints = etcd::parse_endpoints(from.etcd_endpoints, &fault);
    to.names = {from.etcd_prefix, from.region, from.holder, from.lease_ttl_s};
    to.tls = {from.etcd_cacert, from.etcd_cert, from.etcd_key};
    to.user = from.etcd_user;
    to.password_file = from.etcd_password_file;
    delete agent->client;
    agent->client = nullptr;
    agent->client = new etcd::Client(std::move(to));
  });
  agent->reload = false;
}

/// In the data directory: a hint that a copy of it may carry.
constexpr const char *kLastMarkFile = "snowflake_last_mark";

/// What a clean stop left, once: it speaks of the next start only.
LastMark take_last_mark() {
  LastMark mark;
  FILE *file = fopen(kLastMarkFile, "r");
  if (file == nullptr) return {};
  char end = '\0';
  const bool whole = fscanf(file, "%d %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 "%c", &mark.worker,
                            &mark.unix_ms, &mark.mod_revision, &mark.term, &mark.surplus,
                            &end) == 6 &&
                     end == '\n';
  fclose(file);
  unlink(kLastMarkFile);
  return whole && mark.worker >= 0 && mark.worker < kWorkers ? mark : LastMark{};
}

void leave_last_mark(const LastMark &mark, int reserve_ms) {
  FILE *file = fopen(kLastMarkFile, "w");
  const bool good = file != nullptr &&
                    fprintf(file, "%d " INT64_FORMAT " " INT64_FORMAT " " INT64_FORMAT
                            " " INT64_FORMAT "\n",
                            mark.worker, mark.unix_ms, mark.mod_revision, mark.term,
                            mark.surplus) > 0;
  if (file != nullptr && fclose(file) == 0 && good) return;
  ereport(LOG, (errmsg("could not write file \"%s\": %m", kLastMarkFile),
                errdetail("The next start may have to wait for %d s before it mints.",
                          static_cast<int>((reserve_ms + kForgottenMs) / 1000))));
}

/// Decides whether to mint, wait or give back, by settings, recovery and the kernel's clock.
void steer(Agent *agent, Times now) {
  const Settings &settings = *agent->context->settings;
  const bool enabled = settings.etcd_endpoints[0] != '\0';

  if (agent->standby && now.boot.ms - agent->standby_read_at >= kLookMs) {
    agent->standby = RecoveryInProgress();
    agent->standby_read_at = now.boot.ms;
  }

  const bool standing_by = agent->standby && !settings.on_standby;
  const bool watching = agent->lease.state() == Lease::State::kWatching;
  if (!enabled || standing_by) {
    // No ID from now on, and the number is for others. The client of before does the revoking.
    agent->context->surviving->generator.withdraw();
    if (!enabled || !watching) agent->lease.release();
    strlcpy(agent->status.reason,
            enabled ? "The server is in recovery, and \"snowflake.on_standby\" is off."
                    : "\"snowflake.etcd_endpoints\" is empty.",
            sizeof agent->status.reason);
    agent->status.claimed_at = 0;
    set_phase(agent, enabled ? Phase::kStandby : Phase::kDisabled);
    if (!enabled || agent->lease.state() == Lease::State::kReleasing) return;
  }
  if (agent->reload && (agent->client == nullptr || !agent->client->busy()))
    configure_client(agent);
  if (standing_by) {
    if (agent->client != nullptr) agent->lease.watch();
    return;
  }
  if (agent->lease.state() != Lease::State::kIdle && !watching) return;

  judge_clock_now(agent, now);
  if (agent->status.reason[0] != '\0') return set_phase(agent, Phase::kClockUnsafe);
  if (agent->client == nullptr) return;
  agent->lease.start(agent->context->surviving->lease.load(std::memory_order_acquire),
                     take_last_mark());
  agent->started = true;
  set_phase(agent, Phase::kClaiming);
}

void note_failure(Agent *agent, const char *text, Times now) {
  WorkerStatus &status = agent->status;
  const bool anew = !agent->failing;
  if (anew) agent->failing_since = now.boot.ms;
  agent->failing = true;
  strlcpy(status.last_error, text, sizeof status.last_error);
  status.last_error_at = GetCurrentTimestamp();
  if (!anew && now.boot.ms - agent->failure_logged_at < kRepeatMs) return;
  agent->failure_logged_at = now.boot.ms;
  const int64_t fence = agent->context->surviving->generator.fence_ms();
  if (fence + kEpochUnixMs <= now.wall.unix_ms)
    ereport(LOG, (errmsg("snowflake gets no answer from etcd that it can use"),
                  errdetail("%s", text)));
  else
    ereport(LOG, (errmsg("snowflake gets no answer from etcd that it can use"),
                  errdetail("%s", text),
                  errhint("IDs can be minted until %s.",
                          timestamptz_to_str(timestamp_of_unix_ms(fence + kEpochUnixMs)))));
}

void note_success(Agent *agent, Times now) {
  if (!agent->failing) return;
  agent->failing = false;
  ereport(LOG, (errmsg("snowflake reaches etcd again, after %.1f s",
                       static_cast<double>(now.boot.ms - agent->failing_since) / 1000)));
}

void take_reply(Agent *agent, Times now) {
  Reply reply;
  bool there = false;
  char error[512] = "";
  drive(agent, [&] {
    std::string text;
    there = agent->client->take_reply(&reply, &text);
    snprintf(error, sizeof error, "%s", text.c_str());
  });
  if (!there) return;

  if (!reply.failed && reply.date_unix_ms != 0 &&
      agent->context->settings->max_clock_error_ms == 0 &&
      std::abs(wall_now().unix_ms - reply.date_unix_ms) <= kDateMs) {
    agent->guard.observe({wall_now(), boot_now()}, true);
    take_guard(agent);
  }
  const Lease::State asked_in = agent->lease.state();
  agent->lease.on_reply(reply, now);
  // A success is one only when a whole quorum has taken part in a write, else the log would fill
  // with the comings and goings of an etcd that answers reads or keepalives alone.
  if (!reply.failed && agent->sent == RequestKind::kRaise && agent->lease.mark() != 0)
    agent->status.last_renewal = GetCurrentTimestamp();
  if (reply.failed) {
    if (asked_in == Lease::State::kHolding) agent->status.renewal_failures++;
    note_failure(agent, error, now);
  } else if (agent->sent == RequestKind::kRaise || agent->lease.none_free() ||
             asked_in == Lease::State::kWatching) {
    note_success(agent, now);
  }
}

/// Hands to backends what etcd has confirmed.
void publish(Agent *agent, Times now) {
  const Publication news = agent->lease.publication(now);
  if (news.kind == Publication::kNothing) return;
  Generator &generator = agent->context->surviving->generator;
  if (news.kind == Publication::kInstall) {
    generator.install(news.node, news.floor_ms, news.mark_ms);
    agent->status.claimed_at = GetCurrentTimestamp();
    ereport(LOG, (errmsg("snowflake mints as worker number %d of region %d", worker_of(news.node),
                         region_of(news.node))));
  } else {
    generator.raise_fence(news.mark_ms);
    if (agent->fenced) ereport(LOG, (errmsg("snowflake mints again")));
  }
  agent->fenced = agent->warned = false;
}

constexpr const char *kBadNotBefore =
    "The key not_before in etcd is no number, or a day or more ahead.";

/// The worker's phase as the lease stands, and what the log should say of it.
void follow_lease(Agent *agent, Times now) {
  const Lease &lease = agent->lease;
  if (lease.losses() != agent->losses) {
    agent->losses = lease.losses();
    ereport(LOG, (errmsg("snowflake lost its worker number: the claim in etcd is gone or another's"),
                  errdetail("What is reserved of it goes on to be used.")));
  }
  if (lease.rollbacks() != agent->rollbacks) {
    agent->rollbacks = lease.rollbacks();
    ereport(WARNING, (errmsg("etcd has forgotten what it had confirmed to snowflake"),
                      errdetail("It was restored from a backup, wiped, replaced, or its keys were changed "
                                "by hand. Worker numbers claimed from now on start later than all that "
                                "it can have forgotten.")));
  }
  if (lease.skipped() != agent->skipped) {
    agent->skipped = lease.skipped();
    if (agent->skipped >= 0)
      ereport(WARNING,
              (errmsg("snowflake skips worker number %d of region %d", agent->skipped,
                      agent->context->settings->region),
               errdetail("Its mark in etcd is no number, or a day or more ahead of this clock."),
               errhint("Look at the key marks/%03d, and at the clocks of the fleet.",
                       agent->skipped)));
  }
  char *reason = agent->status.reason;
  constexpr size_t kSize = sizeof agent->status.reason;
  switch (lease.state()) {
    case Lease::State::kIdle:
    case Lease::State::kWatching:
    case Lease::State::kReleasing:
      break;
    case Lease::State::kRevoking:
    case Lease::State::kReading:
    case Lease::State::kGranting:
    case Lease::State::kClaiming:
      reason[0] = '\0';
      if (lease.bad_not_before())
        strlcpy(reason, kBadNotBefore, kSize);
      if (lease.none_free())
        strlcpy(reason, "All worker numbers are held by others, or have a mark that can't be trusted.",
                kSize);
      set_phase(agent, lease.none_free() ? Phase::kNoWorkerFree : Phase::kClaiming);
      break;
    case Lease::State::kWarning:
      strlcpy(reason, "The key not_before is being raised in etcd.", kSize);
      break;
    case Lease::State::kWitnessing:
      reason[0] = '\0';
      if (lease.quarantined_until().ms == 0) break;
      if (agent->phase != Phase::kQuarantined)
        agent->status.quarantined_until = timestamp_of_unix_ms(
            now.wall.unix_ms + lease.quarantined_until().ms - now.boot.ms);
      snprintf(reason, kSize, "Worker number %d is claimed; nothing shows that etcd remembers all that "
                              "it has confirmed.",
               lease.worker());
      set_phase(agent, Phase::kQuarantined);
      break;
    case Lease::State::kHolding:
      reason[0] = '\0';
      if (lease.installed()) {
        set_phase(agent, Phase::kHolding);
        break;
      }
      if (lease.floor() - kMaxLeadMs > now.wall.unix_ms)
        snprintf(reason, kSize, "Worker number %d is claimed; its time is used up to %s.",
                 lease.worker(), timestamptz_to_str(timestamp_of_unix_ms(lease.floor())));
      set_phase(agent, Phase::kClaiming);
      break;
  }

  // A burst leads by no more than is allowed: this is a clock that was set back.
  // The clock last: backends move on meanwhile.
  const Generator &generator = agent->context->surviving->generator;
  const int64_t last = generator.last_ms();
  const int64_t lead = last + kEpochUnixMs - wall_now().unix_ms;
  if (lead > kMaxLeadMs)
    snprintf(reason, kSize, "The clock is %.3f s behind the last ID; 1 s is allowed.",
             static_cast<double>(lead) / 1000);
  if ((lead > kMaxLeadMs) != agent->behind) {
    agent->behind = lead > kMaxLeadMs;
    if (agent->behind)
      ereport(WARNING, (errmsg("the clock was set back: it is %.3f s behind the last snowflake ID",
                               static_cast<double>(lead) / 1000),
                        errhint("Minting goes on when no more than 1 s is left of it.")));
    else
      ereport(LOG, (errmsg("the clock has caught up with the last snowflake ID")));
  }

  const int64_t fence = generator.fence_ms();
  if (fence == 0) return;
  const int64_t left = fence + kEpochUnixMs - now.wall.unix_ms;
  if (left <= 0 && !agent->fenced) {
    agent->fenced = true;
    ereport(LOG, (errmsg("snowflake mints nothing: the reserved time is used up"),
                  errhint("It goes on by itself when etcd confirms a renewal.")));
  } else if (left > 0 && left < std::min<int64_t>(kWarnMs, agent->context->settings->reserve_ms / 2) &&
             !agent->warned) {
    agent->warned = true;
    ereport(WARNING, (errmsg("snowflake can mint for another %.1f s only",
                             static_cast<double>(left) / 1000),
                      errdetail("etcd has not confirmed a renewal since %s.",
                                timestamptz_to_str(agent->status.last_renewal)),
                      errhint("Check etcd; pg_stat_snowflake shows the last error.")));
  }
}

/// Waits until a signal, a socket or a deadline, then lets the client go on.
void wait_and_drive(Agent *agent, int64_t timeout_ms) {
  constexpr int kMaxSockets = 8;
  etcd::Client *client = agent->client;
  const bool network = client != nullptr && client->busy();
  const auto *sockets = network ? client->sockets().data() : nullptr;
  const int n =
      network ? static_cast<int>(std::min<size_t>(kMaxSockets, client->sockets().size())) : 0;
  if (network && client->timeout_ms() >= 0)
    timeout_ms = std::min<int64_t>(timeout_ms, client->timeout_ms());

  // Made anew each time: libcurl opens and closes sockets as it likes.
  WaitEventSet *set = make_wait_set(n + 2);
  AddWaitEventToSet(set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, nullptr);
  AddWaitEventToSet(set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, nullptr, nullptr);
  for (int i = 0; i < n; i++) {
    const uint32 events = (sockets[i].readable ? WL_SOCKET_READABLE : 0u) |
                          (sockets[i].writable ? WL_SOCKET_WRITEABLE : 0u);
    if (events != 0) AddWaitEventToSet(set, events, sockets[i].fd, nullptr, nullptr);
  }
  WaitEvent happened[kMaxSockets + 2];
  const int count = WaitEventSetWait(set, static_cast<long>(timeout_ms), happened,
                                     lengthof(happened), PG_WAIT_EXTENSION);
  FreeWaitEventSet(set);
  ResetLatch(MyLatch);
  if (!network) return;
  drive(agent, [&] {
    for (int i = 0; i < count; i++)
      if ((happened[i].events & (WL_SOCKET_READABLE | WL_SOCKET_WRITEABLE)) != 0)
        client->on_ready(happened[i].fd, (happened[i].events & WL_SOCKET_READABLE) != 0,
                         (happened[i].events & WL_SOCKET_WRITEABLE) != 0);
    if (client->timeout_ms() == 0) client->on_timeout();
  });
}

/// One turn of the loop: sends what is due, waits at most `longest_ms`, takes what has come.
void turn(Agent *agent, int64_t longest_ms) {
  Times now = look(agent);
  const Request request = agent->lease.next_request(now);
  if (request.kind != RequestKind::kNone) {
    agent->sent = request.kind;
    drive(agent, [&] {
      agent->client->send(request);
      strlcpy(agent->status.endpoint, agent->client->endpoint().c_str(),
              sizeof agent->status.endpoint);
    });
  }
  wait_and_drive(agent, std::clamp<int64_t>(agent->lease.wake_at(now).ms - now.boot.ms, 0,
                                            longest_ms));
  now = look(agent);
  if (agent->client != nullptr) take_reply(agent, now);
  publish(agent, now);
  follow_lease(agent, now);
  publish_status(agent);
}

/// Carries out what a superuser asks, as far as the lease lets it at this turn.
void obey(Agent *agent, Times now) {
  Command &command = agent->context->shared->command;
  LWLockAcquire(agent->context->status_lock, LW_SHARED);
  const Command asked = command;
  LWLockRelease(agent->context->status_lock);
  if (asked.kind == Command::kNone || asked.answered || now.boot.ms >= asked.until_boot_ms) return;
  const bool begun = agent->obeying == asked.serial;

  Lease &lease = agent->lease;
  const char *refusal = nullptr;
  switch (asked.kind) {
    case Command::kNone:
      return;
    case Command::kInitRegion:
      if (lease.state() == Lease::State::kWitnessing) {
        if (!begun) lease.vouch_for_empty_region();
        agent->obeying = asked.serial;
        if (lease.vouched_empty()) return;
        refusal = "the region holds marks or claims of others in etcd: it is not new";
      } else if (lease.state() != Lease::State::kHolding) {
        return;
      }
      break;
    case Command::kRaiseMarks:
      if (!begun) {
        if (lease.raise_all_marks(asked.until_unix_ms, now)) agent->obeying = asked.serial;
        return;
      }
      if (lease.state() == Lease::State::kWarning || lease.marks_to_raise() != 0) return;
      if (lease.state() != Lease::State::kHolding)
        refusal = "the worker number was lost before all marks were raised";
      break;
  }
  LWLockAcquire(agent->context->status_lock, LW_EXCLUSIVE);
  if (command.serial == asked.serial) {
    command.answered = true;
    command.good = refusal == nullptr;
    strlcpy(command.refusal, refusal == nullptr ? "" : refusal, sizeof command.refusal);
  }
  LWLockRelease(agent->context->status_lock);
}

/// Gives the number back, within a bounded time. The mark stays.
void farewell(Agent *agent) {
  if (const LastMark mark = agent->lease.last_mark(); mark.worker >= 0)
    leave_last_mark(mark, agent->context->settings->reserve_ms);
  agent->lease.release();
  const int64_t deadline = boot_now().ms + kFarewellMs;
  while (agent->lease.state() != Lease::State::kIdle && agent->client != nullptr) {
    const int64_t left = deadline - boot_now().ms;
    if (left <= 0) break;
    turn(agent, left);
  }
  publish_status(agent);
}

}  // namespace
}  // namespace snowflake::pg

extern "C" {

PG_MODULE_MAGIC;

PGDLLEXPORT void snowflake_worker_run(const snowflake::pg::WorkerContext *context);

/// Returns when the process is asked to stop.
void snowflake_worker_run(const snowflake::pg::WorkerContext *context) {
  using namespace snowflake::pg;
  if (context->layout != Layout{}) {
    ereport(WARNING, (errmsg("snowflake mints nothing until the server is restarted"),
                      errdetail("Another version of snowflake was installed while the server runs."),
                      errhint("Restart the server.")));
    proc_exit(0);  // not to be started again
  }
  pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
  pqsignal(SIGHUP, SignalHandlerForConfigReload);
  BackgroundWorkerUnblockSignals();
  // A reload before the handler was there is not lost.
  ConfigReloadPending = true;

  Agent *agent = nullptr;
  char fault[256] = "";
  if (!contain(fault, [&] {
        curl_global_init(CURL_GLOBAL_DEFAULT);
        agent = new Agent(context);
      }))
    ereport(FATAL, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("snowflake worker: %s", fault)));
  agent->status.pid = MyProcPid;

  while (!ShutdownRequestPending) {
    if (ConfigReloadPending) {
      ConfigReloadPending = false;
      ProcessConfigFile(PGC_SIGHUP);
      agent->reload = true;
      agent->lease.set_renew_interval(beat_ms(*context->settings));
    }
    const snowflake::Times now = look(agent);
    steer(agent, now);
    obey(agent, now);
    publish_status(agent);
    // While it holds a number its own beats wake it; else it looks around for what no signal tells.
    const bool looking = agent->phase == Phase::kStandby || agent->phase == Phase::kClockUnsafe;
    turn(agent, looking ? kLookMs : kLongestMs);
  }
  farewell(agent);
}

}  // extern "C"
