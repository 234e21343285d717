// The settings of the extension, as Postgres keeps them.
#pragma once

namespace snowflake::pg {

struct Settings {
  char *etcd_endpoints;
  char *etcd_prefix;
  char *etcd_cacert;
  char *etcd_cert;
  char *etcd_key;
  char *etcd_user;
  char *etcd_password_file;
  char *holder;
  int region;
  int lease_ttl_s;
  int reserve_ms;
  int renew_interval_ms;
  int max_wait_ms;
  int max_clock_error_ms;
  bool on_standby;
};

/// All zero until define_settings().
extern Settings settings;

/// Defines them; in the postmaster, from _PG_init only. Raises FATAL when they contradict each
/// other, which keeps the server from starting.
void define_settings();

}  // namespace snowflake::pg
