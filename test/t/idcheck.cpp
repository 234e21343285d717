// idcheck: judges files of minted IDs.
//
//   idcheck [--unordered | --order-per-node] FILE...
//
// A file holds the IDs that one session received, one decimal ID a line, in the order in which they
// came. After a tab may stand the clock's Unix milliseconds at the moment of minting, which are
// held against the time inside the ID. A last line without its newline was cut by a crash and is
// left out. One line of key=value goes to stdout, the first few findings to stderr.
//
// Exit status: 0 clean, 1 a duplicate or an ID out of order, 2 unreadable or malformed input.

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace {

// The layout of an ID, written here a second time on purpose: a checker that shares the product's
// header shares its mistakes.
constexpr std::int64_t kEpochUnixMs = 1767225600000;
constexpr std::size_t kNodes = 1024;

constexpr std::int64_t unix_ms(std::uint64_t id) {
    return kEpochUnixMs + static_cast<std::int64_t>(id >> 22);
}
constexpr std::size_t node_of(std::uint64_t id) { return (id >> 12) & 1023; }

enum class Order { whole_file, per_node, none };

struct Totals {
    std::vector<std::uint64_t> ids;
    std::array<std::uint64_t, kNodes> per_node{};
    std::uint64_t order_violations = 0;
    std::uint64_t node_changes = 0;
    std::uint64_t cut_lines = 0;
    std::uint64_t clock_samples = 0;
    std::int64_t ahead_max_ms = std::numeric_limits<std::int64_t>::min();
    std::int64_t behind_max_ms = std::numeric_limits<std::int64_t>::min();
    int findings_shown = 0;
};

bool show(Totals &totals) { return totals.findings_shown++ < 10; }

// What one session's file is held against while it is read.
class Session {
public:
    Session(Totals &totals, Order order, const char *path)
        : totals_(totals), order_(order), path_(path) {}

    void add(std::uint64_t id, bool has_clock, std::int64_t clock_ms) {
        ++line_;
        const std::size_t node = node_of(id);
        if (order_ != Order::none) {
            const std::uint64_t before = order_ == Order::whole_file ? last_ : last_of_node_[node];
            if (id <= before) {
                ++totals_.order_violations;
                if (show(totals_)) {
                    std::fprintf(stderr, "%s:%llu: %llu (node %zu) does not follow %llu (node %zu)\n",
                                 path_, static_cast<unsigned long long>(line_),
                                 static_cast<unsigned long long>(id), node,
                                 static_cast<unsigned long long>(before), node_of(before));
                }
            }
        }
        if (line_ > 1 && node != node_of(last_)) ++totals_.node_changes;
        last_ = id;
        last_of_node_[node] = id;
        ++totals_.per_node[node];
        if (has_clock) {
            ++totals_.clock_samples;
            totals_.ahead_max_ms = std::max(totals_.ahead_max_ms, unix_ms(id) - clock_ms);
            totals_.behind_max_ms = std::max(totals_.behind_max_ms, clock_ms - unix_ms(id));
        }
        totals_.ids.push_back(id);
    }

    std::uint64_t line() const { return line_; }

private:
    Totals &totals_;
    Order order_;
    const char *path_;
    std::uint64_t line_ = 0;
    std::uint64_t last_ = 0;
    std::array<std::uint64_t, kNodes> last_of_node_{};
};

// Reads one line without its newline: an ID, and after a tab a clock reading or nothing.
bool parse(std::string_view line, std::uint64_t &id, bool &has_clock, std::int64_t &clock_ms) {
    std::size_t at = 0;
    auto number = [&](std::uint64_t &value) {
        const std::size_t start = at;
        value = 0;
        while (at < line.size() && line[at] >= '0' && line[at] <= '9') {
            value = value * 10 + static_cast<std::uint64_t>(line[at] - '0');
            ++at;
        }
        return at > start && at - start <= 19 &&
               value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    };
    has_clock = false;
    if (!number(id)) return false;
    if (at == line.size()) return true;
    if (line[at] != '\t') return false;
    ++at;
    if (at == line.size()) return true;
    std::uint64_t clock = 0;
    if (!number(clock) || at != line.size()) return false;
    has_clock = true;
    clock_ms = static_cast<std::int64_t>(clock);
    return true;
}

bool read_file(const char *path, Order order, Totals &totals) {
    std::FILE *file = std::fopen(path, "rb");
    if (file == nullptr) {
        std::fprintf(stderr, "%s: %s\n", path, std::strerror(errno));
        return false;
    }
    Session session(totals, order, path);
    std::vector<char> buffer(std::size_t{1} << 20);
    std::size_t kept = 0; // bytes of an unfinished line at the buffer's start
    bool good = true;
    while (good) {
        const std::size_t got = std::fread(buffer.data() + kept, 1, buffer.size() - kept, file);
        if (got == 0) break;
        const std::string_view text(buffer.data(), kept + got);
        std::size_t start = 0;
        for (;;) {
            const std::size_t end = text.find('\n', start);
            if (end == std::string_view::npos) break;
            std::uint64_t id = 0;
            bool has_clock = false;
            std::int64_t clock_ms = 0;
            if (!parse(text.substr(start, end - start), id, has_clock, clock_ms)) {
                std::fprintf(stderr, "%s:%llu: not an ID: %.*s\n", path,
                             static_cast<unsigned long long>(session.line() + 1),
                             static_cast<int>(std::min<std::size_t>(end - start, 80)),
                             text.data() + start);
                good = false;
                break;
            }
            session.add(id, has_clock, clock_ms);
            start = end + 1;
        }
        kept = text.size() - start;
        if (kept == buffer.size()) {
            std::fprintf(stderr, "%s: a line without an end\n", path);
            good = false;
        }
        std::memmove(buffer.data(), buffer.data() + start, kept);
    }
    if (std::ferror(file) != 0) {
        std::fprintf(stderr, "%s: %s\n", path, std::strerror(errno));
        good = false;
    }
    if (kept > 0) ++totals.cut_lines;
    std::fclose(file);
    return good;
}

// Room for all IDs at once: growing by doubling would need twice the memory.
void reserve_for(const std::vector<const char *> &paths, std::vector<std::uint64_t> &ids) {
    std::uintmax_t bytes = 0;
    for (const char *path : paths) {
        std::error_code failed;
        const std::uintmax_t size = std::filesystem::file_size(path, failed);
        if (!failed) bytes += size;
    }
    // 17 digits and a newline: no ID is shorter from February 2026 on, and the vector may still grow.
    ids.reserve(bytes / 18 + 1024);
}

// Sorts by the bits that a run of the tests can differ in: one pass deals the IDs into 2048 pieces
// in place, each then small enough for the cache.
void sort_ids(std::vector<std::uint64_t> &ids) {
    if (ids.empty()) return;
    const auto [low, high] = std::minmax_element(ids.begin(), ids.end());
    const std::uint64_t base = *low;
    const std::uint64_t span = *high - base;
    constexpr int kPieceBits = 11;
    int shift = 0;
    while ((span >> shift) >= (std::uint64_t{1} << kPieceBits)) ++shift;
    auto piece_of = [&](std::uint64_t id) { return static_cast<std::size_t>((id - base) >> shift); };

    constexpr std::size_t kPieces = std::size_t{1} << kPieceBits;
    std::vector<std::size_t> end(kPieces, 0);
    for (const std::uint64_t id : ids) ++end[piece_of(id)];
    std::vector<std::size_t> next(kPieces, 0);
    std::size_t sum = 0;
    for (std::size_t piece = 0; piece < kPieces; ++piece) {
        next[piece] = sum;
        sum += end[piece];
        end[piece] = sum;
    }
    std::vector<std::size_t> begin = next;
    for (std::size_t piece = 0; piece < kPieces; ++piece) {
        while (next[piece] < end[piece]) {
            std::uint64_t id = ids[next[piece]];
            while (piece_of(id) != piece) std::swap(id, ids[next[piece_of(id)]++]);
            ids[next[piece]++] = id;
        }
    }
    for (std::size_t piece = 0; piece < kPieces; ++piece) {
        std::sort(ids.begin() + static_cast<std::ptrdiff_t>(begin[piece]),
                  ids.begin() + static_cast<std::ptrdiff_t>(end[piece]));
    }
}

std::uint64_t count_duplicates(Totals &totals) {
    sort_ids(totals.ids);
    std::uint64_t duplicates = 0;
    for (std::size_t at = 1; at < totals.ids.size(); ++at) {
        if (totals.ids[at] != totals.ids[at - 1]) continue;
        ++duplicates;
        if (show(totals)) {
            std::fprintf(stderr, "minted twice: %llu (node %zu, ms %lld)\n",
                         static_cast<unsigned long long>(totals.ids[at]), node_of(totals.ids[at]),
                         static_cast<long long>(unix_ms(totals.ids[at])));
        }
    }
    return duplicates;
}

int run(int argc, char **argv) {
    Order order = Order::whole_file;
    std::vector<const char *> paths;
    for (int at = 1; at < argc; ++at) {
        const std::string_view word = argv[at];
        if (word == "--unordered") {
            order = Order::none;
        } else if (word == "--order-per-node") {
            order = Order::per_node;
        } else if (word.starts_with("--")) {
            std::fprintf(stderr, "usage: idcheck [--unordered | --order-per-node] FILE...\n");
            return 2;
        } else {
            paths.push_back(argv[at]);
        }
    }

    Totals totals;
    reserve_for(paths, totals.ids);
    for (const char *path : paths) {
        if (!read_file(path, order, totals)) return 2;
    }
    const std::uint64_t duplicates = count_duplicates(totals);

    std::string nodes;
    for (std::size_t node = 0; node < kNodes; ++node) {
        if (totals.per_node[node] == 0) continue;
        if (!nodes.empty()) nodes += ',';
        nodes += std::to_string(node >> 7) + '/' + std::to_string(node & 127);
    }
    std::printf("ids=%zu files=%zu duplicates=%llu order_violations=%llu node_changes=%llu "
                "cut_lines=%llu nodes=%s",
                totals.ids.size(), paths.size(), static_cast<unsigned long long>(duplicates),
                static_cast<unsigned long long>(totals.order_violations),
                static_cast<unsigned long long>(totals.node_changes),
                static_cast<unsigned long long>(totals.cut_lines), nodes.c_str());
    if (!totals.ids.empty()) {
        std::printf(" min_ms=%lld max_ms=%lld", static_cast<long long>(unix_ms(totals.ids.front())),
                    static_cast<long long>(unix_ms(totals.ids.back())));
    }
    if (totals.clock_samples > 0) {
        std::printf(" clock_samples=%llu ahead_max_ms=%lld behind_max_ms=%lld",
                    static_cast<unsigned long long>(totals.clock_samples),
                    static_cast<long long>(totals.ahead_max_ms),
                    static_cast<long long>(totals.behind_max_ms));
    }
    std::printf("\n");
    return duplicates == 0 && totals.order_violations == 0 ? 0 : 1;
}

} // namespace

int main(int argc, char **argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception &failure) {
        std::fprintf(stderr, "idcheck: %s\n", failure.what());
        return 2;
    }
}
