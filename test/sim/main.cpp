// Runs schedules, one from each seed.
//
//   sim [--schedules N] [--first-seed S] [--seconds T]   a summary, or the first seed that failed
//   sim --seed S [--trace]                               one schedule again
//   --beyond: also with what the design declares out of scope
#include "world.hpp"

using snowflake::sim::Tally;
using snowflake::sim::World;

namespace {

constexpr int kTail = 150;
/// Each so many a seed is run a second time: it must come to the same.
constexpr uint64_t kAgain = 500;
constexpr int64_t kSayEach = 100000;

struct Options {
  int64_t schedules = 100000;
  uint64_t first_seed = 1;
  int64_t seconds = 0;
  bool one = false;
  bool trace = false;
  bool beyond = false;
};

[[noreturn]] void usage() {
  std::fprintf(stderr, "usage: sim [--schedules N] [--first-seed S] [--seconds T] [--beyond]\n"
                       "       sim --seed S [--trace] [--beyond]\n");
  std::exit(2);
}

Options read_options(int argc, char **argv) {
  Options o;
  for (int i = 1; i < argc; i++) {
    const std::string name = argv[i];
    const auto number = [&]() -> uint64_t {
      if (++i >= argc) usage();
      char *end;
      const uint64_t n = std::strtoull(argv[i], &end, 10);
      if (*argv[i] == '\0' || *end != '\0') usage();
      return n;
    };
    if (name == "--schedules") {
      o.schedules = static_cast<int64_t>(number());
    } else if (name == "--first-seed") {
      o.first_seed = number();
    } else if (name == "--seconds") {
      o.seconds = static_cast<int64_t>(number());
    } else if (name == "--seed") {
      o.one = true;
      o.first_seed = number();
    } else if (name == "--trace") {
      o.trace = true;
    } else if (name == "--beyond") {
      o.beyond = true;
    } else {
      usage();
    }
  }
  return o;
}

/// Runs a seed that failed once more, to tell how it went.
void tell(World *world, uint64_t seed, const Options &o, bool all) {
  world->run(seed, o.beyond, true);
  const auto &lines = world->trace();
  const size_t from = all || lines.size() < kTail ? 0 : lines.size() - kTail;
  if (from != 0) std::printf("  ... %zu lines more\n", from);
  for (size_t i = from; i < lines.size(); i++) std::printf("%s\n", lines[i].c_str());
}

}  // namespace

int main(int argc, char **argv) {
  const Options o = read_options(argc, argv);
  static World world;
  if (o.one) {
    const bool good = world.run(o.first_seed, o.beyond, false);
    if (o.trace || !good) tell(&world, o.first_seed, o, o.trace);
    std::printf("seed %llu (%s): %s\n", static_cast<unsigned long long>(o.first_seed),
                world.schedule_name(), good ? "good" : world.failure().c_str());
    return good ? 0 : 1;
  }

  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  int64_t done = 0;
  uint64_t seed = o.first_seed;
  for (; o.seconds > 0 ? elapsed() < static_cast<double>(o.seconds) : done < o.schedules;
       seed++, done++) {
    if (!world.run(seed, o.beyond, false)) {
      const std::string failure = world.failure();
      tell(&world, seed, o, false);
      std::printf("%lld schedules, 1 failed after %.1f s: seed %llu (%s): %s\n"
                  "again with: --seed %llu --trace%s\n",
                  static_cast<long long>(done + 1), elapsed(), static_cast<unsigned long long>(seed),
                  world.schedule_name(), failure.c_str(), static_cast<unsigned long long>(seed),
                  o.beyond ? " --beyond" : "");
      return 1;
    }
    if ((done + 1) % kSayEach == 0) {
      std::printf("%lld schedules, 0 failed, in %.0f s\n", static_cast<long long>(done + 1), elapsed());
      std::fflush(stdout);
    }
    if (seed % kAgain != 0) continue;
    const uint64_t digest = world.digest();
    world.run(seed, o.beyond, false);
    if (digest != world.digest()) {
      std::printf("seed %llu does not come to the same twice\n",
                  static_cast<unsigned long long>(seed));
      return 1;
    }
  }
  const Tally &t = world.tally();
  std::printf("%lld schedules, 0 failed, in %.0f s (seeds %llu to %llu)\n", static_cast<long long>(done),
              elapsed(), static_cast<unsigned long long>(o.first_seed),
              static_cast<unsigned long long>(seed - 1));
  std::printf("%lld ids; %lld requests, %lld of them late; %lld claims, %lld lost, %lld quarantines; "
              "%lld crashes; %lld calls frozen, %lld of them granted; %lld elections; %lld restores, "
              "seen %lld times; refused: %lld fence, %lld lead, %lld jump\n",
              static_cast<long long>(t.ids), static_cast<long long>(t.requests),
              static_cast<long long>(t.late), static_cast<long long>(t.claims),
              static_cast<long long>(t.losses), static_cast<long long>(t.quarantines),
              static_cast<long long>(t.crashes), static_cast<long long>(t.frozen_calls),
              static_cast<long long>(t.frozen_calls_won), static_cast<long long>(t.elections),
              static_cast<long long>(t.restores), static_cast<long long>(t.rollbacks),
              static_cast<long long>(t.refused_fence), static_cast<long long>(t.refused_lead),
              static_cast<long long>(t.refused_jump));
  return 0;
}
