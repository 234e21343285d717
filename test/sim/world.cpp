#include "world.hpp"

namespace snowflake::sim {
namespace {

// As in pg/worker.cpp and etcd/client.cpp.
constexpr int64_t kFarewellMs = 1500;
constexpr int64_t kLookMs = 250;
constexpr int64_t kLongestMs = 60 * 1000;
constexpr int64_t kDateMs = 2000;
constexpr int64_t kClientTimeoutUs = 900 * 1000;
constexpr int64_t kStrictErrorUs = 10 * 1000;

/// More in one second than any state of the network explains: a loop that does not wait.
constexpr int kMostRequests = 60;
constexpr int kMostTurns = 400;

/// A jump of up to so much passes while IDs run ahead of the clock, which hides it from a call. Here it
/// is allowed on top of what can be followed, since a call may be frozen after such a reading.
constexpr int64_t kUnseenJumpMs = kMaxJumpMs + kMaxLeadMs;

enum Pc { kTop, kReadClocks, kLook, kAsk, kSend, kWait, kReadAgain, kLookAgain, kTake, kPublishing,
          kSecondWord, kNoteLease };

int64_t boot_in_call;
BootTime boot_clock_of_call() { return {boot_in_call}; }

const char *name_of(RequestKind kind) {
  constexpr const char *kNames[] = {"none",  "revoke",      "read region", "grant",      "claim",
                                    "keepalive", "raise", "raise not_before", "raise other",
                                    "status"};
  return kNames[static_cast<int>(kind)];
}

const char *name_of(Lease::State state) {
  constexpr const char *kNames[] = {"idle",       "watching", "revoking", "reading", "granting", "claiming",
                                    "witnessing", "holding",  "warning", "releasing"};
  return kNames[static_cast<int>(state)];
}

}  // namespace

World::World() {
  messages_.resize(512);
  events_.reserve(4096);
}

void World::note(int who, const char *format, ...) {
  char text[300];
  int at = std::snprintf(text, sizeof text, "%11.6f ", static_cast<double>(now_) / 1e6);
  at += who < 0 ? std::snprintf(text + at, sizeof text - static_cast<size_t>(at), "etcd  ")
                : std::snprintf(text + at, sizeof text - static_cast<size_t>(at), "i%d    ", who);
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text + at, sizeof text - static_cast<size_t>(at), format, arguments);
  va_end(arguments);
  trace_.push_back(text);
}
#define NOTE(...) \
  do { \
    if (tracing_) note(__VA_ARGS__); \
  } while (false)

void World::push(Us at, EventKind kind, int who, int sub, uint32_t ref) {
  events_.push_back({at, order_++, kind, static_cast<uint8_t>(who), static_cast<uint8_t>(sub), ref});
  std::push_heap(events_.begin(), events_.end());
}

bool World::run(uint64_t seed, bool beyond, bool trace) {
  beyond_ = beyond;
  tracing_ = trace;
  trace_.clear();
  make_schedule(seed, beyond, &schedule_);
  random_ = Random(seed ^ 0x5eed);
  begin();
  while (!events_.empty() && !done_ && checker_.failure().empty()) {
    std::pop_heap(events_.begin(), events_.end());
    const Event event = events_.back();
    events_.pop_back();
    now_ = event.at;
    handle(event);
  }
  if (!checker_.failure().empty()) NOTE(-1, "BROKEN: %s", checker_.failure().c_str());
  tally_.ids += checker_.ids();
  return checker_.failure().empty();
}

void World::begin() {
  checker_.reset();
  interference = {};
  now_ = 0;
  order_ = 0;
  events_.clear();
  free_messages_.clear();
  for (size_t i = messages_.size(); i-- > 0;) free_messages_.push_back(static_cast<int>(i));
  etcd_up_ = true;
  etcd_refuses_ = false;
  incarnation_ = 0;
  etcd_down_until_ = no_quorum_until_ = 0;
  for (int e = 0; e < kMostEndpoints; e++) stalled_until_[e] = old_member_until_[e] = 0;
  old_term_ = 0;
  date_error_ms_ = 0;
  backed_up_ = cured_ = done_ = false;

  etcd_.reset(schedule_.ttl_ms, schedule_.term);
  for (int n = schedule_.numbers; n < kWorkers; n++) etcd_.overwrite_claim(n);
  if (schedule_.beginning != Beginning::kEmpty)
    etcd_.put_mark_by_hand(kWorkers - 1, Mark::kTime,
                           true_unix_ms() + (schedule_.beginning == Beginning::kWitness
                                                 ? schedule_.reserve_ms
                                                 : -1000));
  for (int i = 0; i < schedule_.instances; i++) {
    Instance &in = instances_[i];
    const uint32_t worker_life = in.worker.life;
    in = {};
    in.worker.life = worker_life;
    const int64_t most = schedule_.first_offset_ms;
    in.clock.offset = most == 0 ? 0 : random_.range(-most * 1000, most * 1000);
    in.clock.boot_offset = random_.range(1000, 1000000000);
    if (!schedule_.down_at_first[i])
      push(random_.below(300000), EventKind::kStartInstance, i, 0, in.start);
    for (int b = 0; b < schedule_.backends; b++)
      push(random_.below(schedule_.call_ms * 1000), EventKind::kCall, i, b);
  }
  for (size_t i = 0; i < schedule_.faults.size(); i++)
    push(schedule_.faults[i].at_ms * 1000, EventKind::kFault, 0, 0, static_cast<uint32_t>(i));
}

