#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "etcd/endpoint.hpp"
#include "pg/guard.hpp"
#include "pg/pg.hpp"
#include "pg/settings.hpp"

namespace snowflake::pg {

Settings settings;

namespace {

bool check_endpoints(char **value, void **, GucSource) {
  char fault[256] = "";
  char trouble[256] = "";
  const char *text = *value;
  if (!contain(trouble, [&] {
        std::string what;
        etcd::parse_endpoints(text, &what);
        snprintf(fault, sizeof fault, "%s", what.c_str());
      }))
    snprintf(fault, sizeof fault, "%s", trouble);
  if (fault[0] == '\0') return true;
  GUC_check_errdetail("Entry %s.", fault);
  GUC_check_errhint("Use a comma-separated list of http(s)://host:port.");
  return false;
}

bool check_prefix(char **value, void **, GucSource) {
  const char *text = *value;
  const size_t size = strlen(text);
  bool good = size > 1 && size <= 200 && text[0] == '/' && text[size - 1] != '/';
  for (size_t i = 0; i < size; i++) good = good && text[i] > ' ' && text[i] <= '~';
  if (good) return true;
  GUC_check_errdetail("A key prefix begins with \"/\", does not end with it, and has 2 to 200 "
                      "printable ASCII characters.");
  GUC_check_errhint("The default is \"/idgen\".");
  return false;
}

bool check_file(char **value, void **, GucSource) {
  // A parallel worker takes over what its leader has: a file that is gone by now is no reason to
  // fail its query.
  if ((*value)[0] == '\0' || InitializingParallelWorker) return true;
  // Reading a pipe could block the background worker for ever.
  struct stat found;
  const bool there = access(*value, R_OK) == 0 && stat(*value, &found) == 0;
  if (there && S_ISREG(found.st_mode)) return true;
  GUC_check_errdetail("File \"%s\" can't be read by the server: %s.", *value,
                      there ? "it is not a regular file" : strerror(errno));
  GUC_check_errhint("Name a file that the user who runs the server may read.");
  return false;
}

/// The text that the configuration gives to a setting not defined yet; null: none.
const char *configured(const char *name) {
  const char *text = GetConfigOption(name, true, false);
  return text == nullptr ? nullptr : pstrdup(text);
}

/// Postgres warns of a value that it refuses at server start, and takes the default. Here that could
/// be region 0 in the etcd of another region, so the server does not start.
void require(bool taken, const char *name, const char *text) {
  if (taken) return;
  ereport(FATAL,
          (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
           errmsg("invalid value for parameter \"%s\": \"%s\"", name, text),
           errdetail("The server does not start with its default instead, which may be another's."),
           errhint("The warning before this line says what is allowed.")));
}

void define_string(const char *name, char **value, const char *boot, GucContext context, int flags,
                   GucStringCheckHook check, const char *what) {
  const char *text = configured(name);
  DefineCustomStringVariable(name, what, nullptr, value, boot, context, flags, check, nullptr,
                             nullptr);
  require(text == nullptr || strcmp(text, *value) == 0, name, text);
}

void define_int(const char *name, int *value, int boot, int min, int max, GucContext context,
                int flags, const char *what, const char *more = nullptr) {
  const char *text = configured(name);
  DefineCustomIntVariable(name, what, more, value, boot, min, max, context, flags, nullptr, nullptr,
                          nullptr);
  int wanted;
  require(text == nullptr || (parse_int(text, &wanted, flags, nullptr) && wanted == *value), name,
          text);
}

void define_bool(const char *name, bool *value, GucContext context, const char *what) {
  const char *text = configured(name);
  DefineCustomBoolVariable(name, what, nullptr, value, false, context, 0, nullptr, nullptr, nullptr);
  bool wanted;
  require(text == nullptr || (parse_bool(text, &wanted) && wanted == *value), name, text);
}

/// A misspelt name would leave the default in force as well.
void refuse_unknown() {
  constexpr const char *kPrefix = "snowflake.";
  int n;
  config_generic **all = all_settings(&n);
  for (int i = 0; i < n; i++)
    if ((all[i]->flags & GUC_CUSTOM_PLACEHOLDER) != 0 &&
        pg_strncasecmp(all[i]->name, kPrefix, strlen(kPrefix)) == 0)
      ereport(FATAL, (errcode(ERRCODE_UNDEFINED_OBJECT),
                      errmsg("unrecognized configuration parameter \"%s\"", all[i]->name),
                      errdetail("With a misspelt name its default would be in force, which may be "
                                "another region's."),
                      errhint("Look for the name in the table of settings of snowflake's README.")));
}

}  // namespace

void define_settings() {
  define_string("snowflake.etcd_endpoints", &settings.etcd_endpoints, "", PGC_SIGHUP,
                GUC_SUPERUSER_ONLY, check_endpoints,
                "Comma-separated http(s)://host:port of the region's etcd; empty: no IDs are minted.");
  define_string("snowflake.etcd_prefix", &settings.etcd_prefix, "/idgen", PGC_POSTMASTER, 0,
                check_prefix, "Prefix of the keys in etcd.");
  define_string("snowflake.etcd_cacert", &settings.etcd_cacert, "", PGC_SIGHUP, GUC_SUPERUSER_ONLY,
                check_file, "File of the CA certificates that sign etcd's; empty: the system's.");
  define_string("snowflake.etcd_cert", &settings.etcd_cert, "", PGC_SIGHUP, GUC_SUPERUSER_ONLY,
                check_file, "File of the client certificate shown to etcd.");
  define_string("snowflake.etcd_key", &settings.etcd_key, "", PGC_SIGHUP, GUC_SUPERUSER_ONLY,
                check_file, "File of the client certificate's private key.");
  define_string("snowflake.etcd_user", &settings.etcd_user, "", PGC_SIGHUP, GUC_SUPERUSER_ONLY,
                nullptr, "User name for etcd; empty: no authentication.");
  define_string("snowflake.etcd_password_file", &settings.etcd_password_file, "", PGC_SIGHUP,
                GUC_SUPERUSER_ONLY, check_file, "File whose first line is that user's password.");
  define_int("snowflake.region", &settings.region, 0, 0, kRegions - 1, PGC_POSTMASTER, 0,
             "Region of this instance; each has an etcd of its own.");

  char host[256] = "";
  if (gethostname(host, sizeof host - 1) != 0) strlcpy(host, "unknown", sizeof host);
  // Never freed: Postgres keeps the pointer as the setting's default.
  char *holder = MemoryContextStrdup(TopMemoryContext, psprintf("%s:%d", host, PostPortNumber));
  define_string("snowflake.holder", &settings.holder, holder, PGC_POSTMASTER, GUC_SUPERUSER_ONLY,
                nullptr, "What etcd shows as the holder of the worker number; for people only.");

  define_int("snowflake.lease_ttl", &settings.lease_ttl_s, 60, 2, 3600, PGC_POSTMASTER, GUC_UNIT_S,
             "Time to live of the lease that a worker number hangs on.");
  define_int("snowflake.reserve", &settings.reserve_ms, 30000, 1000, 3600 * 1000, PGC_POSTMASTER,
             GUC_UNIT_MS, "How far ahead of the clock time is reserved in etcd.",
             "So long etcd may be away without a caller noticing.");
  define_int("snowflake.renew_interval", &settings.renew_interval_ms, 1000, 50, 600 * 1000,
             PGC_SIGHUP, GUC_UNIT_MS, "Time between two renewals of the reserve.",
             "A third of snowflake.reserve, if that is less.");
  define_int("snowflake.max_wait", &settings.max_wait_ms, 100, 0, 3600 * 1000, PGC_USERSET,
             GUC_UNIT_MS, "Longest that a call waits before it refuses; 0: never.");
  define_int("snowflake.max_clock_error", &settings.max_clock_error_ms, 10, 0, 1000, PGC_SIGHUP,
             GUC_UNIT_MS, "Minting does not start unless the kernel says that the clock is this good.",
             "0: the kernel is not asked.");
  define_bool("snowflake.on_standby", &settings.on_standby, PGC_SIGHUP,
              "Whether a hot standby holds a worker number and mints.");
  refuse_unknown();
  reserve_setting_prefix("snowflake");

  // Both are fixed at server start, and a check hook sees but one of them.
  if (settings.reserve_ms >= settings.lease_ttl_s * 1000)
    ereport(FATAL, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                    errmsg("\"snowflake.reserve\" must be less than \"snowflake.lease_ttl\""),
                    errdetail("The reserve is %d ms, the lease's time to live %d ms.",
                              settings.reserve_ms, settings.lease_ttl_s * 1000),
                    errhint("Else a worker number could be lost while its reserve is not used up. "
                            "The defaults are 30s and 60s.")));
}

}  // namespace snowflake::pg
