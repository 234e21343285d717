// Some instances, one etcd and bad luck: lost and late requests and replies, leases that end early,
// clocks that step, workers and callers that freeze, crashes. Short schedules, each from a seed that
// a failure prints. Whatever happens, no tick of a worker number is given out twice. A holder that
// is no part of it is a witness that this etcd forgets nothing: one that does is for the simulator.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "core/generator.hpp"
#include "core/lease.hpp"
#include "fake_etcd.hpp"

namespace snowflake {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSchedules = 250;
#else
constexpr uint64_t kSchedules = 2000;
#endif

constexpr int kRegion = 3;
constexpr int64_t kReserve = 3000;
constexpr int64_t kTtl = 5000;
constexpr int64_t kInterval = 200;
constexpr int64_t kTimeout = 900;

using Random = std::mt19937_64;

/// No wall clock is held against it here: the lease must be safe whatever the clock says.
BootTime no_boot_clock() { return {0}; }

/// Ticks of each worker number that have been given out, by anybody.
class Ledger {
 public:
  /// False if one of them was given out before.
  bool enter(NodeId node, int64_t first, int n) {
    auto &ranges = given_[node];
    const auto after = ranges.lower_bound({first, 0});
    if (after != ranges.end() && after->first < first + n) return false;
    if (after != ranges.begin() && std::prev(after)->second >= first) return false;
    ranges.insert({first, first + n - 1});
    return true;
  }

 private:
  std::map<NodeId, std::set<std::pair<int64_t, int64_t>>> given_;
};

struct World {
  Random random;
  FakeEtcd etcd;
  Ledger ledger;
  int64_t now = 1'000'000;  // true time, and everybody's boot time
  bool calm = false;        // no faults from here on
  bool duplicate = false;
  bool disorder = false;
  bool past_lead = false;
  int64_t minted = 0;

  explicit World(uint64_t seed) : random(seed) {
    etcd.ttl_ms = kTtl;
    etcd.last_lease = 1000;
  }
  bool chance(int percent) { return static_cast<int>(random() % 100) < percent; }
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
  }
  void pass(int64_t ms) {
    now += ms;
    etcd.pass(ms);
    etcd.set_mark(kWorkers - 1, kEpochUnixMs + now + kReserve);
  }
};

class Instance {
 public:
  explicit Instance(World *world) : world_(world) { start(0); }

  void turn() {
    apply_late();
    if (world_->now < frozen_until_) return;
    if (world_->now >= worker_frozen_until_) {
      deliver();
      step();
    }
    mint();
  }

  /// What befalls it besides the network.
  void misfortune() {
    World &w = *world_;
    if (w.chance(20)) worker_frozen_until_ = w.now + w.between(10, 3 * kTtl);
    if (w.chance(10)) frozen_until_ = w.now + w.between(10, 3 * kTtl);
    if (w.chance(20)) clock_ += w.between(-4000, 4000);
    if (w.chance(3)) clock_ -= 3'600'000;
    if (w.chance(15)) clock_ = 0;
    if (w.chance(10)) w.etcd.end_lease(lease_->lease());
    if (w.chance(5)) lease_->release();
    if (w.chance(10)) crash(w.chance(50));
  }
  void heal() {
    clock_ = 0;
    frozen_until_ = worker_frozen_until_ = 0;
    if (lease_->state() == Lease::State::kIdle) lease_->start(lease_->lease());
  }

  bool minting() const {
    return generator_->probe({kEpochUnixMs + world_->now}, no_boot_clock, 1).refusal ==
           Refusal::kNone;
  }

 private:
  struct Message {
    int64_t due;
    Request request;
    Reply reply;
  };

  Times clocks() const {
    return {{kEpochUnixMs + world_->now + clock_}, {world_->now}};
  }

  void start(int64_t earlier_lease) {
    lease_ = std::make_unique<Lease>(LeaseSettings{kRegion, kReserve, kInterval});
    lease_->start(earlier_lease);
  }