void World::handle(const Event &event) {
  Instance &in = instances_[event.who];
  Worker &worker = in.worker;
  switch (event.kind) {
    case EventKind::kFault:
      return act(schedule_.faults[event.ref]);
    case EventKind::kWorker:
      if (!worker.alive || worker.frozen || in.frozen || worker.pc != kWait ||
          worker.wake != event.ref)
        return;
      worker.pc = kReadAgain;
      return run_worker(in);
    case EventKind::kThawWorker:
      if (!worker.alive || worker.life != event.ref || !worker.frozen) return;
      worker.frozen = false;
      NOTE(event.who, "the worker thaws");
      if (worker.pc == kWait) worker.pc = kReadAgain;
      return run_worker(in);
    case EventKind::kThawInstance:
      if (!in.frozen || in.freeze != event.ref) return;
      thaw(in);
      NOTE(event.who, "thaws");
      if (worker.alive && !worker.frozen) {
        if (worker.pc == kWait) worker.pc = kReadAgain;
        run_worker(in);
      }
      return;
    case EventKind::kCall:
      push(now_ + random_.range(1, schedule_.call_ms * 2000), EventKind::kCall, event.who, event.sub);
      return call(in, in.backends[event.sub]);
    case EventKind::kThawCall: {
      Backend &backend = in.backends[event.sub];
      if (!backend.frozen || backend.freeze != event.ref) return;
      if (in.frozen) {
        push(now_ + 50000, EventKind::kThawCall, event.who, event.sub, event.ref);
        return;
      }
      return finish_call(in, backend);
    }
    case EventKind::kStartInstance:
      if (in.start == event.ref && !in.up) start_instance(in);
      return;
    case EventKind::kAfterCrash:
      // Every child is gone: shared memory starts anew.
      if (in.up && in.start == event.ref) {
        in.mem().generator.withdraw();
        in.children = true;
        start_worker(in);
      }
      return;
    case EventKind::kStartWorker:
      if (in.up && in.children && in.start == event.ref && !worker.alive) start_worker(in);
      return;
    case EventKind::kArrive:
      return arrive(static_cast<int>(event.ref));
    case EventKind::kReply:
      return deliver(static_cast<int>(event.ref));
    case EventKind::kStrobe:
      if (cured_ || in.strobes <= 0) return;
      in.strobes--;
      step_clock(in, (in.strobes % 2 != 0 ? in.strobe_ms : -in.strobe_ms) * 1000);
      push(now_ + in.strobe_period_ms * 1000, EventKind::kStrobe, event.who);
      return;
    case EventKind::kLiveness:
      return check_liveness(event.sub);
  }
}

// ---- clocks

/// Also keeps account of what a fair observer could still believe of this clock.
WallTime World::read_wall(Instance &in, Memory &memory) {
  const WallTime wall{schedule_.base_unix_ms + (now_ + wall_offset(in.clock)) / 1000};
  const int64_t offset = wall.unix_ms - true_unix_ms();
  if (memory.generator.clock_offset_ms.load(std::memory_order_relaxed) == 0)
    memory.fair_offset_ms = offset;  // nothing to hold it against yet
  else if (offset <= memory.fair_offset_ms + kUnseenJumpMs)
    memory.fair_offset_ms = std::max(memory.fair_offset_ms, offset);
  return wall;
}

/// Steps of the clock make the kernel forget that it was synchronised; a daemon takes some seconds.
KernelClock World::read_kernel(const Instance &in) const {
  if (in.clock.kernel_lies) return {true, 0, 100, 1000};
  if (now_ < in.clock.unsynchronised_until) return {true, 0, kNeverSynchronisedUs, kNeverSynchronisedUs};
  return {true, wall_offset(in.clock), 500, 20000};
}

void World::step_clock(Instance &in, Us by) {
  in.clock.offset = wall_offset(in.clock) + by;
  in.clock.since = now_;
  in.clock.unsynchronised_until = now_ + random_.range(2000000, 6000000);
  NOTE(id_of_instance(in), "the clock steps by %.3f s, is now %.3f s wrong",
       static_cast<double>(by) / 1e6, static_cast<double>(in.clock.offset) / 1e6);
}

// ---- instances

void World::start_instance(Instance &in) {
  in.up = in.children = true;
  in.start++;
  in.life++;
  in.mem() = {};
  NOTE(id_of_instance(in), "the postmaster starts");
  push(now_ + random_.range(1000, 800000), EventKind::kStartWorker, id_of_instance(in), 0, in.start);
}

void World::thaw(Instance &in) {
  in.frozen = false;
  if (in.paused_at < 0) return;
  // The clocks of a machine that did not run.
  in.clock.offset -= now_ - in.paused_at;
  in.clock.boot_offset -= now_ - in.paused_at;
  in.paused_at = -1;
}

void World::end_worker(Instance &in) {
  Worker &worker = in.worker;
  if (worker.client.arrived >= 0) release(worker.client.arrived);
  worker.client = {};
  worker.alive = worker.frozen = false;
  worker.held_count = 0;
  worker.trap = -1;
}

/// kill -9 of the postmaster. What is frozen in the middle of a call stays so, with its memory.
void World::lose_postmaster(Instance &in) {
  if (!in.up) return;
  NOTE(id_of_instance(in), "the postmaster is gone");
  // A worker caught before its send() may still do that before it looks around.
  if (in.worker.alive && in.worker.pc == kSend && in.worker.request.kind != RequestKind::kNone &&
      !schedule_.faults.empty() && random_.percent(50))
    send(in);
  end_worker(in);
  in.up = in.children = false;
  thaw(in);
  in.start++;
  if (in.down_ms > 0)
    push(now_ + in.down_ms * 1000, EventKind::kStartInstance, id_of_instance(in), 0, in.start);
}

/// A child died: the postmaster ends all the others, frozen or not, and begins anew.
void World::crash(Instance &in) {
  if (!in.up || !in.children) return;
  tally_.crashes++;
  NOTE(id_of_instance(in), "a backend crashes");
  end_worker(in);
  for (Backend &backend : in.backends)
    if (backend.frozen && backend.life == in.life) backend.frozen = false;
  in.children = false;
  thaw(in);
  in.start++;
  push(now_ + random_.range(100, 400000), EventKind::kAfterCrash, id_of_instance(in), 0, in.start);
}

void World::start_worker(Instance &in) {
  Worker &worker = in.worker;
  worker.alive = true;
  worker.frozen = worker.latch = worker.stopping = worker.farewell = worker.quarantined =
      worker.started = false;
  worker.life++;
  worker.pc = kTop;
  worker.lease = Lease({3, schedule_.reserve_ms, schedule_.renew_ms});
  worker.guard = ClockGuard(in.mem().generator.clock_offset_ms.load(std::memory_order_relaxed));
  worker.client = {};
  worker.phase = Phase::kStarting;
  worker.request = {};
  worker.claims = worker.losses = worker.rollbacks = 0;
  NOTE(id_of_instance(in), "the worker starts");
  run_worker(in);
}

void World::freeze_worker(Instance &in, int64_t ms) {
  if (!in.worker.alive || in.worker.frozen) return;
  in.worker.frozen = true;
  NOTE(id_of_instance(in), "the worker is frozen for %.3f s", static_cast<double>(ms) / 1e3);
  push(now_ + ms * 1000, EventKind::kThawWorker, id_of_instance(in), 0, in.worker.life);
}

