#include "etcd/messages.hpp"

#include <openssl/evp.h>

#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace snowflake::etcd {
namespace {

using nlohmann::json;

constexpr size_t kMarkDigits = 13;

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string base64(const std::string &plain) {
  std::string out(4 * ((plain.size() + 2) / 3) + 1, '\0');
  const int n = EVP_EncodeBlock(reinterpret_cast<unsigned char *>(out.data()),
                                reinterpret_cast<const unsigned char *>(plain.data()),
                                static_cast<int>(plain.size()));
  out.resize(static_cast<size_t>(n));
  return out;
}

std::string unbase64(const std::string &coded) {
  std::string out(coded.size(), '\0');
  const int n = EVP_DecodeBlock(reinterpret_cast<unsigned char *>(out.data()),
                                reinterpret_cast<const unsigned char *>(coded.data()),
                                static_cast<int>(coded.size()));
  if (n < 0) throw Fault("a value is no base64");
  // The decoder counts the padding as bytes of its own.
  size_t size = static_cast<size_t>(n);
  for (size_t i = coded.size(); i > 0 && coded[i - 1] == '=' && size > 0; i--) size--;
  out.resize(size);
  return out;
}

std::string region_prefix(const Names &names) {
  return names.prefix + "/r" + std::to_string(names.region) + "/";
}

std::string numbered(const Names &names, const char *folder, int worker) {
  char number[16];
  std::snprintf(number, sizeof number, "%03d", worker);
  return region_prefix(names) + folder + number;
}

json put(const std::string &key, const std::string &value, int64_t lease = 0) {
  json operation = {{"key", base64(key)}, {"value", base64(value)}};
  if (lease != 0) operation["lease"] = std::to_string(lease);
  return {{"request_put", operation}};
}
json range(const std::string &key) { return {{"request_range", {{"key", base64(key)}}}}; }

json compare(const std::string &key, const char *target, const char *result, const char *field,
             const std::string &value) {
  return {{"key", base64(key)}, {"target", target}, {"result", result}, {field, value}};
}

/// The stored time is less than the new one; on an absent key a VALUE compare never holds, so the
/// first one compares CREATE.
json compare_less(const std::string &key, const Request &request) {
  return request.first
             ? compare(key, "CREATE", "EQUAL", "create_revision", "0")
             : compare(key, "VALUE", "LESS", "value", base64(mark_text(request.mark_unix_ms)));
}

int64_t number(const json &value, const char *what) {
  const auto &text = value.get_ref<const std::string &>();
  int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error != std::errc{} || end != text.data() + text.size())
    throw Fault(std::string(what) + " is no number");
  return out;
}

/// The lease of a key-value, 0 if it hangs on none.
int64_t lease_of(const json &kv) { return kv.contains("lease") ? number(kv["lease"], "lease") : 0; }
/// An empty value is left out by the gateway.
std::string value_of(const json &kv) {
  return kv.contains("value") ? unbase64(kv["value"].get_ref<const std::string &>()) : std::string();
}

Mark mark_of(const json &kv) {
  Mark mark = parse_mark(value_of(kv));
  mark.mod_revision = number(kv.at("mod_revision"), "mod_revision");
  return mark;
}

/// The one key-value of the i-th operation of a transaction, a range of that key; null if absent.
const json *key_value(const json &answer, size_t i, const std::string &key) {
  const json &found = answer.at("responses").at(i).at("response_range");
  if (!found.is_object()) throw Fault("a range has no answer");
  if (!found.contains("kvs")) return nullptr;
  const json &kv = found["kvs"].at(0);
  if (unbase64(kv.at("key").get_ref<const std::string &>()) != key)
    throw Fault("an answer about another key");
  return &kv;
}
Mark mark_at(const json &answer, size_t i, const std::string &key) {
  const json *kv = key_value(answer, i, key);
  return kv == nullptr ? Mark{} : mark_of(*kv);
}
/// The lease that holds the number of the claim key read first, 0: none.
int64_t holder_of(const json &answer, const std::string &key) {
  const json *kv = key_value(answer, 0, key);
  return kv == nullptr ? 0 : lease_of(*kv);
}

/// Every answer has a header, and it the raft term of the member that gave it.
int64_t term_of(const json &answer) {
  const int64_t term = number(answer.at("header").at("raft_term"), "raft_term");
  if (term <= 0) throw Fault("a header without a raft term");
  return term;
}

void require_put(const json &answer, size_t i) {
  // `succeeded` alone also stands for a transaction of which we misspelt the operations.
  if (!answer.at("responses").at(i).at("response_put").is_object())
    throw Fault("a put has no answer");
}

/// The worker number of a key below `folder`, -1 if it is none of ours.
int worker_in(const std::string &key, const std::string &folder) {
  if (key.size() != folder.size() + 3 || !key.starts_with(folder)) return -1;
  int worker = 0;
  for (size_t i = folder.size(); i < key.size(); i++) {
    if (key[i] < '0' || key[i] > '9') return -1;
    worker = worker * 10 + (key[i] - '0');
  }
  return worker < kWorkers ? worker : -1;
}

