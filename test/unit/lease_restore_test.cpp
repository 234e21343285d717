// What keeps a restored, wiped or replaced etcd from leading to an ID twice: the witness that a
// claim needs, the pause without one, and what a holder does who finds that etcd has forgotten.
#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lease_fixture.hpp"

namespace snowflake {
namespace {

// ---- the witness

/// A claim is made, and nobody else is there unless the test says so.
struct WitnessTest : LeaseTest {
  WitnessTest() { witness = false; }

  void claim_and_look(const LastMark &last_mark = {}) {
    answer(ask_claim(last_mark));
    ASSERT_EQ(lease.state(), State::kWitnessing);
    EXPECT_EQ(lease.quarantined_until().ms, 0) << "nobody has looked yet";
    serve(Kind::kReadRegion);
  }
  void look_again() {
    sleep();
    serve(Kind::kKeepAlive);
    serve(Kind::kReadRegion);
  }
  void expect_paused() {
    EXPECT_EQ(lease.state(), State::kWitnessing);
    EXPECT_GT(lease.quarantined_until().ms, now.boot.ms);
    EXPECT_EQ(publish().kind, Publication::kNothing);
  }
  /// Minting may begin: the first mark is asked for at once.
  void expect_holding() {
    EXPECT_EQ(lease.state(), State::kHolding);
    EXPECT_EQ(lease.quarantined_until().ms, 0);
    ask_after(0, Kind::kRaise);
  }
};

TEST_F(WitnessTest, AMarkThatIsNotPastIsOne) {
  for (const int64_t ahead : {int64_t{1}, kReserve, 2 * kReserve}) {
    for (const int worker : {1, 40, 127}) {
      start_anew();
      etcd.set_mark(worker, wall() + ahead);
      claim_and_look();
      expect_holding();
    }
  }
}

TEST_F(WitnessTest, AMarkThatIsPastIsNone) {
  for (const int64_t ahead : {int64_t{0}, int64_t{-1}, -kReserve}) {
    start_anew();
    etcd.set_mark(40, wall() + ahead);
    claim_and_look();
    expect_paused();
  }
}

TEST_F(WitnessTest, AMarkMoreThanTwiceTheReserveAheadIsNone) {
  for (const int64_t ahead : {2 * kReserve + 1, kDay - 1, 2 * kDay}) {
    start_anew();
    etcd.set_mark(40, wall() + ahead);
    claim_and_look();
    expect_paused();
  }
}

TEST_F(WitnessTest, AMarkThatIsNoNumberIsNone) {
  etcd.marks[40] = etcd::mark_text(wall() + kReserve) + "\n";
  claim_and_look();
  expect_paused();
}

TEST_F(WitnessTest, AClaimOfAnotherIsNone) {
  etcd.occupy(1, 127);
  claim_and_look();
  expect_paused();
}

TEST_F(WitnessTest, ANotBeforeThatIsNotPastIsNone) {
  etcd.not_before = etcd::mark_text(wall() + kReserve);
  claim_and_look();
  expect_paused();
}

TEST_F(WitnessTest, TheMarkOfTheClaimedNumberIsOneToo) {
  etcd.occupy(1, 127);
  etcd.set_mark(0, wall() + 10'000);
  claim_and_look();
  expect_holding();
}

TEST_F(WitnessTest, AMarkThatWasRaisedToNotBeforeIsNone) {
  for (const int64_t over : {-1, 0, 1}) {
    start_anew();
    etcd.set_mark(40, wall() + 20'000);
    etcd.not_before = etcd::mark_text(wall() + 20'000 - over);
    claim_and_look();
    EXPECT_EQ(lease.state(), over > 0 ? State::kHolding : State::kWitnessing);
  }
}

TEST_F(WitnessTest, WhatWasSeenBeforeTheClaimIsNone) {
  etcd.set_mark(40, wall() + kReserve);
  const Request claim = ask_claim();
  etcd.marks.erase(40);
  answer(claim);
  serve(Kind::kReadRegion);
  expect_paused();
}

TEST_F(WitnessTest, AMarkCountsByTheClockOfTheAnswersArrival) {
  etcd.set_mark(40, wall() + 100);
  answer(ask_claim());
  const Request look = ask(Kind::kReadRegion);
  const Reply reply = etcd.apply(look);
  pass(100);
  tell(look, reply);
  expect_paused();
}

// ---- the own last mark

struct LastMarkTest : WitnessTest {
  LastMark left;
  LastMarkTest() { leave(); }

  /// A clean stop five minutes ago: number 5.
  void leave() {
    start_anew();
    etcd.set_mark(5, wall() - 300'000);
    left = {5, wall() - 300'000, etcd.mark_of(5).mod_revision, etcd.term};
  }
};

TEST_F(LastMarkTest, FoundUnchangedIsAWitness) {
  claim_and_look(left);
  EXPECT_EQ(lease.worker(), 0) << "whichever number is claimed now";
  expect_holding();
}

TEST_F(LastMarkTest, FoundUnchangedUnderAHigherTermIsAWitness) {
  etcd.term++;
  claim_and_look(left);
  expect_holding();
}

TEST_F(LastMarkTest, OfTheNumberThatIsClaimedAgainIsAWitness) {
  etcd.occupy(0, 4);
  claim_and_look(left);
  EXPECT_EQ(lease.worker(), 5);
  expect_holding();
}

TEST_F(LastMarkTest, WithAnotherValueIsNone) {
  for (const int64_t off : {-1, 1}) {
    leave();
    left.unix_ms += off;
    claim_and_look(left);
    expect_paused();
  }
}

TEST_F(LastMarkTest, PutAgainWithTheSameValueIsNone) {
  for (const int64_t off : {-1, 1}) {
    leave();
    left.mod_revision += off;
    claim_and_look(left);
    expect_paused();
  }
  leave();
  etcd.set_mark(5, left.unix_ms);
  claim_and_look(left);
  expect_paused();
}

TEST_F(LastMarkTest, UnderALowerTermIsNone) {
  etcd.term--;
  claim_and_look(left);
  expect_paused();
}

TEST_F(LastMarkTest, OfAnotherNumberIsNone) {
  left.worker = 6;
  claim_and_look(left);
  expect_paused();
}

TEST_F(LastMarkTest, ThatIsGoneOrNoNumberIsNone) {
  etcd.marks.erase(5);
  claim_and_look(left);
  expect_paused();
  leave();
  etcd.marks[5] = "garbage";
  left.unix_ms = 0;
  left.mod_revision = etcd.mark_of(5).mod_revision;
  claim_and_look(left);
  expect_paused();
}

TEST_F(LastMarkTest, WithoutOneAnAbsentMarkIsNone) {
  left = {};
  etcd.marks.clear();
  claim_and_look(left);
  expect_paused();
}

TEST_F(LastMarkTest, CountsForOneClaimOnly) {
  claim_and_look(left);
  serve(Kind::kRaise);
  publish();
  pass(3 * kReserve);  // the lease ends, and all marks are past
  serve(Kind::kKeepAlive);
  serve(Kind::kRaise);
  ASSERT_EQ(lease.losses(), 1u);
  serve_until(State::kWitnessing);
  serve(Kind::kReadRegion);
  expect_paused();
}

TEST_F(LastMarkTest, ARestartAfterACleanStopPaysNoPauseHoweverLongItTook) {
  for (const int64_t away : {5'000, 300'000, 86'400'000}) {
    start_anew();
    witness = true;
    hold();
    for (int i = 0; i < 3; i++) beat();
    left = lease.last_mark();
    EXPECT_EQ(left.worker, 0);
    EXPECT_EQ(left.unix_ms, etcd.mark_of(0).unix_ms);
    EXPECT_EQ(left.mod_revision, etcd.mark_of(0).mod_revision);
    EXPECT_EQ(left.term, etcd.term);
    lease.release();
    serve(Kind::kRevoke);

    pass(away);
    witness = false;
    lease = Lease{{kRegion, kReserve, kInterval}};
    claim_and_look(left);
    expect_holding();
  }
}

TEST_F(LastMarkTest, ARestartWithoutTheFilePaysThePause) {
  witness = true;
  hold();
  lease.release();
  serve(Kind::kRevoke);
  pass(300'000);
  witness = false;
  lease = Lease{{kRegion, kReserve, kInterval}};
  claim_and_look();
  expect_paused();
}

TEST_F(LastMarkTest, AStopBeforeItWasUsedKeepsItForTheNextStart) {
  etcd.term--;  // so that it is of no use now
  lease.start(0, left);
  for (int i = 0; i < 4; i++) {
    EXPECT_EQ(lease.last_mark().worker, left.worker);
    EXPECT_EQ(lease.last_mark().unix_ms, left.unix_ms);
    EXPECT_EQ(lease.last_mark().mod_revision, left.mod_revision);
    EXPECT_EQ(lease.last_mark().term, left.term);
    answer(ask());
  }
  expect_paused();
  EXPECT_EQ(lease.last_mark().worker, left.worker);
}

TEST_F(LastMarkTest, AStopAfterItWasUsedAndBeforeTheFirstMarkLeavesNone) {
  claim_and_look(left);
  ASSERT_EQ(lease.state(), State::kHolding);
  EXPECT_LT(lease.last_mark().worker, 0);
}

TEST_F(LastMarkTest, AnEtcdThatWasRestoredSinceTheStopIsNotTrusted) {
  // The backup was made after the stop, so that value and revision are right.
  const FakeEtcd backup = etcd;
  pass(3'600'000);
  etcd.restore(backup);
  claim_and_look(left);
  expect_paused();
}

TEST_F(LastMarkTest, AMarkThatAnEarlierTryHadPutIsKeptAsItStands) {
  start_anew();
  witness = true;
  hold();
  const Request raise = ask_raise();
  etcd.apply(raise);
  fail(raise);
  now.wall.unix_ms -= kRetry;  // so that the same mark is asked for
  answer(ask_raise_again());
  EXPECT_EQ(lease.last_mark().unix_ms, etcd.mark_of(0).unix_ms);
  EXPECT_EQ(lease.last_mark().mod_revision, etcd.mark_of(0).mod_revision);
}

// ---- the pause

TEST_F(WitnessTest, InThePauseNoMarkIsRaisedAndNothingIsMintedUntilReserveAndTenSecondsAreOver) {
  etcd.ttl_ms = 3000;  // it is kept alive
  const int64_t end = now.boot.ms + kPause;
  claim_and_look();
  EXPECT_EQ(lease.quarantined_until().ms, end);
  while (lease.state() == State::kWitnessing && now.boot.ms <= end) {
    EXPECT_EQ(publish().kind, Publication::kNothing);
    EXPECT_EQ(mint(), Refusal::kNoClaim);
    EXPECT_TRUE(etcd.marks.empty());
    const Request request = ask();
    if (request.kind == Kind::kNone) {
      sleep();
    } else {
      EXPECT_TRUE(request.kind == Kind::kKeepAlive || request.kind == Kind::kReadRegion);
      answer(request);
    }
  }
  EXPECT_EQ(now.boot.ms, end);
  expect_holding();
  EXPECT_EQ(etcd.claims.at(0), lease.lease());
}

TEST_F(WitnessTest, InThePauseItLooksEachInterval) {
  claim_and_look();
  for (int i = 0; i < 5; i++) {
    const Request alive = ask_after(kInterval, Kind::kKeepAlive);
    EXPECT_EQ(alive.lease, lease.lease());
    answer(alive);
    answer(ask_after(0, Kind::kReadRegion));
    expect_paused();
  }
}

TEST_F(WitnessTest, ThePauseGoesByTheBootClock) {
  const int64_t end = now.boot.ms + kPause;
  claim_and_look();
  for (const int64_t step : {3'600'000, -7'200'000, 86'400'000, 0}) {
    now.wall.unix_ms += step;
    look_again();
    expect_paused();
  }
  serve_until(State::kHolding);
  EXPECT_EQ(now.boot.ms, end);
}

TEST_F(WitnessTest, AnAnswerAMillisecondBeforeTheEndDoesNotEndThePause) {
  lease.set_renew_interval(700);
  claim_and_look();
  const int64_t end = lease.quarantined_until().ms;
  while (now.boot.ms < end - 800) look_again();
  sleep();
  serve(Kind::kKeepAlive);
  const Request look = ask(Kind::kReadRegion);
  pass(end - 1 - now.boot.ms);
  answer(look);
  expect_paused();
  answer(ask_after(1, Kind::kKeepAlive));
  answer(ask_after(0, Kind::kReadRegion));
  expect_holding();
}

TEST_F(WitnessTest, ThePauseEndsWithALookOnly) {
  claim_and_look();
  pass(kPause + 5'000);
  serve(Kind::kKeepAlive);
  fail(ask(Kind::kReadRegion));
  for (int i = 0; i < 3; i++) {
    EXPECT_EQ(lease.state(), State::kWitnessing);
    EXPECT_EQ(publish().kind, Publication::kNothing);
    fail(ask_after(kRetry, Kind::kReadRegion));
  }
  // There is news in it.
  etcd.not_before = etcd::mark_text(wall() + 3000);
  answer(ask_after(kRetry, Kind::kReadRegion));
  EXPECT_EQ(lease.state(), State::kHolding);
  EXPECT_EQ(lease.floor(), wall() + 3000 - kRetry);
}

TEST_F(WitnessTest, AKeepAliveThatFailsIsTriedAgainBeforeTheLook) {
  claim_and_look();
  fail(ask_after(kInterval, Kind::kKeepAlive));
  answer(ask_after(kRetry, Kind::kKeepAlive));
  ask_after(0, Kind::kReadRegion);
}

TEST_F(WitnessTest, AWitnessThatComesLaterEndsThePause) {
  claim_and_look();
  look_again();
  expect_paused();
  etcd.set_mark(40, wall() + kReserve);
  look_again();
  expect_holding();
}

TEST_F(WitnessTest, AClaimThatIsGoneAfterThePauseIsNoticedBeforeAnythingIsMinted) {
  claim_and_look();
  etcd.claims[0] = 12345;
  serve_until(State::kHolding);
  serve(Kind::kRaise);
  EXPECT_EQ(publish().kind, Publication::kNothing);
  EXPECT_EQ(lease.losses(), 1u);
  EXPECT_FALSE(etcd.marks.contains(0));
}

TEST_F(WitnessTest, AReleaseInThePauseGivesTheNumberBack) {
  claim_and_look();
  lease.release();
  EXPECT_EQ(lease.quarantined_until().ms, 0);
  serve(Kind::kRevoke);
  EXPECT_EQ(lease.state(), State::kIdle);
  EXPECT_TRUE(etcd.claims.empty());
}

TEST_F(WitnessTest, AReplacedNumberPaysItsOwnPauseWhileTheOldReserveIsUsed) {
  witness = true;
  hold();
  witness = false;
  etcd.claims[0] = 12345;
  etcd.set_mark(0, wall() + kReserve);
  answer(ask_raise());
  ASSERT_EQ(lease.losses(), 1u);
  etcd.marks.clear();  // so that it is no witness
  serve_until(State::kWitnessing);
  serve(Kind::kReadRegion);
  expect_paused();
  EXPECT_EQ(lease.quarantined_until().ms, now.boot.ms + kPause);
  EXPECT_EQ(mint(), Refusal::kNone);
}

// ---- not_before, read after the claim

TEST_F(WitnessTest, ANotBeforeThatIsPutAfterTheClaimRaisesTheFloor) {
  etcd.set_mark(0, wall() - 10);
  etcd.set_mark(40, wall() + 2 * kReserve);
  answer(ask_claim());
  EXPECT_EQ(lease.floor(), wall() - 10);
  etcd.not_before = etcd::mark_text(wall() + 2 * kReserve - 1);
  serve(Kind::kReadRegion);
  EXPECT_EQ(lease.floor(), wall() + 2 * kReserve - 1);
  const Request raise = serve(Kind::kRaise);
  EXPECT_EQ(raise.mark_unix_ms, wall() + 2 * kReserve - 1);
  EXPECT_EQ(publish().kind, Publication::kNothing) << "not before";
  EXPECT_EQ(mint(), Refusal::kNoClaim);
}

TEST_F(WitnessTest, ANotBeforeThatIsPutInThePauseRaisesTheFloor) {
  claim_and_look();
  const int64_t not_before = wall() + 2 * kReserve;
  etcd.not_before = etcd::mark_text(not_before);
  look_again();
  EXPECT_EQ(lease.floor(), not_before);
  etcd.not_before.clear();
  serve_until(State::kHolding);
  EXPECT_EQ(lease.floor(), not_before) << "it never falls again";
}

TEST_F(WitnessTest, ANotBeforeThatIsUntrustedAtALookGivesTheClaimUp) {
  for (const std::string &text : {std::string("garbage"), etcd::mark_text(wall() + 2 * kDay)}) {
    start_anew();
    etcd.set_mark(40, wall() + kReserve);
    const Request claim = ask_claim();
    answer(claim);
    etcd.not_before = text;
    serve(Kind::kReadRegion);
    EXPECT_TRUE(lease.bad_not_before());
    EXPECT_EQ(ask_after(kInterval, Kind::kRevoke).lease, claim.lease);
  }
}

// ---- vouching for an empty region

TEST_F(WitnessTest, VouchingForAnEmptyRegionEndsThePauseAtOnce) {
  claim_and_look();
  lease.vouch_for_empty_region();
  EXPECT_TRUE(lease.vouched_empty());
  expect_paused();
  answer(ask_after(0, Kind::kReadRegion));
  EXPECT_FALSE(lease.vouched_empty());
  expect_holding();
}

TEST_F(WitnessTest, VouchingCountsBeforeTheFirstLookToo) {
  answer(ask_claim());
  lease.vouch_for_empty_region();
  serve(Kind::kReadRegion);
  expect_holding();
}

TEST_F(WitnessTest, VouchingWhileAKeepAliveIsUnderWayCountsAtTheNextLook) {
  claim_and_look();
  sleep();
  const Request alive = ask(Kind::kKeepAlive);
  lease.vouch_for_empty_region();
  expect_silence();
  answer(alive);
  EXPECT_EQ(lease.state(), State::kWitnessing);
  serve(Kind::kReadRegion);
  expect_holding();
}

TEST_F(WitnessTest, VouchingIsRefusedWhenTheRegionIsNotEmptyAndForgotten) {
  using Trace = std::function<void(FakeEtcd &)>;
  const int64_t past = wall() - kDay;
  const std::vector<Trace> traces = {
      [past](FakeEtcd &e) { e.set_mark(40, past); },
      [past](FakeEtcd &e) { e.set_mark(0, past); },  // of the number that is claimed
      [](FakeEtcd &e) { e.marks[40] = "garbage"; },
      [](FakeEtcd &e) { e.marks[127] = ""; },
      [](FakeEtcd &e) { e.claims[1] = 0; },
      [](FakeEtcd &e) { e.claims[127] = 12345; },
      [past](FakeEtcd &e) { e.not_before = etcd::mark_text(past); },
  };
  for (size_t i = 0; i < traces.size(); i++) {
    SCOPED_TRACE(i);
    start_anew();
    traces[i](etcd);
    claim_and_look();
    ASSERT_EQ(lease.worker(), 0);
    lease.vouch_for_empty_region();
    answer(ask_after(0, Kind::kReadRegion));
    EXPECT_FALSE(lease.vouched_empty());
    expect_paused();
    const auto of_others = [](const auto &entry) { return entry.first != 0; };
    std::erase_if(etcd.marks, of_others);
    std::erase_if(etcd.claims, of_others);
    etcd.not_before.clear();
    look_again();
    expect_paused();
  }
}

TEST_F(WitnessTest, ALookThatFailsLeavesTheVouchingForTheNext) {
  claim_and_look();
  lease.vouch_for_empty_region();
  fail(ask(Kind::kReadRegion));
  EXPECT_TRUE(lease.vouched_empty());
  answer(ask_after(kRetry, Kind::kReadRegion));
  expect_holding();
}

TEST_F(WitnessTest, VouchingCountsInThePauseOnly) {
  lease.vouch_for_empty_region();
  EXPECT_FALSE(lease.vouched_empty());
  const Request claim = ask_claim();
  lease.vouch_for_empty_region();
  EXPECT_FALSE(lease.vouched_empty());
  answer(claim);
  serve(Kind::kReadRegion);
  expect_paused();
  serve_until(State::kHolding);
  serve(Kind::kRaise);
  const int64_t due = lease.wake_at(now).ms;
  lease.vouch_for_empty_region();
  EXPECT_FALSE(lease.vouched_empty());
  EXPECT_EQ(lease.wake_at(now).ms, due);
}

// ---- a standby that watched

/// It has looked at a region in which somebody lives, and goes on to look.
struct WatchTest : WitnessTest {
  WatchTest() { watched(); }

  void watched() {
    start_anew();
    etcd.tells_surplus = true;
    etcd.set_mark(40, wall() + kReserve);
    etcd.set_mark(41, wall() - kDay);
    etcd.not_before = etcd::mark_text(wall() - kDay);
    lease.watch();
    serve(Kind::kReadRegion);
  }
  /// The living one is gone, its mark past: there is no witness but what was watched.
  void expire() {
    for (int i = 0; i < 40; i++) answer(ask_after(kInterval, Kind::kReadRegion));
  }
  void start_and_look() {
    lease.start(0);
    serve(Kind::kReadRegion);
    serve(Kind::kGrant);
    serve(Kind::kClaim);
    serve(Kind::kReadRegion);
  }
};

TEST_F(WatchTest, HoldsNothingAndLooksEachInterval) {
  EXPECT_EQ(lease.state(), State::kWatching);
  for (int i = 0; i < 5; i++) answer(ask_after(kInterval, Kind::kReadRegion));
  EXPECT_EQ(lease.lease(), 0);
  EXPECT_TRUE(etcd.claims.empty());
  EXPECT_TRUE(etcd.leases.empty());
  EXPECT_EQ(publish().kind, Publication::kNothing);
}

TEST_F(WatchTest, ALookThatFailsIsTriedAgainAfterAPause) {
  fail(ask_after(kInterval, Kind::kReadRegion));
  fail(ask_after(kRetry, Kind::kReadRegion), true);
  answer(ask_after(0, Kind::kReadRegion));
  ask_after(kInterval, Kind::kReadRegion);
}

TEST_F(WatchTest, AStartWhileALookIsUnderWayGoesOnAtOnce) {
  const Request look = ask_after(kInterval, Kind::kReadRegion);
  lease.start(77);
  EXPECT_EQ(ask(Kind::kRevoke).lease, 77);
  answer(look);  // too late
  EXPECT_EQ(lease.state(), State::kRevoking);
}

TEST_F(WatchTest, AReleaseEndsIt) {
  lease.release();
  EXPECT_EQ(lease.state(), State::kIdle);
  pass(60'000);
  expect_silence();
}

TEST_F(WatchTest, ItBeginsInIdleOnly) {
  start_anew();
  const Request claim = ask_claim();
  lease.watch();
  EXPECT_EQ(lease.state(), State::kClaiming);
  answer(claim);
}

TEST_F(WatchTest, WhatItSawIsAWitnessWhenNothingOfItIsForgotten) {
  expire();
  start_and_look();
  expect_holding();
}

TEST_F(WatchTest, WhatItSawIsAWitnessForAsLongAsTheReserve) {
  for (const int64_t later : {kReserve, kReserve + 1}) {
    watched();
    expire();
    pass(later);
    start_and_look();
    if (later == kReserve)
      expect_holding();
    else
      expect_paused();
  }
}

TEST_F(WatchTest, AnythingThatIsLowerThanItSawIsForgottenSoThatItIsNone) {
  const std::vector<std::function<void(FakeEtcd &)>> losses = {
      [](FakeEtcd &e) { e.marks.erase(41); },
      [](FakeEtcd &e) { e.set_mark(41, e.mark_of(41).unix_ms - 1); },
      [](FakeEtcd &e) { e.set_mark(40, e.mark_of(40).unix_ms - 1); },
      [](FakeEtcd &e) { e.marks[41] = "garbage"; },
      [](FakeEtcd &e) { e.not_before.clear(); },
      [](FakeEtcd &e) { e.not_before = etcd::mark_text(e.not_before_mark().unix_ms - 1); },
      [](FakeEtcd &e) { e.term--; },
      [](FakeEtcd &e) {
        e = {};
        e.tells_surplus = true;
      },
  };
  for (size_t i = 0; i < losses.size(); i++) {
    SCOPED_TRACE(i);
    watched();
    expire();
    losses[i](etcd);
    lease.start(0);
    serve_until(State::kWitnessing);
    serve(Kind::kReadRegion);
    expect_paused();
    // Nor does a look count that finds it so.
    watched();
    expire();
    losses[i](etcd);
    answer(ask_after(kInterval, Kind::kReadRegion));
    lease.start(0);
    serve_until(State::kWitnessing);
    serve(Kind::kReadRegion);
    expect_paused();
  }
}

TEST_F(WatchTest, AHigherMarkNotBeforeOrTermIsNothingForgotten) {
  expire();
  etcd.set_mark(41, wall() - 1);
  etcd.not_before = etcd::mark_text(wall() - 1);
  etcd.term++;
  start_and_look();
  expect_holding();
}

TEST_F(WatchTest, ARegionInWhichNobodyLivedIsNoWitness) {
  start_anew();
  etcd.set_mark(41, wall() - kDay);
  lease.watch();
  serve(Kind::kReadRegion);
  for (int i = 0; i < 5; i++) answer(ask_after(kInterval, Kind::kReadRegion));
  start_and_look();
  expect_paused();
}

TEST_F(WatchTest, WhatItSawCountsForOneClaimOnly) {
  expire();
  start_and_look();
  serve(Kind::kRaise);
  publish();
  etcd.claims[0] = 12345;
  answer(ask_raise());
  ASSERT_EQ(lease.losses(), 1u);
  etcd.set_mark(0, wall() - 1);  // else a witness itself
  serve_until(State::kWitnessing);
  serve(Kind::kReadRegion);
  expect_paused();
}

// ---- a holder who finds that etcd has forgotten

/// Number 0 is held and has been renewed.
struct ForgottenTest : LeaseTest {
  void held() {
    start_anew();
    hold();
    beat();
    marks_before = etcd.marks;
  }
  ForgottenTest() { held(); }

  /// not_before is asked for at once, and put; nothing else has changed in etcd by then.
  void expect_warning() {
    const uint64_t rollbacks = lease.rollbacks();
    EXPECT_EQ(lease.state(), State::kWarning);
    const bool absent = etcd.not_before.empty();
    const auto marks = etcd.marks;
    const Request put = ask_after(0, Kind::kRaiseNotBefore);
    EXPECT_EQ(put.mark_unix_ms, wall() + kPause);
    EXPECT_FALSE(put.first);
    answer(put);
    if (absent) {
      EXPECT_EQ(etcd.not_before, "") << "a VALUE compare never holds on an absent key";
      const Request first = ask_after(0, Kind::kRaiseNotBefore);
      EXPECT_TRUE(first.first);
      EXPECT_EQ(first.mark_unix_ms, put.mark_unix_ms);
      answer(first);
    }
    EXPECT_EQ(etcd.not_before, etcd::mark_text(put.mark_unix_ms));
    EXPECT_EQ(etcd.marks, marks);
    EXPECT_NE(lease.state(), State::kWarning);
    EXPECT_EQ(lease.rollbacks(), rollbacks + 1);
    not_before = put.mark_unix_ms;
  }

  /// It goes on with its number, but above not_before only; until then the reserve is used.
  void expect_going_on_above_not_before() {
    const int64_t fence = generator.fence_ms();
    answer(ask_after(0, Kind::kKeepAlive));
    const Request raise = ask_after(0, Kind::kRaise);
    EXPECT_GE(raise.mark_unix_ms, not_before);
    answer(raise);
    EXPECT_EQ(etcd.mark_of(0).unix_ms, raise.mark_unix_ms);
    EXPECT_EQ(lease.floor(), not_before);
    while (wall() < not_before - 1000) {
      ASSERT_EQ(publish().kind, Publication::kNothing);
      const Request request = ask();
      if (request.kind == Kind::kNone)
        sleep();
      else
        answer(request);
    }
    EXPECT_EQ(generator.fence_ms(), fence);
    const Publication news = publish();
    EXPECT_EQ(news.kind, Publication::kInstall);
    EXPECT_EQ(news.node, node_of(kRegion, 0));
    EXPECT_EQ(news.floor_ms, not_before - kEpochUnixMs);
    pass(1);
    const Issue one = generator.issue(now.wall, no_boot_clock, 1);
    EXPECT_EQ(one.refusal, Refusal::kNone);
    EXPECT_GT(ms_of_tick(one.first), not_before - kEpochUnixMs);
    EXPECT_EQ(lease.losses(), 0u);
    EXPECT_EQ(lease.claims(), 1u);
  }

  int64_t not_before = 0;
  std::map<int, std::string> marks_before;
};

TEST_F(ForgottenTest, AMarkThatIsGoneIsPutAgainAfterNotBefore) {
  const Request raise = ask_raise();
  etcd.marks.erase(0);
  answer(raise);
  EXPECT_EQ(publish().kind, Publication::kNothing);
  EXPECT_EQ(mint(), Refusal::kNone) << "what is reserved is used meanwhile";
  expect_warning();
  EXPECT_EQ(publish().kind, Publication::kNothing);
  answer(ask_after(0, Kind::kKeepAlive));
  const Request again = ask_after(0, Kind::kRaise);
  EXPECT_TRUE(again.first);
  EXPECT_EQ(again.least_unix_ms, 0);
  EXPECT_EQ(again.mark_unix_ms, not_before);
  answer(again);
  EXPECT_EQ(etcd.mark_of(0).unix_ms, not_before);
  for (int i = 0; i < 5; i++) beat();
  EXPECT_EQ(lease.rollbacks(), 1u);
  EXPECT_EQ(lease.losses(), 0u);
  EXPECT_EQ(lease.claims(), 1u);
}

TEST_F(ForgottenTest, AMarkThatIsLowerIsRaisedAfterNotBefore) {
  for (const int64_t by : {int64_t{1}, kReserve, kDay}) {
    held();
    const Request raise = ask_raise();
    const int64_t lower = lease.mark() - by;
    etcd.set_mark(0, lower);
    answer(raise);
    expect_warning();
    answer(ask_after(0, Kind::kKeepAlive));
    const Request again = ask_after(0, Kind::kRaise);
    EXPECT_FALSE(again.first);
    EXPECT_EQ(again.least_unix_ms, lower) << "what is found is what the next one compares with";
    answer(again);
    EXPECT_EQ(etcd.mark_of(0).unix_ms, again.mark_unix_ms);
    EXPECT_EQ(lease.losses(), 0u);
  }
}

// Its claim may stand only because it was in the backup, and somebody else have held the number
// since.
TEST_F(ForgottenTest, AHolderWhoseClaimStandsGoesOnAboveNotBeforeOnly) {
  const Request raise = ask_raise();
  etcd.marks.erase(0);
  answer(raise);
  expect_warning();
  expect_going_on_above_not_before();
}

TEST_F(ForgottenTest, AMarkLowerThanTheOneOfTheClaimIsFoundBeforeAnythingIsMinted) {
  start_anew();
  etcd.set_mark(0, wall() - 5000);
  claim();
  const Request raise = ask(Kind::kRaise);
  etcd.set_mark(0, wall() - 6000);
  answer(raise);
  EXPECT_EQ(publish().kind, Publication::kNothing);
  expect_warning();
}

TEST_F(ForgottenTest, AMarkLowerThanTheOneOfTheClaimIsFoundByTheLookForAWitness) {
  for (const bool gone : {false, true}) {
    start_anew();
    etcd.set_mark(0, wall() - 5000);
    answer(ask_claim());
    if (gone)
      etcd.marks.erase(0);
    else
      etcd.set_mark(0, wall() - 5001);
    serve(Kind::kReadRegion);
    expect_warning();
    answer(ask_after(0, Kind::kKeepAlive));
    serve(Kind::kReadRegion);
    EXPECT_EQ(lease.state(), State::kHolding);
    EXPECT_EQ(lease.floor(), not_before);
  }
}

TEST_F(ForgottenTest, AClaimThatIsGoneAtTheLookForAWitnessIsLost) {
  start_anew();
  const Request claim = ask_claim();
  answer(claim);
  etcd.claims.clear();
  serve(Kind::kReadRegion);
  EXPECT_EQ(lease.losses(), 1u);
  EXPECT_EQ(lease.rollbacks(), 0u);
  EXPECT_EQ(ask_after(kInterval, Kind::kRevoke).lease, claim.lease);
}

TEST_F(ForgottenTest, TheMarkAsConfirmedIsNothingForgotten) {
  // Also where the clock was set back, so that it is asked for again.
  now.wall.unix_ms -= 3'600'000;
  for (int i = 0; i < 5; i++) beat();
  EXPECT_EQ(lease.rollbacks(), 0u);
  EXPECT_EQ(etcd.marks, marks_before);
  EXPECT_EQ(etcd.not_before, "");
}

TEST_F(ForgottenTest, ANotBeforeThatIsLowerIsRaised) {
  etcd.not_before = etcd::mark_text(wall() - 1000);
  const Request raise = ask_raise();
  etcd.marks.erase(0);
  answer(raise);
  expect_warning();
}

TEST_F(ForgottenTest, ANotBeforeThatIsAsHighIsLeftAsItIs) {
  for (const int64_t more : {0, 1, 3'600'000}) {
    held();
    const Request raise = ask_raise();
    etcd.marks.erase(0);
    answer(raise);
    const std::string text = etcd::mark_text(wall() + kPause + more);
    etcd.not_before = text;
    serve(Kind::kRaiseNotBefore);
    EXPECT_EQ(etcd.not_before, text);
    ask_after(0, Kind::kKeepAlive);
  }
}

TEST_F(ForgottenTest, ANotBeforeThatIsNoNumberIsLeftAsItIs) {
  // It stops every claim.
  const Request raise = ask_raise();
  etcd.marks.erase(0);
  answer(raise);
  etcd.not_before = "garbage";
  serve(Kind::kRaiseNotBefore);
  EXPECT_EQ(etcd.not_before, "garbage");
  ask_after(0, Kind::kKeepAlive);
}

TEST_F(ForgottenTest, ANotBeforeWhoseAnswerFailsIsTriedAgainBeforeAnythingElse) {
  const Request raise = ask_raise();
  etcd.set_mark(0, wall() - 1);
  answer(raise);
  fail(ask(Kind::kRaiseNotBefore));
  for (int i = 0; i < 20; i++) {
    EXPECT_EQ(lease.state(), State::kWarning);
    EXPECT_EQ(publish().kind, Publication::kNothing);
    fail(ask_after(kRetry, Kind::kRaiseNotBefore));
  }
  fail(ask_after(kRetry, Kind::kRaiseNotBefore), true);
  const Request put = ask_after(0, Kind::kRaiseNotBefore);
  answer(put);
  answer(ask_after(0, Kind::kRaiseNotBefore));
  EXPECT_EQ(etcd.not_before, etcd::mark_text(put.mark_unix_ms));
  ask_after(0, Kind::kKeepAlive);
}

TEST_F(ForgottenTest, ANotBeforeThatWasPutWithoutAnAnswerIsNotPutTwice) {
  const Request raise = ask_raise();
  etcd.marks.erase(0);
  answer(raise);
  serve(Kind::kRaiseNotBefore);
  const Request put = ask(Kind::kRaiseNotBefore);
  etcd.apply(put);
  fail(put);
  answer(ask_after(kRetry, Kind::kRaiseNotBefore));
  EXPECT_EQ(etcd.not_before, etcd::mark_text(put.mark_unix_ms));
  ask_after(0, Kind::kKeepAlive);
}

TEST_F(ForgottenTest, AReleaseWhileItWarnsGivesTheNumberBack) {
  const Request raise = ask_raise();
  etcd.marks.erase(0);
  answer(raise);
  ask(Kind::kRaiseNotBefore);
  lease.release();
  EXPECT_EQ(serve(Kind::kRevoke).lease, raise.lease);
  EXPECT_EQ(lease.state(), State::kIdle);
}

// A clock that was an hour ahead and was mended: IDs of that hour are used, up to the mark, and
// whoever is given the number by an etcd that has forgotten it comes to them in an hour.
TEST_F(ForgottenTest, NotBeforeIsNotBelowTheMarkThatWasForgotten) {
  for (const bool lost_too : {false, true}) {
    held();
    const int64_t mark = lease.mark();
    now.wall.unix_ms -= 3'600'000;
    const Request raise = ask_raise();
    etcd.marks.clear();
    if (lost_too) etcd.claims.clear();
    answer(raise);
    EXPECT_GE(ask(Kind::kRaiseNotBefore).mark_unix_ms, mark);
  }
}

// ---- a raft term that went back

TEST_F(ForgottenTest, ATermThatWentBackPutsNotBeforeBeforeTheNextRaise) {
  const FakeEtcd backup = etcd;
  pass(kReserve / 2);
  etcd.restore(backup);
  serve(Kind::kKeepAlive);
  expect_warning();
  expect_going_on_above_not_before();
  for (int i = 0; i < 5; i++) beat();
  EXPECT_EQ(lease.rollbacks(), 1u) << "that term is the one to hold on to from now on";
  EXPECT_EQ(lease.losses(), 0u);
}

TEST_F(ForgottenTest, ATermThatTheRaiseShowsToHaveGoneBackIsWarnedOfToo) {
  const Request raise = ask_raise();
  etcd.term--;
  answer(raise);
  EXPECT_EQ(publish().kind, Publication::kNothing);
  expect_warning();
  EXPECT_EQ(publish().kind, Publication::kNothing) << "not even what the restored etcd confirmed";
  expect_going_on_above_not_before();
}

TEST_F(ForgottenTest, AMarkThatIsGoneUnderATermThatWentBackIsOneRollback) {
  const Request raise = ask_raise();
  etcd.marks.erase(0);
  etcd.term--;
  answer(raise);
  expect_warning();
  beat();
  EXPECT_EQ(lease.rollbacks(), 1u);
}

TEST_F(ForgottenTest, AHigherTermIsAnElection) {
  etcd.term += 3;
  beat();
  EXPECT_EQ(lease.state(), State::kHolding);
  EXPECT_EQ(lease.rollbacks(), 0u);
  etcd.term--;
  sleep();
  serve(Kind::kKeepAlive);
  EXPECT_EQ(lease.state(), State::kWarning) << "it is the highest that counts";
}

TEST_F(ForgottenTest, AMemberThatLagsCostsAWarningAndNothingElse) {
  sleep();
  const Request alive = ask(Kind::kKeepAlive);
  Reply old = etcd.apply(alive);
  old.term--;
  tell(alive, old);
  ASSERT_EQ(lease.state(), State::kWarning);
  // A quorum shows the term of before.
  serve(Kind::kRaiseNotBefore);
  serve(Kind::kRaiseNotBefore);
  EXPECT_EQ(lease.rollbacks(), 0u);
  answer(ask_after(0, Kind::kKeepAlive));
  const Request raise = ask_after(0, Kind::kRaise);
  EXPECT_EQ(raise.mark_unix_ms, wall() + kReserve);
  answer(raise);
  EXPECT_EQ(publish().kind, Publication::kRaiseFence);
}

TEST_F(ForgottenTest, ARestoreWhileTheWarningIsOnItsWayIsWarnedOfAgain) {
  const Request raise = ask_raise();
  etcd.marks.erase(0);
  answer(raise);
  serve(Kind::kRaiseNotBefore);
  const FakeEtcd backup = etcd;  // not_before is not yet in it
  const Request put = ask(Kind::kRaiseNotBefore);
  pass(500);
  etcd.apply(put);
  etcd.restore(backup);
  Reply reply = etcd.apply(put);
  ASSERT_TRUE(reply.applied);
  tell(put, reply);
  EXPECT_EQ(lease.state(), State::kWarning);
  const int64_t forgotten_until = wall() + kPause;
  const Request again = ask_after(kRetry, Kind::kRaiseNotBefore);
  EXPECT_EQ(again.mark_unix_ms, forgotten_until) << "for those it has forgotten since";
}

TEST_F(ForgottenTest, ATermThatWentBackIsWarnedOfBetweenTwoNumbersToo) {
  const Kind order[] = {Kind::kRevoke, Kind::kReadRegion, Kind::kGrant,
                        Kind::kClaim,  Kind::kReadRegion, Kind::kKeepAlive};
  // A look for a witness is made with a keepalive before it, since time may have gone by.
  const Kind then[] = {Kind::kReadRegion, Kind::kGrant,     Kind::kClaim,
                       Kind::kKeepAlive,  Kind::kKeepAlive, Kind::kKeepAlive};
  for (size_t step = 0; step < std::size(order); step++) {
    SCOPED_TRACE(step);
    held();
    etcd.claims[0] = 12345;
    answer(ask_raise());
    for (size_t i = 0; i < step; i++) serve(order[i]);
    if (order[step] == Kind::kKeepAlive) {  // the beat's, when the new number is held
      serve(Kind::kRaise);
      publish();
      sleep();
    }
    etcd.term--;
    serve(order[step]);
    expect_warning();
    serve(then[step]);
    serve_until(State::kHolding);
    EXPECT_EQ(lease.rollbacks(), 1u);
    EXPECT_EQ(lease.worker(), 1);
  }
}

TEST_F(ForgottenTest, AFailureShowsNoTerm) {
  sleep();
  fail(ask(Kind::kKeepAlive));
  EXPECT_EQ(lease.rollbacks(), 0u);
  ask_after(kRetry, Kind::kKeepAlive);
}

TEST_F(ForgottenTest, OneThatGivesItsNumberBackWarnsNobody) {
  lease.release();
  etcd.term--;
  serve(Kind::kRevoke);
  EXPECT_EQ(lease.state(), State::kIdle);
  EXPECT_EQ(lease.rollbacks(), 0u);
}

// ---- no raise but shortly after the term was shown

TEST_F(ForgottenTest, ARaiseGoesOutWithinTwoSecondsOfTheTermBeingShown) {
  sleep();
  serve(Kind::kKeepAlive);
  pass(2000);
  ask(Kind::kRaise);
}

TEST_F(ForgottenTest, WhoeverWasFrozenForMoreAsksAgain) {
  for (const int64_t frozen : {2001, 45'000}) {
    held();
    sleep();
    serve(Kind::kKeepAlive);
    pass(frozen);
    serve(Kind::kKeepAlive);
    ask_after(0, Kind::kRaise);
  }
}

TEST_F(ForgottenTest, TheTwoSecondsBeginWithTheRequestThatWasAnswered) {
  for (const int64_t more : {500, 501}) {
    held();
    sleep();
    const Request alive = ask(Kind::kKeepAlive);
    pass(1500);
    answer(alive);
    pass(more);
    ask(more == 500 ? Kind::kRaise : Kind::kKeepAlive);
  }
}

TEST_F(ForgottenTest, ARaiseThatFailsWaitsForTheTermOfWhoeverIsAskedNext) {
  fail(ask_raise(), true);
  etcd.term--;  // the next endpoint is of an etcd that was restored
  answer(ask_after(0, Kind::kKeepAlive));
  expect_warning();
  EXPECT_EQ(etcd.marks, marks_before);
}

TEST_F(ForgottenTest, WhoeverWasFrozenBeforeItsRaiseFindsOutThatEtcdWasRestored) {
  sleep();
  serve(Kind::kKeepAlive);
  // Frozen here; the backup is of this moment, so its own mark and claim are right.
  const FakeEtcd backup = etcd;
  pass(45'000);
  etcd.restore(backup);
  serve(Kind::kKeepAlive);
  expect_warning();
  EXPECT_EQ(etcd.marks, marks_before);
}

// ---- the claim is lost too

TEST_F(ForgottenTest, WhoeverLosesItsMarkWithItsClaimWarnsBeforeItClaimsAnew) {
  const FakeEtcd backup{};  // of before its claim
  const Request raise = ask_raise();
  etcd.restore(backup, etcd.term);
  answer(raise);
  EXPECT_EQ(lease.losses(), 1u);
  EXPECT_EQ(lease.lease(), raise.lease) << "still to be revoked";
  EXPECT_EQ(mint(), Refusal::kNone);
  expect_warning();
  EXPECT_EQ(serve(Kind::kRevoke).lease, raise.lease);
  serve_until(State::kHolding);
  EXPECT_EQ(lease.floor(), not_before);
  EXPECT_EQ(lease.claims(), 2u);
}

TEST_F(ForgottenTest, WhoeverFindsALowerMarkUnderAnothersClaimWarns) {
  const Request raise = ask_raise();
  etcd.claims[0] = 12345;
  etcd.set_mark(0, lease.mark() - 1);
  answer(raise);
  EXPECT_EQ(lease.losses(), 1u);
  expect_warning();
  ask_after(0, Kind::kRevoke);
}

// It hides what was confirmed.
TEST_F(ForgottenTest, WhoeverLosesItsClaimAloneWarnsNobody) {
  const std::vector<std::function<void(FakeEtcd &, int64_t)>> losses = {
      [](FakeEtcd &e, int64_t) { e.claims.clear(); },
      [](FakeEtcd &e, int64_t) { e.claims[0] = 12345; },
      [](FakeEtcd &e, int64_t mark) {
        e.claims[0] = 12345;
        e.set_mark(0, mark + 1);
      },
  };
  for (const auto &lose : losses) {
    held();
    const Request raise = ask_raise();
    lose(etcd, lease.mark());
    answer(raise);
    EXPECT_EQ(lease.losses(), 1u);
    EXPECT_EQ(lease.rollbacks(), 0u);
    ask_after(0, Kind::kRevoke);
  }
}

// ---- a raft surplus that went back, at an equal term

/// Number 0 is held, in an etcd that tells its raft index.
struct SurplusTest : LeaseTest {
  FakeEtcd backup;
  SurplusTest() {
    status_by_hand = true;
    etcd.tells_surplus = true;
    lease.start(0);
    serve(Kind::kReadRegion);
    serve(Kind::kGrant);
    serve(Kind::kClaim);
    serve(Kind::kStatus);
    serve(Kind::kReadRegion);
    serve(Kind::kRaise);
    EXPECT_EQ(publish().kind, Publication::kInstall);
    backup = etcd;
  }
  /// Nothing else tells: it was frozen since the backup.
  void restore() {
    etcd.restore(backup, etcd.term);
    etcd.surplus -= 60;
  }
};

TEST_F(SurplusTest, AGoodBeatAfterAGoodBeatDoesNotAsk) {
  for (int i = 0; i < 5; i++) beat();
}

TEST_F(SurplusTest, WhoeverWasAwayAsksBeforeItRaises) {
  pass(kInterval + kTermFreshMs + 1);
  serve(Kind::kStatus);
  serve(Kind::kKeepAlive);
  serve(Kind::kRaise);
  EXPECT_EQ(publish().kind, Publication::kRaiseFence);
  EXPECT_EQ(lease.rollbacks(), 0u);
}

TEST_F(SurplusTest, WhoeverFailedAsksWhoeverAnswersNext) {
  for (const Kind kind : {Kind::kKeepAlive, Kind::kRaise}) {
    sleep();
    if (kind == Kind::kRaise) serve(Kind::kKeepAlive);
    fail(ask(kind), true);
    fail(ask(Kind::kStatus), true);
    serve(Kind::kStatus);
    serve(Kind::kKeepAlive);
    serve(Kind::kRaise);
  }
}

TEST_F(SurplusTest, AnAnswerThatIsOldByNowIsAskedForAgain) {
  pass(20'000);
  serve(Kind::kStatus);
  pass(kTermFreshMs + 1);
  serve(Kind::kStatus);
  serve(Kind::kKeepAlive);
  pass(kTermFreshMs + 1);
  serve(Kind::kStatus);
  serve(Kind::kRaise);
}

TEST_F(SurplusTest, OneFrozenSinceTheBackupWarnsAndGoesOnAboveNotBefore) {
  pass(60'000);
  restore();
  const auto marks = etcd.marks;
  serve(Kind::kStatus);
  serve(Kind::kRaiseNotBefore);
  serve(Kind::kRaiseNotBefore);  // the first
  serve(Kind::kStatus);          // proven; once more
  answer(ask_after(kRetry, Kind::kRaiseNotBefore));
  EXPECT_EQ(etcd.marks, marks) << "no false witness";
  serve(Kind::kStatus);
  EXPECT_EQ(lease.rollbacks(), 1u);
  serve(Kind::kStatus);
  serve(Kind::kKeepAlive);
  const Request raise = serve(Kind::kRaise);
  EXPECT_EQ(raise.mark_unix_ms, etcd.not_before_mark().unix_ms);
  EXPECT_GE(raise.mark_unix_ms, wall() + kPause - kRetry);
  EXPECT_EQ(publish().kind, Publication::kNothing);
}

TEST_F(SurplusTest, OfAMemberThatOnlyLagsNothingComes) {
  pass(20'000);
  etcd.surplus -= 20;
  serve(Kind::kStatus);
  serve(Kind::kRaiseNotBefore);
  serve(Kind::kRaiseNotBefore);
  etcd.surplus += 21;  // it has put a key by now, so it is up to date
  serve(Kind::kStatus);
  EXPECT_EQ(lease.rollbacks(), 0u);
  serve(Kind::kStatus);
  serve(Kind::kKeepAlive);
  serve(Kind::kRaise);
  EXPECT_EQ(publish().kind, Publication::kRaiseFence);
}

TEST_F(SurplusTest, OneThatIsToldNoMoreCountsAsGoneBackOnce) {
  pass(20'000);
  etcd.tells_surplus = false;
  serve(Kind::kStatus);
  serve(Kind::kRaiseNotBefore);
  serve(Kind::kRaiseNotBefore);
  serve(Kind::kStatus);
  answer(ask_after(kRetry, Kind::kRaiseNotBefore));
  serve(Kind::kStatus);
  EXPECT_EQ(lease.rollbacks(), 1u);
  serve(Kind::kStatus);
  serve(Kind::kKeepAlive);
  serve(Kind::kRaise);
}

TEST_F(SurplusTest, NothingOfOthersIsRaisedInAnEtcdThatIsInDoubt) {
  etcd.set_mark(40, wall());
  ASSERT_TRUE(lease.raise_all_marks(wall() + 1000, now));
  serve(Kind::kRaiseNotBefore);
  serve(Kind::kRaiseNotBefore);
  serve(Kind::kStatus);
  serve(Kind::kStatus);
  serve(Kind::kKeepAlive);
  fail(ask(Kind::kRaise));
  for (int i = 0; i < 20; i++) {
    sleep();
    fail(ask(Kind::kStatus));
  }
}

TEST_F(SurplusTest, TheLastMarkOfACleanStopCountsUnlessItIsLowerNow) {
  const LastMark left = lease.last_mark();
  EXPECT_EQ(left.surplus, 40);
  for (const int64_t off : {-20, -1, 0, 1}) {
    etcd = backup;
    etcd.surplus += off;
    etcd.claims.clear();
    pass(300'000);
    lease = Lease{{kRegion, kReserve, kInterval}};
    witness = false;
    answer(ask_claim(left));
    serve(Kind::kStatus);
    serve(Kind::kReadRegion);
    EXPECT_EQ(lease.state(), off < -8 ? State::kWitnessing : State::kHolding) << off;
  }
}

TEST_F(SurplusTest, AStandbyThatWatchedKnowsNothingOfARestoredEtcd) {
  for (const bool restored : {false, true}) {
    etcd = backup;
    etcd.claims.clear();
    etcd.marks.clear();
    etcd.set_mark(40, wall() + 5000);
    lease = Lease{{kRegion, kReserve, kInterval}};
    witness = false;
    lease.watch();
    serve(Kind::kStatus);
    serve(Kind::kReadRegion);
    for (int i = 0; i < 9; i++) {
      sleep();
      serve(Kind::kStatus);
      serve(Kind::kReadRegion);
    }
    if (restored) etcd.surplus -= 60;
    answer(ask_claim());
    serve(Kind::kStatus);
    if (!restored) {
      serve(Kind::kReadRegion);
      EXPECT_EQ(lease.state(), State::kHolding);
    } else {
      // It may be that its claim stands only since it was restored.
      EXPECT_EQ(lease.state(), State::kRevoking);
      serve(Kind::kRevoke);
      serve(Kind::kReadRegion);
      serve(Kind::kGrant);
      serve(Kind::kClaim);
      serve(Kind::kStatus);
      serve(Kind::kReadRegion);
      EXPECT_EQ(lease.state(), State::kWitnessing);
    }
  }
}

// ---- all marks of a region

/// Number 0 is held; there are some other marks.
struct RaiseAllTest : LeaseTest {
  int64_t until;
  RaiseAllTest() {
    etcd.set_mark(1, wall() - kDay);
    etcd.set_mark(40, wall() + 20'000);
    etcd.set_mark(127, wall() - 1);
    hold();
    until = wall() + 3'600'000;
  }

  /// All requests until so many numbers are left to be looked at. Each takes so long.
  std::vector<Request> raise_all(int left = 0, int64_t took_ms = 0) {
    std::vector<Request> asked;
    while (lease.marks_to_raise() > left && asked.size() < 1000) {
      const Request request = ask();
      if (request.kind == Kind::kNone) {
        sleep();
        continue;
      }
      asked.push_back(request);
      pass(took_ms);
      answer(request);
      publish();
    }
    return asked;
  }
};

TEST_F(RaiseAllTest, NotBeforeIsRaisedFirstThenEachOfThe128) {
  ASSERT_TRUE(lease.raise_all_marks(until, now));
  EXPECT_EQ(lease.marks_to_raise(), kWorkers);
  const Request not_before = ask_after(0, Kind::kRaiseNotBefore);
  EXPECT_EQ(not_before.mark_unix_ms, until);
  answer(not_before);
  serve(Kind::kRaiseNotBefore);  // there was none
  EXPECT_EQ(etcd.not_before, etcd::mark_text(until));
  std::set<int> looked_at;
  for (const Request &request : raise_all()) {
    if (request.kind != Kind::kRaiseOther) continue;
    EXPECT_TRUE(looked_at.insert(request.worker).second);
    EXPECT_EQ(request.mark_unix_ms, until);
    EXPECT_FALSE(request.first) << "a number without a mark gets none";
  }
  EXPECT_EQ(looked_at.size(), static_cast<size_t>(kWorkers));
  EXPECT_EQ(*looked_at.begin(), 0);
  EXPECT_EQ(*looked_at.rbegin(), kWorkers - 1);
  for (const int n : {0, 1, 40, 127}) EXPECT_EQ(etcd.mark_of(n).unix_ms, until);
  EXPECT_EQ(etcd.marks.size(), 4u);
  EXPECT_EQ(lease.rollbacks(), 0u);
}

TEST_F(RaiseAllTest, NoMarkIsLoweredAndNoGarbageOverwritten) {
  etcd.set_mark(7, until + 1);
  etcd.marks[8] = "garbage";
  ASSERT_TRUE(lease.raise_all_marks(until, now));
  raise_all();
  EXPECT_EQ(etcd.mark_of(7).unix_ms, until + 1);
  EXPECT_EQ(etcd.marks[8], "garbage");
}

TEST_F(RaiseAllTest, NotBeforeCoversWhatIsReservedAlsoWhenTheTimeIsNear) {
  until = wall() + 1000;
  ASSERT_TRUE(lease.raise_all_marks(until, now));
  EXPECT_EQ(ask(Kind::kRaiseNotBefore).mark_unix_ms, wall() + kPause);
}

TEST_F(RaiseAllTest, TheBeatGoesOnMeanwhile) {
  ASSERT_TRUE(lease.raise_all_marks(until, now));
  const int64_t start = now.boot.ms;
  int raises = 0;
  for (const Request &request : raise_all(0, 50)) raises += request.kind == Kind::kRaise;
  EXPECT_GE(raises, (now.boot.ms - start) / (kInterval + 100));
  EXPECT_GT(raises, 5);
  EXPECT_EQ(mint(), Refusal::kNone);
  EXPECT_EQ(lease.losses(), 0u);
}

TEST_F(RaiseAllTest, TheHolderGoesOnByItsOwnClock) {
  ASSERT_TRUE(lease.raise_all_marks(until, now));
  raise_all();
  for (int i = 0; i < 5; i++) {
    beat();
    EXPECT_EQ(generator.fence_ms(), wall() + kReserve - kEpochUnixMs);
    EXPECT_EQ(etcd.mark_of(0).unix_ms, until) << "never lowered";
  }
  EXPECT_EQ(lease.losses(), 0u);
  EXPECT_EQ(lease.rollbacks(), 0u);
}

TEST_F(RaiseAllTest, OneThatFailsIsTriedAgain) {
  ASSERT_TRUE(lease.raise_all_marks(until, now));
  raise_all(100);
  const Request request = ask(Kind::kRaiseOther);
  fail(request);
  EXPECT_EQ(lease.marks_to_raise(), 100);
  beat();  // that etcd can be asked again, and is the one of before
  const Request again = ask(Kind::kRaiseOther);
  EXPECT_EQ(again.worker, request.worker);
  EXPECT_EQ(lease.marks_to_raise(), 100);
  answer(again);
  EXPECT_EQ(lease.marks_to_raise(), 99);
}

TEST_F(RaiseAllTest, ItNeedsANumberThatIsHeldAndNothingUnderWay) {
  sleep();
  const Request alive = ask(Kind::kKeepAlive);
  EXPECT_FALSE(lease.raise_all_marks(until, now));
  answer(alive);
  const Request raise = ask(Kind::kRaise);
  etcd.marks.erase(0);
  answer(raise);
  ASSERT_EQ(lease.state(), State::kWarning);
  EXPECT_FALSE(lease.raise_all_marks(until, now));
  EXPECT_EQ(lease.marks_to_raise(), 0);

  lease = Lease{{kRegion, kReserve, kInterval}};
  EXPECT_FALSE(lease.raise_all_marks(until, now));
  const Request claim = ask_claim();
  EXPECT_FALSE(lease.raise_all_marks(until, now));
  answer(claim);
  ASSERT_EQ(lease.state(), State::kWitnessing);
  EXPECT_FALSE(lease.raise_all_marks(until, now));
}

TEST_F(RaiseAllTest, ALostNumberEndsIt) {
  ASSERT_TRUE(lease.raise_all_marks(until, now));
  raise_all(100);
  etcd.claims[0] = 12345;
  raise_all(0, 50);
  EXPECT_EQ(lease.losses(), 1u) << "found at the beat";
  EXPECT_EQ(lease.marks_to_raise(), 0);
  EXPECT_LT(etcd.mark_of(40).unix_ms, until) << "it had not come so far";
  serve_until(State::kHolding);
  EXPECT_EQ(lease.floor(), until);
}

TEST_F(RaiseAllTest, ATermThatWentBackIsWarnedOfAndThenItGoesOn) {
  ASSERT_TRUE(lease.raise_all_marks(until, now));
  raise_all(100);
  etcd.term--;
  serve(Kind::kRaiseOther);
  EXPECT_EQ(lease.marks_to_raise(), 99);
  serve(Kind::kRaiseNotBefore);
  EXPECT_EQ(lease.rollbacks(), 1u);
  raise_all();
  EXPECT_EQ(etcd.mark_of(0).unix_ms, until);
  EXPECT_EQ(lease.rollbacks(), 1u);
}

// ---- two instances on an etcd that was wiped

/// An instance that is served at once.
struct Instance {
  Lease lease;
  Generator generator{};

  Instance() : lease({kRegion, kReserve, kInterval}) {}

  void turn(FakeEtcd *etcd, Times now, bool false_witness) {
    for (Request request; (request = lease.next_request(now)).kind != Kind::kNone;) {
      Reply reply = etcd->apply(request);
      if (false_witness && request.kind == Kind::kReadRegion)
        reply.marks[kOther] = time_mark(now.wall.unix_ms + kReserve);
      lease.on_reply(reply, now);
    }
    const Publication news = lease.publication(now);
    if (news.kind == Publication::kInstall)
      generator.install(news.node, news.floor_ms, news.mark_ms);
    if (news.kind == Publication::kRaiseFence) generator.raise_fence(news.mark_ms);
  }
};

/// One holds a number when etcd loses everything; another comes and takes the same number. Whether
/// an ID was given out twice.
bool twice(bool old_one_reaches_etcd, bool false_witness) {
  FakeEtcd etcd;
  Instance old, newcomer;
  Times now{{kEpochUnixMs + 5'000'000'000}, {77'000}};
  std::set<std::pair<NodeId, int64_t>> given;
  bool duplicate = false;
  int64_t minted_by_newcomer = 0;
  const auto mint = [&](Instance *who) {
    const Issue one = who->generator.issue(now.wall, no_boot_clock, 1);
    if (one.refusal != Refusal::kNone) return false;
    duplicate |= !given.insert({one.node, one.first}).second;
    return true;
  };
  old.lease.start(0);
  for (int64_t ms = 0; ms < 150'000; ms += 50) {
    if (ms == 60'000) {
      etcd = {};
      etcd.last_lease += 1000;
      newcomer.lease.start(0);
    }
    if (ms < 60'000 || (old_one_reaches_etcd && ms > 61'000)) old.turn(&etcd, now, false);
    if (ms >= 60'000) newcomer.turn(&etcd, now, false_witness);
    mint(&old);
    minted_by_newcomer += mint(&newcomer);
    now.wall.unix_ms += 50;
    now.boot.ms += 50;
    etcd.pass(50);
  }
  EXPECT_GT(given.size(), 1000u);
  EXPECT_GT(minted_by_newcomer, 500);
  return duplicate;
}

TEST(Wiped, NoIdIsGivenOutTwiceByOneThatGoesOnAndANewcomer) {
  EXPECT_FALSE(twice(true, false));
}

TEST(Wiped, NoIdIsGivenOutTwiceByOneThatIsCutOffAndANewcomer) {
  EXPECT_FALSE(twice(false, false));
}

TEST(Wiped, WithoutThePauseOneIs) { EXPECT_TRUE(twice(false, true)); }

// What NotBeforeIsNotBelowTheMarkThatWasForgotten leads to.
TEST(Wiped, NoIdIsGivenOutTwiceByOneWhoseClockWasAnHourAheadAndIsMended) {
  constexpr int64_t kHour = 3'600'000;
  FakeEtcd etcd;
  Instance old, newcomer;
  Times now{{kEpochUnixMs + 5'000'000'000}, {77'000}};
  std::set<std::pair<NodeId, int64_t>> given;
  old.lease.start(0);
  for (int64_t ms = 0; ms < kHour + 100'000; ms += 50) {
    const bool mended = ms >= 60'000;
    if (ms == 60'000) {
      etcd = {};
      etcd.last_lease += 1000;
      newcomer.lease.start(0);
    }
    const Times olds{{now.wall.unix_ms + (mended ? 0 : kHour)}, now.boot};
    if (mended) newcomer.turn(&etcd, now, false);
    old.turn(&etcd, olds, false);
    for (auto [who, clock] : {std::pair(&old, olds.wall), std::pair(&newcomer, now.wall)}) {
      const Issue one = who->generator.issue(clock, no_boot_clock, 1);
      if (one.refusal != Refusal::kNone) continue;
      ASSERT_TRUE(given.insert({one.node, one.first}).second) << "at " << ms << " ms";
    }
    now.wall.unix_ms += 50;
    now.boot.ms += 50;
    etcd.pass(50);
  }
}

}  // namespace
}  // namespace snowflake