/// Whether something befalls the worker here, so that it does not go on now.
bool World::trapped(Instance &in, int step) {
  Worker &worker = in.worker;
  if (worker.trap != step) return false;
  worker.trap = -1;
  NOTE(id_of_instance(in), "the worker is caught at step %d", step);
  switch (worker.blow) {
    case kFreeze:
      freeze_worker(in, worker.blow_ms);
      break;
    case kCrash:
      crash(in);
      break;
    case kExit:
      end_worker(in);
      push(now_ + 1000000, EventKind::kStartWorker, id_of_instance(in), 0, in.start);
      break;
    case kKillPostmaster:
      in.down_ms = worker.blow_ms;
      lose_postmaster(in);
      break;
  }
  return true;
}

// ---- the background worker, as in pg/worker.cpp

Times World::look(Instance &in, WallTime wall) {
  Worker &worker = in.worker;
  Memory &memory = in.mem();
  const Times now = {wall, read_boot(in)};
  const bool vouched =
      schedule_.strict_clock && judge_clock(read_kernel(in), kStrictErrorUs) == ClockVerdict::kGood;
  const bool jumped = worker.guard.jumped_ms() != 0;
  if (worker.guard.offset_ms() != 0 || in_layout(wall)) worker.guard.observe(now, vouched);
  if (vouched)
    memory.fair_offset_ms = std::max(memory.fair_offset_ms, wall.unix_ms - true_unix_ms());
  memory.generator.clock_offset_ms.store(worker.guard.offset_ms(), std::memory_order_relaxed);
  if (jumped != (worker.guard.jumped_ms() != 0))
    NOTE(id_of_instance(in), "the clock is %s", jumped ? "believed again" : "not believed");
  return {worker.guard.believed(now), now.boot};
}

void World::steer(Instance &in, Times now) {
  Worker &worker = in.worker;
  const bool watching = worker.lease.state() == Lease::State::kWatching;
  if (in.disabled || in.standby) {
    in.mem().generator.withdraw();
    if (in.disabled || !watching) worker.lease.release();
    worker.phase = in.disabled ? Phase::kDisabled : Phase::kStandby;
    if (!in.disabled && worker.lease.state() != Lease::State::kReleasing) worker.lease.watch();
    return;
  }
  if (worker.lease.state() != Lease::State::kIdle && !watching) {
    worker.phase = Phase::kOther;
    return;
  }
  if (now.wall.unix_ms < kEpochUnixMs || now.wall.unix_ms > kEpochUnixMs + kLastMs ||
      judge_clock(read_kernel(in), schedule_.strict_clock ? kStrictErrorUs : 0) !=
          ClockVerdict::kGood) {
    worker.phase = Phase::kClockUnsafe;
    return;
  }
  worker.lease.start(in.mem().lease, in.hint);
  NOTE(id_of_instance(in), "starts to claim, earlier lease %lld, hint of number %d",
       static_cast<long long>(in.mem().lease), in.hint.worker);
  in.hint = {};
  worker.started = true;
  worker.phase = Phase::kOther;
}

void World::obey(Instance &in, Times now) {
  Lease &lease = in.worker.lease;
  if (in.raise_all_ms != 0 &&
      lease.raise_all_marks(std::min(now.wall.unix_ms + in.raise_all_ms, kEpochUnixMs + kLastMs), now)) {
    NOTE(id_of_instance(in), "raises all marks");
    in.raise_all_ms = 0;
  }
  if (in.init_region && lease.state() == Lease::State::kWitnessing) {
    lease.vouch_for_empty_region();
    in.init_region = false;
  }
}

void World::wake_worker(Instance &in, int64_t in_us) {
  push(now_ + std::max<int64_t>(in_us, 20), EventKind::kWorker, id_of_instance(in), 0,
       ++in.worker.wake);
}

/// A signal.
void World::set_latch(Instance &in) {
  in.worker.latch = true;
  if (in.worker.alive && in.worker.pc == kWait && !in.worker.frozen && !in.frozen)
    wake_worker(in, 0);
}

void World::run_worker(Instance &in) {
  Worker &w = in.worker;
  const int me = id_of_instance(in);
  while (w.alive && !w.frozen) {
    switch (w.pc) {
      case kTop: {
        if (w.stopping && !w.farewell) {
          w.farewell = true;
          w.farewell_until = read_boot(in).ms + kFarewellMs;
          if (w.lease.last_mark().worker >= 0) in.hint = w.lease.last_mark();
          w.lease.release();
        }
        if (w.farewell) {
          if (w.lease.state() == Lease::State::kIdle || read_boot(in).ms >= w.farewell_until) {
            NOTE(me, "stops cleanly");
            lose_postmaster(in);
            return;
          }
        } else {
          const Times now = look(in, read_wall(in, in.mem()));
          steer(in, now);
          obey(in, now);
          if (w.started) in.mem().lease = w.lease.lease();
        }
        w.pc = kReadClocks;
        break;
      }
      case kReadClocks:
        w.wall = read_wall(in, in.mem());
        w.pc = kLook;
        if (trapped(in, kBetweenClocks)) return;
        break;
      case kLook:
        w.now = look(in, w.wall);
        w.pc = kAsk;
        if (trapped(in, kLooked)) return;
        break;
      case kAsk:
        w.request = w.lease.next_request(w.now);
        w.pc = kSend;
        if (w.request.kind != RequestKind::kNone && trapped(in, kAsked)) return;
        break;
      case kSend: {
        if (w.request.kind != RequestKind::kNone) send(in);
        if (!checker_.failure().empty()) return;
        const bool looking = w.phase == Phase::kStandby || w.phase == Phase::kClockUnsafe;
        const int64_t longest = w.farewell ? std::max<int64_t>(w.farewell_until - read_boot(in).ms, 0)
                                : looking  ? kLookMs
                                           : kLongestMs;
        int64_t us =
            std::clamp<int64_t>(w.lease.wake_at(w.now).ms - w.now.boot.ms, 0, longest) * 1000;
        if (w.client.busy)
          us = std::min(us, (w.client.failed_at >= 0 ? w.client.failed_at : w.client.deadline) - now_);
        w.pc = kWait;
        wake_worker(in, w.latch ? 0 : us);
        if (trapped(in, kWaiting)) return;
        return;
      }
      case kWait:
        return;
      case kReadAgain:
        if (now_ - in.second >= 1000000) {
          in.second = now_;
          in.requests_in_second = in.turns_in_second = 0;
        }
        if (++in.turns_in_second > kMostTurns) {
          checker_.fail("the worker of instance %d turns without waiting", me);
          return;
        }
        w.latch = false;
        note_network(in);
        w.wall = read_wall(in, in.mem());
        w.pc = kLookAgain;
        if (trapped(in, kWoken)) return;
        break;
      case kLookAgain:
        w.now = look(in, w.wall);
        w.pc = kTake;
        if (trapped(in, kAnswered)) return;
        break;
      case kTake:
        take_reply(in);
        w.pc = kPublishing;
        if (trapped(in, kDecided)) return;
        break;
      case kPublishing: {
        const bool caught = w.trap == kHalfInstalled && w.lease.state() == Lease::State::kHolding &&
                            !w.lease.installed();
        publish(in, caught ? 1 : -1);
        w.pc = kSecondWord;
        if (w.held_count > 0 && trapped(in, kHalfInstalled)) return;
        break;
      }
      case kSecondWord:
        for (int i = 0; i < w.held_count; i++)
          std::memcpy(w.held[i].word, &w.held[i].value, sizeof w.held[i].value);
        w.held_count = 0;
        w.pc = kNoteLease;
        if (trapped(in, kPublished)) return;
        break;
      case kNoteLease:
        follow(in);
        if (w.started) in.mem().lease = w.lease.lease();
        w.pc = kTop;
        break;
    }
    if (!checker_.failure().empty()) return;
  }
}

