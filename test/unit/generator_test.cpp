#include "core/generator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace snowflake {
namespace {

constexpr NodeId kFive = node_of(3, 5);
constexpr NodeId kNine = node_of(3, 9);

/// A clock reading in ms since our epoch.
WallTime at(int64_t ms) { return {kEpochUnixMs + ms}; }

/// CLOCK_BOOTTIME as a test sets it, and how often it was asked.
std::atomic<int64_t> boot_ms{0};
std::atomic<int> boot_asked{0};
BootTime boot_clock() {
  boot_asked++;
  return {boot_ms};
}

struct Words {
  uint64_t last, fence;
  friend bool operator==(const Words &, const Words &) = default;
};
Words words(const Generator &g) { return {g.last.value.load(), g.fence.value.load()}; }

/// A generator of which worker 5 may use the milliseconds after 10,000 up to 40,000.
struct GeneratorTest : testing::Test {
  GeneratorTest() { g.install(kFive, 10'000, 40'000); }

  Generator g{};

  /// Refused for that reason, with that wait, and nothing changed; probe() says the same.
  void expect_refused(Refusal why, int64_t now_ms, int n, int64_t wait_ms = 0) {
    const Words before = words(g);
    const Issue foreseen = g.probe(at(now_ms), boot_clock, n);
    const Issue answer = g.issue(at(now_ms), boot_clock, n);
    EXPECT_EQ(answer.refusal, why) << "at " << now_ms << " for " << n;
    EXPECT_EQ(answer.wait_ms, wait_ms) << "at " << now_ms << " for " << n;
    EXPECT_EQ(foreseen.refusal, why);
    EXPECT_EQ(foreseen.wait_ms, wait_ms);
    EXPECT_EQ(words(g), before) << "a refusal changed something";
  }

