#include "etcd/endpoint.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace snowflake::etcd {
namespace {

std::string_view trim(std::string_view s) {
  constexpr std::string_view kBlank = " \t\r\n";
  const auto from = s.find_first_not_of(kBlank);
  if (from == s.npos) return {};
  return s.substr(from, s.find_last_not_of(kBlank) - from + 1);
}

bool host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_';
}
bool address_character(char c) {
  return (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') || (c >= '0' && c <= '9') || c == '.' ||
         c == ':';
}

/// What is wrong with one entry; nullptr: nothing.
const char *fault_of(std::string_view url) {
  if (url.empty()) return "is empty";
  if (url.starts_with("http://"))
    url.remove_prefix(7);
  else if (url.starts_with("https://"))
    url.remove_prefix(8);
  else
    return "does not begin with http:// or https://";

  std::string_view host, rest;
  bool (*allowed)(char) = host_character;
  if (url.starts_with('[')) {
    const auto end = url.find(']');
    if (end == url.npos) return "has no closing bracket";
    host = url.substr(1, end - 1);
    rest = url.substr(end + 1);
    allowed = address_character;
  } else {
    host = url.substr(0, url.find_first_of(":/?#@"));
    rest = url.substr(host.size());
  }
  if (host.empty() || !std::all_of(host.begin(), host.end(), allowed)) return "has no valid host";
  if (!rest.starts_with(':')) return "has no port";
  rest.remove_prefix(1);
  unsigned port = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), port);
  if (error != std::errc{} || port < 1 || port > 65535) return "has no port from 1 to 65535";
  if (end != rest.data() + rest.size()) return "has something after its port";
  return nullptr;
}

}  // namespace

std::vector<std::string> parse_endpoints(const std::string &text, std::string *fault) {
  std::vector<std::string> urls;
  fault->clear();
  std::string_view left = trim(text);
  while (!left.empty()) {
    const auto comma = left.find(',');
    const std::string url(trim(left.substr(0, comma)));
    if (const char *what = fault_of(url)) {
      *fault = "\"" + url + "\" " + what;
      return {};
    }
    urls.push_back(url);
    if (comma == left.npos) break;
    left.remove_prefix(comma + 1);
    if (left.empty()) {
      *fault = "\"\" is empty";
      return {};
    }
  }
  return urls;
}

}  // namespace snowflake::etcd
