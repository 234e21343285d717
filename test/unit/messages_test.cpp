// Requests are compared with the JSON that etcd's gateway takes; answers were recorded from etcd
// 3.4.23 unless a test says otherwise.
#include "etcd/messages.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace snowflake::etcd {
namespace {

using nlohmann::json;
using Kind = RequestKind;

constexpr int64_t kLease = 2324035740397714329;  // past 2^53
const Names kNames{"/idgen", 3, "db1:5432", 60};

Request request(Kind kind, int64_t mark_unix_ms = 0, bool first = false) {
  Request out;
  out.kind = kind;
  out.serial = 7;
  out.lease = kLease;
  out.worker = 5;
  out.mark_unix_ms = mark_unix_ms;
  out.first = first;
  return out;
}
constexpr Kind kKinds[] = {Kind::kRevoke,    Kind::kReadRegion, Kind::kGrant,
                           Kind::kClaim,     Kind::kKeepAlive,  Kind::kRaise,
                           Kind::kRaiseNotBefore, Kind::kRaiseOther, Kind::kStatus};
json body(const Request &of, const Names &names = kNames) { return json::parse(body_of(of, names)); }

// base64 of the keys and of a mark, by `printf %s ... | base64`
#define CLAIM_5 "L2lkZ2VuL3IzL3dvcmtlcnMvMDA1"  // /idgen/r3/workers/005
#define MARK_5 "L2lkZ2VuL3IzL21hcmtzLzAwNQ=="   // /idgen/r3/marks/005
#define NOT_BEFORE "L2lkZ2VuL3IzL25vdF9iZWZvcmU="  // /idgen/r3/not_before
#define HOLDER "ZGIxOjU0MzI="                     // db1:5432
#define T630 "MTc2NzIyNTYzMDAwMA=="               // 1767225630000
#define T600 "MTc2NzIyNTYwMDAwMA=="               // 1767225600000

std::string base64(const std::string &plain) {
  static constexpr char kDigits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < plain.size(); i += 3) {
    uint32_t three = 0;
    for (size_t j = 0; j < 3; j++)
      three = three << 8 | (i + j < plain.size() ? static_cast<unsigned char>(plain[i + j]) : 0u);
    for (size_t j = 0; j < 4; j++)
      out += i + j <= plain.size() ? kDigits[three >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

// ---- what is sent

TEST(Keys, HaveThreeDigitsBelowPrefixAndRegion) {
  EXPECT_EQ(claim_key(kNames, 5), "/idgen/r3/workers/005");
  EXPECT_EQ(claim_key({"/a/b", 0, "", 60}, 127), "/a/b/r0/workers/127");
  EXPECT_EQ(mark_key(kNames, 0), "/idgen/r3/marks/000");
  EXPECT_EQ(not_before_key({"", 7, "", 60}), "/r7/not_before");
}

TEST(Bodies, GoToThePathOfTheirCall) {
  EXPECT_STREQ(path_of(Kind::kRevoke), "/v3/lease/revoke");
  EXPECT_STREQ(path_of(Kind::kReadRegion), "/v3/kv/range");
  EXPECT_STREQ(path_of(Kind::kGrant), "/v3/lease/grant");
  EXPECT_STREQ(path_of(Kind::kKeepAlive), "/v3/lease/keepalive");
  EXPECT_STREQ(path_of(Kind::kClaim), "/v3/kv/txn");
  EXPECT_STREQ(path_of(Kind::kRaise), "/v3/kv/txn");
  EXPECT_STREQ(path_of(Kind::kRaiseNotBefore), "/v3/kv/txn");
  EXPECT_STREQ(path_of(Kind::kRaiseOther), "/v3/kv/txn");
}

TEST(Bodies, ALeaseIsAStringSinceADoubleWouldRoundIt) {
  EXPECT_EQ(body(request(Kind::kRevoke)), json::parse(R"({"ID":"2324035740397714329"})"));
  EXPECT_EQ(body(request(Kind::kKeepAlive)), json::parse(R"({"ID":"2324035740397714329"})"));
}

TEST(Bodies, AGrantAsksForTheTtl) {
  EXPECT_EQ(body(request(Kind::kGrant)), json::parse(R"({"TTL":"60"})"));
}

TEST(Bodies, ARegionIsReadFromItsPrefixUpToThePrefixesSuccessor) {
  // /idgen/r3/ and /idgen/r30
  EXPECT_EQ(body(request(Kind::kReadRegion)),
            json::parse(R"({"key":"L2lkZ2VuL3IzLw==","range_end":"L2lkZ2VuL3IzMA=="})"));
}

TEST(Bodies, AClaimComparesThatTheKeyIsNewAndReadsMarkAndNotBeforeInBothBranches) {
  EXPECT_EQ(body(request(Kind::kClaim)), json::parse(R"({
    "compare": [{"key":")" CLAIM_5 R"(","target":"CREATE","result":"EQUAL","create_revision":"0"}],
    "success": [{"request_put":{"key":")" CLAIM_5 R"(","value":")" HOLDER
                                                R"(","lease":"2324035740397714329"}},
                {"request_range":{"key":")" MARK_5 R"("}},
                {"request_range":{"key":")" NOT_BEFORE R"("}}],
    "failure": [{"request_range":{"key":")" CLAIM_5 R"("}},
                {"request_range":{"key":")" MARK_5 R"("}},
                {"request_range":{"key":")" NOT_BEFORE R"("}}]})"));
}

TEST(Bodies, ARaiseComparesTheLeaseOfTheClaimAndThatTheMarkIsLess) {
  EXPECT_EQ(body(request(Kind::kRaise, 1767225630000)), json::parse(R"({
    "compare": [{"key":")" CLAIM_5 R"(","target":"LEASE","result":"EQUAL","lease":"2324035740397714329"},
                {"key":")" MARK_5 R"(","target":"VALUE","result":"LESS","value":")" T630 R"("}],
    "success": [{"request_put":{"key":")" MARK_5 R"(","value":")" T630 R"("}}],
    "failure": [{"request_range":{"key":")" CLAIM_5 R"("}},
                {"request_range":{"key":")" MARK_5 R"("}}]})"));
}

TEST(Bodies, TheFirstMarkComparesTheLeaseOfTheClaimAndThatThereIsNoMark) {
  EXPECT_EQ(body(request(Kind::kRaise, 1767225630000, true)), json::parse(R"({
    "compare": [{"key":")" CLAIM_5 R"(","target":"LEASE","result":"EQUAL","lease":"2324035740397714329"},
                {"key":")" MARK_5 R"(","target":"CREATE","result":"EQUAL","create_revision":"0"}],
    "success": [{"request_put":{"key":")" MARK_5 R"(","value":")" T630 R"("}}],
    "failure": [{"request_range":{"key":")" CLAIM_5 R"("}},
                {"request_range":{"key":")" MARK_5 R"("}}]})"));
}

TEST(Bodies, ARaiseAlsoComparesThatTheMarkIsNotLowerThanWasConfirmed) {
  Request raise = request(Kind::kRaise, 1767225630000);
  raise.least_unix_ms = 1767225600001;
  EXPECT_EQ(body(raise), json::parse(R"({
    "compare": [{"key":")" CLAIM_5 R"(","target":"LEASE","result":"EQUAL",
                 "lease":"2324035740397714329"},
                {"key":")" MARK_5 R"(","target":"VALUE","result":"LESS","value":")" T630 R"("},
                {"key":")" MARK_5 R"(","target":"VALUE","result":"GREATER","value":")" T600 R"("}],
    "success": [{"request_put":{"key":")" MARK_5 R"(","value":")" T630 R"("}}],
    "failure": [{"request_range":{"key":")" CLAIM_5 R"("}},
                {"request_range":{"key":")" MARK_5 R"("}}]})"));
}

TEST(Bodies, ANotBeforeIsPutWhenItIsHigherAndElseRead) {
  EXPECT_EQ(body(request(Kind::kRaiseNotBefore, 1767225630000)), json::parse(R"({
    "compare": [{"key":")" NOT_BEFORE R"(","target":"VALUE","result":"LESS","value":")" T630 R"("}],
    "success": [{"request_put":{"key":")" NOT_BEFORE R"(","value":")" T630 R"("}}],
    "failure": [{"request_range":{"key":")" NOT_BEFORE R"("}}]})"));
}

TEST(Bodies, AFirstNotBeforeComparesThatThereIsNone) {
  EXPECT_EQ(body(request(Kind::kRaiseNotBefore, 1767225630000, true)), json::parse(R"({
    "compare": [{"key":")" NOT_BEFORE R"(","target":"CREATE","result":"EQUAL",
                 "create_revision":"0"}],
    "success": [{"request_put":{"key":")" NOT_BEFORE R"(","value":")" T630 R"("}}],
    "failure": [{"request_range":{"key":")" NOT_BEFORE R"("}}]})"));
}

TEST(Bodies, TheMarkOfAnyNumberIsRaisedWhenItIsThereAndLowerWhoeverHoldsIt) {
  EXPECT_EQ(body(request(Kind::kRaiseOther, 1767225630000)), json::parse(R"({
    "compare": [{"key":")" MARK_5 R"(","target":"VALUE","result":"LESS","value":")" T630 R"("}],
    "success": [{"request_put":{"key":")" MARK_5 R"(","value":")" T630 R"("}}],
    "failure": [{"request_range":{"key":")" MARK_5 R"("}}]})"));
}

TEST(Bodies, MarksAndNotBeforeHangOnNoLease) {
  for (const Kind kind : {Kind::kRaise, Kind::kRaiseNotBefore, Kind::kRaiseOther}) {
    for (const bool first : {false, true}) {
      const json put = body(request(kind, 1767225630000, first))["success"][0]["request_put"];
      EXPECT_FALSE(put.contains("lease"));
    }
  }
}

TEST(Bodies, AnyHolderTextIsSentWhole) {
  for (const std::string &holder :
       {std::string("\"quoted\" \\ \n"), std::string("gr\xc3\xbc\xc3\x9f"), std::string("\xff\xfe\0x", 4),
        std::string(1000, 'h'), std::string()}) {
    const Names names{"/idgen", 3, holder, 60};
    const json put = body(request(Kind::kClaim), names)["success"][0]["request_put"];
    EXPECT_EQ(put["value"], base64(holder));
  }
}

TEST(Bodies, AUserAndPasswordOfAnyCharactersAreJson) {
  EXPECT_EQ(json::parse(authenticate_body("ro\"ot", "se\\cret\t\xc3\xbc")),
            (json{{"name", "ro\"ot"}, {"password", "se\\cret\t\xc3\xbc"}}));
  EXPECT_TRUE(json::accept(authenticate_body("\xff\xfe", "\x80")));
}

// ---- marks

TEST(Marks, AreThirteenDigitsInTextOrderAsInNumberOrder) {
  EXPECT_EQ(mark_text(1767225630000), "1767225630000");
  EXPECT_EQ(mark_text(7), "0000000000007");
  EXPECT_EQ(mark_text(9'999'999'999'999), "9999999999999");
  for (const int64_t ms : {int64_t{0}, int64_t{7}, int64_t{1767225630000}, int64_t{9'999'999'999'999}}) {
    const Mark mark = parse_mark(mark_text(ms));
    EXPECT_EQ(mark.kind, Mark::kTime);
    EXPECT_EQ(mark.unix_ms, ms);
  }
}

TEST(Marks, AnythingElseIsGarbage) {
  using namespace std::string_literals;
  for (const std::string &text :
       {""s, " "s, "0"s, "176722563000"s, "17672256300000"s, " 1767225630000"s, "1767225630000 "s,
        "1767225630000\n"s, " 176722563000"s, "176722563000 "s, "+176722563000"s, "-176722563000"s,
        "-1767225630000"s, "176722563000."s, "1767225.30000"s, "1e12         "s, "0x19b77f9dd30"s,
        "176722563000a"s, "\0\0\0\0\0\0\0\0\0\0\0\0\0"s, "176722563000\0"s, "1767225630000\0"s,
        "\xd9\xa1\xd9\xa7\xd9\xa6\xd9\xa7\xd9\xa2\xd9\xa2 "s, "null         "s,
        "99999999999999999999999999"s, std::string(1 << 20, '1')})
    EXPECT_EQ(parse_mark(text).kind, Mark::kGarbage) << text.substr(0, 40);
}

// ---- what is answered

#define HEADER \
  R"("header":{"cluster_id":"324952591200643719","member_id":"3319814642761637952","revision":"395","raft_term":"2"})"
#define OP_HEADER R"("header":{"revision":"395"})"
#define KV_CLAIM                                                                     \
  R"({"key":")" CLAIM_5 R"(","create_revision":"393","mod_revision":"393","version":"1","value":")" \
  HOLDER R"(","lease":"2324035740397714329"})"
#define KV_MARK                                                                      \
  R"({"key":")" MARK_5 R"(","create_revision":"394","mod_revision":"395","version":"2","value":"MTc2NzIyNTYzMTAwMA=="})"
#define KV_NOT_BEFORE                                                                \
  R"({"key":")" NOT_BEFORE R"(","create_revision":"397","mod_revision":"397","version":"1","value":"MTc2NzIyNTY0MDAwMA=="})"
#define RANGE_OF(kv) R"({"response_range":{)" OP_HEADER R"(,"kvs":[)" kv R"(],"count":"1"}})"
#define RANGE_EMPTY R"({"response_range":{)" OP_HEADER "}}"
#define PUT_DONE R"({"response_put":{)" OP_HEADER "}}"

constexpr char kRegionEmpty[] = "{" HEADER "}";
constexpr char kRegionOne[] =
    "{" HEADER R"(,"kvs":[)" KV_MARK "," KV_NOT_BEFORE "," KV_CLAIM R"(],"count":"3"})";
constexpr char kGranted[] = "{" HEADER R"(,"ID":"2324035740397714329","TTL":"60"})";
constexpr char kClaimedFresh[] =
    "{" HEADER R"(,"succeeded":true,"responses":[)" PUT_DONE "," RANGE_EMPTY "," RANGE_EMPTY "]}";
constexpr char kClaimedWithMark[] = "{" HEADER R"(,"succeeded":true,"responses":[)" PUT_DONE
                                    "," RANGE_OF(KV_MARK) "," RANGE_OF(KV_NOT_BEFORE) "]}";
constexpr char kClaimedAlready[] = "{" HEADER R"(,"responses":[)" RANGE_OF(KV_CLAIM) "," RANGE_OF(
    KV_MARK) "," RANGE_OF(KV_NOT_BEFORE) "]}";
constexpr char kClaimedAlreadyFresh[] =
    "{" HEADER R"(,"responses":[)" RANGE_OF(KV_CLAIM) "," RANGE_EMPTY "," RANGE_EMPTY "]}";
constexpr char kRaised[] = "{" HEADER R"(,"succeeded":true,"responses":[)" PUT_DONE "]}";
constexpr char kRaiseRefused[] =
    "{" HEADER R"(,"responses":[)" RANGE_OF(KV_CLAIM) "," RANGE_OF(KV_MARK) "]}";
constexpr char kRaiseGone[] = "{" HEADER R"(,"responses":[)" RANGE_EMPTY "," RANGE_OF(KV_MARK) "]}";
constexpr char kNotBeforeRefused[] = "{" HEADER R"(,"responses":[)" RANGE_OF(KV_NOT_BEFORE) "]}";
constexpr char kOtherRefused[] = "{" HEADER R"(,"responses":[)" RANGE_OF(KV_MARK) "]}";
constexpr char kThereIsNone[] = "{" HEADER R"(,"responses":[)" RANGE_EMPTY "]}";
constexpr char kAlive[] =
    R"({"result":{)" HEADER R"(,"ID":"2324035740397714329","TTL":"60"}})" "\n";
constexpr char kAliveGone[] = R"({"result":{)" HEADER R"(,"ID":"2324035740397714329"}})" "\n";
constexpr char kStatus[] =
    "{" HEADER R"(,"version":"3.4.23","dbSize":"20480","leader":"83","raftIndex":"413","raftTerm":"4","raftAppliedIndex":"412"})";
constexpr char kRevoked[] = "{" HEADER "}";
constexpr char kLeaseNotFound[] =
    R"({"error":"etcdserver: requested lease not found","message":"etcdserver: requested lease not found","code":5})";

struct Good {
  Kind kind;
  const char *text;
};
constexpr Good kGood[] = {
    {Kind::kReadRegion, kRegionEmpty},    {Kind::kReadRegion, kRegionOne},
    {Kind::kGrant, kGranted},             {Kind::kClaim, kClaimedFresh},
    {Kind::kClaim, kClaimedWithMark},     {Kind::kClaim, kClaimedAlready},
    {Kind::kClaim, kClaimedAlreadyFresh}, {Kind::kRaise, kRaised},
    {Kind::kRaise, kRaiseRefused},        {Kind::kRaise, kRaiseGone},
    {Kind::kKeepAlive, kAlive},           {Kind::kRevoke, kRevoked},
    {Kind::kKeepAlive, kAliveGone},       {Kind::kRaiseNotBefore, kRaised},
    {Kind::kRaiseOther, kRaised},         {Kind::kRaiseNotBefore, kNotBeforeRefused},
    {Kind::kRaiseOther, kOtherRefused},   {Kind::kRaiseNotBefore, kThereIsNone},
    {Kind::kRaiseOther, kThereIsNone},    {Kind::kStatus, kStatus},
};
/// Calls that are transactions may understand each other's answers.
bool transaction(Kind kind) { return std::string(path_of(kind)) == "/v3/kv/txn"; }

Reading read(Kind kind, const std::string &text, long status = 200) {
  return read_answer(request(kind, 1767225631000), kNames, status, text);
}
Reply good(Kind kind, const std::string &text) {
  const Reading reading = read(kind, text);
  EXPECT_EQ(reading.fault, "");
  EXPECT_FALSE(reading.reply.failed);
  EXPECT_FALSE(reading.token_refused);
  return reading.reply;
}

bool same(const Mark &a, const Mark &b) {
  return a.kind == b.kind && a.unix_ms == b.unix_ms && a.mod_revision == b.mod_revision;
}
bool same(const Reply &a, const Reply &b) {
  for (size_t i = 0; i < a.marks.size(); i++)
    if (a.held[i] != b.held[i] || !same(a.marks[i], b.marks[i])) return false;
  return a.failed == b.failed && a.term == b.term && a.applied == b.applied && a.lease == b.lease &&
         same(a.mark, b.mark) && same(a.not_before, b.not_before);
}

/// Failed, with a reason, and nothing in it that could be taken for an answer.
void expect_failed(Kind kind, const std::string &text, long status = 200) {
  // See AStatusThatMayNotBeAskedSaysNothingAndIsNoFailure.
  if (kind == Kind::kStatus && (status == 403 || status == 404 || status == 501)) return;
  const Reading reading = read(kind, text, status);
  Reply nothing;
  nothing.failed = true;
  EXPECT_TRUE(same(reading.reply, nothing)) << text.substr(0, 200);
  EXPECT_NE(reading.fault, "") << text.substr(0, 200);
  EXPECT_LT(reading.fault.size(), 300u);
  for (const char c : reading.fault) EXPECT_TRUE(c >= ' ' && c <= '~') << "not fit for a log";
}
void expect_all_fail(const std::string &text, long status = 200) {
  for (const Kind kind : kKinds) expect_failed(kind, text, status);
}

TEST(Answers, AnEmptyRegionHoldsNothing) {
  const Reply reply = good(Kind::kReadRegion, kRegionEmpty);
  for (size_t i = 0; i < kWorkers; i++) {
    EXPECT_FALSE(reply.held[i]);
    EXPECT_EQ(reply.marks[i].kind, Mark::kAbsent);
  }
}

TEST(Answers, ARegionTellsWhoIsHeldAndTheMarks) {
  const Reply reply = good(Kind::kReadRegion, kRegionOne);
  for (size_t i = 0; i < kWorkers; i++) {
    EXPECT_EQ(reply.held[i], i == 5);
    EXPECT_EQ(reply.marks[i].kind, i == 5 ? Mark::kTime : Mark::kAbsent);
  }
  EXPECT_TRUE(same(reply.marks[5], {Mark::kTime, 1767225631000, 395}));
}

TEST(Answers, ARegionTellsNotBefore) {
  EXPECT_TRUE(
      same(good(Kind::kReadRegion, kRegionOne).not_before, {Mark::kTime, 1767225640000, 397}));
  EXPECT_EQ(good(Kind::kReadRegion, kRegionEmpty).not_before.kind, Mark::kAbsent);
}

TEST(Answers, EachShowsTheRaftTerm) {
  for (const Good &one : kGood) EXPECT_EQ(good(one.kind, one.text).term, 2);
}

TEST(Answers, WithoutAHeaderOrItsRaftTermFail) {
  for (const Good &one : kGood) {
    json answer = json::parse(one.text);
    json &holder = one.kind == Kind::kKeepAlive ? answer["result"] : answer;
    const json header = holder["header"];
    holder.erase("header");
    expect_failed(one.kind, answer.dump());
    holder["header"] = header;
    ASSERT_FALSE(read(one.kind, answer.dump()).reply.failed);
    holder["header"].erase("raft_term");
    expect_failed(one.kind, answer.dump());
    for (const json &term : {json("0"), json("-1"), json(""), json("x"), json("2 "), json(2),
                             json(), json("9223372036854775808")}) {
      holder["header"]["raft_term"] = term;
      expect_failed(one.kind, answer.dump());
    }
    holder["header"]["raft_term"] = "9223372036854775807";
    EXPECT_EQ(good(one.kind, answer.dump()).term, INT64_MAX);
  }
}

TEST(Answers, AMarkWithoutItsModRevisionFails) {
  struct Place {
    Kind kind;
    const char *text, *path;
  };
  for (const Place &place : {
           Place{Kind::kReadRegion, kRegionOne, "/kvs/0"},
           Place{Kind::kReadRegion, kRegionOne, "/kvs/1"},
           Place{Kind::kClaim, kClaimedWithMark, "/responses/1/response_range/kvs/0"},
           Place{Kind::kClaim, kClaimedWithMark, "/responses/2/response_range/kvs/0"},
           Place{Kind::kClaim, kClaimedAlready, "/responses/1/response_range/kvs/0"},
           Place{Kind::kRaise, kRaiseRefused, "/responses/1/response_range/kvs/0"},
           Place{Kind::kRaiseNotBefore, kNotBeforeRefused, "/responses/0/response_range/kvs/0"},
           Place{Kind::kRaiseOther, kOtherRefused, "/responses/0/response_range/kvs/0"},
       }) {
    json answer = json::parse(place.text);
    json &kv = answer[json::json_pointer(place.path)];
    kv.erase("mod_revision");
    expect_failed(place.kind, answer.dump());
    for (const json &odd : {json(395), json("x"), json(""), json()}) {
      kv["mod_revision"] = odd;
      expect_failed(place.kind, answer.dump());
    }
  }
}

json key_value(const std::string &key, const std::string &value) {
  json kv = {{"key", base64(key)}, {"mod_revision", "395"}, {"version", "1"}};
  if (!value.empty()) kv["value"] = base64(value);
  return kv;
}
std::string region(const std::vector<json> &kvs) {
  json out = json::parse(kRegionEmpty);
  out["kvs"] = kvs;
  return out.dump();
}

TEST(Answers, AnyHolderTextAlsoAnEmptyOneHolds) {
  const Reply reply = good(Kind::kReadRegion, region({key_value("/idgen/r3/workers/000", ""),
                                                      key_value("/idgen/r3/workers/127", "x\n")}));
  EXPECT_TRUE(reply.held[0]);
  EXPECT_TRUE(reply.held[127]);
  EXPECT_FALSE(reply.held[1]);
}

TEST(Answers, KeysThatAreNoneOfOursAreOverlooked) {
  std::vector<json> kvs;
  for (const char *key :
       {"/idgen/r3/workers/128", "/idgen/r3/workers/999", "/idgen/r3/workers/5",
        "/idgen/r3/workers/0005", "/idgen/r3/workers/00a", "/idgen/r3/workers/-05",
        "/idgen/r3/workers/ 05", "/idgen/r3/workers/", "/idgen/r3/marks/128", "/idgen/r3/marks/005x",
        "/idgen/r3/not_before2", "/idgen/r4/not_before", "/idgen/r3/", "/idgen/r4/workers/005",
        "/idgen/r3/workers/005/a", "/other/r3/marks/005", ""})
    kvs.push_back(key_value(key, "1767225630000"));
  Reply nothing;
  nothing.term = 2;
  EXPECT_TRUE(same(good(Kind::kReadRegion, region(kvs)), nothing));
}

TEST(Answers, AMarkOfAnyOtherFormIsGarbage) {
  for (const std::string &text : {std::string(), std::string("x"), std::string("176722563000"),
                                  std::string("17672256300000"), std::string("-176722563000"),
                                  std::string(100'000, '7'), std::string("\0\xff\x80", 3)}) {
    EXPECT_EQ(good(Kind::kReadRegion, region({key_value("/idgen/r3/marks/005", text)})).marks[5].kind,
              Mark::kGarbage);
    const json odd = key_value("/idgen/r3/not_before", text);
    EXPECT_EQ(good(Kind::kReadRegion, region({odd})).not_before.kind, Mark::kGarbage);
    json answer = json::parse(kClaimedWithMark);
    answer["responses"][1]["response_range"]["kvs"][0] = key_value("/idgen/r3/marks/005", text);
    EXPECT_EQ(good(Kind::kClaim, answer.dump()).mark.kind, Mark::kGarbage);
    answer = json::parse(kClaimedWithMark);
    answer["responses"][2]["response_range"]["kvs"][0] = key_value("/idgen/r3/not_before", text);
    EXPECT_EQ(good(Kind::kClaim, answer.dump()).not_before.kind, Mark::kGarbage);
    answer = json::parse(kRaiseRefused);
    answer["responses"][1]["response_range"]["kvs"][0] = key_value("/idgen/r3/marks/005", text);
    EXPECT_EQ(good(Kind::kRaise, answer.dump()).mark.kind, Mark::kGarbage);
    answer = json::parse(kNotBeforeRefused);
    answer["responses"][0]["response_range"]["kvs"][0] = key_value("/idgen/r3/not_before", text);
    EXPECT_EQ(good(Kind::kRaiseNotBefore, answer.dump()).mark.kind, Mark::kGarbage);
  }
}

TEST(Answers, AGrantGivesTheLeaseToTheLastBit) {
  EXPECT_EQ(good(Kind::kGrant, kGranted).lease, kLease);
  EXPECT_EQ(good(Kind::kGrant, "{" HEADER R"(,"ID":"9223372036854775807","TTL":"60"})").lease,
            INT64_MAX);
}

TEST(Answers, AGrantWithoutLeaseOrTtlFails) {
  for (const char *text :
       {R"("ID":"0","TTL":"60"})", R"("ID":"12"})", R"("TTL":"60"})", R"("ID":"12","TTL":"0"})",
        R"("ID":"12","TTL":"-1"})", R"("ID":12,"TTL":"60"})", R"("ID":"12","TTL":60})",
        R"("ID":"","TTL":"60"})", R"("ID":"12x","TTL":"60"})", R"("ID":" 12","TTL":"60"})",
        R"("ID":"9223372036854775808","TTL":"60"})", R"("ID":2.324035740397714e18,"TTL":"60"})"})
    expect_failed(Kind::kGrant, std::string("{" HEADER ",") + text);
}

TEST(Answers, AClaimOfAFreshNumberHasNoMark) {
  const Reply reply = good(Kind::kClaim, kClaimedFresh);
  EXPECT_TRUE(reply.applied);
  EXPECT_EQ(reply.mark.kind, Mark::kAbsent);
  EXPECT_EQ(reply.not_before.kind, Mark::kAbsent);
}

TEST(Answers, AClaimBringsMarkAndNotBefore) {
  const Reply reply = good(Kind::kClaim, kClaimedWithMark);
  EXPECT_TRUE(reply.applied);
  EXPECT_TRUE(same(reply.mark, {Mark::kTime, 1767225631000, 395}));
  EXPECT_TRUE(same(reply.not_before, {Mark::kTime, 1767225640000, 397}));
}

TEST(Answers, AClaimThatWasNotAppliedTellsWhoseTheKeyIsAndTheMarks) {
  const Reply reply = good(Kind::kClaim, kClaimedAlready);
  EXPECT_FALSE(reply.applied);
  EXPECT_EQ(reply.lease, kLease);
  EXPECT_TRUE(same(reply.mark, {Mark::kTime, 1767225631000, 395}));
  EXPECT_TRUE(same(reply.not_before, {Mark::kTime, 1767225640000, 397}));
  EXPECT_EQ(good(Kind::kClaim, kClaimedAlreadyFresh).mark.kind, Mark::kAbsent);
}

TEST(Answers, AClaimHeldOnNoLeaseIsNobodysLease) {
  json answer = json::parse(kClaimedAlready);
  answer["responses"][0]["response_range"]["kvs"][0].erase("lease");
  EXPECT_EQ(good(Kind::kClaim, answer.dump()).lease, 0);
}

TEST(Answers, ARaiseThatWasAppliedSaysSoAndAtWhichRevision) {
  const Reply reply = good(Kind::kRaise, kRaised);
  EXPECT_TRUE(reply.applied);
  EXPECT_EQ(reply.mark.mod_revision, 395);
  json answer = json::parse(kRaised);
  answer["header"].erase("revision");
  expect_failed(Kind::kRaise, answer.dump());
}

TEST(Answers, ANotBeforeOrAnothersMarkThatWasPutSaysSo) {
  EXPECT_TRUE(good(Kind::kRaiseNotBefore, kRaised).applied);
  EXPECT_TRUE(good(Kind::kRaiseOther, kRaised).applied);
}

TEST(Answers, ANotBeforeOrAnothersMarkThatWasNotPutIsShown) {
  Reply reply = good(Kind::kRaiseNotBefore, kNotBeforeRefused);
  EXPECT_FALSE(reply.applied);
  EXPECT_TRUE(same(reply.mark, {Mark::kTime, 1767225640000, 397}));
  reply = good(Kind::kRaiseOther, kOtherRefused);
  EXPECT_FALSE(reply.applied);
  EXPECT_TRUE(same(reply.mark, {Mark::kTime, 1767225631000, 395}));
  for (const Kind kind : {Kind::kRaiseNotBefore, Kind::kRaiseOther}) {
    reply = good(kind, kThereIsNone);
    EXPECT_FALSE(reply.applied);
    EXPECT_EQ(reply.mark.kind, Mark::kAbsent);
  }
}

TEST(Answers, ARaiseThatWasRefusedTellsWhoseTheClaimIsAndTheMark) {
  const Reply refused = good(Kind::kRaise, kRaiseRefused);
  EXPECT_FALSE(refused.applied);
  EXPECT_EQ(refused.lease, kLease);
  EXPECT_TRUE(same(refused.mark, {Mark::kTime, 1767225631000, 395}));
  const Reply gone = good(Kind::kRaise, kRaiseGone);
  EXPECT_FALSE(gone.applied);
  EXPECT_EQ(gone.lease, 0);
}

TEST(Answers, AKeepAliveOfALeaseThatIsGoneIsAnAnswerToo) {
  EXPECT_FALSE(good(Kind::kKeepAlive, kAlive).failed);
  EXPECT_FALSE(good(Kind::kKeepAlive, kAliveGone).failed);
}

TEST(Answers, AStatusTellsTheSurplusOfTheRaftIndexOverTheRevision) {
  const Reply reply = good(Kind::kStatus, kStatus);
  EXPECT_TRUE(reply.surplus_known);
  EXPECT_EQ(reply.surplus, 412 - 395);
  EXPECT_FALSE(good(Kind::kRevoke, kRevoked).surplus_known);
  json answer = json::parse(kStatus);
  answer.erase("raftAppliedIndex");
  expect_failed(Kind::kStatus, answer.dump());
}

TEST(Answers, AStatusThatMayNotBeAskedSaysNothingAndIsNoFailure) {
  for (const long status : {403L, 404L, 501L}) {
    const Reading reading = read(Kind::kStatus, R"({"error":"etcdserver: permission denied"})", status);
    EXPECT_EQ(reading.fault, "");
    EXPECT_FALSE(reading.reply.failed);
    EXPECT_FALSE(reading.reply.surplus_known);
    EXPECT_EQ(reading.reply.term, 0);
  }
  expect_failed(Kind::kStatus, R"({"error":"etcdserver: no leader"})", 503);
  // A fresh token may mend this.
  EXPECT_TRUE(read(Kind::kStatus, R"({"error":"etcdserver: invalid auth token"})", 401).token_refused);
}

TEST(Answers, AKeepAliveWithoutAResultFails) {
  expect_failed(Kind::kKeepAlive, R"({"result":{"TTL":"60"}})");
  expect_failed(Kind::kKeepAlive, R"({"result":[]})");
  expect_failed(Kind::kKeepAlive, R"({"result":{}})");
  expect_failed(Kind::kKeepAlive, "{" HEADER R"(,"TTL":"60"})");
}

TEST(Answers, ALeaseThatIsNotFoundIsAsGoodAsRevokedAndNothingElseIs) {
  EXPECT_FALSE(good(Kind::kRevoke, kRevoked).failed);
  EXPECT_FALSE(read(Kind::kRevoke, kLeaseNotFound, 404).reply.failed);
  // etcd 3.5 and 3.6
  EXPECT_FALSE(
      read(Kind::kRevoke, R"({"code":5,"message":"etcdserver: requested lease not found"})", 404)
          .reply.failed);
  expect_failed(Kind::kRevoke, "Not Found\n", 404);
  expect_failed(Kind::kRevoke, R"({"code":5,"message":"etcdserver: something not found"})", 404);
  expect_failed(Kind::kRevoke, "requested lease not found", 404);
  expect_failed(Kind::kClaim, kLeaseNotFound, 404);
  expect_failed(Kind::kRaise, kLeaseNotFound, 404);
}

// ---- errors

TEST(Errors, OfAllShapesFailAndShowTheirText) {
  for (const char *text :
       {R"({"error":"etcdserver: request timed out","message":"etcdserver: request timed out","code":14})",
        R"({"code":14,"message":"etcdserver: request timed out"})",
        R"({"error":"etcdserver: request timed out"})",
        R"({"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: request timed out","http_status":"Service Unavailable"}})",
        R"({"error":{"code":14,"message":"etcdserver: request timed out"}})"}) {
    expect_all_fail(text, 503);
    expect_all_fail(text, 200);  // streaming calls
    EXPECT_NE(read(Kind::kRaise, text, 503).fault.find("request timed out"), std::string::npos);
    EXPECT_NE(read(Kind::kRaise, text, 503).fault.find("503"), std::string::npos);
    EXPECT_FALSE(read(Kind::kRaise, text, 503).token_refused);
  }
}

TEST(Errors, AGoodBodyUnderAnotherStatusFails) {
  for (const Good &one : kGood)
    for (const long status : {0L, 100L, 201L, 204L, 301L, 400L, 404L, 500L, 503L})
      expect_failed(one.kind, one.text, status);
}

TEST(Errors, TextHtmlAndEmptyFail) {
  for (const long status : {200L, 404L, 502L}) {
    expect_all_fail("Not Found\n", status);
    expect_all_fail("<html><body><h1>502 Bad Gateway</h1></body></html>", status);
    expect_all_fail("", status);
    expect_all_fail("\n", status);
    expect_all_fail(std::string("\0", 1), status);
  }
}

TEST(Errors, JsonOfAnotherKindFails) {
  for (const char *text : {"null", "true", "5", "\"text\"", "[]", "[{}]", "{}", "1e999", "{\"header\":5}",
                           "{\"result\":null}", "{\"responses\":{}}", "{\"succeeded\":true}",
                           "{\"kvs\":[]}", "{\"error\":{}}", "{\"error\":5}"})
    expect_all_fail(text);
}

TEST(Errors, AnswersOfAnotherCallFail) {
  for (const Good &one : kGood)
    for (const Kind kind : kKinds) {
      // All that these two ask of an answer is its header.
      if (kind == Kind::kRevoke || kind == Kind::kReadRegion) continue;
      if (kind != one.kind && !(transaction(kind) && transaction(one.kind)))
        expect_failed(kind, one.text);
    }
  expect_failed(Kind::kClaim, kRaised);
  expect_failed(Kind::kClaim, kRaiseRefused);
  expect_failed(Kind::kRaise, kNotBeforeRefused);
  expect_failed(Kind::kRaise, kThereIsNone);
  expect_failed(Kind::kRaiseNotBefore, kOtherRefused);
  expect_failed(Kind::kRaiseOther, kNotBeforeRefused);
  expect_failed(Kind::kRaiseOther, kRaiseRefused);
}

TEST(Errors, SucceededAloneIsNoSuccess) {
  for (const Kind kind :
       {Kind::kClaim, Kind::kRaise, Kind::kRaiseNotBefore, Kind::kRaiseOther}) {
    expect_failed(kind, "{" HEADER R"(,"succeeded":true})");
    expect_failed(kind, "{" HEADER R"(,"succeeded":true,"responses":[]})");
    expect_failed(kind, "{" HEADER R"(,"succeeded":true,"responses":[{}]})");
    expect_failed(kind, "{" HEADER R"(,"succeeded":true,"responses":[null]})");
    expect_failed(kind, "{" HEADER R"(,"succeeded":true,"responses":[{"response_put":5}]})");
    expect_failed(kind, "{" HEADER R"(,"succeeded":true,"responses":[{"response_range":{}}]})");
    expect_failed(kind, "{" HEADER R"(,"succeeded":"true","responses":[)" PUT_DONE "]}");
    expect_failed(kind, "{" HEADER R"(,"succeeded":1,"responses":[)" PUT_DONE "]}");
  }
  expect_failed(Kind::kClaim,
                "{" HEADER R"(,"succeeded":true,"responses":[)" PUT_DONE "," RANGE_EMPTY "]}");
}

TEST(Errors, OnlyThoseThatAFreshTokenMayMendSayThatTheTokenIsRefused) {
  for (const Kind kind : kKinds) {
    for (const auto &[status, text] : std::vector<std::pair<long, std::string>>{
             {401, R"({"error":"etcdserver: invalid auth token","message":"etcdserver: invalid auth token","code":16})"},
             {400, R"({"error":"etcdserver: user name is empty","message":"etcdserver: user name is empty","code":3})"},
             {400, R"({"code":3,"message":"etcdserver: revision of auth store is old"})"},
             {200, R"({"error":{"grpc_code":16,"http_code":401,"message":"etcdserver: invalid auth token"}})"}}) {
      const Reading reading = read(kind, text, status);
      EXPECT_TRUE(reading.reply.failed);
      EXPECT_TRUE(reading.token_refused) << text;
    }
    for (const char *text :
         {R"({"error":"etcdserver: permission denied","message":"etcdserver: permission denied","code":7})",
          R"({"error":"etcdserver: authentication failed, invalid user ID or password","code":3})",
          R"({"code":8,"message":"etcdserver: mvcc: database space exceeded"})",
          "invalid auth token"})
      EXPECT_FALSE(read(kind, text, 403).token_refused) << text;
  }
}

TEST(Errors, WhatIsShownOfAnAnswerIsShortAndPrintable) {
  const std::string wild = "\x1b[31m\r\n" + std::string(5000, 'x') + "\xff";
  expect_all_fail(wild);
  expect_all_fail(wild, 500);
  expect_all_fail(json{{"message", wild.substr(0, 3000)}}.dump(), 500);
}

// ---- hostile answers

TEST(Hostile, APartOfAnAnswerFails) {
  for (const Good &one : kGood) {
    const std::string text = one.text;
    const size_t whole = text.find_last_of('}') + 1;
    for (size_t size = 0; size < whole; size++) expect_failed(one.kind, text.substr(0, size));
    for (size_t from = 1; from < whole; from++) expect_failed(one.kind, text.substr(from));
    expect_failed(one.kind, text + text);
    expect_failed(one.kind, text + "}");
  }
}

/// What stands in for a part of an answer.
std::vector<json> strangers() {
  std::vector<json> out;
  for (const char *text :
       {"null", "true", "false", "0", "5", "-1.5", "1767225630000", "\"x\"", "\" \"", "[]", "{}",
        "[null]", "[[]]", "[5]", R"({"a":1})", "\"18446744073709551616\"", "\"=\"", "\"====\"",
        "\"MTc2NzIyNTYzMDAw\\n\""})
    out.push_back(json::parse(text));
  return out;
}

/// The last step of a path, "" for the whole.
std::string name_of(const json::json_pointer &at) { return at.empty() ? "" : at.back(); }

/// Each part of a good answer that is read replaced by each stranger. The answer then fails, reads
/// as before, or shows honestly what stands there.
void replace_parts(bool entries) {
  const std::set<std::string> unread = {"cluster_id", "member_id", "count", "create_revision",
                                        "version"};
  for (const Good &one : kGood) {
    const json whole = json::parse(one.text);
    const json leaves = whole.flatten();
    const Reply before = good(one.kind, one.text);
    std::set<std::string> seen;
    for (const auto &[path, leaf] : leaves.items()) {
      // The leaf, and all that contain it.
      for (json::json_pointer at(path); !at.empty(); at = at.parent_pointer()) {
        const std::string name = name_of(at);
        if (unread.contains(name) || !seen.insert(at.to_string()).second) continue;
        for (const json &stranger : strangers()) {
          const bool entry = name_of(at.parent_pointer()) == "kvs" ||
                             (name == "kvs" && stranger.is_array() && !stranger.empty());
          if (entry != entries) continue;
          json odd = whole;
          odd[at] = stranger;
          Reply now = read(one.kind, odd.dump()).reply;
          if (now.failed) continue;
          // A value is a text, and one that is no mark is seen to be none.
          if (name == "value")
            for (auto [mark, was] : {std::pair(&now.mark, &before.mark),
                                     std::pair(&now.not_before, &before.not_before),
                                     std::pair(&now.marks[5], &before.marks[5])})
              if (mark->kind == Mark::kGarbage) *mark = *was;
          // A region without keys is one, and so is a region with others, and a range without any.
          if (one.kind == Kind::kReadRegion && name == "kvs" && stranger.empty()) continue;
          if (one.kind == Kind::kReadRegion && name == "key") continue;
          if (name == "response_range" && stranger.is_object()) continue;
          EXPECT_TRUE(same(now, before))
              << static_cast<int>(one.kind) << " " << at.to_string() << " := " << stranger.dump();
        }
      }
    }
  }
}
TEST(Hostile, APartOfAnotherTypeFailsOrChangesNothing) { replace_parts(false); }

TEST(Hostile, RandomBytesFail) {
  std::mt19937 random(1);
  const std::string alphabet = "{}[]\",:0123456789-+.eE \\untrfalsIDTLkvskey";
  for (int i = 0; i < 3000; i++) {
    std::string text(random() % 300, '\0');
    for (char &c : text)
      c = i % 2 ? static_cast<char>(random()) : alphabet[random() % alphabet.size()];
    expect_all_fail(text);
    expect_all_fail(text, 500);
  }
}

TEST(Hostile, RandomChangesNeverThrowNorBringATimeThatNoMarkCanHave) {
  std::mt19937 random(2);
  int survived = 0;
  for (int i = 0; i < 30'000; i++) {
    const Good &one = kGood[random() % std::size(kGood)];
    std::string text = one.text;
    for (unsigned changes = 1 + random() % 4; changes > 0; changes--) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, 1 + random() % 20);
          break;
        case 2:
          text.insert(at, text.substr(random() % text.size(), random() % 40));
          break;
        default:
          text[at] = static_cast<char>(text[at] ^ (1 << random() % 7));
      }
      if (text.empty()) text = "{";
    }
    const Reading reading = read(one.kind, text);
    EXPECT_EQ(reading.reply.failed, !reading.fault.empty());
    survived += !reading.reply.failed;
    for (const Mark &mark : reading.reply.marks) {
      EXPECT_GE(mark.unix_ms, 0);
      EXPECT_LE(mark.unix_ms, 9'999'999'999'999);
    }
    EXPECT_LE(reading.reply.mark.unix_ms, 9'999'999'999'999);
  }
  EXPECT_GT(survived, 100) << "all were caught by the parser, so nothing was tried";
}

TEST(Hostile, AMegabyteOfAnythingFails) {
  for (const char c : {' ', '[', '{', '"', '0', 'x', '\\', '\0', '\xff'})
    expect_failed(Kind::kRaise, std::string(1 << 20, c));
  std::string nested;
  for (int i = 0; i < 100'000; i++) nested += "{\"kvs\":[";
  expect_failed(Kind::kReadRegion, nested);
}

std::string deep(int depth) {
  const auto size = static_cast<size_t>(depth);
  return std::string(size, '[') + std::string(size, ']');
}

TEST(Hostile, DeepNestingWhereNothingIsReadFailsOrChangesNothing) {
  const std::string text =
      "{" HEADER R"(,"succeeded":true,"extra":)" + deep(150'000) +
      R"(,"responses":[)" PUT_DONE "]}";
  const Reply reply = read(Kind::kRaise, text).reply;
  EXPECT_NE(reply.failed, reply.applied);
  expect_failed(Kind::kClaim, deep(200'000));
  expect_failed(Kind::kKeepAlive, R"({"error":)" + deep(200'000) + "}");
}

TEST(Hostile, DeepNestingInPlaceOfAKeyFails) {
  const std::string range = R"({"response_range":{"kvs":[)" + deep(150'000) + "]}}";
  expect_failed(Kind::kRaise, "{" HEADER R"(,"responses":[)" + range + "," RANGE_EMPTY "]}");
  expect_failed(Kind::kClaim,
                "{" HEADER R"(,"responses":[)" + range + "," + RANGE_EMPTY "," RANGE_EMPTY "]}");
  expect_failed(Kind::kReadRegion, "{" HEADER R"(,"kvs":[)" + deep(200'000) + "]}");
}

TEST(Hostile, AnEntryThatIsNoKeyValueFails) { replace_parts(true); }

TEST(Hostile, AKeyValueOfAnotherKeyFails) {
  // The answers of mark and not_before the wrong way round, say.
  expect_failed(Kind::kClaim, "{" HEADER R"(,"succeeded":true,"responses":[)" PUT_DONE "," RANGE_OF(
                                  KV_NOT_BEFORE) "," RANGE_OF(KV_MARK) "]}");
  expect_failed(Kind::kRaise,
                "{" HEADER R"(,"responses":[)" RANGE_OF(KV_MARK) "," RANGE_OF(KV_CLAIM) "]}");
}

// ---- tokens

TEST(Tokens, AreReadFromAGoodAnswer) {
  std::string token;
  EXPECT_EQ(read_token(200, "{" HEADER R"(,"token":"fYbvwnfbHBzEOimt.421"})", &token), "");
  EXPECT_EQ(token, "fYbvwnfbHBzEOimt.421");
}

TEST(Tokens, AWrongPasswordIsShownAsEtcdSaysIt) {
  std::string token;
  const std::string fault = read_token(
      400,
      R"({"error":"etcdserver: authentication failed, invalid user ID or password","message":"etcdserver: authentication failed, invalid user ID or password","code":3})",
      &token);
  EXPECT_NE(fault.find("invalid user ID or password"), std::string::npos);
  EXPECT_EQ(token, "");
}

TEST(Tokens, NothingElseIsAToken) {
  for (const char *text :
       {"", "x", "null", "[]", "{}", R"({"token":5})", R"({"token":""})", R"({"token":null})",
        R"({"token":"a b"})", R"({"token":"a\r\nX-Evil: 1"})", "{\"token\":\"\\u0000\"}",
        R"({"token":"\u00fc"})", R"({"token":["a"]})"}) {
    std::string token;
    EXPECT_NE(read_token(200, text, &token), "") << text;
  }
  std::string token;
  EXPECT_NE(read_token(500, R"({"token":"abc"})", &token), "");
}

}  // namespace
}  // namespace snowflake::etcd
