#include "etcd/endpoint.hpp"

#include <gtest/gtest.h>

namespace snowflake::etcd {
namespace {

using Urls = std::vector<std::string>;

Urls good(const std::string &text) {
  std::string fault = "left from before";
  const Urls urls = parse_endpoints(text, &fault);
  EXPECT_EQ(fault, "") << text;
  return urls;
}

void expect_bad(const std::string &text, const std::string &entry) {
  std::string fault;
  EXPECT_EQ(parse_endpoints(text, &fault), Urls{}) << text;
  EXPECT_NE(fault, "") << text;
  EXPECT_NE(fault.find('"' + entry + '"'), std::string::npos) << fault << " does not name " << entry;
}

TEST(Endpoints, OneStandsAlone) {
  EXPECT_EQ(good("http://127.0.0.1:2379"), Urls{"http://127.0.0.1:2379"});
  EXPECT_EQ(good("https://etcd-1.example.com:1"), Urls{"https://etcd-1.example.com:1"});
  EXPECT_EQ(good("http://under_score:65535"), Urls{"http://under_score:65535"});
}

TEST(Endpoints, SeveralAreSplitAtCommasAndKeepTheirOrder) {
  EXPECT_EQ(good("http://c:1,http://a:2,https://b:3"), (Urls{"http://c:1", "http://a:2", "https://b:3"}));
  EXPECT_EQ(good("  http://a:1 ,\thttp://b:2\n"), (Urls{"http://a:1", "http://b:2"}));
}

TEST(Endpoints, AnIpv6AddressStandsInBrackets) {
  EXPECT_EQ(good("http://[::1]:2379"), Urls{"http://[::1]:2379"});
  EXPECT_EQ(good("https://[2001:DB8::ffff:10.0.0.1]:2379"),
            Urls{"https://[2001:DB8::ffff:10.0.0.1]:2379"});
  expect_bad("http://::1:2379", "http://::1:2379");
  expect_bad("http://[::1", "http://[::1");
  expect_bad("http://[]:2379", "http://[]:2379");
  expect_bad("http://[::1]2379", "http://[::1]2379");
  expect_bad("http://[fe80::1%eth0]:2379", "http://[fe80::1%eth0]:2379");
}

TEST(Endpoints, ABlankTextIsNoEndpointsAndNoFault) {
  EXPECT_EQ(good(""), Urls{});
  EXPECT_EQ(good(" \t\n"), Urls{});
}

TEST(Endpoints, AnEmptyEntryIsAFault) {
  for (const char *text : {",", "http://a:1,", "http://a:1, ", ",http://a:1", "http://a:1,,http://b:2"})
    expect_bad(text, "");
}

TEST(Endpoints, OnlyHttpAndHttpsAreTaken) {
  for (const char *text : {"a:1", "127.0.0.1:2379", "ftp://a:1", "file:///etc/passwd", "http:/a:1",
                           "HTTP://a:1", "unix:///run/etcd.sock", "http//a:1", "://a:1"})
    expect_bad(text, text);
}

TEST(Endpoints, APortIsNeededFrom1To65535) {
  for (const char *text : {"http://a", "http://a:", "http://a:0", "http://a:65536", "http://a:-1",
                           "http://a:+1", "http://a: 1", "http://a:x", "http://a:99999999999999999999"})
    expect_bad(text, text);
}

TEST(Endpoints, NothingFollowsThePort) {
  for (const char *text : {"http://a:1/", "http://a:1/v3", "http://a:1?x", "http://a:1#x", "http://a:1x",
                           "http://a:1 http://b:2", "http://a:1;http://b:2", "http://a:1\r\nX: y"})
    expect_bad(text, text);
}

TEST(Endpoints, NoUserStandsBeforeTheHost) {
  for (const char *text : {"http://user@a:1", "http://user:secret@a:1", "http://@a:1"})
    expect_bad(text, text);
}

TEST(Endpoints, AHostHasOnlyTheCharactersOfOne) {
  for (const char *text : {"http://:1", "http://a b:1", "http://a\\b:1", "http://$(x):1", "http://\xc3\xbc:1",
                           "http://a%41:1", "http://a*:1", "http://'a':1"})
    expect_bad(text, text);
}

TEST(Endpoints, AFaultNamesTheEntryThatHasIt) {
  expect_bad("http://good:1, http://bad, http://fine:2", "http://bad");
}

}  // namespace
}  // namespace snowflake::etcd
