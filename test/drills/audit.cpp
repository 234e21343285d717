// Checks every ID that mint was handed, and says what callers saw. See record.hpp for the files.
//
//   audit DIR [START_NS]     moments in the report count from there, else from the first call
//
// What it holds against each other, all by CLOCK_MONOTONIC, that is, by true order in time:
//   duplicates           every ID against every other.
//   within a session     IDs of one connection increase; those of one worker number over all its
//                        connections too.
//   a worker number      a call that began after another had ended, on any instance, has later IDs.
//   an instance          the same for the calls that one postmaster answered, whatever the number.
//   across instances     the same for all calls more than 1.1 s apart, where both clocks were right
//                        to 50 ms: the lead is at most 1 s.
//   its clock            no ID is earlier than its instance's clock when the call began, none more
//                        than the lead later than that clock when the call ended.
// Exit status 0: all hold, and no call was refused in an unknown way.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/generator.hpp"
#include "core/layout.hpp"
#include "record.hpp"

namespace {

using drills::Call;
using drills::Kind;

constexpr int64_t kSecond = 1000000000;
constexpr int64_t kMs = 1000000;
constexpr int64_t kAcrossNs = 1100 * kMs;
constexpr int64_t kTrueNs = 50 * kMs;
/// Beyond what the true clock was seen to drift: its reading is rounded to a millisecond.
constexpr int64_t kClockSlackNs = 2 * kMs;
/// A stop that no window explains is a finding from here on.
constexpr int64_t kStopNs = 3 * kSecond;
/// IDs sorted at once: 1 GB.
constexpr uint64_t kAtOnce = 128 << 20;
constexpr int kShown = 10;

constexpr size_t kNodes = 1 << snowflake::kNodeBits;
size_t node_of(uint64_t id) { return id >> snowflake::kSequenceBits & (kNodes - 1); }
int64_t unix_ms_of(uint64_t id) {
  return static_cast<int64_t>(id >> (snowflake::kNodeBits + snowflake::kSequenceBits)) +
         snowflake::kEpochUnixMs;
}

/// The IDs of one worker number in one call.
struct Span {
  int64_t begin_ns, end_ns;
  uint64_t first, last;
  uint32_t life;
  uint16_t instance;
  bool true_clock;
};

struct Step {
  int64_t before_ns, after_ns, offset_ns;
};
struct Window {
  int64_t from_ns, to_ns;
};

struct Instance {
  std::string name;
  std::vector<Step> steps;
  std::vector<Window> windows;
  std::vector<std::string> texts;
  std::map<std::string, uint64_t> refusals;
  std::vector<int64_t> granted_ns;  // when calls that brought IDs ended
  uint64_t ids = 0, calls = 0;
};

struct File {
  std::string path;  // of the IDs
  size_t instance;
};

std::FILE *open_file(const std::string &path) {
  std::FILE *file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) throw std::runtime_error(path + ": " + std::strerror(errno));
  return file;
}

/// All of a file's records of one type, a block at a time.
template <class Record, class Take>
void read_records(const std::string &path, Take &&take) {
  std::FILE *file = open_file(path);
  std::vector<Record> block(1 << 16);
  while (const size_t n = std::fread(block.data(), sizeof(Record), block.size(), file))
    for (size_t i = 0; i < n; i++) take(block[i]);
  std::fclose(file);
}

std::vector<std::string> read_lines(const std::string &path) {
  std::vector<std::string> lines;
  std::FILE *file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return lines;
  char line[4096];
  while (std::fgets(line, sizeof line, file) != nullptr)
    lines.emplace_back(line, std::strcspn(line, "\n"));
  std::fclose(file);
  return lines;
}

class Audit {
 public:
  Audit(const std::string &dir, int64_t start_ns) : dir_(dir), start_ns_(start_ns) {}

