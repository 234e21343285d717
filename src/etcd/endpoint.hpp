// The text of snowflake.etcd_endpoints. Standard library only: the settings check it too.
#pragma once

#include <string>
#include <vector>

namespace snowflake::etcd {

/// Splits a comma-separated list of http(s)://host:port into base URLs without a trailing slash.
/// An IPv6 address stands in brackets. On a fault returns an empty list and says in *fault what is
/// wrong with which entry; an empty or blank text is an empty list without a fault.
std::vector<std::string> parse_endpoints(const std::string &text, std::string *fault);

}  // namespace snowflake::etcd
