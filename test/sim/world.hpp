// The simulated world: instances, their clocks and processes, the network and etcd, driven by one
// queue of events. The core in it is the product's own: Lease, Generator, ClockGuard, judge_clock().
// The background worker's loop is that of pg/worker.cpp, done again without Postgres; a change there
// belongs here too. So does the client of etcd/client.cpp, as far as it has a will of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "checker.hpp"
#include "core/clock_guard.hpp"
#include "core/generator.hpp"
#include "core/lease.hpp"
#include "etcd.hpp"
#include "random.hpp"
#include "schedule.hpp"

namespace snowflake::sim {

/// What was met, to show that the world is as hostile as it is meant to be.
struct Tally {
  int64_t ids = 0, requests = 0, claims = 0, losses = 0, rollbacks = 0, quarantines = 0;
  int64_t refused_fence = 0, refused_lead = 0, refused_jump = 0;
  int64_t late = 0, frozen_calls = 0, frozen_calls_won = 0, crashes = 0, restores = 0, elections = 0;
};

class World {
 public:
  World();

  /// One run. Whether all promises were kept; else failure() says which was not.
  bool run(uint64_t seed, bool beyond, bool trace);

  const std::string &failure() const { return checker_.failure(); }
  const char *schedule_name() const { return schedule_.name; }
  const Tally &tally() const { return tally_; }
  /// Of everything that was asked and minted.
  uint64_t digest() const { return checker_.digest(); }
  const std::vector<std::string> &trace() const { return trace_; }

 private:
  // Time in us of a true clock, from 0.
  using Us = int64_t;