/// What the wait has seen of the network. What comes later the next wait will see.
void World::note_network(Instance &in) {
  Client &c = in.worker.client;
  if (!c.busy) return;
  const bool late = now_ >= c.deadline;
  c.ready = c.arrived >= 0 && (!late || random_.percent(50));
  c.failed = !c.ready && (late || (c.failed_at >= 0 && now_ >= c.failed_at));
}

void World::take_reply(Instance &in) {
  Worker &w = in.worker;
  Client &c = w.client;
  if (!c.busy || (!c.ready && !c.failed)) return;
  static Reply failed;
  const int message = c.arrived;
  Reply *reply = &failed;
  if (c.ready) {
    reply = &messages_[static_cast<size_t>(message)].reply;
  } else {
    failed.failed = true;
    failed.term = failed.date_unix_ms = 0;
  }
  reply->serial = c.serial;
  c.busy = c.ready = c.failed = false;
  c.arrived = -1;
  c.failed_at = -1;
  if (reply->failed) {
    c.endpoint = (c.endpoint + 1) % schedule_.endpoints;
    reply->another_endpoint = ++c.failed_in_a_row < schedule_.endpoints;
    if (!reply->another_endpoint) c.failed_in_a_row = 0;
  } else {
    c.failed_in_a_row = 0;
    const WallTime wall = read_wall(in, in.mem());
    if (reply->date_unix_ms != 0 && !schedule_.strict_clock &&
        std::abs(wall.unix_ms - reply->date_unix_ms) <= kDateMs) {
      w.guard.observe({wall, read_boot(in)}, true);
      in.mem().generator.clock_offset_ms.store(w.guard.offset_ms(), std::memory_order_relaxed);
      in.mem().fair_offset_ms = std::max(in.mem().fair_offset_ms, wall.unix_ms - true_unix_ms());
    }
  }
  const Lease::State before = w.lease.state();
  if (reply->surplus_known && !reply->failed)
    NOTE(id_of_instance(in), "surplus %lld", static_cast<long long>(reply->surplus));
  w.lease.on_reply(*reply, w.now);
  if (reply->failed || before != w.lease.state())
    NOTE(id_of_instance(in), "%s %s: %s -> %s", name_of(w.request.kind),
         reply->failed ? "failed" : "answered", name_of(before), name_of(w.lease.state()));
  if (message >= 0) release(message);
}

/// `hold_after`: so many writes are made now, the rest when the worker thaws; -1: all.
void World::publish(Instance &in, int hold_after) {
  Worker &w = in.worker;
  const Publication news = w.lease.publication(w.now);
  if (news.kind == Publication::kNothing) return;
  Memory &memory = in.mem();
  const int me = id_of_instance(in);
  const int claim = checker_.find(worker_of(news.node), w.lease.lease());
  checker_.published(me, claim, news.mark_ms + kEpochUnixMs);
  if (news.kind == Publication::kRaiseFence) return memory.generator.raise_fence(news.mark_ms);
  interference.writes_before_hold = hold_after;
  interference.held_count = 0;
  memory.generator.install(news.node, news.floor_ms, news.mark_ms);
  interference.writes_before_hold = -1;
  memory.holding = checker_.installed(claim);
  NOTE(me, "installs number %d from %lld, mark %lld, as holding %d", worker_of(news.node),
       static_cast<long long>(news.floor_ms + kEpochUnixMs),
       static_cast<long long>(news.mark_ms + kEpochUnixMs), memory.holding);
  w.held_count = interference.held_count;
  for (int i = 0; i < w.held_count; i++) w.held[i] = interference.held[i];
}

void World::follow(Instance &in) {
  Worker &w = in.worker;
  tally_.claims += static_cast<int64_t>(w.lease.claims() - w.claims);
  tally_.losses += static_cast<int64_t>(w.lease.losses() - w.losses);
  tally_.rollbacks += static_cast<int64_t>(w.lease.rollbacks() - w.rollbacks);
  w.claims = w.lease.claims();
  w.losses = w.lease.losses();
  w.rollbacks = w.lease.rollbacks();
  const bool quarantined = w.lease.quarantined_until().ms != 0;
  if (quarantined && !w.quarantined) {
    tally_.quarantines++;
    NOTE(id_of_instance(in), "is in quarantine with number %d", w.lease.worker());
  }
  w.quarantined = quarantined;
}

// ---- the network

int World::new_message() {
  if (free_messages_.empty()) return -1;
  const int m = free_messages_.back();
  free_messages_.pop_back();
  return m;
}