  /// The worker alone dies, or the whole instance with its memory.
  void crash(bool whole) {
    // Requests that are on their way stay there.
    replies_.clear();
    const int64_t earlier = whole ? 0 : lease_->lease();
    if (whole) {
      generator_ = std::make_unique<Generator>();
      frozen_caller_.reset();
      last_id_ = -1;
    } else {
      generator_->withdraw();
    }
    start(earlier);
  }

  void send(const Request &request) {
    World &w = *world_;
    Reply failed;
    failed.serial = request.serial;
    failed.failed = true;
    const int luck = w.calm ? 99 : static_cast<int>(w.random() % 100);
    if (luck < 4) {  // refused at once
      failed.another_endpoint = w.chance(50);
      replies_.push_back({w.now, request, failed});
    } else if (luck < 10) {  // the request is lost
      replies_.push_back({w.now + kTimeout, request, failed});
    } else if (luck < 18) {  // the reply is lost
      w.etcd.apply(request);
      replies_.push_back({w.now + kTimeout, request, failed});
    } else if (luck < 24) {  // applied long after it was given up
      replies_.push_back({w.now + kTimeout, request, failed});
      late_requests_.push_back({w.now + w.between(0, 5 * kTtl), request, {}});
    } else if (luck < 28) {  // the reply comes long after it was given up
      replies_.push_back({w.now + kTimeout, request, failed});
      replies_.push_back({w.now + kTimeout + w.between(0, 2 * kTtl), request, w.etcd.apply(request)});
    } else {
      Reply reply = w.etcd.apply(request);
      if (luck < 32) reply = w.etcd.apply(request);  // sent again, and it met its own effect
      replies_.push_back({w.now + w.between(0, 30), request, reply});
    }
  }

