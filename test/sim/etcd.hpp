// An etcd, as far as the lease sees it: revisions, a raft term, leases, the keys of one region, and
// transactions with exactly the compares of etcd/messages.cpp. What goes wrong between it and the
// instances is the network's business.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "checker.hpp"
#include "core/lease.hpp"

namespace snowflake::sim {

class Etcd {
 public:
  /// All that a backup holds.
  struct State {
    int64_t revision = 1;
    std::array<int64_t, kWorkers> claims{};  // the lease of the claim key; 0: absent
    std::array<Mark, kWorkers> marks{};
    Mark not_before;
    struct Lease {
      int64_t id;
      int64_t ends_ms;
    };
    std::vector<Lease> leases;
  };
  /// Of claims that never end.
  static constexpr int64_t kForeignLease = 1;

  explicit Etcd(Checker *checker) : checker_(checker) {}

  /// New and empty. Lease ids are never used again, whatever becomes of the data.
  void reset(int64_t ttl_ms, int64_t term);

  /// Carries out a request. False: an error answer.
  bool apply(const Request &request, int64_t now_ms, Reply *reply);

  State backup(int64_t now_ms);
  /// A restored lease gets its full time again.
  void restore(const State &from, int64_t revision, int64_t term, int64_t now_ms);
  /// A new leader gives every lease its full time again.
  void elect(int64_t now_ms);

  void end_lease(int64_t id);
  void delete_claim(int number) { put_claim(number, 0); }
  void overwrite_claim(int number) { put_claim(number, kForeignLease); }
  void put_mark_by_hand(int number, Mark::Kind kind, int64_t unix_ms);

  const State &state() const { return state_; }
  int64_t term() const { return term_; }
  /// Of the raft index over the revision.
  int64_t surplus() const { return index_ - state_.revision; }

 private:
  bool carry_out(const Request &request, int64_t now_ms, Reply *reply);
  void put_claim(int number, int64_t lease);
  void put_mark(Mark *mark, int64_t unix_ms);
  bool lease_stands(int64_t id) const;
  void expire(int64_t now_ms);

  Checker *const checker_;
  State state_;
  int64_t term_ = 1;
  int64_t index_ = 4;
  int64_t ttl_ms_ = 0;
  int64_t last_lease_ = 0;
};

}  // namespace snowflake::sim
