// Every order in which processes can take turns at the generator's two words.
//
// generator.cpp is built here once more, with an atomic that can stop its caller before any
// operation. Actors are then led through all schedules, one atomic operation at a time, so that
// whoever can be frozen at a point is frozen there in some schedule, for as long as any of the
// others takes. What this does not see is memory that is not sequentially consistent; the threads
// of generator_test.cpp run under ThreadSanitizer for that.

// All standard headers that the generator includes, before `std` gets another meaning.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace stepped_std {
using namespace std;

/// Thrown through the generator's code when an actor's turn is over.
struct TurnOver {};

/// A program with what its atomic operations have answered so far. A turn runs it from the start on
/// those answers, lets it do one operation more, and stops it before the next.
struct Turn {
  struct Answer {
    uint64_t value;
    bool swapped;
  };
  vector<Answer> answers;
  size_t next = 0;
  bool acted = false;
  bool fail_swap = false;  // the operation, if it is a weak swap that could succeed, fails
  bool swap_could_fail = false;
};
inline Turn *turn = nullptr;

template <class T>
class atomic {
 public:
  static constexpr bool is_always_lock_free = true;
  T load(memory_order = memory_order_seq_cst) const {
    return static_cast<T>(
        operate([this] { return Turn::Answer{static_cast<uint64_t>(value_), false}; }).value);
  }
  void store(T value, memory_order = memory_order_seq_cst) {
    operate([this, value] {
      value_ = value;
      return Turn::Answer{0, false};
    });
  }
  bool compare_exchange_weak(T &expected, T desired, memory_order, memory_order) {
    const Turn::Answer answer = operate([this, expected, desired] {
      if (value_ != expected) return Turn::Answer{value_, false};
      turn->swap_could_fail = true;
      if (turn->fail_swap) return Turn::Answer{value_, false};
      value_ = desired;
      return Turn::Answer{expected, true};
    });
    if (!answer.swapped) expected = answer.value;
    return answer.swapped;
  }

 private:
  template <class Work>
  static Turn::Answer operate(Work work) {
    if (turn == nullptr) {  // outside of a schedule
      Turn alone;
      turn = &alone;
      const Turn::Answer answer = work();
      turn = nullptr;
      return answer;
    }
    if (turn->next == turn->answers.size()) {
      if (turn->acted) throw TurnOver{};
      turn->acted = true;
      turn->answers.push_back(work());
    }
    return turn->answers[turn->next++];
  }

  T value_;
};
}  // namespace stepped_std

#define std stepped_std
#define snowflake stepped_snowflake
#define noexcept
#include "core/generator.hpp"
// The second include must come last, and is what this file is about.
#include "core/generator.cpp"
#undef std
#undef snowflake
#undef noexcept