void World::send(Instance &in) {
  Worker &w = in.worker;
  Client &c = w.client;
  const int me = id_of_instance(in);
  const Request &request = w.request;
  if (c.arrived >= 0) release(c.arrived);
  const int endpoint = c.endpoint;
  const int failed_in_a_row = c.failed_in_a_row;
  c = {};
  c.busy = true;
  c.serial = request.serial;
  c.deadline = now_ + kClientTimeoutUs;
  c.endpoint = endpoint;
  c.failed_in_a_row = failed_in_a_row;
  tally_.requests++;
  checker_.note(static_cast<uint64_t>(request.kind) * 1000003 +
                static_cast<uint64_t>(request.mark_unix_ms) + static_cast<uint64_t>(now_));
  // The marks of all numbers are raised without a pause, on demand.
  if (request.kind != RequestKind::kRaiseOther && ++in.requests_in_second > kMostRequests)
    checker_.fail("instance %d sends %d requests in a second", me, in.requests_in_second);
  if (request.kind != RequestKind::kRaiseOther)
    NOTE(me, "sends %s to e%d: number %d, lease %lld, mark %lld%s", name_of(request.kind), c.endpoint,
         request.worker, static_cast<long long>(request.lease),
         static_cast<long long>(request.mark_unix_ms), request.first ? ", first" : "");
  // A mark is made from no time that nobody could believe. A worker frozen between its two clocks may
  // be wrong once by what it would follow anyway.
  if (request.kind == RequestKind::kRaise &&
      request.mark_unix_ms > std::max({w.lease.mark(), w.lease.floor(),
                                       true_unix_ms() + in.mem().fair_offset_ms +
                                           kMaxJumpMs + schedule_.reserve_ms, kEpochUnixMs}))
    checker_.fail("instance %d raises its mark from a clock that jumped", me);

  const Path &path = in.paths[c.endpoint];
  const bool cut = path.until > now_;
  if ((cut && path.how == kRefused) ||
      (!etcd_up_ && etcd_refuses_ && old_member_until_[c.endpoint] <= now_)) {
    c.failed_at = now_ + random_.range(100, 2000);
    return;
  }
  const bool lose_reply = in.lose_reply == request.kind && request.kind != RequestKind::kNone;
  const bool hold = in.hold_request == request.kind && request.kind != RequestKind::kNone;
  if (lose_reply) in.lose_reply = RequestKind::kNone;
  if (hold) in.hold_request = RequestKind::kNone;
  if (cut && (path.how == kNoRequests || path.how == kNothing)) return;
  const bool lossy = in.lossy_until > now_;
  if (lossy && random_.percent(in.loss_percent)) return;

  Us delay = random_.range(150, 2500);
  if (in.slow_until > now_) delay += random_.below(in.slow_ms * 1000 + 1);
  if (hold) delay += in.hold_ms * 1000;
  if (in.late_until > now_ && random_.percent(in.late_percent)) {
    delay += random_.below(in.late_ms * 1000 + 1);
    tally_.late++;
  }
  const bool twice = in.doubled_until > now_ && random_.percent(in.doubled_percent);
  for (int copy = 0; copy < (twice ? 2 : 1); copy++) {
    const int m = new_message();
    if (m < 0) return;
    Message &message = messages_[static_cast<size_t>(m)];
    message.request = request;
    message.who = me;
    message.worker_life = w.life;
    message.incarnation = incarnation_;
    message.endpoint = c.endpoint;
    message.sent = now_;
    message.echo = copy == 1;
    message.lose_reply = lose_reply;
    push(now_ + delay + (copy == 1 ? random_.below(in.doubled_ms * 1000 + 1) : 0),
         EventKind::kArrive, me, 0, static_cast<uint32_t>(m));
  }
}

/// At an endpoint of etcd.
void World::arrive(int m) {
  Message &message = messages_[static_cast<size_t>(m)];
  Instance &in = instances_[message.who];
  const int e = message.endpoint;
  const bool keepalive = message.request.kind == RequestKind::kKeepAlive ||
                         message.request.kind == RequestKind::kStatus;
  const bool late = now_ - message.sent > kClientTimeoutUs;
  if (cured_ && late) return release(m);
  Reply &reply = message.reply;
  reply.date_unix_ms = (true_unix_ms() + date_error_ms_) / 1000 * 1000;

  const bool old_member = old_member_until_[e] > now_;
  if (old_member || (etcd_up_ && no_quorum_until_ > now_)) {
    // Without a quorum a leader still answers keepalives, and does the rest when it has one again.
    if (!keepalive) {
      if (old_member || random_.percent(50)) return release(m);
      return push(no_quorum_until_ + random_.range(100, 50000), EventKind::kArrive, message.who, 0,
                  static_cast<uint32_t>(m));
    }
    reply.serial = message.request.serial;
    reply.failed = false;
    reply.term = old_member ? old_term_ : etcd_.term();
    reply.surplus = old_member ? old_surplus_ : etcd_.surplus();
    reply.surplus_known = message.request.kind == RequestKind::kStatus;
    if (schedule_.status_denied && reply.surplus_known) reply.term = 0;
  } else {
    if (!etcd_up_ || message.incarnation != incarnation_) return release(m);
    if (stalled_until_[e] > now_)
      return push(stalled_until_[e] + random_.range(10, 20000), EventKind::kArrive, message.who, 0,
                  static_cast<uint32_t>(m));
    const bool understood = etcd_.apply(message.request, true_ms(), &reply);
    if (schedule_.status_denied && message.request.kind == RequestKind::kStatus) reply.term = 0;
    reply.failed = !understood;
    if (late || message.echo || message.request.kind == RequestKind::kClaim ||
        (message.request.kind == RequestKind::kRaise && !reply.applied))
      NOTE(-1, "%s%s of i%d, number %d, lease %lld: %s", late || message.echo ? "LATE " : "",
           name_of(message.request.kind), message.who, message.request.worker,
           static_cast<long long>(message.request.lease),
           !understood ? "error" : reply.applied ? "applied" : "not applied");
  }
  if (schedule_.status_denied) reply.surplus_known = false;
  const bool lost = message.echo || message.lose_reply ||
                    (in.lossy_until > now_ && random_.percent(in.loss_percent)) ||
                    (in.paths[e].until > now_ && in.paths[e].how != kNoRequests);
  if (lost) return release(m);
  Us delay = random_.range(150, 2500);
  if (in.slow_until > now_) delay += random_.below(in.slow_ms * 1000 + 1);
  push(now_ + delay, EventKind::kReply, message.who, 0, static_cast<uint32_t>(m));
}

