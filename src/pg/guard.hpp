// The one barrier between C++ exceptions and Postgres.
//
// An exception that leaves an extern "C" function aborts the process, and one abort restarts every
// session of the instance; ereport(ERROR) jumps over destructors. So C++ that can throw runs inside
// contain(), which raises nothing, and Postgres code raises afterwards, with no C++ object alive.
#pragma once

#include <cstdio>
#include <exception>

namespace snowflake::pg {

/// Runs `work`. False when it threw: `fault` then holds the text, cut to its size.
template <size_t N, class Work>
bool contain(char (&fault)[N], Work &&work) noexcept {
  try {
    work();
    return true;
  } catch (const std::exception &e) {
    snprintf(fault, N, "%s", e.what());
  } catch (...) {
    snprintf(fault, N, "%s", "an exception of unknown type");
  }
  return false;
}

}  // namespace snowflake::pg
