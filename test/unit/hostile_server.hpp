// A TCP server on a loopback port that does to its clients what a test tells it.
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace snowflake::etcd {

class Socket {
 public:
  Socket() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof address;
    if (fd_ < 0 || bind(fd_, reinterpret_cast<sockaddr *>(&address), size) != 0 ||
        getsockname(fd_, reinterpret_cast<sockaddr *>(&address), &size) != 0)
      throw std::runtime_error("no socket");
    port_ = ntohs(address.sin_port);
  }
  ~Socket() { close(fd_); }
  Socket(const Socket &) = delete;
  Socket &operator=(const Socket &) = delete;

  static sockaddr_in loopback(uint16_t port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  int fd() const { return fd_; }
  uint16_t port() const { return port_; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }

 private:
  int fd_;
  uint16_t port_ = 0;
};

/// A port that nobody listens on.
using Refusing = Socket;

/// A port whose queue of connections is full, so that one more is neither taken nor refused.
class Silent {
 public:
  Silent() {
    listen(port_.fd(), 0);
    for (const Socket &filler : fillers_) {
      const sockaddr_in address = Socket::loopback(port_.port());
      // Without waiting: all but the first are stuck themselves.
      timeval soon = {0, 1000};
      setsockopt(filler.fd(), SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon);
      (void)connect(filler.fd(), reinterpret_cast<const sockaddr *>(&address), sizeof address);
    }
  }
  std::string url() const { return port_.url(); }

 private:
  Socket port_;
  Socket fillers_[4];
};

class Server {
 public:
  struct Seen {
    std::string head;  // request line and header, to the empty line
    std::string body;
    std::string path() const {
      const size_t from = head.find(' ') + 1;
      return head.substr(from, head.find(' ', from) - from);
    }
    /// The value of a header; "" if it is not there.
    std::string header(const std::string &name) const {
      const size_t at = head.find("\r\n" + name + ": ");
      if (at == head.npos) return "";
      const size_t from = at + name.size() + 4;
      return head.substr(from, head.find("\r\n", from) - from);
    }
  };

  /// One connection, as a script sees it.
  class Line {
   public:
    Line(int fd, const std::atomic<bool> *stopping) : fd_(fd), stopping_(stopping) {}
    /// False when the client has gone.
    bool write(const std::string &bytes) {
      for (size_t sent = 0; sent < bytes.size();) {
        const ssize_t n = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
        if (n <= 0 || *stopping_) return false;
        sent += static_cast<size_t>(n);
      }
      return true;
    }
    /// Until the client has gone, or for so long.
    bool wait(int ms) {
      for (; ms > 0 && !*stopping_; ms -= 10) {
        pollfd one = {fd_, POLLIN, 0};
        char byte;
        if (poll(&one, 1, 10) > 0 && recv(fd_, &byte, 1, MSG_PEEK) <= 0) return false;
      }
      return !*stopping_;
    }

   private:
    int fd_;
    const std::atomic<bool> *stopping_;
  };

  /// What is done with a request; false: the connection is closed.
  using Script = std::function<bool(Line &, const Seen &)>;

  explicit Server(Script script) : script_(std::move(script)) {
    if (listen(port_.fd(), 16) != 0 || pipe(wake_) != 0) throw std::runtime_error("no server");
    thread_ = std::thread([this] { run(); });
  }
  ~Server() {
    stopping_ = true;
    (void)!write(wake_[1], "", 1);
    thread_.join();
    close(wake_[0]);
    close(wake_[1]);
  }

  std::string url() const { return port_.url(); }
  int connections() const { return connections_; }
  std::vector<Seen> seen() const {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

 private:
  bool readable(int fd) {
    pollfd both[] = {{fd, POLLIN, 0}, {wake_[0], POLLIN, 0}};
    while (poll(both, 2, -1) < 0 && errno == EINTR) {
    }
    return !stopping_;
  }

  void run() {
    while (readable(port_.fd())) {
      const int fd = accept4(port_.fd(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      connections_++;
      serve(fd);
      close(fd);
    }
  }

  void serve(int fd) {
    Line line(fd, &stopping_);
    std::string got;
    for (;;) {
      size_t head = 0, size = 0;
      for (;;) {
        const size_t end = got.find("\r\n\r\n");
        if (end != got.npos) {
          head = end + 4;
          const size_t at = got.find("Content-Length: ");
          size = at < head ? std::stoul(got.substr(at + 16)) : 0;
          if (got.size() >= head + size) break;
        }
        char buffer[4096];
        if (!readable(fd)) return;
        const ssize_t n = recv(fd, buffer, sizeof buffer, 0);
        if (n <= 0) return;
        got.append(buffer, static_cast<size_t>(n));
      }
      const Seen request{got.substr(0, head), got.substr(head, size)};
      got.erase(0, head + size);
      {
        const std::lock_guard lock(mutex_);
        seen_.push_back(request);
      }
      if (!script_(line, request)) return;
    }
  }

  Socket port_;
  const Script script_;
  int wake_[2] = {-1, -1};
  std::atomic<bool> stopping_{false};
  std::atomic<int> connections_{0};
  mutable std::mutex mutex_;
  std::vector<Seen> seen_;
  std::thread thread_;
};

inline std::string http(int status, const std::string &body, const std::string &more = "") {
  return "HTTP/1.1 " + std::to_string(status) + " Whatever\r\nContent-Type: application/json\r\n" + more +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace snowflake::etcd