void read_region(const json &answer, const Names &names, Reply *reply) {
  const std::string claims = region_prefix(names) + "workers/";
  const std::string marks = region_prefix(names) + "marks/";
  if (!answer.contains("kvs")) return;
  for (const json &kv : answer["kvs"]) {
    const std::string key = unbase64(kv.at("key").get_ref<const std::string &>());
    if (const int claimed = worker_in(key, claims); claimed >= 0)
      reply->held[static_cast<size_t>(claimed)] = true;
    if (const int marked = worker_in(key, marks); marked >= 0)
      reply->marks[static_cast<size_t>(marked)] = mark_of(kv);
    if (key == not_before_key(names)) reply->not_before = mark_of(kv);
  }
}

void read_success(const Request &request, const Names &names, const json &answer, Reply *reply) {
  const std::string claim = claim_key(names, request.worker);
  const std::string mark = mark_key(names, request.worker);
  // A keepalive of a lease that is gone has no TTL, and says as much of the raft term.
  reply->term =
      term_of(request.kind == RequestKind::kKeepAlive ? answer.at("result") : answer);
  switch (request.kind) {
    case RequestKind::kNone:
    case RequestKind::kRevoke:
    case RequestKind::kKeepAlive:
      break;
    case RequestKind::kStatus:
      reply->surplus = number(answer.at("raftIndex"), "raftIndex") -
                       number(answer.at("header").at("revision"), "revision");
      reply->surplus_known = true;
      break;
    case RequestKind::kReadRegion:
      read_region(answer, names, reply);
      break;
    case RequestKind::kGrant:
      reply->lease = number(answer.at("ID"), "ID");
      if (reply->lease == 0 || number(answer.at("TTL"), "TTL") <= 0)
        throw Fault("a lease without id or TTL");
      break;
    case RequestKind::kClaim:
      reply->applied = answer.value("succeeded", false);
      if (reply->applied)
        require_put(answer, 0);
      else
        reply->lease = holder_of(answer, claim);
      reply->mark = mark_at(answer, 1, mark);
      reply->not_before = mark_at(answer, 2, not_before_key(names));
      break;
    case RequestKind::kRaise:
      reply->applied = answer.value("succeeded", false);
      if (reply->applied) {
        require_put(answer, 0);
        reply->mark.mod_revision = number(answer.at("header").at("revision"), "revision");
      } else {
        reply->lease = holder_of(answer, claim);
        reply->mark = mark_at(answer, 1, mark);
      }
      break;
    case RequestKind::kRaiseNotBefore:
    case RequestKind::kRaiseOther:
      reply->applied = answer.value("succeeded", false);
      if (reply->applied)
        require_put(answer, 0);
      else
        reply->mark = mark_at(
            answer, 0,
            request.kind == RequestKind::kRaiseOther ? mark : not_before_key(names));
      break;
  }
}

/// The start of a text from outside, fit for one line of a log.
std::string excerpt(const std::string &text) {
  std::string out = text.substr(0, 120);
  for (char &c : out)
    if (c < ' ' || c > '~') c = ' ';
  return out;
}

/// The text of an error answer, of any shape; "" if it has none.
std::string error_text(const json &answer) {
  if (!answer.is_object()) return {};
  const json &inner =
      answer.contains("error") && answer["error"].is_object() ? answer["error"] : answer;
  for (const char *field : {"message", "error"})
    if (inner.contains(field) && inner[field].is_string()) return inner[field].get<std::string>();
  return {};
}

bool contains(const std::string &text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

std::string describe(long http_status, const std::string &text, const std::string &body) {
  return "HTTP status " + std::to_string(http_status) + ": " + excerpt(text.empty() ? body : text);
}

}  // namespace

std::string claim_key(const Names &names, int worker) { return numbered(names, "workers/", worker); }
std::string mark_key(const Names &names, int worker) { return numbered(names, "marks/", worker); }
std::string not_before_key(const Names &names) { return region_prefix(names) + "not_before"; }

Mark parse_mark(std::string_view value) {
  Mark mark{Mark::kGarbage};
  if (value.size() != kMarkDigits) return mark;
  int64_t ms = 0;
  for (const char c : value) {
    if (c < '0' || c > '9') return mark;
    ms = ms * 10 + (c - '0');
  }
  return {Mark::kTime, ms};
}

std::string mark_text(int64_t unix_ms) {
  char text[32];
  std::snprintf(text, sizeof text, "%013lld", static_cast<long long>(unix_ms));
  return text;
}

const char *path_of(RequestKind kind) {
  switch (kind) {
    case RequestKind::kRevoke:
      return "/v3/lease/revoke";
    case RequestKind::kReadRegion:
      return "/v3/kv/range";
    case RequestKind::kStatus:
      return "/v3/maintenance/status";
    case RequestKind::kGrant:
      return "/v3/lease/grant";
    case RequestKind::kKeepAlive:
      return "/v3/lease/keepalive";
    case RequestKind::kClaim:
    case RequestKind::kRaise:
    case RequestKind::kRaiseNotBefore:
    case RequestKind::kRaiseOther:
    case RequestKind::kNone:
      break;
  }
  return "/v3/kv/txn";
}

