// The layout against golden.csv: IDs with their fields, computed from the layout's definition by
// other means than this program. Frozen at 1.0: rows may be added, none may change, since IDs that
// were minted must decode the same way for ever.
#include "core/layout.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>
#include <set>
#include <string>
#include <tuple>

namespace snowflake {
namespace {

struct Golden {
  int64_t id, ms, unix_ms;
  const char *time;
  int region, worker, sequence;
  const char *what;
};

constexpr Golden kGolden[] = {
#include "golden.csv"
};

std::string iso(int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm t = {};
  gmtime_r(&seconds, &t);
  char date[32], text[48];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &t);
  std::snprintf(text, sizeof text, "%s.%03dZ", date, static_cast<int>(unix_ms % 1000));
  return text;
}

TEST(Golden, HasAtLeastThirtyDifferentIds) {
  std::set<int64_t> ids;
  for (const Golden &g : kGolden) ids.insert(g.id);
  EXPECT_EQ(ids.size(), std::size(kGolden));
  EXPECT_GE(ids.size(), 30u);
}

TEST(Golden, EveryIdDecodesToItsFields) {
  for (const Golden &g : kGolden)
    EXPECT_EQ(decode(g.id), (Fields{g.ms, g.region, g.worker, g.sequence})) << g.what;
}

TEST(Golden, EveryRowEncodesToItsId) {
  for (const Golden &g : kGolden) {
    const Fields fields{g.ms, g.region, g.worker, g.sequence};
    EXPECT_TRUE(valid(fields)) << g.what;
    EXPECT_EQ(encode(fields), g.id) << g.what;
  }
}

TEST(Golden, EveryIdIsMadeOfItsTickAndNode) {
  for (const Golden &g : kGolden) {
    const int64_t tick = first_tick(g.ms) + g.sequence;
    EXPECT_EQ(id_of(tick, node_of(g.region, g.worker)), g.id) << g.what;
    EXPECT_EQ(ms_of_tick(tick), g.ms) << g.what;
  }
}

TEST(Golden, MillisecondsCountFrom2026InUtc) {
  EXPECT_EQ(iso(kEpochUnixMs), "2026-01-01T00:00:00.000Z");
  EXPECT_EQ(iso(kEpochUnixMs + kLastMs), "2095-09-07T15:47:35.551Z");
  for (const Golden &g : kGolden) {
    EXPECT_EQ(kEpochUnixMs + g.ms, g.unix_ms) << g.what;
    EXPECT_EQ(iso(g.unix_ms), g.time) << g.what;
  }
}

TEST(Golden, IdsSortByTimeThenNodeThenSequence) {
  for (const Golden &a : kGolden)
    for (const Golden &b : kGolden)
      EXPECT_EQ(a.id < b.id, std::tie(a.ms, a.region, a.worker, a.sequence) <
                                 std::tie(b.ms, b.region, b.worker, b.sequence))
          << a.what << ", " << b.what;
}

TEST(Layout, FieldsAreValidJustWithinTheirBits) {
  EXPECT_TRUE(valid({0, 0, 0, 0}));
  EXPECT_TRUE(valid({kLastMs, 7, 127, 4095}));
  EXPECT_FALSE(valid({-1, 0, 0, 0}));
  EXPECT_FALSE(valid({kLastMs + 1, 0, 0, 0}));
  EXPECT_FALSE(valid({0, -1, 0, 0}));
  EXPECT_FALSE(valid({0, 8, 0, 0}));
  EXPECT_FALSE(valid({0, 0, -1, 0}));
  EXPECT_FALSE(valid({0, 0, 128, 0}));
  EXPECT_FALSE(valid({0, 0, 0, -1}));
  EXPECT_FALSE(valid({0, 0, 0, 4096}));
}

TEST(Layout, ATickIsAMillisecondAndASequence) {
  EXPECT_EQ(first_tick(0), 0);
  EXPECT_EQ(last_tick(0), 4095);
  EXPECT_EQ(first_tick(1), 4096);
  EXPECT_EQ(last_tick(kLastMs), (int64_t{1} << 53) - 1);
  EXPECT_EQ(ms_of_tick(last_tick(12345)), 12345);
  EXPECT_EQ(ms_of_tick(last_tick(12345) + 1), 12346);
}

TEST(Layout, TheNextTickOfANodeIsALargerIdAlsoAcrossAMillisecond) {
  const NodeId node = node_of(7, 127);
  EXPECT_EQ(id_of(4096, node) - id_of(4095, node), (1 << 22) - 4095);
  EXPECT_EQ(id_of(4095, node) - id_of(4094, node), 1);
  // Across nodes only a later millisecond makes a larger ID, so a new claim starts at one.
  EXPECT_GT(id_of(last_tick(5), node_of(7, 127)), id_of(last_tick(5), node_of(0, 0)));
  EXPECT_LT(id_of(last_tick(5), node_of(7, 127)), id_of(first_tick(6), node_of(0, 0)));
}

TEST(Layout, NodesSplitBackIntoRegionAndWorker) {
  for (int region = 0; region < kRegions; region++)
    for (int worker = 0; worker < kWorkers; worker++) {
      const NodeId node = node_of(region, worker);
      ASSERT_LT(node, 1024u);
      ASSERT_EQ(region_of(node), region);
      ASSERT_EQ(worker_of(node), worker);
    }
}

}  // namespace
}  // namespace snowflake