/// At the instance.
void World::deliver(int m) {
  Message &message = messages_[static_cast<size_t>(m)];
  Instance &in = instances_[message.who];
  Worker &w = in.worker;
  if (!w.alive || w.life != message.worker_life) return release(m);
  if (w.client.busy && w.client.serial == message.request.serial && w.client.arrived < 0 &&
      w.client.failed_at < 0) {
    w.client.arrived = m;
    if (!w.frozen && !in.frozen && w.pc == kWait) wake_worker(in, 0);
    return;
  }
  // One that the client has given up. It would drop it; so must the lease.
  if (!w.frozen && !in.frozen && w.pc == kWait) {
    NOTE(message.who, "a late reply to %s is offered", name_of(message.request.kind));
    w.lease.on_reply(message.reply, w.now);
  }
  release(m);
}

// ---- calls

Issue World::issue(Instance &in, Memory &memory, WallTime now, int n) {
  const Issue answer = memory.generator.issue(now, boot_clock_of_call, n);
  switch (answer.refusal) {
    case Refusal::kNone:
      in.last_mint = now_;
      if (n > 1) NOTE(id_of_instance(in), "mints %d", n);
      checker_.minted({id_of_instance(in), memory.holding, answer.node, 3, answer.first,
                       answer.first + n - 1, now.unix_ms,
                       true_unix_ms() + memory.fair_offset_ms + kUnseenJumpMs + kMaxLeadMs,
                       &memory.last_minted});
      break;
    case Refusal::kFence:
      tally_.refused_fence++;
      break;
    case Refusal::kLead:
      tally_.refused_lead++;
      break;
    case Refusal::kJump:
      tally_.refused_jump++;
      break;
    case Refusal::kNoClaim:
    case Refusal::kBadClock:
      break;
  }
  return answer;
}

void World::call(Instance &in, Backend &backend) {
  if (!in.up || !in.children || in.frozen || backend.frozen) return;
  Memory &memory = in.mem();
  const int n = random_.one_in(6) ? static_cast<int>(random_.range(1, kMaxBatch)) : 1;
  const WallTime now = read_wall(in, memory);
  boot_in_call = read_boot(in).ms;
  if (backend.trap >= 0) {
    backend.step = backend.trap;
    backend.trap = -1;
    backend.frozen = true;
    backend.life = in.life;
    backend.n = n;
    backend.now = now;
    backend.last = memory.generator.last.value.load();
    backend.fence = memory.generator.fence.value.load();
    backend.offset = static_cast<uint64_t>(memory.generator.clock_offset_ms.load());
    backend.boot_ms = boot_in_call;
    tally_.frozen_calls++;
    const int b = static_cast<int>(&backend - in.backends);
    NOTE(id_of_instance(in), "backend %d is frozen at step %d of a call for %.3f s", b, backend.step,
         static_cast<double>(backend.trap_ms) / 1e3);
    push(now_ + backend.trap_ms * 1000, EventKind::kThawCall, id_of_instance(in), b,
         ++backend.freeze);
    return;
  }
  issue(in, memory, now, n);
}

/// What it had read before it was frozen it sees no more than once: a swap that fails reads anew.
void World::finish_call(Instance &in, Backend &backend) {
  backend.frozen = false;
  if (in.life - backend.life >= Instance::kKept) return;
  Memory &memory = in.memory[backend.life % Instance::kKept];
  boot_in_call = backend.step >= kBootToo ? backend.boot_ms : read_boot(in).ms;
  interference.stale_loads = true;
  if (backend.step >= kLastWord) interference.stale[0] = {&memory.generator.last.value, backend.last};
  if (backend.step >= kFenceWord)
    interference.stale[1] = {&memory.generator.fence.value, backend.fence};
  if (backend.step >= kBootToo)
    interference.stale[2] = {&memory.generator.clock_offset_ms, backend.offset};
  const Issue answer = issue(in, memory, backend.now, backend.n);
  interference.stale_loads = false;
  for (auto &stale : interference.stale) stale = {};
  if (answer.refusal == Refusal::kNone) tally_.frozen_calls_won++;
  NOTE(id_of_instance(in), "backend %d thaws in its call, refusal %d",
       static_cast<int>(&backend - in.backends), static_cast<int>(answer.refusal));
}

// ---- faults

