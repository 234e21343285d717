// The client against servers that misbehave, driven by poll() as the background worker drives it by
// its latch loop.
#include "etcd/client.hpp"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "hostile_server.hpp"

namespace snowflake::etcd {
namespace {

using Kind = RequestKind;
using Clock = std::chrono::steady_clock;

/// Each try at an endpoint ends within this: its deadline of 0.9 s, and what a busy machine adds.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int64_t kPatienceMs = 6000;
#else
constexpr int64_t kPatienceMs = 3000;
#endif

int64_t ms_since(Clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
}

/// A client with a request under way.
struct Call {
  Client *client;
  Clock::time_point start = Clock::now();
  bool done = false;
  Reply reply = {};
  std::string error = {};
  int64_t took_ms = 0;

  void check() {
    if (done || !client->take_reply(&reply, &error)) return;
    done = true;
    took_ms = ms_since(start);
  }
};

Request request(Kind kind, uint64_t serial = 1) {
  Request out;
  out.kind = kind;
  out.serial = serial;
  out.lease = 12345;
  return out;
}

/// Until all have their replies.
void drive(std::vector<Call *> calls) {
  const auto start = Clock::now();
  for (;;) {
    bool done = true;
    std::vector<pollfd> fds;
    std::vector<Client *> owners;
    long timeout = 1000;
    for (Call *call : calls) {
      call->check();
      if (call->done) continue;
      done = false;
      for (const Http::Socket &s : call->client->sockets()) {
        fds.push_back({s.fd, static_cast<short>((s.readable ? POLLIN : 0) | (s.writable ? POLLOUT : 0)), 0});
        owners.push_back(call->client);
      }
      if (call->client->timeout_ms() >= 0) timeout = std::min(timeout, call->client->timeout_ms());
    }
    if (done) return;
    ASSERT_LT(ms_since(start), 20'000) << "no reply ever comes";
    poll(fds.data(), static_cast<nfds_t>(fds.size()), static_cast<int>(timeout));
    for (size_t i = 0; i < fds.size(); i++) {
      const bool gone = (fds[i].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0;
      const bool in = (fds[i].revents & POLLIN) != 0 || gone;
      const bool out = (fds[i].revents & POLLOUT) != 0;
      if (in || out) owners[i]->on_ready(fds[i].fd, in, out);
    }
    for (Call *call : calls)
      if (!call->done && call->client->timeout_ms() == 0) call->client->on_timeout();
  }
}

Call call(Client &client, const Request &what) {
  Call one{&client};
  client.send(what);
  EXPECT_TRUE(client.busy());
  drive({&one});
  EXPECT_FALSE(client.busy());
  EXPECT_EQ(one.reply.serial, what.serial);
  EXPECT_EQ(one.reply.failed, !one.error.empty());
  return one;
}
Call grant(Client &client) { return call(client, request(Kind::kGrant)); }

ClientSettings at(std::vector<std::string> endpoints) {
  ClientSettings out;
  out.endpoints = std::move(endpoints);
  out.names.region = 3;
  return out;
}

constexpr char kGranted[] =
    R"({"header":{"revision":"1","raft_term":"4"},"ID":"7587890000000000001","TTL":"60"})";

bool healthy(Server::Line &line, const Server::Seen &) { return line.write(http(200, kGranted)); }

void expect_granted(const Call &one) {
  EXPECT_EQ(one.error, "");
  EXPECT_FALSE(one.reply.failed);
  EXPECT_EQ(one.reply.lease, 7587890000000000001);
  EXPECT_EQ(one.reply.term, 4);
}
void expect_failed(const Call &one, const std::string &url, const std::string &why = "") {
  EXPECT_TRUE(one.reply.failed);
  EXPECT_NE(one.error.find(url + ":"), std::string::npos) << one.error;
  EXPECT_NE(one.error.find(why), std::string::npos) << one.error;
  EXPECT_LT(one.took_ms, kPatienceMs) << one.error;
}
/// It did not take the deadline to see it.
void expect_failed_at_once(const Call &one, const std::string &url, const std::string &why = "") {
  expect_failed(one, url, why);
  for (const char *text : {"timed out", "Timeout", "timeout"})
    EXPECT_EQ(one.error.find(text), std::string::npos) << one.error;
}

// ---- a server that does well

TEST(Client, PostsTheRequestAndBringsBackItsReply) {
  Server server(healthy);
  Client client(at({server.url()}));
  const Request what = request(Kind::kGrant, 77);
  expect_granted(call(client, what));
  const auto seen = server.seen();
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].head.substr(0, seen[0].head.find("\r\n")), "POST /v3/lease/grant HTTP/1.1");
  EXPECT_EQ(seen[0].body, body_of(what, at({""}).names));
  EXPECT_EQ(seen[0].header("Content-Type"), "application/json");
  EXPECT_EQ(seen[0].header("Grpc-Metadata-hasleader"), "true");
  EXPECT_EQ(seen[0].header("Authorization"), "") << "no user, no token";
  EXPECT_EQ(seen[0].header("Expect"), "") << "it would cost a second";
}

TEST(Client, GivesAReplyOnce) {
  Server server(healthy);
  Client client(at({server.url()}));
  grant(client);
  Reply reply;
  std::string error;
  EXPECT_FALSE(client.take_reply(&reply, &error));
}

TEST(Client, KeepsItsConnection) {
  Server server(healthy);
  Client client(at({server.url()}));
  for (int i = 0; i < 5; i++) expect_granted(grant(client));
  EXPECT_EQ(server.connections(), 1);
}

TEST(Client, ConnectsAnewWhenTheServerHasClosed) {
  Server server([](Server::Line &line, const Server::Seen &) {
    line.write(http(200, kGranted, "Connection: close\r\n"));
    return false;
  });
  Client client(at({server.url()}));
  for (int i = 0; i < 3; i++) expect_granted(grant(client));
  EXPECT_EQ(server.connections(), 3);
}

TEST(Client, TellsTheDateOfEachAnswer) {
  int n = 0;
  Server server([&n](Server::Line &line, const Server::Seen &) {
    static const char *const kDates[] = {"Date: Thu, 01 Jan 2026 00:00:10 GMT\r\n", "",
                                         "date: Fri, 02 Jan 2026 00:00:00 GMT\r\n",
                                         "Date: yesterday\r\n",
                                         "Date: Thu, 01 Jan 1970 00:00:01 GMT\r\n"};
    return line.write(http(200, kGranted, kDates[n++]));
  });
  Client client(at({server.url()}));
  constexpr int64_t kDates[] = {1'767'225'610'000, 0, 1'767'312'000'000, 0, 1000};
  for (const int64_t date : kDates) {
    const Call one = grant(client);
    expect_granted(one);
#if LIBCURL_VERSION_NUM >= 0x075400
    EXPECT_EQ(one.reply.date_unix_ms, date);
#else
    EXPECT_EQ(one.reply.date_unix_ms, 0) << "this libcurl does not tell; " << date;
#endif
  }
}

TEST(Client, NeedsAnEndpoint) { EXPECT_THROW(Client(at({})), std::runtime_error); }

TEST(Client, OverlooksTheEnvironmentsProxies) {
  const Refusing proxy;
  for (const char *name : {"http_proxy", "all_proxy", "ALL_PROXY"}) setenv(name, proxy.url().c_str(), 1);
  Server server(healthy);
  Client client(at({server.url()}));
  const Call one = grant(client);
  for (const char *name : {"http_proxy", "all_proxy", "ALL_PROXY"}) unsetenv(name);
  expect_granted(one);
}

TEST(Client, FollowsNoRedirect) {
  Server other(healthy);
  for (const int status : {301, 302, 307, 308}) {
    Server server([&other, status](Server::Line &line, const Server::Seen &) {
      return line.write(http(status, "", "Location: " + other.url() + "/v3/lease/grant\r\n"));
    });
    Client client(at({server.url()}));
    expect_failed(grant(client), server.url(), std::to_string(status));
  }
  EXPECT_EQ(other.connections(), 0);
}

TEST(Client, UnderstandsAChunkedAnswer) {
  Server server([](Server::Line &line, const Server::Seen &) {
    line.write("HTTP/1.1 100 Continue\r\n\r\n");
    line.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
    char size[16];
    for (const char *c = kGranted; *c != '\0'; c++) {
      std::snprintf(size, sizeof size, "%x;x=y\r\n", 1);
      if (!line.write(size + std::string(1, *c) + "\r\n")) return false;
    }
    return line.write("0\r\nTrailer: x\r\n\r\n");
  });
  Client client(at({server.url()}));
  expect_granted(grant(client));
}

TEST(Client, ANewRequestForgetsTheOneUnderWay) {
  Server server([](Server::Line &line, const Server::Seen &seen) {
    if (seen.path() == "/v3/lease/keepalive") return line.wait(5000);
    return line.write(http(200, kGranted));
  });
  Client client(at({server.url()}));
  client.send(request(Kind::kKeepAlive, 1));
  client.on_timeout();
  EXPECT_TRUE(client.busy());
  const Call one = call(client, request(Kind::kGrant, 2));
  expect_granted(one);
  EXPECT_LT(one.took_ms, 4000);
}

// ---- failover

TEST(Failover, ARefusingEndpointIsLeftAtOnceForTheNextWhichIsThenKept) {
  const Refusing first, second;
  Server third(healthy);
  Client client(at({first.url(), second.url(), third.url()}));
  EXPECT_EQ(client.endpoint(), first.url());
  const Call one = grant(client);
  expect_failed_at_once(one, first.url());
  EXPECT_TRUE(one.reply.another_endpoint);
  const Call two = grant(client);
  expect_failed(two, second.url());
  EXPECT_TRUE(two.reply.another_endpoint);
  EXPECT_EQ(client.endpoint(), third.url());
  for (int i = 0; i < 3; i++) {
    expect_granted(grant(client));
    EXPECT_EQ(client.endpoint(), third.url());
  }
}

TEST(Failover, ARoundWithoutSuccessEndsWithAPause) {
  const Refusing a, b, c;
  Client client(at({a.url(), b.url(), c.url()}));
  for (int round = 0; round < 3; round++) {
    EXPECT_TRUE(grant(client).reply.another_endpoint);
    EXPECT_TRUE(grant(client).reply.another_endpoint);
    const Call last = grant(client);
    expect_failed(last, c.url());
    EXPECT_FALSE(last.reply.another_endpoint) << "all have been tried";
  }
}

TEST(Failover, AnOnlyEndpointIsNotTriedAgainAtOnce) {
  const Refusing only;
  Client client(at({only.url()}));
  for (int i = 0; i < 3; i++) EXPECT_FALSE(grant(client).reply.another_endpoint);
  EXPECT_EQ(client.endpoint(), only.url());
}

TEST(Failover, ASuccessBeginsANewRound) {
  std::atomic<bool> well{true};
  Server first([&well](Server::Line &line, const Server::Seen &) {
    return well && line.write(http(200, kGranted));
  });
  const Refusing second;
  Client client(at({second.url(), first.url()}));
  EXPECT_TRUE(grant(client).reply.another_endpoint);
  expect_granted(grant(client));
  well = false;
  const Call fails = grant(client);
  expect_failed(fails, first.url());
  EXPECT_TRUE(fails.reply.another_endpoint) << "the one failure before the success is forgotten";
  EXPECT_FALSE(grant(client).reply.another_endpoint);
}

// A full etcd: reads succeed everywhere, and each write fails at once.
TEST(Failover, ThatOtherRequestsSucceedIsNoReasonToTryOneAgainAtOnce) {
  const auto full = [](Server::Line &line, const Server::Seen &seen) {
    return line.write(seen.path() == "/v3/lease/grant"
                          ? http(429, R"({"error":"etcdserver: mvcc: database space exceeded"})")
                          : http(200, R"({"result":{"header":{"revision":"398","raft_term":"4"},"ID":"12345","TTL":"60"}})"));
  };
  Server first(full), second(full);
  Client client(at({first.url(), second.url()}));
  int at_once = 0;
  for (int i = 0; i < 10; i++) {
    at_once += grant(client).reply.another_endpoint;
    EXPECT_FALSE(call(client, request(Kind::kKeepAlive)).reply.failed);
  }
  EXPECT_EQ(at_once, 5) << "each second try is to wait";
}

TEST(Failover, AnErrorOfEtcdGoesToTheNextEndpointToo) {
  Server no_leader([](Server::Line &line, const Server::Seen &) {
    return line.write(http(500, R"({"error":"not a primary lessor","message":"not a primary lessor","code":2})"));
  });
  Server good(healthy);
  Client client(at({no_leader.url(), good.url()}));
  const Call one = grant(client);
  expect_failed(one, no_leader.url(), "not a primary lessor");
  EXPECT_TRUE(one.reply.another_endpoint);
  expect_granted(grant(client));
}

// A failover here would cost a beat, and a whole deadline if the other endpoint hangs, just when the
// number has to be replaced.
TEST(Failover, AKeepAliveOfALeaseThatIsGoneIsNoFaultOfTheEndpoint) {
  Server good([](Server::Line &line, const Server::Seen &) {
    return line.write(
        http(200, R"({"result":{"header":{"revision":"398","raft_term":"4"},"ID":"12345"}})"));
  });
  const Refusing other;
  Client client(at({good.url(), other.url()}));
  const Call one = call(client, request(Kind::kKeepAlive));
  EXPECT_FALSE(one.reply.failed);
  EXPECT_EQ(one.reply.term, 4);
  EXPECT_EQ(client.endpoint(), good.url());
}

// ---- hostile servers

TEST(HostileServer, EverySlowOneIsLeftWithinASecond) {
  const Silent silent;
  std::vector<std::unique_ptr<Server>> servers;
  const auto serve = [&servers](Server::Script script) {
    servers.push_back(std::make_unique<Server>(std::move(script)));
    return servers.back()->url();
  };
  const std::vector<std::string> urls = {
      silent.url(),
      // accepts, never answers
      serve([](Server::Line &line, const Server::Seen &) { return line.wait(10'000); }),
      // half a header
      serve([](Server::Line &line, const Server::Seen &) {
        return line.write("HTTP/1.1 200 OK\r\nContent-Le") && line.wait(10'000);
      }),
      // half a body
      serve([](Server::Line &line, const Server::Seen &) {
        const std::string whole = http(200, kGranted);
        return line.write(whole.substr(0, whole.size() - 20)) && line.wait(10'000);
      }),
      // a byte now and then
      serve([](Server::Line &line, const Server::Seen &) {
        for (const char c : http(200, kGranted))
          if (!line.write(std::string(1, c)) || !line.wait(100)) return false;
        return true;
      }),
      // no end of provisional answers
      serve([](Server::Line &line, const Server::Seen &) {
        while (line.write("HTTP/1.1 100 Continue\r\n\r\n") && line.wait(20)) {
        }
        return false;
      }),
  };
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::unique_ptr<Call>> calls;
  std::vector<Call *> all;
  for (const std::string &url : urls) {
    clients.push_back(std::make_unique<Client>(at({url})));
    calls.push_back(std::make_unique<Call>(Call{clients.back().get()}));
    clients.back()->send(request(Kind::kGrant));
    all.push_back(calls.back().get());
  }
  drive(all);
  for (size_t i = 0; i < urls.size(); i++) {
    expect_failed(*all[i], urls[i]);
    EXPECT_GE(all[i]->took_ms, 700) << "given up early: " << all[i]->error;
  }
}

/// Against that server the call fails before its deadline, and the next goes well elsewhere.
void expect_broken(const Server::Script &script, const std::string &why = "") {
  Server bad(script);
  Server good(healthy);
  Client client(at({bad.url(), good.url()}));
  const Call one = grant(client);
  expect_failed_at_once(one, bad.url(), why);
  EXPECT_TRUE(one.reply.another_endpoint);
  expect_granted(grant(client));
}
Server::Script says(const std::string &bytes) {
  return [bytes](Server::Line &line, const Server::Seen &) {
    line.write(bytes);
    return false;
  };
}

TEST(HostileServer, AConnectionThatIsClosedAnywhereFails) {
  const std::string whole = http(200, kGranted);
  for (const size_t size : {size_t{0}, size_t{5}, size_t{20}, whole.find("\r\n\r\n") + 4, whole.size() - 1})
    expect_broken(says(whole.substr(0, size)));
}

TEST(HostileServer, AnAnswerThatIsNoHttpFails) {
  expect_broken(says("SSH-2.0-OpenSSH_9.2p1\r\n"));
  expect_broken(says(std::string(10'000, '\0')));
  expect_broken(says("{\"ID\":\"5\",\"TTL\":\"60\"}"));
  expect_broken(says("\x15\x03\x01\x00\x02\x02\x46"));  // a TLS alert
}

TEST(HostileServer, BrokenChunksFail) {
  const std::string head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  expect_broken(says(head + "zz\r\n"));
  expect_broken(says(head + "ffffffffffffffffff\r\nx"));
  expect_broken(says(head + "5\r\n{\"ID\""));
}

TEST(HostileServer, ABodyOfTenMegabytesFailsWithoutBeingKept) {
  expect_broken(
      [](Server::Line &line, const Server::Seen &) {
        line.write("HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n");
        for (int i = 0; i < 1000 && line.write(std::string(10'000, ' ')); i++) {
        }
        return false;
      },
      "1 MiB");
  expect_broken(says(http(200, std::string((1 << 20) + 1, ' '))), "1 MiB");
}

TEST(HostileServer, ABodyWithoutEndFailsWithoutBeingKept) {
  std::atomic<int64_t> sent{0};
  expect_broken(
      [&sent](Server::Line &line, const Server::Seen &) {
        const std::string chunk = "10000\r\n" + std::string(0x10000, 'x') + "\r\n";
        line.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        while (line.write(chunk)) sent += 0x10000;
        return false;
      },
      "1 MiB");
  EXPECT_LT(sent, 30 << 20) << "the connection was read on";
}

TEST(HostileServer, AnEmptyBodyAndAnOddStatusFail) {
  expect_broken(says(http(200, "")), "no JSON object");
  expect_broken(says("HTTP/1.1 204 No Content\r\n\r\n"));
  expect_broken(says(http(999, kGranted)), "999");
  expect_broken(says(http(404, "404 page not found")), "404 page not found");
}

/// What this process has in memory, in bytes.
int64_t resident() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, pages = 0;
  file >> size >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

TEST(HostileServer, HeadersWithoutEndAreLeftWithinASecondAndLittleOfThemIsKept) {
  Server server([](Server::Line &line, const Server::Seen &) {
    line.write("HTTP/1.1 200 OK\r\n");
    const std::string header = "X-Filler: " + std::string(10'000, 'x') + "\r\n";
    while (line.write(header)) {
    }
    return false;
  });
  Client client(at({server.url()}));
  const int64_t before = resident();
  expect_failed(grant(client), server.url());
  EXPECT_LT(resident() - before, 64 << 20);
}

TEST(HostileServer, AThousandFailuresLeaveNothingBehind) {
  Server server(says("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx"));
  Client client(at({server.url()}));
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  grant(client);
  const auto before = descriptors();
  for (int i = 0; i < 1000; i++) EXPECT_TRUE(grant(client).reply.failed);
  EXPECT_LE(descriptors(), before + 2);
}

// ---- user and password

/// A file in the temporary folder, gone at the end.
class File {
 public:
  explicit File(const std::string &text) {
    path_ = (std::filesystem::temp_directory_path() / "snowflake-unit-XXXXXX").string();
    close(mkstemp(path_.data()));
    write(text);
  }
  ~File() { std::filesystem::remove(path_); }
  void write(const std::string &text) { std::ofstream(path_) << text; }
  const std::string &path() const { return path_; }

 private:
  std::string path_;
};

/// An etcd with one user. Tokens count up, and are of this member only.
class Member {
 public:
  explicit Member(std::string name) : name_(std::move(name)) {}
  std::string url() const { return server_.url(); }
  /// All tokens so far end, as by a restart.
  void forget() { valid_ = ""; }
  /// Also fresh tokens are refused from now on.
  void refuse_all() { refusing_ = true; }
  std::vector<std::string> paths() const {
    std::vector<std::string> out;
    for (const auto &seen : server_.seen()) out.push_back(seen.path());
    return out;
  }
  std::vector<Server::Seen> seen() const { return server_.seen(); }

 private:
  bool serve(Server::Line &line, const Server::Seen &seen) {
    if (seen.path() == "/v3/auth/authenticate") {
      if (seen.body != authenticate_body("writer", "se\"cret word"))
        return line.write(http(400, R"({"error":"etcdserver: authentication failed, invalid user ID or password","code":3})"));
      valid_ = name_ + "." + std::to_string(++tokens_);
      return line.write(http(200, R"({"token":")" + valid_ + R"("})"));
    }
    const std::string token = seen.header("Authorization");
    if (token == valid_ && token != "" && !refusing_) return line.write(http(200, kGranted));
    return line.write(
        token == ""
            ? http(400, R"({"error":"etcdserver: user name is empty","message":"etcdserver: user name is empty","code":3})")
            : http(401, R"({"error":"etcdserver: invalid auth token","message":"etcdserver: invalid auth token","code":16})"));
  }

  const std::string name_;
  std::atomic<bool> refusing_{false};
  int tokens_ = 0;
  std::mutex mutex_;
  std::string valid_;
  Server server_{[this](Server::Line &line, const Server::Seen &seen) { return serve(line, seen); }};
};

const char kAuthenticate[] = "/v3/auth/authenticate";
const char kGrant[] = "/v3/lease/grant";
using Paths = std::vector<std::string>;

ClientSettings as_writer(std::vector<std::string> endpoints, const std::string &password_file) {
  ClientSettings out = at(std::move(endpoints));
  out.user = "writer";
  out.password_file = password_file;
  return out;
}

TEST(Authentication, ATokenIsAskedForFirstAndUsedForAllThatFollows) {
  const File password("se\"cret word\n");
  Member etcd("m");
  Client client(as_writer({etcd.url()}, password.path()));
  for (int i = 0; i < 3; i++) expect_granted(grant(client));
  EXPECT_EQ(etcd.paths(), (Paths{kAuthenticate, kGrant, kGrant, kGrant}));
  EXPECT_EQ(etcd.seen()[0].header("Authorization"), "");
  EXPECT_EQ(etcd.seen()[1].header("Authorization"), "m.1") << "the raw token";
}

TEST(Authentication, AnExpiredTokenIsRenewedWithoutAFailure) {
  const File password("se\"cret word\r\n# the rest is no password");
  Member etcd("m");
  Client client(as_writer({etcd.url()}, password.path()));
  expect_granted(grant(client));
  etcd.forget();
  expect_granted(grant(client));
  EXPECT_EQ(etcd.paths(), (Paths{kAuthenticate, kGrant, kGrant, kAuthenticate, kGrant}));
  EXPECT_EQ(etcd.seen()[4].header("Authorization"), "m.2");
}

TEST(Authentication, ATokenThatIsRefusedTwiceFailsInsteadOfGoingRound) {
  const File password("se\"cret word");
  Member etcd("m");
  Client client(as_writer({etcd.url()}, password.path()));
  expect_granted(grant(client));
  etcd.refuse_all();
  expect_failed(grant(client), etcd.url(), "invalid auth token");
  EXPECT_EQ(etcd.paths(), (Paths{kAuthenticate, kGrant, kGrant, kAuthenticate, kGrant}));
}

TEST(Authentication, AFreshTokenThatIsRefusedFails) {
  const File password("se\"cret word");
  Member etcd("m");
  etcd.refuse_all();
  Client client(as_writer({etcd.url()}, password.path()));
  expect_failed(grant(client), etcd.url(), "invalid auth token");
  EXPECT_EQ(etcd.paths(), (Paths{kAuthenticate, kGrant}));
}

TEST(Authentication, AWrongPasswordFailsAndIsNotShown) {
  const File password("wrong-and-secret");
  Member etcd("m");
  Client client(as_writer({etcd.url()}, password.path()));
  const Call one = grant(client);
  expect_failed(one, etcd.url(), "invalid user ID or password");
  EXPECT_NE(one.error.find("\"writer\""), std::string::npos) << one.error;
  EXPECT_EQ(one.error.find("wrong-and-secret"), std::string::npos) << one.error;
  EXPECT_EQ(etcd.paths(), Paths{kAuthenticate}) << "asked once";
}

TEST(Authentication, APasswordThatIsMendedIsReadAtTheNextTry) {
  File password("wrong");
  Member etcd("m");
  Client client(as_writer({etcd.url()}, password.path()));
  EXPECT_TRUE(grant(client).reply.failed);
  password.write("se\"cret word\n");
  expect_granted(grant(client));
}

TEST(Authentication, APasswordFileThatCannotBeReadIsAFailedReplyAtOnce) {
  const File empty("");
  const std::string folder = std::filesystem::temp_directory_path().string();
  for (const std::string &path : {std::string("/nowhere/at/all"), folder, empty.path()}) {
    Member etcd("m");
    Client client(as_writer({etcd.url()}, path));
    for (int i = 0; i < 2; i++) {
      Reply reply;
      std::string error;
      client.send(request(Kind::kGrant, 9));
      EXPECT_TRUE(client.busy());
      EXPECT_EQ(client.timeout_ms(), 0) << "nobody may sleep on it";
      ASSERT_TRUE(client.take_reply(&reply, &error)) << "there is nothing to wait for";
      EXPECT_TRUE(reply.failed);
      EXPECT_EQ(reply.serial, 9u);
      EXPECT_NE(error.find("\"" + path + "\""), std::string::npos) << error;
      EXPECT_FALSE(client.busy());
    }
    EXPECT_EQ(etcd.paths(), Paths{});
  }
}

TEST(Authentication, AUserWithoutAPasswordFileIsAFailedReply) {
  Member etcd("m");
  Client client(as_writer({etcd.url()}, ""));
  expect_failed_at_once(grant(client), etcd.url(), "snowflake.etcd_password_file");
  EXPECT_EQ(etcd.paths(), Paths{});
}

TEST(Authentication, AUserOfAnEtcdThatAsksForNoneGoesWithoutATokenUntilItDoes) {
  const File password("se\"cret word");
  std::atomic<bool> asks{false};
  Server server([&asks](Server::Line &line, const Server::Seen &seen) {
    if (seen.path() == kAuthenticate)
      return line.write(
          asks ? http(200, R"({"token":"t.1"})")
               : http(412, R"({"error":"etcdserver: authentication is not enabled","message":"etcdserver: authentication is not enabled","code":9})"));
    if (asks && seen.header("Authorization") != "t.1")
      return line.write(http(400, R"({"error":"etcdserver: user name is empty","message":"etcdserver: user name is empty","code":3})"));
    return line.write(http(200, kGranted));
  });
  Client client(as_writer({server.url()}, password.path()));
  for (int i = 0; i < 2; i++) expect_granted(grant(client));
  asks = true;
  for (int i = 0; i < 2; i++) expect_granted(grant(client));
  Paths paths;
  for (const auto &seen : server.seen()) paths.push_back(seen.path());
  EXPECT_EQ(paths, (Paths{kAuthenticate, kGrant, kGrant, kGrant, kAuthenticate, kGrant, kGrant}));
}

TEST(Authentication, ATokenIsNotCarriedToAnotherEndpoint) {
  const File password("se\"cret word");
  Member first("a"), second("b");
  Client client(as_writer({first.url(), second.url()}, password.path()));
  expect_granted(grant(client));
  first.refuse_all();
  const Call fails = grant(client);
  expect_failed(fails, first.url());
  EXPECT_TRUE(fails.reply.another_endpoint);
  expect_granted(grant(client));
  EXPECT_EQ(second.paths(), (Paths{kAuthenticate, kGrant}));
  EXPECT_EQ(second.seen()[1].header("Authorization"), "b.1");
}

TEST(Authentication, AnswersThatAreNoTokenFail) {
  const File password("se\"cret word");
  for (const std::string &answer :
       {http(200, ""), http(200, "{}"), http(200, R"({"token":"a\r\nX-Evil: 1"})"), http(404, "Not Found"),
        std::string("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"token\":"), std::string()}) {
    Server server(says(answer));
    Client client(as_writer({server.url()}, password.path()));
    expect_failed(grant(client), server.url());
    for (const auto &seen : server.seen()) EXPECT_EQ(seen.path(), kAuthenticate);
  }
}

TEST(Authentication, WithoutAUserARefusedTokenIsJustAnError) {
  Member etcd("m");
  Client client(at({etcd.url()}));
  expect_failed(grant(client), etcd.url(), "user name is empty");
  EXPECT_EQ(etcd.paths(), Paths{kGrant});
}

}  // namespace
}  // namespace snowflake::etcd