  /// Granted; probe() says the same before, and changes nothing.
  Issue expect_granted(int64_t now_ms, int n = 1) {
    const Words before = words(g);
    const Issue foreseen = g.probe(at(now_ms), boot_clock, n);
    EXPECT_EQ(words(g), before) << "a probe changed something";
    const Issue answer = g.issue(at(now_ms), boot_clock, n);
    EXPECT_EQ(answer.refusal, Refusal::kNone) << "at " << now_ms << " for " << n;
    EXPECT_EQ(foreseen.refusal, Refusal::kNone);
    EXPECT_EQ(foreseen.first, answer.first);
    EXPECT_EQ(foreseen.node, answer.node);
    return answer;
  }
};

// ---- what is granted

TEST_F(GeneratorTest, StartsAtTheClock) {
  const Issue one = expect_granted(20'000);
  EXPECT_EQ(one.first, first_tick(20'000));
  EXPECT_EQ(one.node, kFive);
}

TEST_F(GeneratorTest, GoesOnByOneWithinAMillisecond) {
  expect_granted(20'000);
  EXPECT_EQ(expect_granted(20'000).first, first_tick(20'000) + 1);
  EXPECT_EQ(expect_granted(20'000).first, first_tick(20'000) + 2);
}

TEST_F(GeneratorTest, JumpsToTheClockWhenThatIsAhead) {
  expect_granted(20'000, 1000);
  EXPECT_EQ(expect_granted(20'001).first, first_tick(20'001));
  EXPECT_EQ(expect_granted(35'000).first, first_tick(35'000));
}

TEST_F(GeneratorTest, RollsIntoTheNextMillisecondWhenTheSequenceIsUsedUp) {
  for (int i = 0; i < 4096; i++) ASSERT_EQ(expect_granted(20'000).first, first_tick(20'000) + i);
  EXPECT_EQ(expect_granted(20'000).first, first_tick(20'001));
}

TEST_F(GeneratorTest, ABatchIsConsecutiveTicksAlsoAcrossAMillisecond) {
  for (int i = 0; i < 4; i++) expect_granted(20'000, 1000);
  const Issue across = expect_granted(20'000, 1000);
  EXPECT_EQ(across.first, first_tick(20'000) + 4000);
  EXPECT_EQ(ms_of_tick(across.first + 999), 20'001);
  EXPECT_EQ(expect_granted(20'000).first, across.first + 1000);
}

TEST_F(GeneratorTest, GoesOnUpwardsWhenTheClockStepsBack) {
  const int64_t before = expect_granted(20'000).first;
  EXPECT_EQ(expect_granted(19'050).first, before + 1);
  EXPECT_EQ(expect_granted(19'000).first, before + 2);
  EXPECT_EQ(expect_granted(19'999).first, before + 3);
}

// ---- the lead

TEST_F(GeneratorTest, AThousandMillisecondsAheadOfTheClockAreGrantedOneMoreIsNot) {
  expect_granted(20'000);
  expect_granted(19'000);
  expect_refused(Refusal::kLead, 18'999, 1, 1);
}

TEST_F(GeneratorTest, TheLeadIsThatOfTheBatchesLastTick) {
  expect_granted(20'000, 1000);
  for (int i = 0; i < 3; i++) expect_granted(20'000, 1000);  // sequence 3999 is used
  expect_refused(Refusal::kLead, 19'000, 97, 1);
  expect_granted(19'000, 96);                                // up to 4095
  expect_refused(Refusal::kLead, 19'000, 1, 1);
  expect_refused(Refusal::kLead, 19'000, 1000, 1);
}

TEST_F(GeneratorTest, WaitingAsLongAsItSaysIsEnoughAndOneLessIsNot) {
  expect_granted(20'000, 1000);
  for (const int n : {1, 96, 1000}) {
    for (const int64_t back : {1001, 1500, 5000, 9'999}) {
      const int64_t now = 20'000 - back;
      const Issue refused = g.probe(at(now), boot_clock, n);
      ASSERT_EQ(refused.refusal, Refusal::kLead);
      EXPECT_EQ(refused.wait_ms, back - 1000);
      EXPECT_EQ(g.probe(at(now + refused.wait_ms - 1), boot_clock, n).refusal, Refusal::kLead);
      EXPECT_EQ(g.probe(at(now + refused.wait_ms), boot_clock, n).refusal, Refusal::kNone);
    }
  }
}

TEST_F(GeneratorTest, ABurstMintsTheWholeLeadAndNotOneIdMore) {
  int64_t granted = 0;
  while (g.issue(at(20'000), boot_clock, 512).refusal == Refusal::kNone) granted += 512;
  EXPECT_EQ(granted, 1001 * 4096);
  expect_refused(Refusal::kLead, 20'000, 1, 1);
  EXPECT_EQ(expect_granted(20'001).first, first_tick(21'001));
}

// ---- the fence

TEST_F(GeneratorTest, MintsTheWholeMillisecondOfTheFenceAndNothingPastIt) {
  EXPECT_EQ(expect_granted(40'000).first, first_tick(40'000));
  for (int i = 1; i < 4096; i++)
    ASSERT_EQ(expect_granted(40'000).first, first_tick(40'000) + i);
  expect_refused(Refusal::kFence, 40'000, 1);
  expect_refused(Refusal::kFence, 40'001, 1);
  expect_refused(Refusal::kFence, 1'000'000, 1);
}

TEST_F(GeneratorTest, ABatchOfWhichOnlyTheEndIsPastTheFenceIsRefusedWhole) {
  for (int i = 0; i < 4; i++) expect_granted(40'000, 1000);
  expect_refused(Refusal::kFence, 40'000, 97);
  EXPECT_EQ(expect_granted(40'000, 96).first, first_tick(40'000) + 4000);
}

TEST_F(GeneratorTest, ARaisedFenceIsUsedAtOnce) {
  expect_refused(Refusal::kFence, 40'001, 1);
  g.raise_fence(40'001);
  EXPECT_EQ(g.fence_ms(), 40'001);
  EXPECT_EQ(expect_granted(40'001).first, first_tick(40'001));
  expect_refused(Refusal::kFence, 40'002, 1);
}

TEST_F(GeneratorTest, ARaiseNeverLowersTheFence) {
  for (const int64_t lower : {39'999, 10'000, 1, 0}) {
    g.raise_fence(lower);
    EXPECT_EQ(g.fence_ms(), 40'000);
  }
  EXPECT_EQ(g.node(), kFive);
}

TEST_F(GeneratorTest, ARaiseKeepsTheNode) {
  g.raise_fence(50'000);
  EXPECT_EQ(g.node(), kFive);
  EXPECT_EQ(expect_granted(50'000).node, kFive);
}

// ---- without a claim

TEST(Generator, AllZeroMintsNothing) {
  Generator g{};
  EXPECT_EQ(g.fence_ms(), 0);
  for (const int64_t ms : {int64_t{0}, int64_t{20'000}, kLastMs})
    EXPECT_EQ(g.issue(at(ms), boot_clock, 1).refusal, Refusal::kNoClaim);
  EXPECT_EQ(words(g), (Words{0, 0}));
}

TEST_F(GeneratorTest, AWithdrawnFenceMintsNothing) {
  expect_granted(20'000);
  g.withdraw();
  EXPECT_EQ(g.fence_ms(), 0);
  expect_refused(Refusal::kNoClaim, 20'000, 1);
}

TEST(Generator, AWithdrawnFenceOfNodeZeroMintsNothing) {
  // Its words agree on the node, so it is the empty fence alone that must speak.
  Generator g{};
  g.install(node_of(0, 0), 10'000, 40'000);
  EXPECT_EQ(g.issue(at(20'000), boot_clock, 1).refusal, Refusal::kNone);
  g.withdraw();
  EXPECT_EQ(g.issue(at(20'000), boot_clock, 1).refusal, Refusal::kNoClaim);
  EXPECT_EQ(g.issue(at(0), boot_clock, 1).refusal, Refusal::kNoClaim);
}

TEST_F(GeneratorTest, ARaiseDoesNotReviveAWithdrawnFence) {
  g.withdraw();
  g.raise_fence(50'000);
  EXPECT_EQ(g.fence_ms(), 0);
  expect_refused(Refusal::kNoClaim, 20'000, 1);
}

TEST_F(GeneratorTest, InstallingAfterAWithdrawalGoesOnAboveTheLastId) {
  const int64_t before = expect_granted(20'000, 1000).first + 999;
  g.withdraw();
  g.install(kFive, 10'000, 40'000);
  EXPECT_GT(expect_granted(20'000).first, before);
}

// ---- the clock's range

TEST_F(GeneratorTest, AClockBeforeTheEpochIsRefused) {
  expect_refused(Refusal::kBadClock, -1, 1);
  expect_refused(Refusal::kBadClock, -kEpochUnixMs, 1);
}

TEST(Generator, AClockBeforeTheEpochIsRefusedAlsoWithoutAClaim) {
  Generator g{};
  EXPECT_EQ(g.issue(at(-1), boot_clock, 1).refusal, Refusal::kBadClock);
  EXPECT_EQ(g.issue(at(kLastMs + 1), boot_clock, 1).refusal, Refusal::kBadClock);
}

TEST_F(GeneratorTest, AClockPastTheEndIsRefused) {
  g.raise_fence(kLastMs);
  expect_granted(kLastMs);
  expect_refused(Refusal::kBadClock, kLastMs + 1, 1);
  expect_refused(Refusal::kBadClock, kLastMs * 2, 1);
}

TEST(Generator, TheLastMillisecondIsMintedToItsEndAndNeverWraps) {
  Generator g{};
  g.install(node_of(7, 127), kLastMs - 1, kLastMs);
  int64_t id = 0;
  for (int i = 0; i < 4096; i++) {
    const Issue one = g.issue(at(kLastMs), boot_clock, 1);
    ASSERT_EQ(one.refusal, Refusal::kNone);
    ASSERT_GT(id_of(one.first, one.node), id);
    id = id_of(one.first, one.node);
  }
  EXPECT_EQ(id, INT64_MAX);
  for (int n : {1, 2, 1000})
    EXPECT_EQ(g.issue(at(kLastMs), boot_clock, n).refusal, Refusal::kFence);
  EXPECT_EQ(g.last_ms(), kLastMs);
}

TEST(Generator, AClaimWhoseFloorIsTheEndMintsNothing) {
  Generator g{};
  g.install(kFive, kLastMs, kLastMs);
  EXPECT_EQ(g.issue(at(kLastMs), boot_clock, 1).refusal, Refusal::kFence);
}

TEST(Generator, TheFirstMillisecondCanBeMinted) {
  Generator g{};
  g.install(kFive, 0, 1000);
  const Issue one = g.issue(at(0), boot_clock, 1);
  EXPECT_EQ(one.refusal, Refusal::kNone);
  EXPECT_EQ(one.first, first_tick(1));
}

// ---- a change of node

TEST_F(GeneratorTest, ANewClaimStartsInTheMillisecondAfterItsFloor) {
  g.install(kNine, 25'000, 50'000);
  EXPECT_EQ(g.node(), kNine);
  const Issue one = expect_granted(24'500);
  EXPECT_EQ(one.node, kNine);
  EXPECT_EQ(one.first, first_tick(25'001));
}

TEST_F(GeneratorTest, ANewClaimStartsInTheMillisecondAfterTheLastIdWhenItsFloorIsBehind) {
  const int64_t before = id_of(expect_granted(20'000).first, kFive);
  const NodeId lower = node_of(0, 0);
  g.install(lower, 10'000, 50'000);
  const Issue one = expect_granted(20'000);
  EXPECT_EQ(one.first, first_tick(20'001));
  EXPECT_EQ(one.node, lower);
  EXPECT_GT(id_of(one.first, one.node), before) << "IDs of an instance increase across numbers";
}

TEST_F(GeneratorTest, ANewClaimKeepsTheMarkAsItsFence) {
  g.install(kNine, 10'000, 30'000);
  EXPECT_EQ(g.fence_ms(), 30'000) << "a lower fence than that of the number before";
  expect_granted(30'000);
  expect_refused(Refusal::kFence, 30'001, 1);
}

TEST_F(GeneratorTest, TheSameNumberClaimedAgainStartsAfterItsFloorToo) {
  expect_granted(20'000);
  g.install(kFive, 45'000, 75'000);
  EXPECT_EQ(expect_granted(44'500).first, first_tick(45'001));
}

TEST_F(GeneratorTest, MismatchedNodesMintNothing) {
  expect_granted(20'000);
  // The background worker is frozen between its two stores.
  const uint64_t start = static_cast<uint64_t>(last_tick(20'000)) << kNodeBits | kNine;
  g.last.value.store(start);
  expect_refused(Refusal::kNoClaim, 20'000, 1);
  expect_refused(Refusal::kNoClaim, 39'000, 1000);
  // It goes on.
  g.install(kNine, 10'000, 50'000);
  EXPECT_EQ(expect_granted(20'000).node, kNine);
}

TEST_F(GeneratorTest, NodesThatDifferInRegionOnlyAreDifferent) {
  g.last.value.store(static_cast<uint64_t>(last_tick(20'000)) << kNodeBits | node_of(2, 5));
  expect_refused(Refusal::kNoClaim, 20'000, 1);
}

// ---- a clock that jumped

/// The background worker has validated that the wall clock is kEpochUnixMs ahead of the boot clock:
/// at boot time t the clock shows t ms since our epoch. The last ID is of 20,000.
struct JumpTest : GeneratorTest {
  JumpTest() {
    validate(0);
    boot_ms = 20'000;
    expect_granted(20'000);
    boot_asked = 0;
  }
  void validate(int64_t ahead_ms) { g.clock_offset_ms = kEpochUnixMs + ahead_ms; }
};

TEST_F(JumpTest, AJumpAfterIdleTimeIsRefused) {
  boot_ms = 21'500;
  expect_refused(Refusal::kJump, 25'000, 1);
  expect_refused(Refusal::kJump, 25'000, kMaxBatch);
  EXPECT_EQ(expect_granted(21'500).first, first_tick(21'500)) << "it is undone";
}

TEST_F(JumpTest, AJumpWithoutIdleTimeIsRefusedToo) {
  expect_refused(Refusal::kJump, 22'000, 1);
  expect_refused(Refusal::kJump, 86'400'000, 1);
}

TEST_F(JumpTest, ASecondIsNoJumpAndAMillisecondMoreIsOne) {
  boot_ms = 25'000;
  expect_refused(Refusal::kJump, 26'001, 1);
  expect_granted(26'000);
}

TEST_F(JumpTest, IdleTimePasses) {
  for (const int64_t ms : {21'001, 25'000, 39'000}) {
    boot_ms = ms;
    EXPECT_EQ(expect_granted(ms).first, first_tick(ms));
  }
  EXPECT_GT(boot_asked, 0) << "it was for the boot clock to say so";
}

TEST_F(JumpTest, AClockBehindWhatWasValidatedIsNoJump) {
  boot_ms = 35'000;
  expect_granted(22'000);
}

TEST_F(JumpTest, InARunOfCallsTheBootClockIsNotAsked) {
  // Whatever it would say.
  boot_ms = 0;
  for (const int64_t ms : {20'000, 20'001, 21'000, 22'000, 21'500, 23'000}) expect_granted(ms);
  EXPECT_EQ(boot_asked, 0);
  expect_refused(Refusal::kJump, 24'001, 1);
  EXPECT_GT(boot_asked, 0) << "a ms more than a second past the last ID";
}

TEST_F(JumpTest, WhatTheWorkerValidatesIsGrantedAtOnce) {
  expect_refused(Refusal::kJump, 30'000, 1);
  validate(10'000);
  EXPECT_EQ(expect_granted(30'000).first, first_tick(30'000));
}

TEST_F(JumpTest, NothingIsHeldAgainstTheBootClockBeforeAnythingIsValidated) {
  g.clock_offset_ms = 0;
  expect_granted(30'000);
}

TEST_F(JumpTest, WithoutAClaimItIsTheClaimThatIsMissing) {
  g.withdraw();
  expect_refused(Refusal::kNoClaim, 30'000, 1);
}

TEST_F(JumpTest, AJumpPastTheFenceOrTheLayoutIsNamedByItsCause) {
  expect_refused(Refusal::kJump, 50'000, 1);
  expect_refused(Refusal::kJump, kLastMs, 1);
  expect_refused(Refusal::kBadClock, kLastMs + 1, 1);
}

TEST_F(JumpTest, AClaimInstalledAfterAJumpMintsNothingFromItEither) {
  g.install(kNine, 10'000, 90'000);
  expect_refused(Refusal::kJump, 80'000, 1);
  expect_granted(20'001);
}

// ---- threads: also under ThreadSanitizer

/// One holding of a node: its ticks lie in the milliseconds after the floor, up to the mark.
struct Holding {
  NodeId node;
  int64_t floor_ms, mark_ms;
};
struct Minted {
  int64_t first;
  int n;
  NodeId node;
};

/// Eight threads mint while a ninth changes the number and raises the fence, as the background
/// worker does. The clock runs in real time, many times as fast.
struct Crowd {
  static constexpr int kThreads = 8;
  Generator g{};
  std::atomic<int64_t> clock_ms{1'000'000};
  std::vector<Minted> minted[kThreads];
  std::vector<Holding> holdings;
  std::atomic<bool> enough{false};

  /// So many calls, and on until the keeper has changed enough meanwhile.
  void mint(int who, int calls) {
    for (int i = 0; i < calls || !enough;) {
      if (i >= calls) std::this_thread::yield();
      const int n = 1 + i % 7 * (who % 3);
      const Issue one = g.issue(at(clock_ms.load(std::memory_order_relaxed)), boot_clock, n);
      if (one.refusal != Refusal::kNone) {
        std::this_thread::yield();
        continue;
      }
      minted[who].push_back({one.first, n, one.node});
      i++;
    }
  }

  void hold(NodeId node, int64_t floor_ms) {
    holdings.push_back({node, floor_ms, std::max(floor_ms, clock_ms.load()) + 50});
    g.install(node, floor_ms, holdings.back().mark_ms);
  }
  void raise(int64_t mark_ms) {
    holdings.back().mark_ms = std::max(mark_ms, holdings.back().mark_ms);
    g.raise_fence(mark_ms);
  }

  /// Nothing twice, nothing out of the holdings, each thread upwards.
  void check() {
    std::vector<Minted> all;
    for (const auto &one : minted) {
      int64_t before = -1;
      for (const Minted &m : one) {
        ASSERT_GT(m.first, before) << "a thread's ticks fell";
        before = m.first + m.n - 1;
        const bool held = std::any_of(holdings.begin(), holdings.end(), [&m](const Holding &h) {
          return h.node == m.node && ms_of_tick(m.first) > h.floor_ms &&
                 ms_of_tick(m.first + m.n - 1) <= h.mark_ms;
        });
        ASSERT_TRUE(held) << "tick " << m.first << " of node " << m.node << " was never reserved";
        all.push_back(m);
      }
    }
    // Ticks rise across nodes, so they differ whatever the node.
    std::sort(all.begin(), all.end(),
              [](const Minted &a, const Minted &b) { return a.first < b.first; });
    for (size_t i = 1; i < all.size(); i++)
      ASSERT_GE(all[i].first, all[i - 1].first + all[i - 1].n) << "minted twice";
  }

  template <class Keeper>
  void run(int calls, Keeper keeper) {
    std::atomic<int> left{kThreads};
    std::vector<std::thread> threads;
    for (int who = 0; who < kThreads; who++)
      threads.emplace_back([this, who, calls, &left] {
        mint(who, calls);
        left--;
      });
    for (int turn = 0; left > 0; turn++) {
      keeper(turn);
      if (turn == 100) enough = true;
    }
    for (std::thread &thread : threads) thread.join();
    check();
  }
};

TEST(GeneratorThreads, NothingIsMintedTwiceWhileTheFenceRises) {
  Crowd crowd;
  crowd.hold(kFive, 999'000);
  crowd.run(20'000, [&crowd](int) {
    crowd.clock_ms++;
    crowd.raise(crowd.clock_ms + 2);
    std::this_thread::yield();
  });
  EXPECT_EQ(crowd.holdings.size(), 1u);
}

TEST(GeneratorThreads, NothingIsMintedTwiceWhileTheNumberChanges) {
  Crowd crowd;
  crowd.hold(kFive, 999'000);
  crowd.run(20'000, [&crowd](int turn) {
    crowd.clock_ms++;
    const int64_t mark = crowd.holdings.back().mark_ms;
    switch (turn % 5) {
      case 0:  // others have used that number up to here
        crowd.hold(node_of(3, turn / 5 % 3), std::max(mark, crowd.clock_ms + 200));
        break;
      case 2:
        crowd.g.withdraw();
        crowd.hold(kFive, mark);
        break;
      case 3:  // the same number again, with a gap that somebody else has used
        crowd.hold(kFive, mark + 100);
        break;
      default:
        crowd.raise(crowd.clock_ms + 50);
    }
    if (crowd.g.last_ms() - crowd.clock_ms > 900) crowd.clock_ms = crowd.g.last_ms();
    std::this_thread::yield();
  });
  EXPECT_GT(crowd.holdings.size(), 50u);
}

TEST(GeneratorThreads, AtACeilingOfTheLeadEveryTickIsGivenOutOnce) {
  // The clock stands still, so all threads fight for the same 1,001 ms, to the last tick.
  Generator g{};
  g.install(kFive, 999'999, 1'002'000);
  g.issue(at(1'000'000), boot_clock, 1);
  const int64_t start = first_tick(1'000'000) + 1;
  const int64_t end = last_tick(1'000'020);
  std::atomic<int64_t> granted{0};
  std::vector<std::thread> threads;
  for (int who = 0; who < Crowd::kThreads; who++)
    threads.emplace_back([&] {
      // At this clock the lead ends with the 20th ms.
      while (g.issue(at(999'020), boot_clock, 1).refusal == Refusal::kNone) granted++;
    });
  for (std::thread &thread : threads) thread.join();
  EXPECT_EQ(granted, end - start + 1);
  EXPECT_EQ(g.last_ms(), 1'000'020);
}

}  // namespace
}  // namespace snowflake