  int run() {
    find_files();
    for (Instance &instance : instances_) read_surroundings(instance);
    if (wall_least_ns_ > wall_most_ns_) throw std::runtime_error(dir_ + ": no states");
    for (const File &file : files_) read_session(file);
    check_clocks();
    check_order("order within a worker number", 0,
                [](const Span &s) { return node_of(s.first) + 1; });
    check_order("order within an instance", 0, [](const Span &s) { return size_t{s.life}; });
    check_order("order across instances, calls over 1.1 s apart", kAcrossNs,
                [](const Span &s) { return size_t{s.true_clock}; });
    std::vector<Span>().swap(spans_);
    count_duplicates();
    report();
    return findings_ == 0 ? 0 : 1;
  }

 private:
  // One line of the report, wrong when there is anything to count.
  void result(const std::string &what, uint64_t count, const std::string &note = "") {
    lines_.push_back(what + ": " + std::to_string(count) + note);
    findings_ += count;
  }
  bool show() { return shown_++ < kShown; }

  std::string moment(int64_t ns) const {
    char text[32];
    std::snprintf(text, sizeof text, "+%.4f s", static_cast<double>(ns - start_ns_) / 1e9);
    return text;
  }

  void find_files() {
    std::map<std::string, size_t> known;
    std::vector<std::string> paths;
    for (const auto &entry : std::filesystem::directory_iterator(dir_))
      if (entry.path().extension() == ".ids") paths.push_back(entry.path().string());
    std::sort(paths.begin(), paths.end());
    for (const std::string &path : paths) {
      const std::string file = std::filesystem::path(path).filename().string();
      const std::string name = file.substr(0, file.find('.'));
      if (known.try_emplace(name, instances_.size()).second) {
        instances_.emplace_back();
        instances_.back().name = name;
      }
      files_.push_back({path, known[name]});
    }
    if (files_.empty()) throw std::runtime_error(dir_ + ": no IDs");
  }

  void read_surroundings(Instance &instance) {
    const std::string base = dir_ + '/' + instance.name;
    instance.texts = read_lines(base + ".texts");
    Step step{};
    for (const std::string &line : read_lines(base + ".clock.log"))
      if (std::sscanf(line.c_str(), "%" SCNd64 " %" SCNd64 " %" SCNd64, &step.before_ns,
                      &step.after_ns, &step.offset_ns) == 3)
        instance.steps.push_back(step);
    Window window{};
    for (const std::string &line : read_lines(base + ".windows"))
      if (std::sscanf(line.c_str(), "%" SCNd64 " %" SCNd64, &window.from_ns, &window.to_ns) == 2)
        instance.windows.push_back(window);
    std::sort(instance.windows.begin(), instance.windows.end(),
              [](const Window &a, const Window &b) { return a.from_ns < b.from_ns; });
    int64_t monotonic, unix;
    for (const std::string &line : read_lines(base + ".states"))
      if (std::sscanf(line.c_str(), "%" SCNd64 "\t%" SCNd64, &monotonic, &unix) == 2) {
        wall_least_ns_ = std::min(wall_least_ns_, unix - monotonic);
        wall_most_ns_ = std::max(wall_most_ns_, unix - monotonic);
      }
  }

  void read_session(const File &file) {
    Instance &instance = instances_[file.instance];
    std::array<uint64_t, kNodes> last_of_node{};
    uint64_t last = 0;
    uint32_t connection = 0;
    uint64_t second = 0, *second_count = nullptr;
    std::FILE *ids_file = open_file(file.path);
    std::vector<char> buffer(1 << 20);
    std::setvbuf(ids_file, buffer.data(), _IOFBF, buffer.size());
    std::vector<uint64_t> ids;
    read_records<Call>(file.path.substr(0, file.path.size() - 3) + "calls", [&](const Call &call) {
      if (start_ns_ == 0) start_ns_ = call.begin_ns;
      if (call.outcome != 0)
        instance
            .refusals[call.outcome < instance.texts.size() ? instance.texts[call.outcome] : "?"]++;
      if (call.kind == Kind::kConnect) return;
      instance.calls++;
      ids.resize(call.ids);
      if (std::fread(ids.data(), sizeof ids[0], ids.size(), ids_file) != ids.size())
        throw std::runtime_error(file.path + " is cut short");
      if (ids.empty()) return;
      instance.ids += call.ids;
      instance.granted_ns.push_back(call.end_ns);
      if (call.connection != connection) last = 0;
      connection = call.connection;
      if (call.kind == Kind::kUnordered) {
        std::sort(ids.begin(), ids.end());
        last = 0;
      }
      Span span{call.begin_ns, call.end_ns, ids[0],
                ids[0],        call.life,   static_cast<uint16_t>(file.instance),
                false};
      for (const uint64_t id : ids) {
        const size_t node = node_of(id);
        nodes_[node]++;
        if (second_count == nullptr || id >> 32 != second) {
          second = id >> 32;
          second_count = &id_counts_[second];
        }
        ++*second_count;
        if (id <= last || id <= last_of_node[node]) {
          session_faults_++;
          if (show())
            std::printf("%s: %" PRIu64 " follows %" PRIu64 " of the connection, %" PRIu64
                        " of the number, call of %s\n",
                        file.path.c_str(), id, last, last_of_node[node],
                        moment(call.begin_ns).c_str());
        }
        if (call.kind == Kind::kOrdered) last = id;
        last_of_node[node] = id;
        if (node_of(span.last) != node) {
          spans_.push_back(span);
          span.first = id;
        }
        span.last = id;
      }
      spans_.push_back(span);
    });
    std::fclose(ids_file);
  }

