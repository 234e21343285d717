// An etcd in memory, as far as the lease sees one: leases, the claims and marks of one region, and
// the compares of the two transactions. Values are texts, compared as etcd does, byte by byte.
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
  /// When each lease ends, on etcd's own clock.
  std::map<int64_t, int64_t> leases;
  int64_t now_ms = 0;
  int64_t ttl_ms = 60'000;
  int64_t last_lease = 7'587'890'000'000'000'000;  // past 2^53

  // A faulty etcd, or a transaction that was built without a compare: to see tests fail.
  bool without_lease_compare = false;
  bool without_value_compare = false;

  void set_mark(int worker, int64_t unix_ms) { marks[worker] = etcd::mark_text(unix_ms); }
  void occupy(int from, int upto) {
    for (int n = from; n <= upto; n++) claims[n] = 0;
  }

  /// The lease is gone, and with it the claims that hang on it.
  void end_lease(int64_t lease) {
    leases.erase(lease);
    std::erase_if(claims, [lease](const auto &claim) { return claim.second == lease && lease != 0; });
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
      case RequestKind::kRevoke:  // one that is not found is as good
        end_lease(request.lease);
        break;
      case RequestKind::kReadRegion:
        for (const auto &claim : claims) reply.held[static_cast<size_t>(claim.first)] = true;
        for (const auto &mark : marks)
          reply.marks[static_cast<size_t>(mark.first)] = etcd::parse_mark(mark.second);
        break;
      case RequestKind::kGrant:
        reply.lease = ++last_lease;
        leases[reply.lease] = now_ms + ttl_ms;
        break;
      case RequestKind::kKeepAlive:
        reply.failed = !leases.contains(request.lease);
        if (!reply.failed) leases[request.lease] = now_ms + ttl_ms;
        break;
      case RequestKind::kClaim:
        claim(request, &reply);
        break;
      case RequestKind::kRaise:
        raise(request, &reply);
        break;
    }
    return reply;
  }

  Mark mark_of(int worker) const {
    return marks.contains(worker) ? etcd::parse_mark(marks.at(worker)) : Mark{};
  }

 private:
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
    if (!not_before.empty()) reply->not_before = etcd::parse_mark(not_before);
  }

  void raise(const Request &request, Reply *reply) {
    const bool mine = claims.contains(request.worker) && claims[request.worker] == request.lease;
    const bool absent = !marks.contains(request.worker);
    const std::string text = etcd::mark_text(request.mark_unix_ms);
    const bool later = request.first_mark ? absent : !absent && marks[request.worker] < text;
    reply->applied = (mine || without_lease_compare) && (later || without_value_compare);
    if (reply->applied) {
      marks[request.worker] = text;
    } else {
      reply->lease = claims.contains(request.worker) ? claims[request.worker] : 0;
      reply->mark = mark_of(request.worker);
    }
  }
};

}  // namespace snowflake
