// Knows everything that happened, and says when a promise is broken.
//
// A claim here is one put of a claim key, with its lease. A restored etcd can bring an old one back, or
// forget one. A holding is what backends are handed: a number from some floor on, under a claim.
#pragma once

#include <cstdint>
#include <vector>

#include "core/generator.hpp"
#include "core/layout.hpp"
#include "core/lease.hpp"

namespace snowflake::sim {

class Checker {
 public:
  void reset();

  /// The first broken promise; "" when none is.
  const std::string &failure() const { return failure_; }
  [[gnu::format(printf, 2, 3)]] void fail(const char *format, ...);

  /// A claim key was put.
  void claimed(int number, int64_t lease);
  /// The mark of a number was put.
  void marked(int number, const Mark &before, int64_t unix_ms);
  /// Etcd said yes to a raise under this claim: the stored mark is the claim's.
  void reserved(int number, int64_t lease, int64_t unix_ms);
  void not_before_put(const Mark &before, int64_t unix_ms);

  /// The claim of a number by a lease; -1: there never was one.
  int find(int number, int64_t lease) const;
  /// A claim's mark is handed to backends.
  void published(int who, int claim, int64_t unix_ms);
  /// A new holding.
  int installed(int claim);

  struct Mint {
    int who;
    int holding;            // whose ticks they are
    NodeId node;
    int region;
    int64_t first;
    int64_t last;
    int64_t now_unix_ms;    // the clock reading of the call
    int64_t latest_unix_ms; // no fair clock can have led further
    int64_t *instance_last; // of this life of the instance's memory
  };
  void minted(const Mint &mint);

  int64_t ids() const { return ids_; }
  uint64_t digest() const { return digest_; }
  void note(uint64_t value) { digest_ = (digest_ ^ value) * 0x100000001b3u; }

 private:
  struct Claim {
    int number;
    int64_t lease;
    int64_t mark;  // the highest that etcd confirmed under it, Unix ms
  };
  struct Holding {
    int claim;
    int64_t first, last;  // ticks minted, -1: none
  };
  struct Span {
    int64_t first, last;
    int holding;
  };

  std::string failure_;
  std::vector<Claim> claims_;
  std::vector<Span> spans_[kWorkers];  // minted, in order of ticks
  std::vector<Holding> holdings_;
  std::vector<int> claims_of_[kWorkers];
  std::vector<int> holdings_of_[kWorkers];
  int64_t ids_ = 0;
  uint64_t digest_ = 0;
};

}  // namespace snowflake::sim