  void check_clocks() {
    result("order within a session", session_faults_);
    std::sort(spans_.begin(), spans_.end(),
              [](const Span &a, const Span &b) { return a.begin_ns < b.begin_ns; });
    std::vector<size_t> at(instances_.size(), 0);
    uint64_t outside = 0;
    int64_t lead_most = std::numeric_limits<int64_t>::min();
    for (Span &span : spans_) {
      const std::vector<Step> &steps = instances_[span.instance].steps;
      // The step whose offset stood for sure when the call began, and all that may have stood
      // later.
      size_t &step = at[span.instance];
      while (step + 1 < steps.size() && steps[step + 1].after_ns <= span.begin_ns) step++;
      int64_t least = steps.empty() ? 0 : steps[step].offset_ns, most = least;
      for (size_t i = step + 1; i < steps.size() && steps[i].before_ns <= span.end_ns; i++) {
        least = std::min(least, steps[i].offset_ns);
        most = std::max(most, steps[i].offset_ns);
      }
      span.true_clock = least >= -kTrueNs && most <= kTrueNs;
      const int64_t early = (span.begin_ns + least + wall_least_ns_ - kClockSlackNs) / kMs;
      const int64_t late = (span.end_ns + most + wall_most_ns_ + kClockSlackNs) / kMs;
      lead_most = std::max(lead_most, unix_ms_of(span.last) - late);
      if (unix_ms_of(span.first) >= early && unix_ms_of(span.last) <= late + snowflake::kMaxLeadMs)
        continue;
      outside++;
      if (show())
        std::printf("%s: IDs of %" PRId64 " to %" PRId64 " ms, its clock was at %" PRId64
                    " to %" PRId64 ", call of %s\n",
                    instances_[span.instance].name.c_str(), unix_ms_of(span.first),
                    unix_ms_of(span.last), early, late, moment(span.begin_ns).c_str());
    }
    result("earlier than its clock, or more than 1 s later", outside,
           " (" + std::to_string(std::max<int64_t>(0, lead_most)) + " ms later at most)");
  }

  /// `group_of` a span: 0 is no group.
  template <class GroupOf>
  void check_order(const std::string &what, int64_t apart_ns, GroupOf &&group_of) {
    std::vector<uint32_t> by_end(spans_.size());
    for (uint32_t i = 0; i < by_end.size(); i++) by_end[i] = i;
    std::sort(by_end.begin(), by_end.end(),
              [this](uint32_t a, uint32_t b) { return spans_[a].end_ns < spans_[b].end_ns; });
    std::unordered_map<size_t, const Span *> latest;
    uint64_t faults = 0, compared = 0;
    size_t ended = 0;
    for (const Span &span : spans_) {  // by their beginnings
      for (; ended < by_end.size() && spans_[by_end[ended]].end_ns + apart_ns < span.begin_ns;
           ended++) {
        const Span &before = spans_[by_end[ended]];
        const Span *&highest = latest[group_of(before)];
        if (highest == nullptr || before.last > highest->last) highest = &before;
      }
      const size_t group = group_of(span);
      const auto found = latest.find(group);
      if (group == 0 || found == latest.end()) continue;
      compared++;
      if (span.first > found->second->last) continue;
      faults++;
      if (show())
        std::printf("%s: %s had %" PRIu64 " in a call ended at %s, then %s %" PRIu64
                    " in one begun at %s\n",
                    what.c_str(), instances_[found->second->instance].name.c_str(),
                    found->second->last, moment(found->second->end_ns).c_str(),
                    instances_[span.instance].name.c_str(), span.first,
                    moment(span.begin_ns).c_str());
    }
    result(what, faults, " of " + std::to_string(compared) + " calls");
  }

