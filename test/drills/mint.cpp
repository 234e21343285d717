// Sessions that mint all the time, and keep every ID they were handed: see record.hpp.
//
//   mint DIR NAME CONNINFO KIND:IDS:RATE...
//
// One session for each KIND:IDS:RATE: statements of IDS IDs, at most RATE IDs a second (0: as fast
// as it goes). A session that loses its connection makes a new one. Ends at SIGTERM. The database
// needs the tables that lib/Drills/Server.pm makes.
//
// Thread safety: a thread for each session; they share the table of texts (its mutex), and main
// cuts their connections at the end (each session's mutex).
#include <libpq-fe.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "record.hpp"

namespace {

using drills::Call;
using drills::Kind;
using namespace std::chrono_literals;

std::atomic<bool> ending{false};

int64_t clock_ns(clockid_t clock) {
  timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * int64_t{1000000000} + t.tv_nsec;
}
int64_t now_ns() { return clock_ns(CLOCK_MONOTONIC); }

std::FILE *open_file(const std::string &path, const char *mode) {
  std::FILE *file = std::fopen(path.c_str(), mode);
  if (file == nullptr) throw std::runtime_error(path + ": " + std::strerror(errno));
  return file;
}

/// The outcomes of calls, by number. Figures and times are masked, else each refusal had its own.
class Texts {
 public:
  explicit Texts(const std::string &path) : file_(open_file(path, "w")) { number_of("00000", ""); }

  uint16_t number_of(const std::string &sqlstate, const std::string &message) {
    std::string text = sqlstate + '\t';
    for (const char c : message.substr(0, message.find('\n'))) {
      const bool figure = c >= '0' && c <= '9';
      if (figure && text.back() == '#') continue;
      text += figure ? '#' : c;
      // "#-#-# #:#:#.#+#" and the like are one figure.
      while (text.size() > 2 && text.ends_with('#') &&
             std::strchr(".:-+", text[text.size() - 2]) != nullptr && text[text.size() - 3] == '#')
        text.resize(text.size() - 2);
    }
    const std::lock_guard guard(mutex_);
    const auto known = std::find(texts_.begin(), texts_.end(), text);
    if (known != texts_.end()) return static_cast<uint16_t>(known - texts_.begin());
    texts_.push_back(text);
    std::fprintf(file_, "%s\n", text.c_str());
    std::fflush(file_);
    return static_cast<uint16_t>(texts_.size() - 1);
  }

 private:
  std::FILE *file_;
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

/// Reads rows of one bigint from COPY ... (FORMAT binary), message by message.
class CopyReader {
 public:
  template <class Take>
  void read(std::string_view bytes, Take &&take) {
    constexpr size_t kHeader = 19, kRow = 14;
    if (!begun_) bytes.remove_prefix(std::min(bytes.size(), kHeader));
    begun_ = true;
    for (; bytes.size() >= kRow; bytes.remove_prefix(kRow)) {
      uint64_t id = 0;
      for (size_t i = 6; i < kRow; i++) id = id << 8 | static_cast<unsigned char>(bytes[i]);
      take(id);
    }
  }

 private:
  bool begun_ = false;
};

class Session {
 public:
  Session(const std::string &base, std::string conninfo, const std::string &spec, Texts *texts)
      : conninfo_(std::move(conninfo)),
        texts_(texts),
        ids_file_(open_file(base + ".ids", "wb")),
        calls_file_(open_file(base + ".calls", "wb")),
        random_(std::hash<std::string>{}(base)) {
    char kind[32];
    if (std::sscanf(spec.c_str(), "%31[a-z]:%d:%lf", kind, &ids_, &rate_) != 3)
      throw std::runtime_error(spec + ": not KIND:IDS:RATE");
    kind_ = kind;
    call_.kind = kind_ == "parallel" ? Kind::kUnordered : Kind::kOrdered;
    const std::string n = std::to_string(ids_);
    if (kind_ == "copy")
      sql_ = copy_of("SELECT snowflake_nextval() FROM generate_series(1, " + n + ")");
    else if (kind_ == "batches")
      sql_ = copy_of("SELECT snowflake_nextvals(1000) FROM generate_series(1, " +
                     std::to_string(ids_ / 1000) + ")");
    else if (kind_ == "parallel")
      sql_ = copy_of("SELECT snowflake_nextval() FROM rows WHERE n <= " + n);
    else if (kind_ == "call")
      sql_ = "SELECT snowflake_nextval()";
    else if (kind_ == "batch")
      sql_ = "SELECT snowflake_nextvals(1 + mod(" + n + " * pg_backend_pid(), 1000))";
    else if (kind_ != "insert")
      throw std::runtime_error(spec + ": unknown kind");
  }

