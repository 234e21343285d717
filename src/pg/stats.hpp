// What pg_stat_snowflake and snowflake_ready() say.
#pragma once

#include "pg/pg.hpp"

namespace snowflake::pg {

/// Whether a call would mint now, having waited up to snowflake.max_wait where that helps for sure.
/// Needs shared memory.
bool would_succeed(WallTime now);

}  // namespace snowflake::pg
