// Sends the lease's requests to etcd and brings back the replies: several endpoints with failover,
// TLS, user and password, deadlines.
//
// Thread safety and signals: as Http. Every call may throw std::bad_alloc.
#pragma once

#include <string>
#include <vector>

#include "core/lease.hpp"
#include "etcd/http.hpp"
#include "etcd/messages.hpp"

namespace snowflake::etcd {

/// Of each try at one endpoint. Well below the reserve, and short enough that a dead endpoint costs
/// less than a second.
inline constexpr long kRequestTimeoutMs = 900;

struct ClientSettings {
  std::vector<std::string> endpoints;  // at least one; as from parse_endpoints()
  Names names;
  Tls tls;
  std::string user;           // "": no authentication
  std::string password_file;  // read at each authentication, so that it can change
};

class Client {
 public:
  explicit Client(ClientSettings settings);

  /// Sends to the endpoint that answered last. Needs !busy(), unless what is under way may be
  /// forgotten.
  void send(const Request &request);
  bool busy() const { return request_.kind != RequestKind::kNone; }

  /// The reply to the last send(), once, when it is there (ask again after each call that drives
  /// the HTTP side, and right after send()). If it failed, *error says at which
  /// endpoint what happened, and the next send() goes to the next one.
  bool take_reply(Reply *reply, std::string *error);

  const std::string &endpoint() const { return settings_.endpoints[endpoint_]; }

  const std::vector<Http::Socket> &sockets() const { return http_.sockets(); }
  /// Milliseconds until on_timeout() must be called, take_reply() asked after it; -1: not at all.
  long timeout_ms() const { return fault_.empty() ? http_.timeout_ms() : 0; }
  void on_ready(int fd, bool readable, bool writable) { http_.on_ready(fd, readable, writable); }
  void on_timeout() { http_.on_timeout(); }

 private:
  void next_step();

  const ClientSettings settings_;
  Http http_;
  size_t endpoint_ = 0;
  /// Tries since the last full round, or since a success of what failed last: that other requests
  /// succeed is no reason to try that one again at once.
  size_t failed_in_a_row_ = 0;
  RequestKind failed_kind_ = RequestKind::kNone;
  std::string token_;           // of endpoint_ only; tokens belong to one member
  bool auth_is_off_ = false;    // says endpoint_, though there is a user
  Request request_;             // kNone: nothing under way
  bool authenticating_ = false;
  std::string fault_;               // "": none; why nothing could be sent at all
  bool authenticated_now_ = false;  // a fresh token for this very request: no second try
};

}  // namespace snowflake::etcd