  enum class EventKind : uint8_t {
    kFault, kWorker, kThawWorker, kCall, kThawCall, kThawInstance, kStartInstance, kAfterCrash,
    kStartWorker, kArrive, kReply, kStrobe, kLiveness
  };
  struct Event {
    Us at;
    uint32_t order;
    EventKind kind;
    uint8_t who;
    uint8_t sub;
    uint32_t ref;
    bool operator<(const Event &other) const {
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  struct Clock {
    Us offset = 0;       // wall minus true at `since`
    int64_t ppm = 0;
    Us since = 0;
    Us boot_offset = 0;
    Us unsynchronised_until = 0;
    bool kernel_lies = false;
  };

  /// Surviving, of one postmaster.
  struct Memory {
    Generator generator;
    int64_t lease = 0;
    int holding = -1;            // whose ticks `last` gives out
    int64_t last_minted = -1;
    int64_t fair_offset_ms = 0;  // of wall minus true, the most that can be believed
  };

  struct Client {
    bool busy = false;
    uint64_t serial = 0;
    Us deadline = 0;
    int64_t failed_at = -1;  // refused at once
    int arrived = -1;        // message
    bool ready = false;      // as of the last wait: that it has arrived,
    bool failed = false;     // or that it will not
    int endpoint = 0;
    int failed_in_a_row = 0;
  };

  enum class Phase : uint8_t { kStarting, kStandby, kClockUnsafe, kDisabled, kOther };

  struct Worker {
    bool alive = false;
    bool frozen = false;
    uint32_t life = 0;   // counts workers; messages know theirs
    uint32_t wake = 0;   // the one wake-up that counts
    int pc = 0;
    Lease lease{{0, 0, 0}};
    ClockGuard guard{0};
    Client client;
    Phase phase = Phase::kStarting;
    WallTime wall{0};
    Times now{};
    Request request;
    bool latch = false;
    bool stopping = false;
    bool farewell = false;
    bool started = false;
    int64_t farewell_until = 0;  // boot ms
    bool quarantined = false;
    uint64_t claims = 0, losses = 0, rollbacks = 0;  // as far as they are tallied
    Interference::Held held[Interference::kMost];
    int held_count = 0;
    int trap = -1;  // step
    Blow blow = kFreeze;
    int64_t blow_ms = 0;
  };

  struct Backend {
    bool frozen = false;
    uint32_t freeze = 0;
    uint32_t life = 0;  // of the postmaster
    int trap = -1;
    int64_t trap_ms = 0;
    int step = 0;
    int n = 1;
    WallTime now{0};
    uint64_t last = 0, fence = 0, offset = 0;
    int64_t boot_ms = 0;
  };

  struct Path {
    Us until = 0;
    Cut how = kNothing;
  };

  struct Instance {
    Clock clock;
    bool up = false;          // a postmaster runs
    bool children = false;    // and has reached the point where it has any
    bool frozen = false;
    uint32_t freeze = 0;
    Us paused_at = -1;        // the machine, not only its processes
    uint32_t life = 0;        // of postmasters
    uint32_t start = 0;
    static constexpr uint32_t kKept = 4;
    Memory memory[kKept];     // those of dead postmasters, for the calls that were frozen then
    Worker worker;
    Backend backends[kMostBackends];
    LastMark hint;            // in the data directory
    int64_t down_ms = 0;
    bool standby = false;
    bool disabled = false;
    int64_t raise_all_ms = 0;
    bool init_region = false;
    Path paths[kMostEndpoints];
    Us lossy_until = 0, slow_until = 0, late_until = 0, doubled_until = 0;
    int64_t loss_percent = 0, slow_ms = 0, late_percent = 0, late_ms = 0, doubled_percent = 0;
    int64_t doubled_ms = 0;
    RequestKind lose_reply = RequestKind::kNone;
    RequestKind hold_request = RequestKind::kNone;
    int64_t hold_ms = 0;
    int64_t strobe_ms = 0, strobe_period_ms = 0, strobes = 0;
    Us second = 0;            // that of which the next two count
    int requests_in_second = 0, turns_in_second = 0;
    Us last_mint = -1;

    Memory &mem() { return memory[life % kKept]; }
  };

  struct Message {
    Request request;
    Reply reply;
    int who;
    uint32_t worker_life;
    uint32_t incarnation;
    int endpoint;
    Us sent;
    bool echo;  // a second copy, whose answer nobody waits for
    bool lose_reply;
  };

  void begin();
  void push(Us at, EventKind kind, int who = 0, int sub = 0, uint32_t ref = 0);
  void handle(const Event &event);
  void act(Fault fault);
  void cure();
  /// 0: where nothing hinders; 1: for the last time; 2: where the schedule promises it early.
  void check_liveness(int stage);

  // clocks
  int64_t true_unix_ms() const { return schedule_.base_unix_ms + now_ / 1000; }
  int64_t true_ms() const { return now_ / 1000; }
  Us wall_offset(const Clock &clock) const {
    return clock.offset + (now_ - clock.since) * clock.ppm / 1000000;
  }
  WallTime read_wall(Instance &in, Memory &memory);
  BootTime read_boot(const Instance &in) const { return {(now_ + in.clock.boot_offset) / 1000}; }
  KernelClock read_kernel(const Instance &in) const;
  void step_clock(Instance &in, Us by);

  // instances
  int id_of_instance(const Instance &in) const { return static_cast<int>(&in - instances_); }
  void start_instance(Instance &in);
  void lose_postmaster(Instance &in);
  void crash(Instance &in);
  void start_worker(Instance &in);
  void thaw(Instance &in);
  void end_worker(Instance &in);
  void freeze_worker(Instance &in, int64_t ms);
  bool trapped(Instance &in, int step);

  // the background worker
  void run_worker(Instance &in);
  void wake_worker(Instance &in, int64_t in_us);
  void set_latch(Instance &in);
  Times look(Instance &in, WallTime wall);
  void steer(Instance &in, Times now);
  void obey(Instance &in, Times now);
  void note_network(Instance &in);
  void take_reply(Instance &in);
  void publish(Instance &in, int hold_after);
  void follow(Instance &in);

  // the network
  void send(Instance &in);
  int new_message();
  void arrive(int message);
  void deliver(int message);
  void release(int message) { free_messages_.push_back(message); }

  // calls
  void call(Instance &in, Backend &backend);
  Issue issue(Instance &in, Memory &memory, WallTime now, int n);
  void finish_call(Instance &in, Backend &backend);

  [[gnu::format(printf, 3, 4)]] void note(int who, const char *format, ...);

  Schedule schedule_;
  Random random_;
  Checker checker_;
  Etcd etcd_{&checker_};
  Tally tally_;
  bool beyond_ = false;
  bool tracing_ = false;
  std::vector<std::string> trace_;

  Us now_ = 0;
  uint32_t order_ = 0;
  std::vector<Event> events_;
  Instance instances_[kMostInstances];
  std::vector<Message> messages_;
  std::vector<int> free_messages_;

  bool etcd_up_ = true;
  bool etcd_refuses_ = false;
  uint32_t incarnation_ = 0;
  Us etcd_down_until_ = 0;
  Us no_quorum_until_ = 0;
  Us stalled_until_[kMostEndpoints] = {};
  Us old_member_until_[kMostEndpoints] = {};
  int64_t old_term_ = 0;
  int64_t old_surplus_ = 0;
  int64_t date_error_ms_ = 0;
  Etcd::State backup_;
  bool backed_up_ = false;
  bool cured_ = false;
  bool done_ = false;
};

}  // namespace snowflake::sim
