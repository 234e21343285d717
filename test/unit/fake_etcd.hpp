// An etcd in memory, as far as the lease sees one: leases, the claims and marks of one region, the
// compares of the transactions, and the raft term. Values are texts, compared as etcd does, byte by
// byte. A copy of it is a backup.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "core/lease.hpp"
#include "etcd/messages.hpp"

namespace snowflake {

struct FakeEtcd {
  /// Claims by worker number: the lease that each hangs on. Lease 0 never ends.
  std::map<int, int64_t> claims;
  /// Marks by worker number.
  std::map<int, std::string> marks;
  std::string not_before;  // "": no such key
  /// At which the mark of each worker number was put.
  std::map<int, int64_t> mod_revisions;
  int64_t revision = 100;
  int64_t term = 7;
  /// Of the raft index over the revision, where it may be asked.
  bool tells_surplus = false;
  int64_t surplus = 40;
  /// When each lease ends, on etcd's own clock.
  std::map<int64_t, int64_t> leases;
  int64_t now_ms = 0;
  int64_t ttl_ms = 60'000;
  int64_t last_lease = 7'587'890'000'000'000'000;  // past 2^53

  // A faulty etcd, or a transaction that was built without a compare: to see tests fail.
  bool without_lease_compare = false;
  bool without_value_compare = false;

  void set_mark(int worker, int64_t unix_ms) {
    marks[worker] = etcd::mark_text(unix_ms);
    mod_revisions[worker] = ++revision;
  }
  void occupy(int from, int upto) {
    for (int n = from; n <= upto; n++) claims[n] = 0;
  }

  /// The lease is gone, and with it the claims that hang on it.
  void end_lease(int64_t lease) {
    leases.erase(lease);
    std::erase_if(claims, [lease](const auto &claim) { return claim.second == lease && lease != 0; });
  }

  /// As `etcdctl snapshot restore` does: keys, leases and revision as they were, each lease with
  /// its full TTL again, and raft starts anew at a low term. Lease ids do not repeat.
  void restore(const FakeEtcd &backup, int64_t new_term = 2) {
    const int64_t now = now_ms;
    const int64_t lease_ids = last_lease;
    *this = backup;
    now_ms = now;
    last_lease = lease_ids;
    for (auto &lease : leases) lease.second = now_ms + ttl_ms;
    term = new_term;
  }

  void pass(int64_t ms) {
    now_ms += ms;
    for (auto it = leases.begin(); it != leases.end();) {
      const auto [lease, end] = *it++;
      if (end <= now_ms) end_lease(lease);
    }
  }

  /// Applies the request, as of now, and answers.
  Reply apply(const Request &request) {
    Reply reply;
    reply.serial = request.serial;
    switch (request.kind) {
      case RequestKind::kNone:
        break;
      case RequestKind::kStatus:
        // Else it is an error answer, which says nothing at all.
        if (!tells_surplus) return reply;
        reply.surplus_known = true;
        reply.surplus = surplus;
        break;
      case RequestKind::kRevoke:  // one that is not found is as good
        end_lease(request.lease);
        break;
      case RequestKind::kReadRegion:
        for (const auto &claim : claims) reply.held[static_cast<size_t>(claim.first)] = true;
        for (const auto &mark : marks)
          reply.marks[static_cast<size_t>(mark.first)] = mark_of(mark.first);
        reply.not_before = not_before_mark();
        break;
      case RequestKind::kGrant:
        reply.lease = ++last_lease;
        leases[reply.lease] = now_ms + ttl_ms;
        break;
      case RequestKind::kKeepAlive:  // of one that is gone there is an answer too
        if (leases.contains(request.lease)) leases[request.lease] = now_ms + ttl_ms;
        break;
      case RequestKind::kClaim:
        claim(request, &reply);
        break;
      case RequestKind::kRaise:
        raise(request, &reply);
        break;
      case RequestKind::kRaiseNotBefore:
        reply.applied = less(request, not_before.empty() ? nullptr : &not_before);
        if (reply.applied) {
          not_before = etcd::mark_text(request.mark_unix_ms);
          revision++;
        } else {
          reply.mark = not_before_mark();
        }
        break;
      case RequestKind::kRaiseOther:
        reply.applied = less(request, stored(request.worker));
        if (reply.applied)
          set_mark(request.worker, request.mark_unix_ms);
        else
          reply.mark = mark_of(request.worker);
        break;
    }
    if (!reply.failed) reply.term = term;
    return reply;
  }

  Mark mark_of(int worker) const {
    if (!marks.contains(worker)) return {};
    Mark mark = etcd::parse_mark(marks.at(worker));
    const auto put = mod_revisions.find(worker);
    mark.mod_revision = put == mod_revisions.end() ? 1 : put->second;
    return mark;
  }
  Mark not_before_mark() const {
    return not_before.empty() ? Mark{} : etcd::parse_mark(not_before);
  }

 private:
  const std::string *stored(int worker) const {
    return marks.contains(worker) ? &marks.at(worker) : nullptr;
  }
  /// On an absent key a VALUE compare never holds.
  static bool less(const Request &request, const std::string *value) {
    if (request.first) return value == nullptr;
    return value != nullptr && *value < etcd::mark_text(request.mark_unix_ms);
  }

  void claim(const Request &request, Reply *reply) {
    reply->applied = !claims.contains(request.worker);
    if (reply->applied && !leases.contains(request.lease)) {
      // "requested lease not found"
      reply->applied = false;
      reply->failed = true;
      return;
    }
    if (reply->applied)
      claims[request.worker] = request.lease;
    else
      reply->lease = claims[request.worker];
    reply->mark = mark_of(request.worker);
    reply->not_before = not_before_mark();
  }

  void raise(const Request &request, Reply *reply) {
    const bool mine = claims.contains(request.worker) && claims[request.worker] == request.lease;
    const std::string *value = stored(request.worker);
    const bool not_lower =
        request.first || request.least_unix_ms == 0 ||
        (value != nullptr && *value > etcd::mark_text(request.least_unix_ms - 1));
    reply->applied = (mine || without_lease_compare) &&
                     (less(request, value) || without_value_compare) && not_lower;
    if (reply->applied) {
      set_mark(request.worker, request.mark_unix_ms);
      reply->mark.mod_revision = revision;
    } else {
      reply->lease = claims.contains(request.worker) ? claims[request.worker] : 0;
      reply->mark = mark_of(request.worker);
    }
  }
};

}  // namespace snowflake