  void run() {
    int64_t due = now_ns();
    while (!ending) {
      if (connection_ == nullptr && !connect()) {
        std::this_thread::sleep_for(20ms);
        continue;
      }
      statement();
      if (PQstatus(connection_) != CONNECTION_OK) disconnect();
      if (rate_ > 0) due += static_cast<int64_t>(1e9 * ids_ / rate_);
      // What a stop held up is not caught up with.
      due = std::max(due, now_ns() - 1000000);
      while (!ending && now_ns() < due)
        std::this_thread::sleep_for(
            std::chrono::nanoseconds(std::min<int64_t>(due - now_ns(), 50000000)));
    }
    disconnect();
    std::fclose(ids_file_);
    std::fclose(calls_file_);
    done_ = true;
  }

  bool done() const { return done_; }

  /// From another thread: whatever it waits for, it waits no longer.
  void cut() {
    const std::lock_guard guard(mutex_);
    if (connection_ != nullptr && PQsocket(connection_) >= 0)
      shutdown(PQsocket(connection_), SHUT_RDWR);
  }

 private:
  static std::string copy_of(const std::string &query) {
    return "COPY (" + query + ") TO STDOUT (FORMAT binary)";
  }

  void set_connection(PGconn *connection) {
    const std::lock_guard guard(mutex_);
    connection_ = connection;
  }
  void disconnect() {
    PGconn *old = connection_;
    set_connection(nullptr);
    PQfinish(old);
  }

  bool connect() {
    Call call = {};
    call.kind = Kind::kConnect;
    call.begin_ns = now_ns();
    call_.connection++;
    set_connection(PQconnectdb(conninfo_.c_str()));
    if (PQstatus(connection_) == CONNECTION_OK) {
      PGresult *r = PQexec(
          connection_, "SELECT pg_postmaster_start_time()::text || pg_read_file('postmaster.pid')");
      const bool good = PQresultStatus(r) == PGRES_TUPLES_OK;
      if (good) call_.life = static_cast<uint32_t>(std::hash<std::string>{}(PQgetvalue(r, 0, 0)));
      PQclear(r);
      if (good) return true;
    }
    call.end_ns = now_ns();
    const std::string message = PQerrorMessage(connection_);
    const size_t why = message.find("failed: ");
    call.outcome =
        texts_->number_of("connect", why == message.npos ? message : message.substr(why + 8));
    std::fwrite(&call, sizeof call, 1, calls_file_);
    disconnect();
    return false;
  }

  void take(uint64_t id) { taken_.push_back(id); }

  /// Only the first failure of a statement counts: what follows it is its own consequence.
  void take_outcome(const PGresult *r) {
    const ExecStatusType status = PQresultStatus(r);
    if (call_.outcome != 0 || (status != PGRES_FATAL_ERROR && status != PGRES_BAD_RESPONSE)) return;
    const char *sqlstate = PQresultErrorField(r, PG_DIAG_SQLSTATE);
    const char *message = PQresultErrorField(r, PG_DIAG_MESSAGE_PRIMARY);
    call_.outcome = sqlstate == nullptr
                        ? texts_->number_of("lost", "connection lost")
                        : texts_->number_of(sqlstate, message == nullptr ? "" : message);
  }

  /// All results of one SQL statement, IDs in binary.
  bool execute(const char *sql) {
    const int sent = PQsendQueryParams(connection_, sql, 0, nullptr, nullptr, nullptr, nullptr, 1);
    if (sent == 0) {
      call_.outcome = texts_->number_of("lost", "connection lost");
      return false;
    }
    bool good = true;
    while (PGresult *r = PQgetResult(connection_)) {
      switch (PQresultStatus(r)) {
        case PGRES_COPY_OUT:
          PQclear(r);
          copy_out();
          continue;
        case PGRES_TUPLES_OK:
          if (PQnfields(r) == 1 && PQfsize(r, 0) == 8)
            for (int row = 0; row < PQntuples(r); row++) {
              uint64_t id = 0;
              for (int i = 0; i < 8; i++)
                id = id << 8 | static_cast<unsigned char>(PQgetvalue(r, row, 0)[i]);
              take(id);
            }
          break;
        case PGRES_COMMAND_OK:
          break;
        default:
          good = false;
          take_outcome(r);
      }
      PQclear(r);
      // A connection that is gone answers so for ever.
      if (PQstatus(connection_) != CONNECTION_OK) break;
    }
    return good && call_.outcome == 0;
  }

  void copy_out() {
    CopyReader reader;
    char *bytes;
    int size;
    while ((size = PQgetCopyData(connection_, &bytes, 0)) > 0) {
      reader.read({bytes, static_cast<size_t>(size)}, [this](uint64_t id) { take(id); });
      PQfreemem(bytes);
    }
  }

