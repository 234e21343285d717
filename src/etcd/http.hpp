// One HTTP POST at a time over libcurl's multi interface, driven from outside: says which sockets it
// waits for, is told which are ready, and never blocks.
//
// Thread safety: none; one owner. A host name is resolved in a thread that libcurl starts from
// within these calls and that inherits the caller's signal mask, so the caller blocks its signals
// around each of them.
#pragma once

#include <curl/curl.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace snowflake::etcd {

struct Tls {
  std::string ca_file, cert_file, key_file;  // "": none
};

class Http {
 public:
  struct Socket {
    int fd;
    bool readable, writable;  // what is waited for
  };
  struct Result {
    bool answered = false;  // false: `error` says why, and the server may have acted all the same
    long status = 0;
    std::string body;
    std::string error;
    int64_t date_unix_ms = 0;  // the Date header; 0: none
  };

  /// Throws std::runtime_error when libcurl cannot be had.
  explicit Http(Tls tls);
  ~Http();
  Http(const Http &) = delete;
  Http &operator=(const Http &) = delete;

  /// Begins to post `body` as JSON; what was under way is abandoned.
  void post(const std::string &url, const std::string &body, const std::string &token,
            long timeout_ms);

  const std::vector<Socket> &sockets() const { return sockets_; }
  /// Milliseconds until on_timeout() must be called; -1: not at all.
  long timeout_ms() const;
  void on_ready(int fd, bool readable, bool writable);
  void on_timeout();

  /// The result, once, when it is there.
  bool take(Result *result);

 private:
  static int socket_changed(CURL *, curl_socket_t fd, int what, void *self, void *);
  static int timer_changed(CURLM *, long ms, void *self);
  static size_t body_arrived(char *data, size_t, size_t size, void *self);
  void drive(curl_socket_t fd, int events);
  void abandon();

  const Tls tls_;
  CURLM *multi_ = nullptr;
  CURL *easy_ = nullptr;
  curl_slist *headers_ = nullptr;
  char curl_error_[CURL_ERROR_SIZE] = {};
  bool busy_ = false;
  bool too_long_ = false;
  bool finished_ = false;
  Result result_;
  std::vector<Socket> sockets_;
  bool timer_set_ = false;
  std::chrono::steady_clock::time_point timer_;
};

}  // namespace snowflake::etcd
