// A lease that is led by hand: what the tests of it have in common.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/generator.hpp"
#include "core/lease.hpp"
#include "fake_etcd.hpp"

namespace snowflake {

using State = Lease::State;
using Kind = RequestKind;

inline constexpr int kRegion = 3;
inline constexpr int64_t kReserve = 30'000;
inline constexpr int64_t kInterval = 1000;
inline constexpr int64_t kRetry = 250;
inline constexpr int64_t kDay = 86'400'000;

/// The pause of a claim without a witness.
inline constexpr int64_t kPause = kReserve + 10'000;
/// The number of the living holder that is there as a witness.
inline constexpr int kOther = 126;

inline BootTime no_boot_clock() { return {0}; }

inline Reply lost() {
  Reply reply;
  reply.failed = true;
  return reply;
}
inline Mark time_mark(int64_t unix_ms) { return {Mark::kTime, unix_ms}; }

/// A lease that is led by hand, an etcd, and the generator that gets what is published.
struct LeaseTest : testing::Test {
  FakeEtcd etcd;
  Lease lease{{kRegion, kReserve, kInterval}};
  Generator generator{};
  Times now{{kEpochUnixMs + 5'000'000'000}, {77'000}};
  /// Whether whoever looks for a witness finds the mark of a living holder. No other look shows it,
  /// so that the region is what the test makes it.
  bool witness = true;
  bool status_by_hand = false;

  int64_t wall() const { return now.wall.unix_ms; }
  void pass(int64_t ms) {
    now.wall.unix_ms += ms;
    now.boot.ms += ms;
    etcd.pass(ms);
  }
  /// To the moment that wake_at() names.
  void sleep() { pass(std::max<int64_t>(0, lease.wake_at(now).ms - now.boot.ms)); }

  /// The next request. That for the status is answered on the way, where it is no matter of the test.
  Request ask() {
    Request request = lease.next_request(now);
    while (request.kind == Kind::kStatus && !status_by_hand) {
      answer(request);
      request = lease.next_request(now);
    }
    return request;
  }
  Request ask(Kind kind) {
    const Request request = ask();
    EXPECT_EQ(static_cast<int>(request.kind), static_cast<int>(kind));
    return request;
  }
  void expect_silence() { EXPECT_EQ(ask().kind, Kind::kNone); }
  /// Nothing is asked for so long, and then that.
  Request ask_after(int64_t ms, Kind kind) {
    EXPECT_EQ(std::max(lease.wake_at(now).ms, now.boot.ms), now.boot.ms + ms);
    if (ms > 0) {
      pass(ms - 1);
      expect_silence();
      pass(1);
    }
    return ask(kind);
  }

  void tell(const Request &request, Reply reply) {
    reply.serial = request.serial;
    lease.on_reply(reply, now);
  }
  Reply reply_of(const Request &request) {
    Reply reply = etcd.apply(request);
    // A look at the region under a lease is one for a witness.
    if (witness && request.kind == Kind::kReadRegion && request.lease != 0)
      reply.marks[kOther] =
          time_mark(std::max(wall() + kReserve, etcd.not_before_mark().unix_ms + 1));
    return reply;
  }
  void answer(const Request &request) {
    const Reply reply = reply_of(request);
    lease.on_reply(reply, now);
    if (request.kind != Kind::kRaiseNotBefore || status_by_hand) return;
    const bool put = reply.applied || reply.mark.kind == Mark::kGarbage ||
                     reply.mark.unix_ms >= request.mark_unix_ms;
    if (put && lease.state() == State::kWarning && lease.wake_at(now).ms <= now.boot.ms)
      answer(lease.next_request(now));  // for the status
  }
  void fail(const Request &request, bool another_endpoint = false) {
    Reply reply;
    reply.failed = true;
    reply.another_endpoint = another_endpoint;
    tell(request, reply);
  }
  Request serve(Kind kind) {
    const Request request = ask(kind);
    answer(request);
    return request;
  }

  /// As the background worker does.
  Publication publish() {
    const Publication news = lease.publication(now);
    if (news.kind == Publication::kInstall)
      generator.install(news.node, news.floor_ms, news.mark_ms);
    if (news.kind == Publication::kRaiseFence) generator.raise_fence(news.mark_ms);
    return news;
  }

  /// Up to the claim's request, with nothing earlier to revoke.
  Request ask_claim(const LastMark &last_mark = {}) {
    lease.start(0, last_mark);
    serve(Kind::kReadRegion);
    serve(Kind::kGrant);
    return ask(Kind::kClaim);
  }
  void claim() {
    answer(ask_claim());
    expect_witness();
  }
  /// The claim is made: the look that finds a witness.
  void expect_witness() {
    ASSERT_EQ(lease.state(), State::kWitnessing);
    serve(Kind::kReadRegion);
    ASSERT_EQ(lease.state(), State::kHolding);
  }
  /// A number is held, its first mark confirmed and published.
  void hold() {
    claim();
    serve(Kind::kRaise);
    ASSERT_EQ(publish().kind, Publication::kInstall);
  }
  /// One beat that succeeds, up to the raise.
  void beat() {
    sleep();
    serve(Kind::kKeepAlive);
    serve(Kind::kRaise);
    publish();
  }
  /// To the raise of the next beat, which is under way.
  Request ask_raise() {
    sleep();
    serve(Kind::kKeepAlive);
    return ask(Kind::kRaise);
  }
  /// The next try of a raise that failed: whoever answers now shows the term first.
  Request ask_raise_again() {
    answer(ask_after(kRetry, Kind::kKeepAlive));
    return ask_after(0, Kind::kRaise);
  }
  /// Another etcd, and a lease that knows nothing yet.
  void start_anew() {
    etcd = {};
    lease = Lease{{kRegion, kReserve, kInterval}};
  }
  /// All requests that come until that state, answered by etcd.
  void serve_until(State state) {
    for (int i = 0; i < 1000 && lease.state() != state; i++) {
      const Request request = ask();
      if (request.kind != Kind::kNone)
        answer(request);
      else
        sleep();
    }
    ASSERT_EQ(lease.state(), state);
  }

  Refusal mint() { return generator.issue(now.wall, no_boot_clock, 1).refusal; }
};

}  // namespace snowflake