void World::act(Fault f) {
  Instance &in = instances_[std::max(f.who, 0)];
  const int holder = f.who < 0 ? -1 : in.worker.lease.worker();
  switch (f.kind) {
    case FaultKind::kStepClock:
      return step_clock(in, f.a * 1000);
    case FaultKind::kDriftClock:
      in.clock.offset = wall_offset(in.clock);
      in.clock.since = now_;
      in.clock.ppm = f.a;
      NOTE(f.who, "the clock drifts by %lld ppm", static_cast<long long>(f.a));
      return;
    case FaultKind::kRightClock:
      in.clock.ppm = 0;
      return step_clock(in, -wall_offset(in.clock));
    case FaultKind::kStrobeClock:
      in.strobe_ms = f.a;
      in.strobe_period_ms = f.b;
      in.strobes = f.c & ~int64_t{1};
      return push(now_, EventKind::kStrobe, f.who);
    case FaultKind::kKernelLies:
      in.clock.kernel_lies = f.a != 0;
      return;
    case FaultKind::kHitWorker:
      in.worker.trap = static_cast<int>(f.a);
      in.worker.blow = static_cast<Blow>(f.c);
      in.worker.blow_ms = f.b;
      if (f.a == kWaiting && in.worker.alive && !in.worker.frozen && in.worker.pc == kWait)
        trapped(in, kWaiting);
      return;
    case FaultKind::kHitCall:
      in.backends[f.c].trap = static_cast<int>(f.a);
      in.backends[f.c].trap_ms = f.b;
      return;
    case FaultKind::kPauseMachine:
    case FaultKind::kFreezeInstance:
      if (!in.up || in.frozen) return;
      if (f.kind == FaultKind::kPauseMachine) in.paused_at = now_;
      NOTE(f.who, "is frozen for %.3f s", static_cast<double>(f.b) / 1e3);
      in.frozen = true;
      return push(now_ + f.b * 1000, EventKind::kThawInstance, f.who, 0, ++in.freeze);
    case FaultKind::kCrashInstance:
      return crash(in);
    case FaultKind::kExitWorker:
      if (!in.worker.alive) return;
      NOTE(f.who, "the worker exits");
      end_worker(in);
      return push(now_ + 1000000, EventKind::kStartWorker, f.who, 0, in.start);
    case FaultKind::kLosePostmaster:
      in.down_ms = f.b;
      return lose_postmaster(in);
    case FaultKind::kStop:
      if (!in.up) return;
      if (schedule_.prompt_ms > 0 && in.worker.client.busy) {
        // A raise that is under way at the stop makes the last mark that is kept a wrong one, and the
        // next start a slow one.
        schedule_.faults.push_back(f);
        return push(now_ + 5000, EventKind::kFault, 0, 0,
                    static_cast<uint32_t>(schedule_.faults.size() - 1));
      }
      NOTE(f.who, "is asked to stop");
      in.down_ms = f.b;
      if (!in.worker.alive) return lose_postmaster(in);
      in.worker.stopping = true;
      return set_latch(in);
    case FaultKind::kBurst:
      if (!in.up || !in.children || in.frozen) return;
      boot_in_call = read_boot(in).ms;
      for (int i = 0; i < 6; i++) {
        // Up to the lead, in few calls: the rest of the way is given away.
        Memory &memory = in.mem();
        const WallTime now = read_wall(in, memory);
        const Issue answer = issue(in, memory, now, kMaxBatch);
        if (answer.refusal != Refusal::kNone || !checker_.failure().empty()) return;
      }
      return;
    case FaultKind::kStandby:
      in.standby = f.a != 0;
      return;
    case FaultKind::kDisable:
      in.disabled = f.a != 0;
      return set_latch(in);
    case FaultKind::kCloneFrom:
      if (in.up) return;
      in.hint = instances_[f.a].hint;
      return push(now_ + f.b * 1000, EventKind::kStartInstance, f.who, 0, in.start);
    case FaultKind::kRaiseAllMarks:
      in.raise_all_ms = f.a;
      return;
    case FaultKind::kInitRegion:
      in.init_region = true;
      return;
    case FaultKind::kElection:
      tally_.elections++;
      etcd_.elect(true_ms());
      NOTE(-1, "an election, term %lld", static_cast<long long>(etcd_.term()));
      return;
    case FaultKind::kEndLease:
      if (in.worker.lease.lease() == 0) return;
      NOTE(-1, "lease %lld of i%d ends", static_cast<long long>(in.worker.lease.lease()), f.who);
      return etcd_.end_lease(in.worker.lease.lease());
    case FaultKind::kDeleteClaim:
    case FaultKind::kOverwriteClaim:
      if (in.worker.lease.lease() == 0 ||
          etcd_.state().claims[static_cast<size_t>(holder)] != in.worker.lease.lease())
        return;
      NOTE(-1, "the claim of number %d is %s by hand", holder,
           f.kind == FaultKind::kDeleteClaim ? "deleted" : "overwritten");
      if (f.kind == FaultKind::kDeleteClaim)
        etcd_.delete_claim(holder);
      else
        etcd_.overwrite_claim(holder);
      return;
    case FaultKind::kDropMark: {
      if (in.worker.lease.state() != Lease::State::kHolding || in.worker.lease.mark() == 0 ||
          etcd_.state().claims[static_cast<size_t>(holder)] != in.worker.lease.lease())
        return;
      NOTE(-1, "the mark of number %d is %s by hand", holder, f.a != 0 ? "lowered" : "deleted");
      etcd_.put_mark_by_hand(holder, f.a != 0 ? Mark::kTime : Mark::kAbsent,
                             f.a != 0 ? in.worker.lease.mark() - 100000 : 0);
      return;
    }
    case FaultKind::kGarbageMark:
      if (etcd_.state().claims[static_cast<size_t>(f.a)] == 0)
        etcd_.put_mark_by_hand(static_cast<int>(f.a), Mark::kGarbage, 0);
      return;
    case FaultKind::kNoQuorum:
      NOTE(-1, "no quorum for %.3f s", static_cast<double>(f.b) / 1e3);
      no_quorum_until_ = now_ + f.b * 1000;
      return;
    case FaultKind::kStallMember:
      NOTE(-1, "e%lld stalls for %.3f s", static_cast<long long>(f.a),
           static_cast<double>(f.b) / 1e3);
      stalled_until_[f.a] = now_ + f.b * 1000;
      return;
    case FaultKind::kOldMember:
      NOTE(-1, "members %lld of a lost quorum answer keepalives", static_cast<long long>(f.a));
      old_term_ = etcd_.term();
      old_surplus_ = etcd_.surplus();
      for (int e = 0; e < kMostEndpoints; e++)
        if ((f.a >> e & 1) != 0) old_member_until_[e] = now_ + f.b * 1000;
      return;
    case FaultKind::kDateWrong:
      date_error_ms_ = f.a;
      return;
    case FaultKind::kBackup:
      if (backed_up_) return;
      backed_up_ = true;
      backup_ = etcd_.backup(true_ms());
      NOTE(-1, "a backup at revision %lld", static_cast<long long>(backup_.revision));
      return;
    case FaultKind::kEtcdDown:
    case FaultKind::kRestore:
    case FaultKind::kWipe:
    case FaultKind::kReplace: {
      if (f.kind == FaultKind::kRestore && !backed_up_) return;
      if (f.b > 0) {
        // Down first; what is under way is lost. The same fault again, without a time, ends it.
        NOTE(-1, "is down for %.3f s", static_cast<double>(f.b) / 1e3);
        etcd_up_ = false;
        etcd_refuses_ = random_.percent(50);
        incarnation_++;
        Fault up = f;
        up.b = 0;
        schedule_.faults.push_back(up);
        return push(now_ + f.b * 1000, EventKind::kFault, 0, 0,
                    static_cast<uint32_t>(schedule_.faults.size() - 1));
      }
      etcd_up_ = true;
      incarnation_++;
      if (f.kind == FaultKind::kEtcdDown) {
        etcd_.elect(true_ms());
        NOTE(-1, "is up again, term %lld", static_cast<long long>(etcd_.term()));
        return;
      }
      tally_.restores++;
      const int64_t revision = etcd_.state().revision;
      if (f.kind == FaultKind::kRestore) {
        etcd_.restore(backup_,
                      f.a == 0   ? backup_.revision
                      : f.a == 1 ? revision
                                 : backup_.revision + 1000000000,
                      f.c == 0 ? 2 : etcd_.term(), true_ms());
      } else {
        etcd_.restore(Etcd::State(), 1, f.kind == FaultKind::kReplace ? f.a : 2, true_ms());
      }
      NOTE(-1, "is up again, %s, surplus %lld, term %lld",
           f.kind == FaultKind::kRestore ? "RESTORED" : "EMPTY", static_cast<long long>(etcd_.surplus()),
           static_cast<long long>(etcd_.term()));
      return;
    }
    case FaultKind::kCutPath:
    case FaultKind::kLossy:
    case FaultKind::kSlow:
    case FaultKind::kLate:
    case FaultKind::kDoubled:
      for (int i = 0; i < schedule_.instances; i++) {
        if (f.who >= 0 && i != f.who) continue;
        Instance &it = instances_[i];
        const Us until = now_ + f.b * 1000;
        if (f.kind == FaultKind::kCutPath) {
          NOTE(i, "paths %lld are cut for %.3f s", static_cast<long long>(f.a),
               static_cast<double>(f.b) / 1e3);
          for (int e = 0; e < kMostEndpoints; e++)
            if ((f.a >> e & 1) != 0) it.paths[e] = {until, static_cast<Cut>(f.c)};
        } else if (f.kind == FaultKind::kLossy) {
          it.lossy_until = until;
          it.loss_percent = f.a;
        } else if (f.kind == FaultKind::kSlow) {
          it.slow_until = until;
          it.slow_ms = f.a;
        } else if (f.kind == FaultKind::kLate) {
          it.late_until = until;
          it.late_percent = f.a;
          it.late_ms = f.c;
        } else {
          it.doubled_until = until;
          it.doubled_percent = f.a;
          it.doubled_ms = f.c;
        }
      }
      return;
    case FaultKind::kLoseReply:
      in.lose_reply = static_cast<RequestKind>(f.a);
      return;
    case FaultKind::kHoldRequest:
      in.hold_request = static_cast<RequestKind>(f.a);
      in.hold_ms = f.b;
      return;
    case FaultKind::kCure:
      return cure();
  }
}