  /// Sorts the IDs range by range, as many at once as memory is meant for.
  void count_duplicates() {
    uint64_t duplicates = 0;
    std::vector<uint64_t> ids;
    for (auto from = id_counts_.begin(); from != id_counts_.end();) {
      uint64_t count = 0;
      auto upto = from;
      do count += (upto++)->second;
      while (upto != id_counts_.end() && count + upto->second <= kAtOnce);
      const uint64_t least = from->first << 32;
      const uint64_t most = (std::prev(upto)->first << 32) + 0xffffffff;
      ids.clear();
      ids.reserve(count);
      for (const File &file : files_)
        read_records<uint64_t>(file.path, [&](uint64_t id) {
          if (id >= least && id <= most) ids.push_back(id);
        });
      sort_ids(ids, least, most);
      for (size_t i = 1; i < ids.size(); i++)
        if (ids[i] == ids[i - 1] && duplicates++ < kShown) doubles_.push_back(ids[i]);
      from = upto;
    }
    for (const uint64_t id : doubles_) show_where(id);
    // The line that counts stands alone.
    lines_.insert(lines_.begin(), "duplicates: " + std::to_string(duplicates));
    findings_ += duplicates;
  }

  /// One pass deals them into pieces that are then small enough for the cache.
  static void sort_ids(std::vector<uint64_t> &ids, uint64_t least, uint64_t most) {
    constexpr size_t kPieces = 4096;
    int shift = 0;
    while ((most - least) >> shift >= kPieces) shift++;
    const auto piece_of = [&](uint64_t id) { return static_cast<size_t>((id - least) >> shift); };
    std::vector<size_t> next(kPieces + 1, 0);
    for (const uint64_t id : ids) next[piece_of(id) + 1]++;
    for (size_t i = 1; i <= kPieces; i++) next[i] += next[i - 1];
    const std::vector<size_t> begin = next;
    for (size_t piece = 0; piece < kPieces; piece++)
      while (next[piece] < begin[piece + 1]) {
        uint64_t id = ids[next[piece]];
        while (piece_of(id) != piece) std::swap(id, ids[next[piece_of(id)]++]);
        ids[next[piece]++] = id;
      }
    for (size_t piece = 0; piece < kPieces; piece++)
      std::sort(ids.begin() + static_cast<std::ptrdiff_t>(begin[piece]),
                ids.begin() + static_cast<std::ptrdiff_t>(begin[piece + 1]));
  }

