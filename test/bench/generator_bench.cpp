// What Generator::issue costs with one to eight callers, the wall clock read for each, as by
// snowflake_nextval(). The clock handed in never lags behind the last ID, so that nothing is refused.
#include <benchmark/benchmark.h>
#include <time.h>

#include <algorithm>

#include "core/generator.hpp"

namespace {

using namespace snowflake;

Generator generator;

void install(const benchmark::State &) { generator.install(node_of(0, 5), 0, kLastMs); }

void BM_Issue(benchmark::State &state) {
  for (auto _ : state) {
    timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    const int64_t wall_ms = int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1000000;
    const WallTime now{std::max(wall_ms, generator.last_ms() + kEpochUnixMs)};
    const Issue one = generator.issue(now, 1);
    if (one.refusal != Refusal::kNone) state.SkipWithError("refused");
    benchmark::DoNotOptimize(one);
  }
}
BENCHMARK(BM_Issue)->Setup(install)->Threads(1)->Threads(2)->Threads(8)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
