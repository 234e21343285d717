// Values as kernels show them: of machines under chrony and systemd-timesyncd, and
// of containers that nobody synchronises.
#include "core/clock_guard.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace snowflake
