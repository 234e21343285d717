// The verdicts on values as kernels show them: of machines under chrony and systemd-timesyncd, and
// of containers that nobody synchronises. Then the guard against jumps.
#include "core/clock_guard.hpp"

#include <gtest/gtest.h>

#include "core/layout.hpp"

namespace snowflake {
namespace {

constexpr int64_t kTenMs = 10'000;

ClockVerdict judge(int64_t offset_us, int64_t estimated_us, int64_t max_us, int64_t limit_us = kTenMs) {
  return judge_clock({true, offset_us, estimated_us, max_us}, limit_us);
}

TEST(ClockGuard, AClockThatWasNeverSynchronisedIsRefused) {
  EXPECT_EQ(judge(0, 16'000'000, 16'000'000), ClockVerdict::kNeverSynchronised);
  EXPECT_EQ(judge(0, 0, 16'000'000), ClockVerdict::kNeverSynchronised);
  EXPECT_EQ(judge(0, 0, 17'000'000), ClockVerdict::kNeverSynchronised);
  EXPECT_NE(judge(0, 0, 15'999'999), ClockVerdict::kNeverSynchronised);
}

TEST(ClockGuard, AClockUnderChronyIsGood) {
  EXPECT_EQ(judge(-12, 42, 18'500), ClockVerdict::kGood);
  EXPECT_EQ(judge(0, 130, 501), ClockVerdict::kGood);
}

TEST(ClockGuard, AClockUnderTimesyncdWhoseEstimatedErrorIsAlwaysZeroIsGood) {
  EXPECT_EQ(judge(823, 0, 250'000), ClockVerdict::kGood);
}

TEST(ClockGuard, AMaximumErrorThatGrowsBetweenPollsIsGoodUpToOneAndAHalfSeconds) {
  // 500 us a second: 34 minutes between polls come to just above a second.
  EXPECT_EQ(judge(0, 0, 1'024'500), ClockVerdict::kGood);
  EXPECT_EQ(judge(0, 0, 1'500'000), ClockVerdict::kGood);
  EXPECT_EQ(judge(0, 0, 1'500'001), ClockVerdict::kTooUncertain);
  EXPECT_EQ(judge(1, 0, 1'500'000), ClockVerdict::kTooUncertain) << "the offset counts too";
  EXPECT_EQ(judge(-1, 0, 1'500'000), ClockVerdict::kTooUncertain);
}

TEST(ClockGuard, TheErrorMayBeAsBigAsTheSettingAndNoBigger) {
  EXPECT_EQ(judge(0, 10'000, 20'000), ClockVerdict::kGood);
  EXPECT_EQ(judge(0, 10'001, 20'000), ClockVerdict::kTooUncertain);
  EXPECT_EQ(judge(10'000, 0, 20'000), ClockVerdict::kGood);
  EXPECT_EQ(judge(10'001, 0, 20'000), ClockVerdict::kTooUncertain);
  EXPECT_EQ(judge(-10'001, 0, 20'000), ClockVerdict::kTooUncertain) << "either way";
  EXPECT_EQ(judge(6'000, 4'001, 20'000), ClockVerdict::kTooUncertain) << "both together";
  EXPECT_EQ(judge(-6'000, 4'001, 20'000), ClockVerdict::kTooUncertain);
  EXPECT_EQ(judge(450'000, 0, 500'000), ClockVerdict::kTooUncertain) << "being slewed";
  EXPECT_EQ(judge(0, 1'000, 2'000, 1'000), ClockVerdict::kGood);
  EXPECT_EQ(judge(0, 1'001, 2'000, 1'000), ClockVerdict::kTooUncertain);
}

TEST(ClockGuard, AKernelThatDoesNotTellIsRefused) {
  EXPECT_EQ(judge_clock({}, kTenMs), ClockVerdict::kUnreadable);
  EXPECT_EQ(judge_clock({false, 0, 0, 0}, kTenMs), ClockVerdict::kUnreadable);
}

TEST(ClockGuard, NothingIsAskedWithTheSettingAtZero) {
  EXPECT_EQ(judge(0, 16'000'000, 16'000'000, 0), ClockVerdict::kGood);
  EXPECT_EQ(judge(900'000, 900'000, 900'000, 0), ClockVerdict::kGood);
  EXPECT_EQ(judge_clock({}, 0), ClockVerdict::kGood);
}

TEST(ClockGuard, TheErrorIsOffsetAndEstimateTogether) {
  EXPECT_EQ(clock_error_us({true, -300, 42, 18'500}), 342);
  EXPECT_EQ(clock_error_us({true, 300, 42, 18'500}), 342);
}

// ---- jumps

/// A wall clock that shows `ahead` more than the boot clock, at that boot time.
constexpr int64_t kOffset = kEpochUnixMs + 5'000'000'000;
Times at(int64_t boot_ms, int64_t ahead_ms = 0) {
  return {{kOffset + boot_ms + ahead_ms}, {boot_ms}};
}

/// It has seen a clock that is right, at boot time 10,000.
struct JumpGuardTest : testing::Test {
  JumpGuardTest() { guard.observe(at(10'000), false); }

  ClockGuard guard;

  void expect_believed(Times now, bool vouched = false) {
    guard.observe(now, vouched);
    EXPECT_EQ(guard.jumped_ms(), 0) << "at boot time " << now.boot.ms;
    EXPECT_EQ(guard.believed(now).unix_ms, now.wall.unix_ms);
  }
  void expect_jump(Times now, int64_t by_ms, bool vouched = false) {
    guard.observe(now, vouched);
    EXPECT_EQ(guard.jumped_ms(), by_ms) << "at boot time " << now.boot.ms;
    EXPECT_EQ(guard.believed(now).unix_ms, now.wall.unix_ms - by_ms)
        << "what it would show had it not jumped";
  }
};

TEST(JumpGuard, BelievesTheFirstReadingWhateverItIs) {
  for (const int64_t ahead : {int64_t{0}, int64_t{86'400'000}, -kOffset / 2}) {
    ClockGuard guard;
    EXPECT_EQ(guard.offset_ms(), 0) << "nothing was observed yet";
    guard.observe(at(10'000, ahead), false);
    EXPECT_EQ(guard.jumped_ms(), 0);
    EXPECT_EQ(guard.offset_ms(), kOffset + ahead);
    EXPECT_EQ(guard.believed(at(10'000, ahead)).unix_ms, kOffset + 10'000 + ahead);
  }
}

TEST_F(JumpGuardTest, AJumpOfMoreThanASecondIsNotBelievedAndTimeGoesOnWithoutIt) {
  expect_jump(at(10'250, 1001), 1001);
  expect_jump(at(11'000, 1001), 1001);
  expect_jump(at(11'250, 86'400'000), 86'400'000);
  expect_jump(at(3'600'000, 86'400'000), 86'400'000);
  EXPECT_EQ(guard.offset_ms(), kOffset);
}

TEST_F(JumpGuardTest, ASecondIsBelieved) {
  expect_believed(at(10'250, 1000));
  EXPECT_EQ(guard.offset_ms(), kOffset + 1000);
}

TEST_F(JumpGuardTest, AJumpThatIsUndoneIsOver) {
  expect_jump(at(10'250, 5000), 5000);
  expect_believed(at(10'500));
  EXPECT_EQ(guard.offset_ms(), kOffset);
  expect_jump(at(10'750, 5000), 5000);
  expect_believed(at(11'000, 900));
}

TEST_F(JumpGuardTest, AJumpThatIsVouchedForIsOver) {
  expect_jump(at(10'250, 5000), 5000);
  expect_believed(at(10'500, 5000), true);
  EXPECT_EQ(guard.offset_ms(), kOffset + 5000);
  expect_believed(at(10'750, 5000));
  expect_jump(at(11'000, 6001), 1001);
}

TEST_F(JumpGuardTest, AJumpThatIsVouchedForAtOnceIsNone) {
  expect_believed(at(10'250, 86'400'000), true);
  expect_believed(at(10'500, 86'400'000));
}

TEST_F(JumpGuardTest, AClockThatIsVouchedForBehindTheJumpIsWhereItIsHeldAgainstFromThenOn) {
  expect_believed(at(10'250, -5000), true);
  EXPECT_EQ(guard.offset_ms(), kOffset - 5000);
  expect_jump(at(10'500), 5000);
}

TEST_F(JumpGuardTest, SlewingIsFollowedHoweverFarItGoes) {
  int64_t ahead = 0;
  for (int64_t boot = 11'000; boot < 200'000; boot += 1000) expect_believed(at(boot, ahead += 100));
  EXPECT_EQ(guard.offset_ms(), kOffset + ahead);
  for (int64_t boot = 200'000; boot < 400'000; boot += 1000)
    expect_believed(at(boot, ahead -= 100));
  EXPECT_EQ(guard.offset_ms(), kOffset + ahead);
  expect_jump(at(400'000, ahead + 1001), 1001);
}

TEST_F(JumpGuardTest, ASmallStepBackIsFollowed) {
  expect_believed(at(10'250, -1000));
  EXPECT_EQ(guard.offset_ms(), kOffset - 1000);
  expect_jump(at(10'500, 1), 1001);
}

TEST_F(JumpGuardTest, AStepBackIsFollowedAndIsNoJumpWhenItIsUndone) {
  for (const int64_t back : {1001, 5000, 3'600'000}) {
    expect_believed(at(10'250, -back));
    expect_believed(at(10'500, -back));
    expect_believed(at(10'750));
  }
}

TEST_F(JumpGuardTest, ASuspendedMachineIsNoJump) {
  // The boot clock ran on.
  expect_believed(at(8 * 3'600'000));
  expect_jump(at(8 * 3'600'000 + 10, 2000), 2000);
}

TEST(JumpGuard, AnOffsetOfAnEarlierLifeHoldsFromTheFirstReadingOn) {
  ClockGuard jumped(kOffset);
  EXPECT_EQ(jumped.offset_ms(), kOffset);
  jumped.observe(at(50'000, 4000), false);
  EXPECT_EQ(jumped.jumped_ms(), 4000) << "while nobody looked";
  EXPECT_EQ(jumped.believed(at(50'000, 4000)).unix_ms, at(50'000).wall.unix_ms);
  EXPECT_EQ(jumped.offset_ms(), kOffset);

  ClockGuard slewed(kOffset);
  slewed.observe(at(50'000, 400), false);
  EXPECT_EQ(slewed.jumped_ms(), 0);
  EXPECT_EQ(slewed.offset_ms(), kOffset + 400);
}

}  // namespace
}  // namespace snowflake