namespace stepped_snowflake {
namespace {

constexpr NodeId kFive = node_of(3, 5);
constexpr NodeId kNine = node_of(3, 9);

WallTime at(int64_t ms) { return {kEpochUnixMs + ms}; }

/// Stands still, 20 s after our epoch if the wall clock is taken to be kEpochUnixMs ahead of it.
BootTime boot_clock() { return {20'000}; }

/// What an actor does, and what it was granted.
using Program = std::function<std::vector<Issue>(Generator &)>;

Program issues(int64_t now_ms, int n, int calls = 1) {
  return [=](Generator &g) {
    std::vector<Issue> got;
    for (int i = 0; i < calls; i++) got.push_back(g.issue(at(now_ms), boot_clock, n));
    return got;
  };
}
Program keeps(std::function<void(Generator &)> work) {
  return [work = std::move(work)](Generator &g) {
    work(g);
    return std::vector<Issue>{};
  };
}

/// The milliseconds after floor_ms up to mark_ms are this instance's by that number. All others of
/// the number may have been used elsewhere.
struct Holding {
  NodeId node;
  int64_t floor_ms, mark_ms;
};

struct World {
  struct Actor {
    stepped_std::Turn turn;
    bool finished = false;
    std::vector<Issue> got;
  };
  Generator g{};
  std::vector<Actor> actors;
  std::string order;  // who took each turn
  int failed_swaps_left = 1;
};

struct Outcome {
  int64_t ends = 0;  // in which a schedule can end, that differ
  int64_t granted = 0;
  std::map<Refusal, int64_t> refused;
};

class Explorer {
 public:
  Explorer(std::vector<Program> programs, std::vector<Holding> holdings, std::vector<int> sizes)
      : programs_(std::move(programs)), holdings_(std::move(holdings)), sizes_(std::move(sizes)) {}

  Outcome explore(const Generator &start) {
    World world;
    world.g = start;
    world.actors.resize(programs_.size());
    visit(world);
    return outcome_;
  }

  /// One schedule: who takes each turn.
  World follow(const Generator &start, const std::string &order) {
    World world;
    world.g = start;
    world.actors.resize(programs_.size());
    for (const char c : order) take_turn(&world, static_cast<size_t>(c - 'A'), false);
    return world;
  }

 private:
  /// One turn of that actor; whether its operation was a swap that could have failed for no reason.
  bool take_turn(World *world, size_t who, bool fail_swap) {
    World::Actor &actor = world->actors[who];
    actor.turn.next = 0;
    actor.turn.acted = actor.turn.swap_could_fail = false;
    actor.turn.fail_swap = fail_swap;
    stepped_std::turn = &actor.turn;
    try {
      actor.got = programs_[who](world->g);
      actor.finished = true;
    } catch (const stepped_std::TurnOver &) {
    }
    stepped_std::turn = nullptr;
    world->order += static_cast<char>('A' + who);
    return actor.turn.swap_could_fail;
  }

  /// The future depends on the words and on what each actor has read, not on the order.
  static std::vector<uint64_t> key_of(const World &world) {
    std::vector<uint64_t> key{world.g.last.value.load(), world.g.fence.value.load(),
                              static_cast<uint64_t>(world.g.clock_offset_ms.load()),
                              static_cast<uint64_t>(world.failed_swaps_left)};
    for (const World::Actor &actor : world.actors) {
      key.push_back(actor.turn.answers.size());
      for (const auto &answer : actor.turn.answers) {
        key.push_back(answer.value);
        key.push_back(answer.swapped);
      }
    }
    return key;
  }

  void visit(const World &world) {
    if (testing::Test::HasFatalFailure() || !seen_.insert(key_of(world)).second) return;
    bool over = true;
    for (size_t who = 0; who < programs_.size(); who++) {
      if (world.actors[who].finished) continue;
      over = false;
      World next = world;
      const bool swap = take_turn(&next, who, false);
      visit(next);
      if (swap && world.failed_swaps_left > 0) {
        World unlucky = world;
        unlucky.failed_swaps_left--;
        take_turn(&unlucky, who, true);
        visit(unlucky);
      }
    }
    if (over) check(world);
  }

  void check(const World &world) {
    outcome_.ends++;
    std::map<int64_t, size_t> owners;
    for (size_t who = 0; who < programs_.size(); who++) {
      int64_t before = -1;
      for (const Issue &one : world.actors[who].got) {
        if (one.refusal != Refusal::kNone) {
          outcome_.refused[one.refusal]++;
          continue;
        }
        outcome_.granted++;
        ASSERT_GT(one.first, before) << "one caller's ticks fell in " << world.order;
        for (int64_t tick = one.first; tick < one.first + sizes_[who]; tick++) {
          // Ticks of an instance rise across its numbers, so they differ whatever the node.
          ASSERT_TRUE(owners.emplace(tick, who).second) << "minted twice in " << world.order;
          const bool held = std::any_of(holdings_.begin(), holdings_.end(), [&](const Holding &h) {
            return h.node == one.node && ms_of_tick(tick) > h.floor_ms &&
                   ms_of_tick(tick) <= h.mark_ms;
          });
          ASSERT_TRUE(held) << "tick " << tick << " of ms " << ms_of_tick(tick) << " of node "
                            << one.node << " was never reserved, in " << world.order;
        }
        before = one.first + sizes_[who] - 1;
      }
    }
  }

  const std::vector<Program> programs_;
  const std::vector<Holding> holdings_;
  const std::vector<int> sizes_;
  std::set<std::vector<uint64_t>> seen_;
  Outcome outcome_;
};

/// Worker 5 is held for the milliseconds after 10,000 up to 20,000, and 20 s are nearly reached.
Generator held() {
  Generator g{};
  g.install(kFive, 10'000, 20'000);
  g.issue(at(19'999), boot_clock, 1);
  return g;
}
constexpr Holding kHeld{kFive, 10'000, 20'000};

TEST(Schedules, TwoCallersNeverGetTheSameTick) {
  const Outcome all = Explorer({issues(19'999, 1, 2), issues(19'999, 3)}, {kHeld}, {1, 3})
                          .explore(held());
  EXPECT_GT(all.ends, 10);
  EXPECT_EQ(all.granted, 3 * all.ends) << "nobody is refused";
}

TEST(Schedules, ThreeCallersNeverGetTheSameTick) {
  const Outcome all =
      Explorer({issues(19'999, 1), issues(19'998, 2), issues(20'000, 1)}, {kHeld}, {1, 2, 1})
          .explore(held());
  EXPECT_GT(all.ends, 10);
  EXPECT_EQ(all.granted, 3 * all.ends);
}

TEST(Schedules, ACallerFrozenAnywhereUsesNoNumberThatIsGone) {
  const Outcome all = Explorer({issues(20'000, 1), issues(20'000, 2), keeps([](Generator &g) {
                                  g.install(kNine, 15'000, 30'000);
                                })},
                               {kHeld, {kNine, 20'000 - 1, 30'000}}, {1, 2, 0})
                          .explore(held());
  EXPECT_GT(all.ends, 10);
  EXPECT_GT(all.granted, 0);
  EXPECT_GT(all.refused.at(Refusal::kNoClaim), 0) << "also between the two stores";
}

TEST(Schedules, ACallerFrozenAcrossTwoChangesUsesNothingThatOthersUsed) {
  // The number is lost, others use it up to ms 25,000, and it comes back. The callers' clock is at
  // the old mark: whatever of the old holding they still hold in their registers, they get a tick of
  // a holding or none.
  const Outcome all =
      Explorer({issues(20'001, 1), keeps([](Generator &g) {
                  g.install(kNine, 12'000, 20'500);
                  g.install(kFive, 20'900, 30'000);
                })},
               {kHeld, {kNine, 12'000, 20'500}, {kFive, 20'900, 30'000}}, {1, 0})
          .explore(held());
  EXPECT_GT(all.ends, 10);
  EXPECT_GT(all.granted, 0);
}

TEST(Schedules, TheSameNumberClaimedAgainNeverMintsTheGapThatOthersUsed) {
  // Here both words always agree on the number, so it is their order in install() that matters:
  // were the fence first, the gap between 20,000 and 20,900 would be open for a moment.
  const Outcome all = Explorer({issues(20'001, 1), issues(20'000, 1), keeps([](Generator &g) {
                                  g.install(kFive, 20'900, 30'000);
                                })},
                               {kHeld, {kFive, 20'900, 30'000}}, {1, 1, 0})
                          .explore(held());
  EXPECT_GT(all.ends, 10);
  EXPECT_GT(all.granted, 0);
  EXPECT_GT(all.refused.at(Refusal::kFence), 0);
}

// It has an old `last` and a new fence in hand. With snowflake.max_wait = 0 a refusal would be an
// error, though a number is held before and after.
TEST(Schedules, ACallerThatAWholeChangeOvertakesIsNotRefused) {
  Explorer explorer({issues(20'000, 1), keeps([](Generator &g) { g.install(kNine, 15'000, 30'000); })},
                    {}, {1, 0});
  const World world = explorer.follow(held(), "ABBBAAAA");
  ASSERT_TRUE(world.actors[0].finished);
  EXPECT_EQ(world.actors[0].got[0].refusal, Refusal::kNone);
}

TEST(Schedules, ARaiseIsSeenOrNotButNothingPassesIt) {
  const Outcome all = Explorer({issues(20'002, 1), issues(20'001, 1), keeps([](Generator &g) {
                                  g.raise_fence(20'001);
                                  g.raise_fence(20'000);
                                })},
                               {{kFive, 10'000, 20'001}}, {1, 1, 0})
                          .explore(held());
  EXPECT_GT(all.granted, 0);
  EXPECT_GT(all.refused.at(Refusal::kFence), 0);
}

TEST(Schedules, AJumpThatIsVouchedForMeanwhileIsRefusedOrGrantedButNothingIsGivenTwice) {
  Generator jumped = held();
  jumped.clock_offset_ms.store(kEpochUnixMs);
  jumped.raise_fence(30'000);
  const Outcome all = Explorer({issues(25'000, 1, 2), issues(25'000, 2), keeps([](Generator &g) {
                                  g.clock_offset_ms.store(kEpochUnixMs + 5'000);
                                })},
                               {{kFive, 10'000, 30'000}}, {1, 2, 0})
                          .explore(jumped);
  EXPECT_GT(all.ends, 10);
  EXPECT_GT(all.granted, 0);
  EXPECT_GT(all.refused.at(Refusal::kJump), 0);
  EXPECT_EQ(all.refused.size(), 1u) << "for no other reason";
}

TEST(Schedules, AWithdrawalAndANewLifeLeaveNoTickTwice) {
  const Outcome all = Explorer({issues(19'999, 1, 2), issues(19'999, 1), keeps([](Generator &g) {
                                  g.withdraw();
                                  g.raise_fence(25'000);  // of the life before: must not revive it
                                  g.install(kNine, 15'000, 30'000);
                                })},
                               {kHeld, {kNine, 19'999, 30'000}}, {1, 1, 0})
                          .explore(held());
  EXPECT_GT(all.ends, 10);
  EXPECT_GT(all.refused.at(Refusal::kNoClaim), 0);
}

TEST(Schedules, AWorkerKilledBetweenItsTwoStoresLeavesNothingToMintUntilTheNextInstalls) {
  // Its words as they stand after the first store; the next life installs the number it claims.
  Generator torn = held();
  torn.last.value.store(static_cast<uint64_t>(last_tick(19'999)) << kNodeBits | kNine);
  const Outcome all = Explorer({issues(20'500, 1), keeps([](Generator &g) {
                                  g.withdraw();
                                  g.install(kFive, 20'000, 30'000);
                                })},
                               {{kFive, 20'000, 30'000}}, {1, 0})
                          .explore(torn);
  EXPECT_GT(all.granted, 0);
  EXPECT_GT(all.refused.at(Refusal::kNoClaim), 0);
}

}  // namespace
}  // namespace stepped_snowflake