  /// IDs as defaults of a key, in transactions that end in every way.
  void insert() {
    constexpr const char *kInsert = "INSERT INTO minted DEFAULT VALUES RETURNING id";
    bool good = execute("BEGIN") && execute(kInsert);
    const auto way = random_() % 5;
    if (good && way == 3)
      good = execute("SAVEPOINT a") && execute(kInsert) && execute("ROLLBACK TO a");
    if (good) good = execute(kInsert);
    if (good && way == 4) {
      const std::string name = std::to_string(random_());
      if (execute(("PREPARE TRANSACTION '" + name + "'").c_str()))
        execute(
            ((name.back() % 2 ? "COMMIT PREPARED '" : "ROLLBACK PREPARED '") + name + "'").c_str());
      return;
    }
    if (PQstatus(connection_) == CONNECTION_OK) {
      const auto outcome = call_.outcome;
      execute(good && way != 2 ? "COMMIT" : "ROLLBACK");
      if (outcome != 0) call_.outcome = outcome;
    }
  }

  void statement() {
    call_.outcome = 0;
    taken_.clear();
    call_.begin_ns = now_ns();
    if (kind_ == "insert")
      insert();
    else
      execute(sql_.c_str());
    call_.end_ns = now_ns();
    call_.ids = static_cast<uint32_t>(taken_.size());
    std::fwrite(taken_.data(), sizeof taken_[0], taken_.size(), ids_file_);
    std::fwrite(&call_, sizeof call_, 1, calls_file_);
  }

  const std::string conninfo_;
  Texts *texts_;
  std::FILE *ids_file_;
  std::FILE *calls_file_;
  std::mt19937_64 random_;
  std::string kind_, sql_;
  int ids_ = 0;
  double rate_ = 0;
  Call call_ = {};
  std::vector<uint64_t> taken_;
  PGconn *connection_ = nullptr;  // changed under mutex_
  std::mutex mutex_;
  std::atomic<bool> done_{false};
};

/// Writes pg_stat_snowflake as it changes: moment, true Unix time, state and so on, tabs between.
void watch(const std::string &path, const std::string &conninfo) {
  std::FILE *file = open_file(path, "w");
  PGconn *connection = nullptr;
  while (!ending) {
    if (connection == nullptr) connection = PQconnectdb(conninfo.c_str());
    PGresult *r = PQexec(
        connection,
        "SET statement_timeout = '5s'; SELECT state, coalesce(worker, -1), coalesce(lead_ms, 0), "
        "coalesce(extract(epoch FROM reserve_left) * 1000, 0)::bigint, claims, "
        "coalesce(reason, ''), coalesce(last_error, '') FROM pg_stat_snowflake");
    std::fprintf(file, "%lld\t%lld", static_cast<long long>(now_ns()),
                 static_cast<long long>(clock_ns(CLOCK_REALTIME)));
    if (PQresultStatus(r) == PGRES_TUPLES_OK)
      for (int i = 0; i < PQnfields(r); i++) std::fprintf(file, "\t%s", PQgetvalue(r, 0, i));
    else
      std::fputs("\tno answer", file);
    std::fputc('\n', file);
    std::fflush(file);
    PQclear(r);
    if (PQstatus(connection) != CONNECTION_OK) {
      PQfinish(connection);
      connection = nullptr;
    }
    std::this_thread::sleep_for(200ms);
  }
  PQfinish(connection);
  std::fclose(file);
}

int run(int argc, char **argv) {
  if (argc < 5) {
    std::fputs(
        "usage: mint DIR NAME CONNINFO KIND:IDS:RATE...\n"
        "kinds: copy batches parallel call batch insert\n",
        stderr);
    return 2;
  }
  const std::string base = std::string(argv[1]) + '/' + argv[2];
  const std::string conninfo = argv[3] + std::string(" connect_timeout=2");
  std::signal(SIGTERM, [](int) { ending = true; });
  std::signal(SIGPIPE, SIG_IGN);
  Texts texts(base + ".texts");
  std::vector<Session *> sessions;  // live as long as the process
  for (int i = 4; i < argc; i++)
    sessions.push_back(new Session(base + ".s" + std::to_string(i - 3), conninfo, argv[i], &texts));
  std::vector<std::thread> threads;
  for (Session *session : sessions) threads.emplace_back(&Session::run, session);
  std::thread(watch, base + ".states", conninfo).detach();

  while (!ending) std::this_thread::sleep_for(50ms);
  // Most end with their statement. One that waits for a frozen server must be torn away.
  for (int n = 0; n < 600; n++) {
    if (std::all_of(sessions.begin(), sessions.end(), [](Session *s) { return s->done(); })) break;
    if (n >= 60)
      for (Session *session : sessions) session->cut();
    std::this_thread::sleep_for(50ms);
  }
  for (std::thread &thread : threads) thread.join();
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  try {
    std::fflush(nullptr);
    const int status = run(argc, argv);
    std::fflush(nullptr);
    // The watching thread may still wait for an answer.
    std::_Exit(status);
  } catch (const std::exception &fault) {
    std::fprintf(stderr, "mint: %s\n", fault.what());
    return 2;
  }
}
