#include "core/lease.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "lease_fixture.hpp"

namespace snowflake {
namespace {

// ---- the way to a claim

TEST_F(LeaseTest, AsksNothingBeforeItIsStarted) {
  expect_silence();
  EXPECT_EQ(lease.state(), State::kIdle);
  EXPECT_EQ(lease.wake_at(now).ms, INT64_MAX);
  EXPECT_EQ(lease.lease(), 0);
}

TEST_F(LeaseTest, LooksAtTheRegionThenTakesALeaseThenClaimsOnItThenLooksForAWitness) {
  lease.start(0);
  EXPECT_LE(lease.wake_at(now).ms, now.boot.ms);
  serve(Kind::kReadRegion);
  serve(Kind::kGrant);
  const Request claim = ask(Kind::kClaim);
  EXPECT_EQ(claim.lease, etcd.last_lease);
  EXPECT_EQ(claim.worker, 0);
  answer(claim);
  expect_witness();
  EXPECT_EQ(lease.lease(), etcd.last_lease);
  EXPECT_EQ(lease.claims(), 1u);
  EXPECT_EQ(etcd.claims.at(0), etcd.last_lease);
}

TEST_F(LeaseTest, HasOneRequestUnderWayAtATime) {
  lease.start(0);
  ask(Kind::kReadRegion);
  expect_silence();
  pass(3'600'000);
  expect_silence();
  EXPECT_EQ(lease.wake_at(now).ms, INT64_MAX);
}

TEST_F(LeaseTest, EveryRequestHasASerialOfItsOwn) {
  std::set<uint64_t> serials{0};
  lease.start(12);
  for (int i = 0; i < 200; i++) {
    const Request request = ask();
    if (request.kind == Kind::kNone) {
      publish();
      sleep();
      continue;
    }
    EXPECT_TRUE(serials.insert(request.serial).second);
    if (i % 7 == 3)
      fail(request);
    else
      answer(request);
  }
  EXPECT_GT(serials.size(), 20u);
}

TEST_F(LeaseTest, StartsOnceOnly) {
  hold();
  lease.start(99);
  EXPECT_EQ(lease.state(), State::kHolding);
  EXPECT_EQ(lease.lease(), etcd.last_lease);
}

TEST_F(LeaseTest, RevokesTheLeaseOfAnEarlierLifeFirst) {
  etcd.leases[77] = INT64_MAX;
  etcd.claims[0] = 77;
  lease.start(77);
  EXPECT_EQ(lease.lease(), 77);
  EXPECT_EQ(serve(Kind::kRevoke).lease, 77);
  EXPECT_FALSE(etcd.claims.contains(0));
  serve(Kind::kReadRegion);
  serve(Kind::kGrant);
  EXPECT_EQ(ask(Kind::kClaim).worker, 0) << "the number is free at once";
}

TEST_F(LeaseTest, DoesNothingElseUntilTheEarlierLeaseIsRevoked) {
  lease.start(77);
  fail(ask(Kind::kRevoke));
  EXPECT_EQ(lease.lease(), 77) << "a later life must revoke it if this one ends here";
  fail(ask_after(kRetry, Kind::kRevoke));
  const Request third = ask_after(kRetry, Kind::kRevoke);
  EXPECT_EQ(third.lease, 77);
  answer(third);
  EXPECT_EQ(lease.lease(), 0);
  ask(Kind::kReadRegion);
}

TEST_F(LeaseTest, ReadsAgainAfterAPauseWhenTheReadFails) {
  lease.start(0);
  fail(ask(Kind::kReadRegion));
  fail(ask_after(kRetry, Kind::kReadRegion));
  ask_after(kRetry, Kind::kReadRegion);
}

TEST_F(LeaseTest, ReadsAgainAfterAPauseWhenTheGrantFails) {
  lease.start(0);
  serve(Kind::kReadRegion);
  fail(ask(Kind::kGrant));
  EXPECT_EQ(lease.lease(), 0);
  ask_after(kRetry, Kind::kReadRegion);
}

TEST_F(LeaseTest, TriesAnotherEndpointAtOnce) {
  lease.start(77);
  fail(ask(Kind::kRevoke), true);
  answer(ask_after(0, Kind::kRevoke));
  fail(ask(Kind::kReadRegion), true);
  answer(ask_after(0, Kind::kReadRegion));
  fail(ask(Kind::kGrant), true);
  answer(ask_after(0, Kind::kReadRegion));
  answer(ask(Kind::kGrant));
  fail(ask(Kind::kClaim), true);
  answer(ask_after(0, Kind::kRevoke));
  serve(Kind::kReadRegion);
  serve(Kind::kGrant);
  serve(Kind::kClaim);
  fail(ask(Kind::kReadRegion), true);
  ask_after(0, Kind::kReadRegion);
}

// ---- which number

TEST_F(LeaseTest, TakesTheLowestFreeNumberWhoseMarkIsPast) {
  etcd.set_mark(0, wall() + 5000);
  etcd.claims[1] = 0;
  etcd.set_mark(2, wall());  // not past yet
  etcd.set_mark(3, wall() - 1);
  etcd.set_mark(4, wall() - 100'000);
  EXPECT_EQ(ask_claim().worker, 3);
}

TEST_F(LeaseTest, TakesANumberWithoutAMarkAsOneThatIsPast) {
  etcd.occupy(0, 0);
  etcd.set_mark(2, wall() - 100'000);
  EXPECT_EQ(ask_claim().worker, 1);
}

TEST_F(LeaseTest, TakesTheMarkThatPassesFirstWhenNoneIsPast) {
  for (int n = 0; n < kWorkers; n++) etcd.set_mark(n, wall() + 20'000 + (n * 37) % 128);
  etcd.set_mark(99, wall() + 19'999);
  EXPECT_EQ(ask_claim().worker, 99);
}

TEST_F(LeaseTest, TakesTheLowestOfEquals) {
  for (int n = 0; n < kWorkers; n++) etcd.set_mark(n, wall() + 20'000);
  EXPECT_EQ(ask_claim().worker, 0);
}

TEST_F(LeaseTest, TakesTheLastNumberToo) {
  etcd.occupy(0, 126);
  EXPECT_EQ(ask_claim().worker, 127);
}

TEST_F(LeaseTest, SkipsAMarkThatIsNoNumberOrADayAhead) {
  etcd.marks[0] = "no number";
  etcd.marks[1] = "";
  etcd.set_mark(2, wall() + kDay);
  etcd.set_mark(3, 9'999'999'999'999);
  etcd.set_mark(4, wall() + kDay - 1);  // just believed
  etcd.occupy(5, 127);
  EXPECT_EQ(ask_claim().worker, 4);
  EXPECT_EQ(lease.skipped(), 0);
  EXPECT_FALSE(lease.none_free());
}

TEST_F(LeaseTest, ReportsTheLowestFreeNumberThatIsSkipped) {
  etcd.marks[0] = "held, so of no interest";
  etcd.claims[0] = 0;
  etcd.marks[6] = "17672256000000";
  etcd.marks[9] = "garbage";
  ask_claim();
  EXPECT_EQ(lease.skipped(), 6);
}

TEST_F(LeaseTest, ForgetsWhatItSkippedWhenThatIsMended) {
  for (int n = 0; n < kWorkers; n++) etcd.marks[n] = "garbage";
  lease.start(0);
  serve(Kind::kReadRegion);
  EXPECT_EQ(lease.skipped(), 0);
  etcd.marks.clear();
  answer(ask_after(kInterval, Kind::kReadRegion));
  EXPECT_EQ(lease.skipped(), -1);
}

TEST_F(LeaseTest, ClaimsNothingWhileAllMarksAreUntrusted) {
  for (int n = 0; n < kWorkers; n++) {
    if (n % 2)
      etcd.marks[n] = "garbage";
    else
      etcd.set_mark(n, wall() + 2 * kDay);
  }
  const auto before = etcd.marks;
  lease.start(0);
  for (int i = 0; i < 10; i++) answer(ask_after(i == 0 ? 0 : kInterval, Kind::kReadRegion));
  EXPECT_TRUE(lease.none_free());
  EXPECT_EQ(etcd.marks, before) << "never overwritten";
}

TEST_F(LeaseTest, LooksAgainEachIntervalWhileAllNumbersAreHeldAndTakesOneThatIsFreed) {
  etcd.occupy(0, 127);
  lease.start(0);
  serve(Kind::kReadRegion);
  EXPECT_TRUE(lease.none_free());
  EXPECT_EQ(lease.lease(), 0) << "no lease is taken for nothing";
  for (int i = 0; i < 5; i++) {
    answer(ask_after(kInterval, Kind::kReadRegion));
    EXPECT_TRUE(lease.none_free());
  }
  etcd.claims.erase(42);
  answer(ask_after(kInterval, Kind::kReadRegion));
  EXPECT_FALSE(lease.none_free());
  serve(Kind::kGrant);
  EXPECT_EQ(serve(Kind::kClaim).worker, 42);
  expect_witness();
}

// ---- the claim's answer

TEST_F(LeaseTest, TakesTheNextCandidateWhenAnotherWasFaster) {
  const Request first = ask_claim();
  etcd.occupy(0, 1);
  answer(first);
  EXPECT_EQ(lease.state(), State::kClaiming);
  const Request second = ask_after(0, Kind::kClaim);
  EXPECT_EQ(second.worker, 1);
  EXPECT_EQ(second.lease, first.lease) << "that lease holds nothing yet, so it is still good";
  answer(second);
  EXPECT_EQ(serve(Kind::kClaim).worker, 2);
  expect_witness();
  EXPECT_EQ(lease.claims(), 1u);
  EXPECT_EQ(lease.worker(), 2);
}

TEST_F(LeaseTest, NeverClaimsASkippedNumberAsTheNextCandidate) {
  etcd.marks[1] = "garbage";
  const Request first = ask_claim();
  etcd.claims[0] = 0;
  answer(first);
  EXPECT_EQ(ask(Kind::kClaim).worker, 2);
}

TEST_F(LeaseTest, LooksAnewAfterAPauseWhenTheLastCandidateIsTaken) {
  etcd.occupy(0, 126);
  const Request only = ask_claim();
  etcd.claims[127] = 0;
  answer(only);
  const Request revoke = ask_after(kRetry, Kind::kRevoke);
  EXPECT_EQ(revoke.lease, only.lease) << "its lease is not left behind";
  answer(revoke);
  serve(Kind::kReadRegion);
  EXPECT_TRUE(lease.none_free());
}

TEST_F(LeaseTest, RecognisesItsOwnClaimWhenAResentRequestMeetsItsEffect) {
  etcd.set_mark(0, wall() - 5);
  etcd.not_before = etcd::mark_text(wall() - 3);
  const Request claim = ask_claim();
  ASSERT_TRUE(etcd.apply(claim).applied);  // and libcurl sends it again
  answer(claim);
  expect_witness();
  EXPECT_EQ(lease.floor(), wall() - 3);
  EXPECT_EQ(lease.claims(), 1u);
  EXPECT_FALSE(ask(Kind::kRaise).first);
}

TEST_F(LeaseTest, RevokesTheLeaseOfAClaimWhoseReplyNeverCameAndGoesOnWithAFreshOne) {
  const Request claim = ask_claim();
  etcd.apply(claim);
  fail(claim);
  EXPECT_EQ(lease.state(), State::kRevoking);
  EXPECT_EQ(lease.lease(), claim.lease);
  EXPECT_EQ(lease.claims(), 0u);
  answer(ask_after(kRetry, Kind::kRevoke));
  serve(Kind::kReadRegion);
  serve(Kind::kGrant);
  const Request again = serve(Kind::kClaim);
  EXPECT_NE(again.lease, claim.lease);
  EXPECT_EQ(again.worker, 0);
  EXPECT_EQ(etcd.claims.size(), 1u);
}

TEST_F(LeaseTest, AClaimThatIsAppliedLateFindsItsLeaseRevoked) {
  const Request claim = ask_claim();
  fail(claim);
  answer(ask_after(kRetry, Kind::kRevoke));
  EXPECT_TRUE(etcd.apply(claim).failed);
  EXPECT_TRUE(etcd.claims.empty());
  serve_until(State::kHolding);
  EXPECT_FALSE(etcd.apply(claim).applied);
  EXPECT_EQ(etcd.claims.at(0), lease.lease());
}

TEST_F(LeaseTest, AClaimOnALeaseThatEndedIsMadeAnewUnderAnother) {
  const Request claim = ask_claim();
  etcd.end_lease(claim.lease);
  answer(claim);
  serve_until(State::kHolding);
  EXPECT_NE(lease.lease(), claim.lease);
}

// ---- where the first ID starts

TEST_F(LeaseTest, TheFloorIsTheMarkWhenThatIsLater) {
  etcd.set_mark(0, wall() - 10);
  etcd.not_before = etcd::mark_text(wall() - 20);
  hold();
  EXPECT_EQ(lease.floor(), wall() - 10);
  EXPECT_EQ(generator.last_ms(), lease.floor() - kEpochUnixMs);
}

TEST_F(LeaseTest, TheFloorIsNotBeforeWhenThatIsLater) {
  etcd.set_mark(0, wall() - 20);
  etcd.not_before = etcd::mark_text(wall() + 700);
  hold();
  EXPECT_EQ(lease.floor(), wall() + 700);
  const Issue one = generator.issue(now.wall, no_boot_clock, 1);
  EXPECT_EQ(one.refusal, Refusal::kNone);
  EXPECT_EQ(ms_of_tick(one.first), wall() + 701 - kEpochUnixMs);
}

TEST_F(LeaseTest, TheFloorIsTheEpochWithoutMarkAndNotBefore) {
  hold();
  EXPECT_EQ(lease.floor(), kEpochUnixMs);
}

TEST_F(LeaseTest, TheFirstIdIsLaterThanTheMarkHoweverFarTheClockIsBehind) {
  etcd.occupy(1, 127);
  etcd.set_mark(0, wall() + 900);
  hold();
  const Issue one = generator.issue(now.wall, no_boot_clock, 1);
  EXPECT_EQ(one.refusal, Refusal::kNone);
  EXPECT_EQ(ms_of_tick(one.first), wall() + 901 - kEpochUnixMs);
}

TEST_F(LeaseTest, IsNotHandedOutWhileItsMarkIsAheadOfTheClockByMoreThanTheLead) {
  etcd.occupy(1, 127);
  const int64_t mark = wall() + 15'000;
  etcd.set_mark(0, mark);
  claim();
  serve(Kind::kRaise);
  EXPECT_NE(lease.mark(), 0) << "confirmed";
  while (wall() < mark - 1000) {
    ASSERT_EQ(publish().kind, Publication::kNothing);
    ASSERT_FALSE(lease.installed());
    const Request request = ask();
    if (request.kind == Kind::kNone)
      sleep();
    else
      answer(request);
  }
  EXPECT_EQ(wall(), mark - 1000) << "woken at the very moment";
  const Publication news = publish();
  EXPECT_EQ(news.kind, Publication::kInstall);
  EXPECT_EQ(news.floor_ms, mark - kEpochUnixMs);
  EXPECT_EQ(news.mark_ms, lease.mark() - kEpochUnixMs) << "the latest that was confirmed meanwhile";
  EXPECT_GT(news.mark_ms, mark - kEpochUnixMs);
  pass(1);
  EXPECT_EQ(mint(), Refusal::kNone);
}

TEST_F(LeaseTest, TheFirstMarkThatIsAskedForIsNotBelowTheFloor) {
  etcd.occupy(1, 127);
  etcd.set_mark(0, wall() + 2 * kReserve);
  claim();
  EXPECT_EQ(ask(Kind::kRaise).mark_unix_ms, wall() + 2 * kReserve);
}

TEST_F(LeaseTest, GivesUpAClaimWhoseMarkTurnsOutToBeUntrusted) {
  for (const std::string &mark : {std::string("garbage"), etcd::mark_text(wall() + 2 * kDay)}) {
    etcd = {};
    lease = Lease{{kRegion, kReserve, kInterval}};
    const Request claim = ask_claim();
    etcd.marks[0] = mark;  // since the look at the region
    answer(claim);
    EXPECT_EQ(lease.claims(), 0u);
    const Request revoke = ask_after(kInterval, Kind::kRevoke);
    EXPECT_EQ(revoke.lease, claim.lease);
    answer(revoke);
    serve(Kind::kReadRegion);
    EXPECT_EQ(lease.skipped(), 0);
    serve(Kind::kGrant);
    const Request next = ask(Kind::kClaim);
    EXPECT_EQ(next.worker, 1);
    EXPECT_NE(next.lease, claim.lease);
    EXPECT_EQ(etcd.marks[0], mark) << "never overwritten";
  }
}

TEST_F(LeaseTest, ClaimsNothingWhileNotBeforeIsUntrusted) {
  for (const std::string &text : {std::string("garbage"), etcd::mark_text(wall() + 2 * kDay)}) {
    etcd = {};
    lease = Lease{{kRegion, kReserve, kInterval}};
    etcd.not_before = text;
    answer(ask_claim());
    EXPECT_TRUE(lease.bad_not_before());
    EXPECT_EQ(lease.claims(), 0u);
    answer(ask_after(kInterval, Kind::kRevoke));
    EXPECT_TRUE(etcd.claims.empty());
    etcd.not_before = etcd::mark_text(wall() + kDay - 60'000);
    serve_until(State::kHolding);
    EXPECT_FALSE(lease.bad_not_before());
  }
}

// ---- the first mark

TEST_F(LeaseTest, NothingIsPublishedBeforeTheFirstMarkIsConfirmed) {
  claim();
  EXPECT_EQ(publish().kind, Publication::kNothing);
  const Request raise = ask(Kind::kRaise);
  EXPECT_EQ(publish().kind, Publication::kNothing);
  fail(raise);
  EXPECT_EQ(publish().kind, Publication::kNothing);
  EXPECT_EQ(lease.mark(), 0);
  EXPECT_EQ(mint(), Refusal::kNoClaim);
  answer(ask_raise_again());
  const Publication news = publish();
  EXPECT_EQ(news.kind, Publication::kInstall);
  EXPECT_EQ(news.node, node_of(kRegion, 0));
  EXPECT_EQ(news.floor_ms, 0);
  EXPECT_EQ(news.mark_ms, wall() + kReserve - kEpochUnixMs);
  EXPECT_TRUE(lease.installed());
  EXPECT_EQ(mint(), Refusal::kNone);
  EXPECT_EQ(publish().kind, Publication::kNothing) << "once";
}

TEST_F(LeaseTest, TheFirstMarkOfANumberComparesThatThereIsNone) {
  claim();
  const Request raise = ask(Kind::kRaise);
  EXPECT_TRUE(raise.first);
  EXPECT_EQ(raise.least_unix_ms, 0);
  EXPECT_EQ(raise.lease, lease.lease());
  EXPECT_EQ(raise.worker, 0);
  EXPECT_EQ(raise.mark_unix_ms, wall() + kReserve);
  answer(raise);
  publish();
  EXPECT_FALSE(ask_raise().first);
}

TEST_F(LeaseTest, ANumberThatHasAMarkComparesThatItIsLess) {
  etcd.set_mark(0, wall() - 1);
  claim();
  EXPECT_FALSE(ask(Kind::kRaise).first);
}

TEST_F(LeaseTest, EachRaiseComparesThatTheMarkIsNotLowerThanWasLastSeenOfIt) {
  etcd.set_mark(0, wall() - 1);
  claim();
  const Request first = ask(Kind::kRaise);
  EXPECT_EQ(first.least_unix_ms, wall() - 1) << "as in the claim";
  answer(first);
  publish();
  const Request second = ask_raise();
  EXPECT_EQ(second.least_unix_ms, first.mark_unix_ms) << "as confirmed";
  fail(second);
  const Request third = ask_raise_again();
  EXPECT_EQ(third.least_unix_ms, first.mark_unix_ms) << "nobody has confirmed the second";
  etcd.set_mark(0, third.mark_unix_ms + 5);
  answer(third);
  EXPECT_EQ(ask_raise().least_unix_ms, third.mark_unix_ms + 5) << "as found";
}

TEST_F(LeaseTest, AFirstMarkThatWasAppliedWithoutAReplyIsRaisedAtOnce) {
  claim();
  const Request first = ask(Kind::kRaise);
  etcd.apply(first);
  fail(first);
  const Request second = ask_raise_again();
  EXPECT_TRUE(second.first);
  answer(second);  // refused: there is a mark, and it is lower
  EXPECT_EQ(lease.losses(), 0u);
  EXPECT_EQ(publish().kind, Publication::kNothing);
  const Request third = ask_after(0, Kind::kRaise);
  EXPECT_FALSE(third.first);
  answer(third);
  EXPECT_EQ(publish().mark_ms, third.mark_unix_ms - kEpochUnixMs);
}

// ---- the beat

TEST_F(LeaseTest, EachIntervalItKeepsTheLeaseAliveAndThenRaisesTheMark) {
  hold();
  for (int i = 0; i < 5; i++) {
    const Request alive = ask_after(kInterval, Kind::kKeepAlive);
    EXPECT_EQ(alive.lease, lease.lease());
    answer(alive);
    const Request raise = ask_after(0, Kind::kRaise);
    EXPECT_EQ(raise.mark_unix_ms, wall() + kReserve);
    EXPECT_EQ(raise.lease, lease.lease());
    answer(raise);
    const Publication news = publish();
    EXPECT_EQ(news.kind, Publication::kRaiseFence);
    EXPECT_EQ(news.mark_ms, wall() + kReserve - kEpochUnixMs);
    EXPECT_EQ(generator.fence_ms(), news.mark_ms);
  }
}

TEST_F(LeaseTest, ASlowBeatDoesNotShiftTheNextOnes) {
  hold();
  const Request alive = ask_after(kInterval, Kind::kKeepAlive);
  pass(300);
  answer(alive);
  const Request raise = ask(Kind::kRaise);
  pass(300);
  answer(raise);
  const Request next = ask_after(kInterval - 600, Kind::kKeepAlive);
  pass(5 * kInterval);
  answer(next);
  answer(ask(Kind::kKeepAlive));  // that answer was too old to raise on
  answer(ask(Kind::kRaise));
  ask_after(0, Kind::kKeepAlive);
}

TEST_F(LeaseTest, ANewIntervalHoldsFromTheNextBeatOn) {
  hold();
  lease.set_renew_interval(200);
  beat();
  answer(ask_after(200, Kind::kKeepAlive));
  fail(ask(Kind::kRaise));
  ask_after(200, Kind::kKeepAlive);  // a retry waits no longer than a beat
}

TEST_F(LeaseTest, AKeepAliveThatFailsDoesNotLoseTheNumberButBlocksTheRaise) {
  hold();
  sleep();
  fail(ask(Kind::kKeepAlive));
  for (int i = 0; i < 20; i++) {
    EXPECT_EQ(lease.state(), State::kHolding);
    fail(ask_after(kRetry, Kind::kKeepAlive));
    EXPECT_EQ(publish().kind, Publication::kNothing);
  }
  answer(ask_after(kRetry, Kind::kKeepAlive));
  answer(ask_after(0, Kind::kRaise));
  EXPECT_EQ(publish().kind, Publication::kRaiseFence);
  EXPECT_EQ(lease.losses(), 0u);
  EXPECT_EQ(lease.claims(), 1u);
}

TEST_F(LeaseTest, AKeepAliveThatFindsNoLeaseDoesNotLoseTheNumber) {
  hold();
  for (int i = 0; i < 20; i++) {
    sleep();
    etcd.leases.clear();
    serve(Kind::kKeepAlive);
    EXPECT_EQ(lease.state(), State::kHolding);
    answer(ask_after(0, Kind::kRaise));
    EXPECT_EQ(publish().kind, Publication::kRaiseFence);
  }
  EXPECT_EQ(lease.losses(), 0u);
  EXPECT_EQ(lease.claims(), 1u);
}

TEST_F(LeaseTest, AKeepAliveThatSucceedsDoesNotKeepANumberThatIsGone) {
  hold();
  etcd.claims.erase(0);  // by hand; the lease lives on
  sleep();
  serve(Kind::kKeepAlive);
  serve(Kind::kRaise);
  EXPECT_EQ(lease.losses(), 1u);
}

TEST_F(LeaseTest, AFailedRaiseIsTriedAgainAndPublishesNothing) {
  hold();
  const int64_t fence = generator.fence_ms();
  fail(ask_raise());
  for (int i = 0; i < 10; i++) {
    EXPECT_EQ(publish().kind, Publication::kNothing);
    const Request again = ask_raise_again();
    EXPECT_EQ(again.mark_unix_ms, wall() + kReserve) << "by the clock of the try";
    fail(again);
  }
  EXPECT_EQ(generator.fence_ms(), fence);
  EXPECT_EQ(lease.state(), State::kHolding);
  fail(ask_raise_again(), true);
  answer(ask_after(0, Kind::kKeepAlive));
  answer(ask_after(0, Kind::kRaise));
  EXPECT_EQ(publish().kind, Publication::kRaiseFence);
}

TEST_F(LeaseTest, ARaiseWhoseReplyWasLostIsASuccessWhenTheNextTryFindsItsMark) {
  hold();
  const Request raise = ask_raise();
  etcd.apply(raise);
  fail(raise);
  now.wall.unix_ms -= kRetry;  // so that the same mark is asked for
  const Request again = ask_raise_again();
  ASSERT_EQ(again.mark_unix_ms, raise.mark_unix_ms);
  ASSERT_FALSE(etcd.apply(again).applied);
  answer(again);
  EXPECT_EQ(lease.losses(), 0u);
  EXPECT_EQ(publish().mark_ms, raise.mark_unix_ms - kEpochUnixMs);
}

TEST_F(LeaseTest, AHigherMarkUnderItsOwnClaimIsASuccessButOnlyWhatWasAskedForIsPublished) {
  hold();
  const Request raise = ask_raise();
  etcd.set_mark(0, raise.mark_unix_ms + 100'000);
  answer(raise);
  EXPECT_EQ(lease.state(), State::kHolding);
  EXPECT_EQ(publish().mark_ms, raise.mark_unix_ms - kEpochUnixMs);
  EXPECT_EQ(etcd.mark_of(0).unix_ms, raise.mark_unix_ms + 100'000) << "never lowered";
}

TEST_F(LeaseTest, AMarkThatIsNoNumberAnyMoreLosesTheClaim) {
  hold();
  const Request raise = ask_raise();
  etcd.marks[0] = "9 is above all digits";
  answer(raise);
  EXPECT_EQ(lease.losses(), 1u);
  EXPECT_EQ(ask(Kind::kRevoke).lease, raise.lease);
  EXPECT_EQ(etcd.marks[0], "9 is above all digits");
}

// ---- the clock steps

TEST_F(LeaseTest, TheMarkNeverFallsWhenTheClockIsSetBack) {
  hold();
  beat();
  const int64_t mark = lease.mark();
  now.wall.unix_ms -= 3'600'000;
  for (int i = 0; i < 5; i++) {
    const Request raise = ask_raise();
    EXPECT_EQ(raise.mark_unix_ms, mark);
    answer(raise);
    EXPECT_EQ(lease.state(), State::kHolding);
    EXPECT_EQ(publish().kind, Publication::kNothing);
    EXPECT_EQ(etcd.mark_of(0).unix_ms, mark);
  }
  now.wall.unix_ms += 3'600'000;
  beat();
  EXPECT_GT(lease.mark(), mark);
}

TEST_F(LeaseTest, ANumberThatIsGoneIsNoticedAlsoWhileTheClockIsBehind) {
  hold();
  now.wall.unix_ms -= 3'600'000;
  beat();
  etcd.claims[0] = 12345;
  answer(ask_raise());
  EXPECT_EQ(lease.losses(), 1u);
}

TEST_F(LeaseTest, AClockOutsideTheLayoutRaisesNoMark) {
  hold();
  const int64_t mark = lease.mark();
  for (const int64_t wrong : {int64_t{0}, kEpochUnixMs - 1, kEpochUnixMs + kLastMs + 1}) {
    sleep();
    const Times right = now;
    now.wall.unix_ms = wrong;
    serve(Kind::kKeepAlive);
    EXPECT_EQ(serve(Kind::kRaise).mark_unix_ms, mark);
    EXPECT_EQ(publish().kind, Publication::kNothing);
    EXPECT_EQ(lease.state(), State::kHolding);
    now = right;
  }
}

TEST_F(LeaseTest, TheMarkEndsWithTheLayout) {
  now.wall.unix_ms = kEpochUnixMs + kLastMs - 10;
  hold();
  EXPECT_EQ(lease.mark(), kEpochUnixMs + kLastMs);
  EXPECT_EQ(generator.fence_ms(), kLastMs);
  EXPECT_EQ(mint(), Refusal::kNone);
  beat();
  EXPECT_EQ(lease.mark(), kEpochUnixMs + kLastMs);
  EXPECT_EQ(lease.losses(), 0u);
}

TEST_F(LeaseTest, AMarkPastTheLayoutsEndIsPublishedAsTheEnd) {
  now.wall.unix_ms = kEpochUnixMs + kLastMs - 500;
  etcd.occupy(1, 127);
  etcd.set_mark(0, kEpochUnixMs + kLastMs + 400);
  hold();
  EXPECT_EQ(generator.fence_ms(), kLastMs);
  EXPECT_EQ(generator.last_ms(), kLastMs);
  EXPECT_EQ(mint(), Refusal::kFence);
}

// ---- the number is gone

TEST_F(LeaseTest, ALostNumberIsReplacedAtOnceUnderANewLeaseWhileItsReserveIsUsed) {
  hold();
  beat();
  const int64_t old_lease = lease.lease();
  const int64_t fence = generator.fence_ms();
  etcd.claims[0] = 12345;  // another's
  answer(ask_raise());
  EXPECT_EQ(lease.losses(), 1u);
  EXPECT_EQ(lease.lease(), old_lease) << "still to be revoked";
  EXPECT_EQ(publish().kind, Publication::kNothing);
  EXPECT_EQ(generator.fence_ms(), fence);
  EXPECT_EQ(mint(), Refusal::kNone);

  const Request revoke = ask_after(0, Kind::kRevoke);
  EXPECT_EQ(revoke.lease, old_lease);
  answer(revoke);
  serve(Kind::kReadRegion);
  serve(Kind::kGrant);
  const Request claim = serve(Kind::kClaim);
  EXPECT_NE(claim.lease, old_lease);
  EXPECT_EQ(claim.worker, 1);
  expect_witness();
  EXPECT_EQ(publish().kind, Publication::kNothing);
  EXPECT_EQ(generator.node(), node_of(kRegion, 0));
  const Request raise = serve(Kind::kRaise);
  EXPECT_EQ(raise.lease, claim.lease);
  EXPECT_EQ(publish().kind, Publication::kInstall);
  EXPECT_EQ(generator.node(), node_of(kRegion, 1));
  EXPECT_EQ(mint(), Refusal::kNone);
  EXPECT_EQ(lease.claims(), 2u);
}

TEST_F(LeaseTest, AClaimKeyThatIsGoneIsALossToo) {
  hold();
  etcd.end_lease(lease.lease());
  answer(ask_raise());
  EXPECT_EQ(lease.losses(), 1u);
  EXPECT_EQ(lease.state(), State::kRevoking);
}

TEST_F(LeaseTest, NoLeaseEverComesBack) {
  std::set<int64_t> ended;
  lease.start(0);
  for (int i = 0; i < 400; i++) {
    const Request request = ask();
    if (request.kind == Kind::kNone) {
      sleep();
      publish();
      continue;
    }
    if (request.kind == Kind::kRevoke) {
      ended.insert(request.lease);
    } else if (request.lease != 0 && request.kind != Kind::kGrant &&
               request.kind != Kind::kReadRegion) {
      ASSERT_FALSE(ended.contains(request.lease));
    }
    if (i % 11 == 5) etcd.claims.clear();
    if (i % 13 == 7)
      fail(request);
    else
      answer(request);
    publish();
  }
  EXPECT_GT(ended.size(), 5u);
}

TEST_F(LeaseTest, ANumberThatIsLostBeforeItCouldBeUsedIsReplacedAfterAPause) {
  claim();
  etcd.claims[0] = 12345;
  serve(Kind::kRaise);
  EXPECT_EQ(lease.losses(), 1u);
  ask_after(kInterval, Kind::kRevoke);
}

TEST_F(LeaseTest, TheOldReserveGoesOnWhileTheNewNumbersMarkIsAhead) {
  etcd.occupy(2, 127);
  etcd.set_mark(1, wall() + 10'000);
  hold();
  etcd.claims[0] = 12345;
  answer(ask_raise());
  serve_until(State::kHolding);
  ASSERT_EQ(lease.worker(), 1);
  serve(Kind::kRaise);
  EXPECT_EQ(publish().kind, Publication::kNothing);
  EXPECT_EQ(generator.node(), node_of(kRegion, 0));
  EXPECT_EQ(mint(), Refusal::kNone);
}

TEST_F(LeaseTest, TheSameNumberClaimedAgainStartsAfterWhatWasReservedBefore) {
  etcd.occupy(1, 127);
  hold();
  const int64_t mark = lease.mark();
  etcd.claims.erase(0);
  answer(ask_raise());
  serve_until(State::kHolding);
  ASSERT_EQ(lease.worker(), 0);
  EXPECT_EQ(lease.floor(), mark);
}

// ---- replies that come out of order

TEST_F(LeaseTest, AReplyToAnEarlierRaiseIsDropped) {
  hold();
  const int64_t fence = generator.fence_ms();
  const Request first = ask_raise();
  fail(first);
  const Request second = ask_raise_again();
  Reply late;
  late.serial = first.serial;
  late.applied = true;
  lease.on_reply(late, now);
  EXPECT_EQ(publish().kind, Publication::kNothing);
  EXPECT_EQ(generator.fence_ms(), fence);
  expect_silence();  // the second is still under way
  answer(second);
  EXPECT_EQ(publish().mark_ms, second.mark_unix_ms - kEpochUnixMs);
}

TEST_F(LeaseTest, ARaiseOfAnEarlierClaimPublishesNothingUnderALaterOne) {
  hold();
  const Request old = ask_raise();
  fail(old);
  etcd.claims.erase(0);
  etcd.occupy(0, 0);
  answer(ask_raise_again());  // lost
  serve_until(State::kHolding);
  ASSERT_EQ(lease.worker(), 1);
  const Request first = ask(Kind::kRaise);
  Reply late;
  late.serial = old.serial;
  late.applied = true;
  lease.on_reply(late, now);
  EXPECT_EQ(publish().kind, Publication::kNothing);
  EXPECT_EQ(lease.mark(), 0);
  answer(first);
  EXPECT_EQ(publish().node, node_of(kRegion, 1));
}

TEST_F(LeaseTest, TheSameReplyTwiceCountsOnce) {
  const Request claim = ask_claim();
  const Reply reply = etcd.apply(claim);
  lease.on_reply(reply, now);
  lease.on_reply(reply, now);
  EXPECT_EQ(lease.claims(), 1u);
  const Request look = ask(Kind::kReadRegion);
  lease.on_reply(reply, now);  // and a third time
  EXPECT_EQ(lease.claims(), 1u);
  answer(look);
  const Request raise = ask(Kind::kRaise);
  lease.on_reply(reply, now);
  EXPECT_EQ(lease.claims(), 1u);
  answer(raise);
  EXPECT_EQ(publish().kind, Publication::kInstall);
}

TEST_F(LeaseTest, AReplyToNothingIsDropped) {
  Reply stray;
  stray.applied = true;
  stray.lease = 5;
  lease.on_reply(stray, now);  // serial 0
  EXPECT_EQ(lease.state(), State::kIdle);
  hold();
  const int64_t fence = generator.fence_ms();
  for (uint64_t serial = 0; serial < 20; serial++) {
    stray.serial = serial;
    lease.on_reply(stray, now);
    EXPECT_EQ(publish().kind, Publication::kNothing);
  }
  EXPECT_EQ(generator.fence_ms(), fence);
  EXPECT_EQ(lease.state(), State::kHolding);
}

TEST_F(LeaseTest, ARaiseThatIsAppliedLateDoesNotLowerTheMark) {
  hold();
  const Request slow = ask_raise();
  fail(slow);
  answer(ask_raise_again());
  const int64_t mark = etcd.mark_of(0).unix_ms;
  EXPECT_FALSE(etcd.apply(slow).applied);
  EXPECT_EQ(etcd.mark_of(0).unix_ms, mark);
}

TEST_F(LeaseTest, ItTakesTheSecondCompareThatALateRaiseLeadsToNoTickTwice) {
  for (const bool without : {true, false}) {
    etcd = {};
    etcd.without_value_compare = without;
    etcd.occupy(1, 127);
    lease = Lease{{kRegion, kReserve, kInterval}};
    hold();
    const Request slow = ask_raise();
    fail(slow);
    answer(ask_raise_again());
    publish();
    for (int i = 0; i < 40; i++) beat();
    etcd.apply(slow);  // 40 s late
    const Issue mine = generator.issue(now.wall, no_boot_clock, 1);
    ASSERT_EQ(mine.refusal, Refusal::kNone);

    // It dies, and one whose clock is behind takes the number.
    etcd.end_lease(lease.lease());
    now.wall.unix_ms -= 5000;
    Lease next{{kRegion, kReserve, kInterval}};
    Generator other{};
    next.start(0);
    for (int i = 0; i < 6; i++) next.on_reply(reply_of(next.next_request(now)), now);
    const Publication news = next.publication(now);
    EXPECT_EQ(news.kind, without ? Publication::kInstall : Publication::kNothing);
    if (without) {
      other.install(news.node, news.floor_ms, news.mark_ms);
      const Issue theirs = other.issue(now.wall, no_boot_clock, 1);
      EXPECT_EQ(theirs.node, mine.node);
      EXPECT_LT(theirs.first, mine.first) << "it will come to that tick";
    }
  }
}

TEST_F(LeaseTest, AFirstMarkThatIsAppliedLateDoesNotLowerTheMark) {
  claim();
  const Request slow = ask(Kind::kRaise);
  fail(slow);
  answer(ask_raise_again());
  ASSERT_TRUE(slow.first);
  EXPECT_FALSE(etcd.apply(slow).applied);
  EXPECT_EQ(etcd.mark_of(0).unix_ms, lease.mark());
}

// ---- release

TEST_F(LeaseTest, AReleaseRevokesTheLeaseAndEndsIdle) {
  hold();
  const int64_t held = lease.lease();
  lease.release();
  EXPECT_EQ(lease.state(), State::kReleasing);
  EXPECT_EQ(lease.lease(), held);
  EXPECT_LE(lease.wake_at(now).ms, now.boot.ms);
  EXPECT_EQ(serve(Kind::kRevoke).lease, held);
  EXPECT_EQ(lease.state(), State::kIdle);
  EXPECT_EQ(lease.lease(), 0);
  EXPECT_TRUE(etcd.claims.empty());
  EXPECT_EQ(etcd.mark_of(0).kind, Mark::kTime) << "the mark stays";
  pass(60'000);
  expect_silence();
}

TEST_F(LeaseTest, AReleaseIsTriedOnceAtEachEndpointAndALeaseThatMayStandIsLeftToTheNextLife) {
  hold();
  const int64_t held = lease.lease();
  lease.release();
  fail(ask(Kind::kRevoke), true);
  EXPECT_EQ(lease.state(), State::kReleasing);
  const Request second = ask_after(0, Kind::kRevoke);
  EXPECT_EQ(second.lease, held);
  fail(second, true);
  fail(ask_after(0, Kind::kRevoke));
  EXPECT_EQ(lease.state(), State::kIdle);
  EXPECT_EQ(lease.lease(), held);
  pass(60'000);
  expect_silence();
}

TEST_F(LeaseTest, NothingIsPublishedAfterARelease) {
  hold();
  const Request raise = ask_raise();
  const Reply late = etcd.apply(raise);
  lease.release();
  lease.on_reply(late, now);
  EXPECT_EQ(publish().kind, Publication::kNothing);
  const Request revoke = ask(Kind::kRevoke);
  lease.on_reply(late, now);
  EXPECT_EQ(lease.state(), State::kReleasing);
  answer(revoke);
  EXPECT_EQ(publish().kind, Publication::kNothing);
}

TEST_F(LeaseTest, AMarkConfirmedButNotYetPublishedIsNotPublishedAfterARelease) {
  hold();
  answer(ask_raise());
  lease.release();
  EXPECT_EQ(publish().kind, Publication::kNothing);
}

TEST_F(LeaseTest, AReleaseWhileAClaimIsUnderWayRevokesItsLease) {
  const Request claim = ask_claim();
  lease.release();
  const Request revoke = ask(Kind::kRevoke);
  EXPECT_EQ(revoke.lease, claim.lease);
  lease.on_reply(etcd.apply(claim), now);
  EXPECT_EQ(lease.state(), State::kReleasing);
  answer(revoke);
  EXPECT_EQ(lease.state(), State::kIdle);
  EXPECT_TRUE(etcd.claims.empty());
}

TEST_F(LeaseTest, AReleaseBeforeAnyLeaseIsDoneAtOnce) {
  lease.release();
  EXPECT_EQ(lease.state(), State::kIdle);
  lease.start(0);
  ask(Kind::kReadRegion);
  lease.release();
  EXPECT_EQ(lease.state(), State::kIdle);
  expect_silence();
}

TEST_F(LeaseTest, AReleaseBeforeTheEarlierLeaseIsRevokedRevokesThat) {
  lease.start(77);
  fail(ask(Kind::kRevoke));
  lease.release();
  EXPECT_EQ(lease.lease(), 77);
  EXPECT_EQ(serve(Kind::kRevoke).lease, 77);
  EXPECT_EQ(lease.state(), State::kIdle);
  EXPECT_EQ(lease.lease(), 0);
}

TEST_F(LeaseTest, ASecondReleaseChangesNothing) {
  hold();
  lease.release();
  const Request revoke = ask(Kind::kRevoke);
  lease.release();
  expect_silence();
  answer(revoke);
  EXPECT_EQ(lease.state(), State::kIdle);
}

TEST_F(LeaseTest, AStartAfterAReleaseClaimsAnewAndIsInstalledAnew) {
  hold();
  const int64_t before = lease.lease();
  lease.release();
  serve(Kind::kRevoke);
  generator.withdraw();
  EXPECT_FALSE(lease.installed());
  EXPECT_EQ(lease.mark(), 0);
  hold();
  EXPECT_NE(lease.lease(), before);
  EXPECT_EQ(lease.claims(), 2u);
  EXPECT_EQ(mint(), Refusal::kNone);
}

TEST_F(LeaseTest, AStartAfterAReleaseForgetsWhatTheLastLookFound) {
  for (int n = 0; n < kWorkers; n++) etcd.marks[n] = "garbage";
  lease.start(0);
  serve(Kind::kReadRegion);
  ASSERT_TRUE(lease.none_free());
  lease.release();
  lease.start(0);
  EXPECT_FALSE(lease.none_free()) << "nobody has looked yet";
  EXPECT_EQ(lease.skipped(), -1);
}

TEST_F(LeaseTest, TheLeaseForALaterLifeIsKnownBeforeAClaimIsMadeWithIt) {
  lease.start(0);
  serve(Kind::kReadRegion);
  serve(Kind::kGrant);
  EXPECT_EQ(lease.lease(), etcd.last_lease);
}

// ---- no busy loop

/// Sixty seconds of the background worker's loop. `world` answers each request, and may say how many
/// ms that took.
struct Loop {
  using World = std::function<Reply(const Request &, int64_t *took_ms)>;

  int requests = 0;
  int turns = 0;

  Loop(Lease *lease, Times *clocks, const World &world) {
    Times &now = *clocks;
    const int64_t end = now.boot.ms + 60'000;
    const auto pass = [&now](int64_t ms) {
      now.boot.ms += ms;
      now.wall.unix_ms += ms;
    };
    while (now.boot.ms < end && turns < 100'000) {
      turns++;
      const Request request = lease->next_request(now);
      if (request.kind == Kind::kNone) {
        pass(std::min(std::max<int64_t>(0, lease->wake_at(now).ms - now.boot.ms), int64_t{5'000}));
      } else {
        requests++;
        int64_t took = 0;
        Reply reply = world(request, &took);
        reply.serial = request.serial;
        pass(took);
        lease->on_reply(reply, now);
      }
      lease->publication(now);
    }
  }
};

struct LoopTest : LeaseTest {
  /// From the start, and from a number that is held already.
  void expect_paced(const Loop::World &world, int most) {
    Lease fresh{{kRegion, kReserve, kInterval}};
    fresh.start(77);
    const Loop one(&fresh, &now, world);
    EXPECT_LE(one.requests, most);
    EXPECT_LE(one.turns, 3 * most);

    hold();
    const Loop two(&lease, &now, world);
    EXPECT_LE(two.requests, most);
    EXPECT_LE(two.turns, 3 * most);
  }
};

TEST_F(LoopTest, AnEtcdThatFailsAtOnceIsAskedFourTimesASecond) {
  expect_paced([](const Request &, int64_t *) { return lost(); }, 4 * 60 + 2);
}

TEST_F(LoopTest, ThreeEndpointsThatFailAtOnceAreAskedTwelveTimesASecond) {
  int n = 0;
  expect_paced(
      [&n](const Request &, int64_t *) {
        Reply reply = lost();
        reply.another_endpoint = ++n % 3 != 0;
        return reply;
      },
      12 * 60 + 4);
}

TEST_F(LoopTest, AnEtcdThatFailsByTimeoutIsAskedLess) {
  expect_paced(
      [](const Request &, int64_t *took) {
        *took = 900;
        return lost();
      },
      60);
}

TEST_F(LoopTest, OneKindOfRequestThatFailsIsPaced) {
  for (const Kind kind :
       {Kind::kRevoke, Kind::kReadRegion, Kind::kGrant, Kind::kClaim, Kind::kKeepAlive, Kind::kRaise}) {
    etcd = {};
    lease = Lease{{kRegion, kReserve, kInterval}};
    SCOPED_TRACE(static_cast<int>(kind));
    expect_paced(
        [this, kind](const Request &request, int64_t *) {
          return request.kind == kind ? lost() : reply_of(request);
        },
        4 * 4 * 60 + 10);
  }
}

TEST_F(LoopTest, AHealthyBeatIsTwoRequestsAnInterval) {
  etcd.ttl_ms = INT64_MAX / 2;
  expect_paced([this](const Request &request, int64_t *) { return reply_of(request); },
               2 * 60 + 6);
}

TEST_F(LoopTest, ClaimsThatAreLostAsFastAsTheyAreMadeArePaced) {
  expect_paced(
      [this](const Request &request, int64_t *) {
        if (request.kind == Kind::kRaise) etcd.claims.clear();
        return reply_of(request);
      },
      7 * 60 + 10);
}

TEST_F(LoopTest, ANotBeforeThatIsNoNumberIsPaced) {
  etcd.not_before = "garbage";
  lease.start(0);
  const Loop loop(&lease, &now, [this](const Request &request, int64_t *) {
    return etcd.apply(request);
  });
  EXPECT_LE(loop.requests, 4 * 60 + 4);
}

TEST_F(LoopTest, AFullRegionIsReadOnceAnInterval) {
  etcd.occupy(0, 127);
  lease.start(0);
  const Loop loop(&lease, &now, [this](const Request &request, int64_t *) {
    return etcd.apply(request);
  });
  EXPECT_LE(loop.requests, 61);
}

TEST_F(LoopTest, AClockThatStandsStillOrRunsBackIsPaced) {
  for (const int64_t step : {0, -7, -1000, 100'000}) {
    etcd = {};
    etcd.set_mark(0, wall() + 20'000);
    etcd.occupy(1, 127);
    lease = Lease{{kRegion, kReserve, kInterval}};
    lease.start(0);
    int requests = 0;
    int turns = 0;
    for (const int64_t end = now.boot.ms + 60'000; now.boot.ms < end && turns < 100'000; turns++) {
      now.wall.unix_ms += step;
      const Request request = ask();
      if (request.kind != Kind::kNone) {
        requests++;
        answer(request);
      } else {
        now.boot.ms += std::max<int64_t>(0, lease.wake_at(now).ms - now.boot.ms);
      }
      publish();
    }
    EXPECT_LE(requests, 2 * 60 + 10) << "step " << step;
    EXPECT_LE(turns, 6 * 60 + 30) << "step " << step;
    now.wall.unix_ms = kEpochUnixMs + 5'000'000'000;
  }
}

// An answer that no etcd gives: my claim stands, and a compare that must hold did not.
TEST_F(LoopTest, ARaiseThatIsRefusedWithoutAReasonIsPaced) {
  hold();
  const Loop loop(&lease, &now, [this](const Request &request, int64_t *) {
    Reply reply = etcd.apply(request);
    if (request.kind == Kind::kRaise) {
      reply.applied = false;
      reply.lease = request.lease;
      reply.mark = time_mark(request.mark_unix_ms - 1);
    }
    return reply;
  });
  // Each try finds another mark than the one before, is made again at once, and finds it again.
  EXPECT_LE(loop.requests, 9 * 60);
}

TEST_F(LoopTest, APauseForWantOfAWitnessIsThreeRequestsAnInterval) {
  witness = false;
  lease.start(0);
  const Loop loop(&lease, &now, [this](const Request &request, int64_t *) {
    return reply_of(request);
  });
  EXPECT_GT(loop.requests, 2 * 40);
  EXPECT_LE(loop.requests, 3 * 60 + 6);
  EXPECT_EQ(lease.state(), State::kHolding);
}

TEST_F(LoopTest, APauseForWantOfAWitnessIsPacedAlsoWhenItsLooksFail) {
  witness = false;
  for (const Kind kind : {Kind::kReadRegion, Kind::kKeepAlive}) {
    etcd = {};
    lease = Lease{{kRegion, kReserve, kInterval}};
    answer(ask_claim());
    serve(Kind::kReadRegion);
    const Loop loop(&lease, &now, [this, kind](const Request &request, int64_t *) {
      return request.kind == kind ? lost() : reply_of(request);
    });
    EXPECT_LE(loop.requests, 8 * 60 + 2);
    EXPECT_EQ(lease.state(), State::kWitnessing);
  }
}

TEST_F(LoopTest, AnEtcdThatForgetsTheMarkWithEveryBeatIsPaced) {
  hold();
  const Loop loop(&lease, &now, [this](const Request &request, int64_t *) {
    if (request.kind == Kind::kKeepAlive) etcd.marks.clear();
    return reply_of(request);
  });
  EXPECT_GT(lease.rollbacks(), 10u);
  EXPECT_LE(loop.requests, 7 * 60);
}

TEST_F(LoopTest, ANotBeforeThatCannotBePutIsPaced) {
  hold();
  etcd.marks.clear();
  const Loop loop(&lease, &now, [this](const Request &request, int64_t *) {
    return request.kind == Kind::kRaiseNotBefore ? lost() : reply_of(request);
  });
  EXPECT_EQ(lease.state(), State::kWarning);
  EXPECT_LE(loop.requests, 4 * 60 + 2);
}

// Two clusters behind one address, say.
TEST_F(LoopTest, ATermThatFallsWithEveryAnswerIsPaced) {
  hold();
  int64_t term = 1'000'000'000;
  const Loop loop(&lease, &now, [this, &term](const Request &request, int64_t *) {
    Reply reply = reply_of(request);
    reply.term = --term;
    return reply;
  });
  EXPECT_LE(loop.requests, 8 * 60);
}

}  // namespace
}  // namespace snowflake