void World::cure() {
  NOTE(-1, "all faults end");
  cured_ = true;
  if (!etcd_up_) {
    // A restore that is under way still comes; faults are not drawn so that it does.
    etcd_up_ = true;
    incarnation_++;
  }
  no_quorum_until_ = 0;
  date_error_ms_ = 0;
  for (int e = 0; e < kMostEndpoints; e++) stalled_until_[e] = old_member_until_[e] = 0;
  for (int i = 0; i < schedule_.instances; i++) {
    Instance &in = instances_[i];
    in.lossy_until = in.slow_until = in.late_until = in.doubled_until = 0;
    in.lose_reply = in.hold_request = RequestKind::kNone;
    for (Path &path : in.paths) path = {};
    in.worker.trap = -1;
    in.standby = in.disabled = false;
    in.raise_all_ms = 0;
    const bool frozen = in.frozen;
    thaw(in);
    in.frozen = frozen;
    in.clock.kernel_lies = false;
    if (schedule_.prompt_ms == 0) step_clock(in, -wall_offset(in.clock));
    in.clock.ppm = 0;
    if (in.frozen) push(now_, EventKind::kThawInstance, i, 0, in.freeze);
    if (in.worker.frozen) push(now_, EventKind::kThawWorker, i, 0, in.worker.life);
    for (int b = 0; b < schedule_.backends; b++) {
      in.backends[b].trap = -1;
      if (in.backends[b].frozen)
        push(now_ + 1000, EventKind::kThawCall, i, b, in.backends[b].freeze);
    }
    if (!in.up) push(now_ + 1000, EventKind::kStartInstance, i, 0, in.start);
    if (in.worker.stopping) in.down_ms = 1000;
    set_latch(in);
  }
  if (schedule_.prompt_ms > 0)
    push(now_ + schedule_.prompt_ms * 1000, EventKind::kLiveness, 0, 2);
  push(now_ + (schedule_.reserve_ms + kForgottenMs + 8000) * 1000, EventKind::kLiveness, 0, 0);
}

/// Everything has been right for long enough: whoever can have a number mints.
void World::check_liveness(int stage) {
  done_ = stage != 2;
  if (schedule_.edge_of_time) return;
  if (!schedule_.wrong_clocks && etcd_.state().not_before.unix_ms > true_unix_ms())
    return checker_.fail("not_before is ahead %lld s after the last fault",
                         static_cast<long long>((now_ / 1000 - schedule_.cure_ms) / 1000));
  int waiting = 0;
  for (int i = 0; i < schedule_.instances; i++) {
    Instance &in = instances_[i];
    Memory &memory = in.mem();
    const Lease &lease = in.worker.lease;
    // Clocks that were wrong and believed have made times to come unusable.
    if (schedule_.wrong_clocks &&
        (memory.generator.last_ms() + kEpochUnixMs > true_unix_ms() + kMaxLeadMs - 2 ||
         lease.floor() > true_unix_ms() + kMaxLeadMs))
      continue;
    boot_in_call = read_boot(in).ms;
    const Issue answer =
        in.up ? issue(in, memory, read_wall(in, memory), 1) : Issue{Refusal::kNoClaim, 0, 0, 0};
    if (answer.refusal == Refusal::kNone) continue;
    // Where numbers are few it may have to wait for a lease to end. And one that loses its claim in
    // quarantine sees that when the pause is over, and begins another.
    if (stage == 0 && (schedule_.numbers < 4 * schedule_.instances + 8 || lease.none_free() ||
                  lease.state() == Lease::State::kWitnessing)) {
      waiting++;
      continue;
    }
    int free = 0;
    for (size_t n = 0; n < kWorkers; n++)
      if (etcd_.state().claims[n] == 0 && etcd_.state().marks[n].kind != Mark::kGarbage) free++;
    if (lease.none_free() && free == 0) continue;
    checker_.fail("instance %d mints nothing %lld s after the last fault: refusal %d, lease %s", i,
                  static_cast<long long>((now_ / 1000 - schedule_.cure_ms) / 1000),
                  static_cast<int>(answer.refusal), name_of(lease.state()));
    return;
  }
  if (waiting == 0) return;
  done_ = false;
  push(now_ + (schedule_.ttl_ms + schedule_.reserve_ms + kForgottenMs + 5000) * 1000,
       EventKind::kLiveness, 0, 1);
}

}  // namespace snowflake::sim