std::string body_of(const Request &request, const Names &names) {
  const std::string claim = claim_key(names, request.worker);
  const std::string mark = mark_key(names, request.worker);
  const std::string lease = std::to_string(request.lease);
  json body;
  switch (request.kind) {
    case RequestKind::kNone:
      break;
    case RequestKind::kStatus:
      body = json::object();
      break;
    case RequestKind::kRevoke:
    case RequestKind::kKeepAlive:
      body = {{"ID", lease}};
      break;
    case RequestKind::kReadRegion: {
      // All keys that begin with the prefix: up to, not including, its successor.
      const std::string from = region_prefix(names);
      std::string upto = from;
      upto.back()++;
      body = {{"key", base64(from)}, {"range_end", base64(upto)}};
      break;
    }
    case RequestKind::kGrant:
      body = {{"TTL", std::to_string(names.ttl_s)}};
      break;
    case RequestKind::kClaim:
      // Mark and not_before are read inside: etcd can answer a separate read stale (etcd #20418).
      // The other branch reads the same, for a resent request that meets its own claim.
      body = {{"compare", json::array({compare(claim, "CREATE", "EQUAL", "create_revision", "0")})},
              {"success", json::array({put(claim, names.holder, request.lease), range(mark),
                                       range(not_before_key(names))})},
              {"failure", json::array({range(claim), range(mark), range(not_before_key(names))})}};
      break;
    case RequestKind::kRaise: {
      // LESS keeps a raise that is applied late from lowering a later mark; GREATER, one below the
      // mark as last confirmed, keeps it off an etcd that has forgotten that.
      json compares = json::array({compare(claim, "LEASE", "EQUAL", "lease", lease)});
      compares.push_back(compare_less(mark, request));
      if (request.least_unix_ms > 0 && !request.first)
        compares.push_back(compare(mark, "VALUE", "GREATER", "value",
                                   base64(mark_text(request.least_unix_ms - 1))));
      body = {{"compare", compares},
              {"success", json::array({put(mark, mark_text(request.mark_unix_ms))})},
              {"failure", json::array({range(claim), range(mark)})}};
      break;
    }
    case RequestKind::kRaiseNotBefore:
    case RequestKind::kRaiseOther: {
      const std::string key =
          request.kind == RequestKind::kRaiseOther ? mark : not_before_key(names);
      body = {{"compare", json::array({compare_less(key, request)})},
              {"success", json::array({put(key, mark_text(request.mark_unix_ms))})},
              {"failure", json::array({range(key)})}};
      break;
    }
  }
  return body.dump();  // ASCII only: everything from outside is base64
}

std::string authenticate_body(const std::string &user, const std::string &password) {
  // Bytes that are no UTF-8 can't be a password of etcd: it will refuse what stands in their place.
  return json{{"name", user}, {"password", password}}.dump(-1, ' ', false,
                                                           json::error_handler_t::replace);
}

Reading read_answer(const Request &request, const Names &names, long http_status,
                    const std::string &body) {
  Reading out;
  const json answer = json::parse(body, nullptr, false);
  const std::string error = error_text(answer);
  // Streaming calls answer 200 with an error inside.
  if (http_status == 200 && error.empty()) {
    try {
      if (!answer.is_object()) throw Fault("an answer that is no JSON object: " + excerpt(body));
      read_success(request, names, answer, &out.reply);
      return out;
    } catch (const Fault &fault) {
      out.fault = fault.what();
    } catch (const json::exception &fault) {
      out.fault = std::string("an answer of unknown form: ") + excerpt(body);
    }
    out.reply = {};
  } else {
    // A lease that is not found is as good as revoked. Any other 404 may be a wrong path.
    if (request.kind == RequestKind::kRevoke && contains(error, "requested lease not found"))
      return out;
    out.fault = describe(http_status, error, body);
    out.token_refused = contains(error, "invalid auth token") ||
                        contains(error, "user name is empty") ||
                        contains(error, "revision of auth store is old");
    // An etcd that does not let this user ask is believed without.
    if (request.kind == RequestKind::kStatus && !out.token_refused) return {};
  }
  out.reply.failed = true;
  return out;
}

std::string read_token(long http_status, const std::string &body, std::string *token) {
  const json answer = json::parse(body, nullptr, false);
  if (http_status == 200 && answer.is_object() && answer.contains("token") &&
      answer["token"].is_string()) {
    *token = answer["token"].get<std::string>();
    // It goes into a header.
    for (const char c : *token)
      if (c <= ' ' || c > '~') return "a token that is no token";
    if (!token->empty()) return {};
  }
  return describe(http_status, error_text(answer), body);
}

}  // namespace snowflake::etcd
