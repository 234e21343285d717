// The calls of etcd's v3 gateway that the lease needs: their JSON, both ways. No I/O.
//
// The gateway's ways, all met here and nowhere else: int64 is a JSON string; keys and values are
// base64; false, zero and empty are left out of an answer; a keepalive's answer is wrapped in
// {"result":..}; errors have three shapes.
#pragma once

#include <string>
#include <string_view>

#include "core/lease.hpp"

namespace snowflake::etcd {

/// Whose keys, and what is said in them.
struct Names {
  std::string prefix = "/idgen";
  int region = 0;
  std::string holder;  // the claim's value, for people only
  int64_t ttl_s = 60;
};

/// <prefix>/r<region>/workers/<nnn>, .../marks/<nnn> and .../not_before.
std::string claim_key(const Names &names, int worker);
std::string mark_key(const Names &names, int worker);
std::string not_before_key(const Names &names);

/// A stored time: exactly 13 digits, anything else is garbage.
Mark parse_mark(std::string_view value);
/// Needs 0 <= unix_ms < 10^13.
std::string mark_text(int64_t unix_ms);

/// The path below an endpoint, and the body to post there. Not for kNone.
const char *path_of(RequestKind kind);
std::string body_of(const Request &request, const Names &names);
std::string authenticate_body(const std::string &user, const std::string &password);

/// A reading of an answer. `fault` empty: `reply` holds, but for its serial. Else it says what was
/// wrong, reply.failed is set, and `token_refused` tells that a fresh token may mend it.
struct Reading {
  Reply reply;
  std::string fault;
  bool token_refused = false;
};

/// Never throws on any bytes (but std::bad_alloc). An answer of which any needed part is missing or
/// of another type is a fault, never a guess.
Reading read_answer(const Request &request, const Names &names, long http_status,
                    const std::string &body);

/// The token in *token, or what was wrong.
std::string read_token(long http_status, const std::string &body, std::string *token);

}  // namespace snowflake::etcd