  void show_where(uint64_t wanted) const {
    for (const File &file : files_) {
      std::FILE *ids_file = open_file(file.path);
      std::vector<uint64_t> ids;
      read_records<Call>(
          file.path.substr(0, file.path.size() - 3) + "calls", [&](const Call &call) {
            ids.resize(call.ids);
            const size_t n = std::fread(ids.data(), sizeof ids[0], ids.size(), ids_file);
            if (std::find(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n), wanted) ==
                ids.begin() + static_cast<std::ptrdiff_t>(n))
              return;
            std::printf("minted twice: %" PRIu64 " (worker number %zu, Unix ms %" PRId64
                        "): %s, call of %s to %s\n",
                        wanted, node_of(wanted), unix_ms_of(wanted), file.path.c_str(),
                        moment(call.begin_ns).c_str(), moment(call.end_ns).c_str());
          });
      std::fclose(ids_file);
    }
  }

  static bool expected(const std::string &refusal) {
    for (const char *start : {"55000", "53400", "57P01", "57P02", "57P03", "lost", "connect"})
      if (refusal.starts_with(start)) return true;
    return false;
  }

  /// What of a gap no window covers.
  static int64_t unexplained(const Instance &instance, int64_t from, int64_t to) {
    int64_t left = 0;
    for (const Window &window : instance.windows) {
      if (window.to_ns <= from) continue;
      if (window.from_ns >= to) break;
      left += std::max<int64_t>(0, window.from_ns - from);
      from = std::max(from, window.to_ns);
    }
    return left + std::max<int64_t>(0, to - from);
  }

  void report() {
    uint64_t ids = 0, calls = 0;
    size_t numbers = 0;
    for (const Instance &instance : instances_) {
      ids += instance.ids;
      calls += instance.calls;
    }
    for (const uint64_t n : nodes_) numbers += n != 0;
    std::printf("ids: %" PRIu64 ", in %" PRIu64
                " calls of %zu sessions on %zu instances, with %zu worker "
                "numbers\n",
                ids, calls, files_.size(), instances_.size(), numbers);
    for (const std::string &line : lines_) std::printf("%s\n", line.c_str());

    for (Instance &instance : instances_) {
      std::vector<int64_t> &granted = instance.granted_ns;
      std::sort(granted.begin(), granted.end());
      int64_t longest = 0, longest_at = 0, bare = 0, bare_at = 0;
      for (size_t i = 1; i < granted.size(); i++) {
        const int64_t gap = granted[i] - granted[i - 1];
        if (gap > longest) longest = gap, longest_at = granted[i - 1];
        if (gap <= bare) continue;
        const int64_t alone = unexplained(instance, granted[i - 1], granted[i]);
        if (alone > bare) bare = alone, bare_at = granted[i - 1];
        if (alone > kStopNs && !instance.windows.empty()) {
          findings_++;
          std::printf("%s: no ID for %.1f s from %s, %.1f s more than its faults explain\n",
                      instance.name.c_str(), static_cast<double>(gap) / 1e9,
                      moment(granted[i - 1]).c_str(), static_cast<double>(alone) / 1e9);
        }
      }
      std::printf("%s: %" PRIu64 " ids; longest time without one %.2f s (from %s)",
                  instance.name.c_str(), instance.ids, static_cast<double>(longest) / 1e9,
                  moment(longest_at).c_str());
      if (!instance.windows.empty())
        std::printf(", beyond its faults %.2f s (from %s)", static_cast<double>(bare) / 1e9,
                    moment(bare_at).c_str());
      std::printf("\n");
    }
    std::map<std::string, uint64_t> refusals;
    for (const Instance &instance : instances_)
      for (const auto &[text, count] : instance.refusals) refusals[text] += count;
    for (const auto &[text, count] : refusals) {
      const bool known = expected(text);
      if (!known) findings_ += count;
      std::printf("%10" PRIu64 "  %s%s\n", count, text.c_str(), known ? "" : "   <-- not expected");
    }
  }

  const std::string dir_;
  int64_t start_ns_;
  std::vector<Instance> instances_;
  std::vector<File> files_;
  std::vector<Span> spans_;
  std::map<uint64_t, uint64_t> id_counts_;  // by their upper 32 bits: about a second each
  std::array<uint64_t, kNodes> nodes_{};
  std::vector<uint64_t> doubles_;
  std::vector<std::string> lines_;
  int64_t wall_least_ns_ = std::numeric_limits<int64_t>::max();
  int64_t wall_most_ns_ = std::numeric_limits<int64_t>::min();
  uint64_t session_faults_ = 0;
  uint64_t findings_ = 0;
  int shown_ = 0;
};

}  // namespace

int main(int argc, char **argv) {
  if (argc != 2 && argc != 3) {
    std::fputs("usage: audit DIR [START_NS]\n", stderr);
    return 2;
  }
  try {
    return Audit(argv[1], argc == 3 ? std::atoll(argv[2]) : 0).run();
  } catch (const std::exception &fault) {
    std::fprintf(stderr, "audit: %s\n", fault.what());
    return 2;
  }
}