  /// Requests that etcd gets to late. The instance may be gone by then.
  void apply_late() {
    for (size_t i = 0; i < late_requests_.size();) {
      if (late_requests_[i].due > world_->now) {
        i++;
        continue;
      }
      world_->etcd.apply(late_requests_[i].request);
      late_requests_.erase(late_requests_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void deliver() {
    for (size_t i = 0; i < replies_.size();) {
      if (replies_[i].due > world_->now) {
        i++;
        continue;
      }
      const Reply reply = replies_[i].reply;
      replies_.erase(replies_.begin() + static_cast<std::ptrdiff_t>(i));
      lease_->on_reply(reply, clocks());
      publish();
    }
  }

  void step() {
    if (lease_->state() == Lease::State::kIdle) lease_->start(lease_->lease());
    const Request request = lease_->next_request(clocks());
    if (request.kind != RequestKind::kNone) send(request);
    publish();
  }

  void publish() {
    const Publication news = lease_->publication(clocks());
    if (news.kind == Publication::kInstall)
      generator_->install(news.node, news.floor_ms, news.mark_ms);
    if (news.kind == Publication::kRaiseFence) generator_->raise_fence(news.mark_ms);
  }

  void mint() {
    World &w = *world_;
    // A caller that was frozen between its look at the two words and its swap goes on.
    if (frozen_caller_ && w.chance(10)) {
      if (generator_->last.value.load() == frozen_caller_->last)
        take(frozen_caller_->then, frozen_caller_->n);
      frozen_caller_.reset();
    }
    if (!frozen_caller_ && !w.calm && w.chance(10)) {
      Generator copy{};
      copy.last.value = generator_->last.value.load();
      copy.fence.value = generator_->fence.value.load();
      const uint64_t last = copy.last.value.load();
      const int n = static_cast<int>(w.between(1, 5));
      const Issue foreseen = copy.issue(clocks().wall, no_boot_clock, n);
      if (foreseen.refusal == Refusal::kNone) frozen_caller_ = {last, foreseen, n};
    }
    for (int i = 0; i < 3; i++) {
      const int n = static_cast<int>(w.between(1, 400));
      const Issue one = generator_->issue(clocks().wall, no_boot_clock, n);
      if (one.refusal == Refusal::kNone) {
        if (ms_of_tick(one.first + n - 1) > w.now + clock_ + kMaxLeadMs) w.past_lead = true;
        enter(one, n);
      }
    }
  }

  void take(const Issue &one, int n) {
    // The tick's word as the swap would have written it.
    generator_->last.value =
        static_cast<uint64_t>(one.first + n - 1) << kNodeBits | one.node;
    enter(one, n);
  }
  void enter(const Issue &one, int n) {
    World &w = *world_;
    w.minted += n;
    if (!w.ledger.enter(one.node, one.first, n)) w.duplicate = true;
    const int64_t id = id_of(one.first, one.node);
    if (id <= last_id_) w.disorder = true;
    last_id_ = id_of(one.first + n - 1, one.node);
  }

  struct FrozenCaller {
    uint64_t last;
    Issue then;
    int n;
  };

  World *world_;
  std::unique_ptr<Lease> lease_;
  std::unique_ptr<Generator> generator_ = std::make_unique<Generator>();
  int64_t clock_ = 0;  // off by
  int64_t frozen_until_ = 0;         // all of it
  int64_t worker_frozen_until_ = 0;  // callers go on
  int64_t last_id_ = -1;
  std::vector<Message> replies_;
  std::vector<Message> late_requests_;
  std::optional<FrozenCaller> frozen_caller_;
};

/// One schedule. At its end the faults end, and everybody must mint again.
struct Verdict {
  bool duplicate, disorder, past_lead, stuck;
  int64_t minted;
};
template <class Prepare>
Verdict play(uint64_t seed, Prepare prepare) {
  World w(seed);
  // Few numbers, so that they change hands often: fewer than instances at times.
  const int numbers = static_cast<int>(w.between(2, 4));
  w.etcd.occupy(numbers, kWorkers - 1);
  prepare(&w);
  std::vector<Instance> instances;
  for (int i = 0; i < 3; i++) instances.emplace_back(&w);

  for (int turn = 0; turn < 250; turn++) {
    const int64_t step = w.chance(5) ? w.between(0, 2000) : w.between(0, 60);
    w.pass(step);
    for (Instance &one : instances) {
      if (w.chance(4)) one.misfortune();
      one.turn();
    }
  }
  w.calm = true;
  for (Instance &one : instances) one.heal();
  // Long enough for every lease of the dead and every mark of the clocks that were ahead.
  for (int turn = 0; turn < 400; turn++) {
    w.pass(50);
    for (Instance &one : instances) one.turn();
  }
  const auto minting = std::count_if(instances.begin(), instances.end(),
                                     [](const Instance &one) { return one.minting(); });
  return {w.duplicate, w.disorder, w.past_lead, minting != std::min<int64_t>(3, numbers), w.minted};
}

TEST(LeaseRandom, NoTickIsGivenOutTwiceWhateverHappens) {
  int64_t minted = 0;
  for (uint64_t seed = 1; seed <= kSchedules; seed++) {
    const Verdict verdict = play(seed, [](World *) {});
    ASSERT_FALSE(verdict.duplicate) << "seed " << seed;
    ASSERT_FALSE(verdict.disorder) << "an instance's IDs fell; seed " << seed;
    ASSERT_FALSE(verdict.past_lead) << "seed " << seed;
    ASSERT_FALSE(verdict.stuck) << "somebody mints nothing long after the last fault; seed " << seed;
    minted += verdict.minted;
  }
  EXPECT_GT(minted, static_cast<int64_t>(kSchedules) * 100'000) << "little was tried";
}

TEST(LeaseRandom, ARaiseWithoutTheLeaseCompareIsCaught) {
  // A checker that never fails proves nothing.
  bool caught = false;
  for (uint64_t seed = 1; seed <= kSchedules && !caught; seed++)
    caught = play(seed, [](World *w) { w->etcd.without_lease_compare = true; }).duplicate;
  EXPECT_TRUE(caught);
}
}  // namespace
}  // namespace snowflake
