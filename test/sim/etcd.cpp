#include "etcd.hpp"

namespace snowflake::sim {
namespace {

/// VALUE LESS; on an absent key it never holds, so the first mark compares CREATE = 0. Garbage sorts
/// after digits.
bool less(const Mark &stored, const Request &request) {
  if (request.first) return stored.kind == Mark::kAbsent;
  return stored.kind == Mark::kTime && stored.unix_ms < request.mark_unix_ms;
}

/// VALUE GREATER than one below the least, where that is asked.
bool not_forgotten(const Mark &stored, const Request &request) {
  if (request.least_unix_ms == 0 || request.first) return true;
  return stored.kind == Mark::kGarbage ||
         (stored.kind == Mark::kTime && stored.unix_ms > request.least_unix_ms - 1);
}

/// LEASE; that of an absent key is 0.
bool leased(int64_t stored, const Request &request) { return stored == request.lease; }

}  // namespace

void Etcd::reset(int64_t ttl_ms, int64_t term) {
  state_.revision = 1000;  // not a new one: its snapshots have a past
  state_.claims.fill(0);
  state_.marks.fill({});
  state_.not_before = {};
  state_.leases.clear();
  term_ = term;
  index_ = 1010;
  ttl_ms_ = ttl_ms;
  last_lease_ = 1000;
}

bool Etcd::lease_stands(int64_t id) const {
  for (const State::Lease &lease : state_.leases)
    if (lease.id == id) return true;
  return false;
}

void Etcd::end_lease(int64_t id) {
  for (size_t i = 0; i < state_.leases.size(); i++) {
    if (state_.leases[i].id != id) continue;
    state_.leases[i] = state_.leases.back();
    state_.leases.pop_back();
    state_.revision++;
    index_++;
    for (int64_t &claim : state_.claims)
      if (claim == id) claim = 0;
    return;
  }
}

void Etcd::expire(int64_t now_ms) {
  for (size_t i = state_.leases.size(); i-- > 0;)
    if (state_.leases[i].ends_ms <= now_ms) end_lease(state_.leases[i].id);
}

void Etcd::put_claim(int number, int64_t lease) {
  state_.claims[static_cast<size_t>(number)] = lease;
  state_.revision++;
  index_++;
}

void Etcd::put_mark(Mark *mark, int64_t unix_ms) {
  *mark = {Mark::kTime, unix_ms, ++state_.revision};
  index_++;
}

void Etcd::put_mark_by_hand(int number, Mark::Kind kind, int64_t unix_ms) {
  state_.marks[static_cast<size_t>(number)] = {kind, unix_ms, ++state_.revision};
  index_++;
}

bool Etcd::apply(const Request &request, int64_t now_ms, Reply *reply) {
  expire(now_ms);
  const int64_t revision = state_.revision;
  const bool understood = carry_out(request, now_ms, reply);
  // An entry of the log, although it changed no key.
  if (state_.revision == revision && request.kind != RequestKind::kStatus &&
      request.kind != RequestKind::kReadRegion && request.kind != RequestKind::kKeepAlive)
    index_++;
  return understood;
}

bool Etcd::carry_out(const Request &request, int64_t now_ms, Reply *reply) {
  const int number = request.worker;
  int64_t &claim = state_.claims[static_cast<size_t>(number)];
  Mark &mark = state_.marks[static_cast<size_t>(number)];

  reply->surplus_known = false;
  reply->serial = request.serial;
  reply->failed = reply->another_endpoint = reply->applied = false;
  reply->term = term_;
  reply->lease = 0;
  reply->mark = reply->not_before = {};

  switch (request.kind) {
    case RequestKind::kNone:
      return false;
    case RequestKind::kRevoke:
      // That of a lease which is not there is an error as good as success, and shows no term.
      if (!lease_stands(request.lease)) reply->term = 0;
      end_lease(request.lease);
      return true;
    case RequestKind::kStatus:
      reply->surplus = surplus();
      reply->surplus_known = true;
      return true;
    case RequestKind::kReadRegion:
      for (size_t i = 0; i < kWorkers; i++) reply->held[i] = state_.claims[i] != 0;
      reply->marks = state_.marks;
      reply->not_before = state_.not_before;
      return true;
    case RequestKind::kGrant:
      last_lease_ += 7;
      state_.leases.push_back({last_lease_, now_ms + ttl_ms_});
      reply->lease = last_lease_;
      return true;
    case RequestKind::kKeepAlive:
      for (State::Lease &lease : state_.leases)
        if (lease.id == request.lease) lease.ends_ms = now_ms + ttl_ms_;
      return true;
    case RequestKind::kClaim:
      reply->applied = claim == 0;
      if (reply->applied) {
        if (!lease_stands(request.lease)) return false;
        put_claim(number, request.lease);
        checker_->claimed(number, request.lease);
      } else {
        reply->lease = claim;
      }
      reply->mark = mark;
      reply->not_before = state_.not_before;
      return true;
    case RequestKind::kRaise:
      reply->applied =
          leased(claim, request) && less(mark, request) && not_forgotten(mark, request);
      if (reply->applied) {
        checker_->marked(number, mark, request.mark_unix_ms);
        put_mark(&mark, request.mark_unix_ms);
        reply->mark.mod_revision = state_.revision;
      } else {
        reply->lease = claim;
        reply->mark = mark;
      }
      if (claim == request.lease && mark.kind == Mark::kTime)
        checker_->reserved(number, claim, mark.unix_ms);
      return true;
    case RequestKind::kRaiseNotBefore:
      reply->applied = less(state_.not_before, request);
      if (reply->applied) {
        checker_->not_before_put(state_.not_before, request.mark_unix_ms);
        put_mark(&state_.not_before, request.mark_unix_ms);
      } else {
        reply->mark = state_.not_before;
      }
      return true;
    case RequestKind::kRaiseOther:
      reply->applied = less(mark, request);
      if (reply->applied) {
        checker_->marked(number, mark, request.mark_unix_ms);
        put_mark(&mark, request.mark_unix_ms);
      } else {
        reply->mark = mark;
      }
      return true;
  }
  return false;
}

Etcd::State Etcd::backup(int64_t now_ms) {
  expire(now_ms);
  return state_;
}

void Etcd::restore(const State &from, int64_t revision, int64_t term, int64_t now_ms) {
  state_ = from;
  state_.revision = revision;
  index_ = 4;
  term_ = term;
  for (State::Lease &lease : state_.leases) lease.ends_ms = now_ms + ttl_ms_;
}

void Etcd::elect(int64_t now_ms) {
  expire(now_ms);
  term_++;
  index_++;
  for (State::Lease &lease : state_.leases) lease.ends_ms = now_ms + ttl_ms_;
}

}  // namespace snowflake::sim
