#include "checker.hpp"

namespace snowflake::sim {

void Checker::reset() {
  failure_.clear();
  claims_.clear();
  holdings_.clear();
  for (int n = 0; n < kWorkers; n++) {
    spans_[n].clear();
    claims_of_[n].clear();
    holdings_of_[n].clear();
  }
  ids_ = 0;
  digest_ = 0xcbf29ce484222325u;
}

void Checker::fail(const char *format, ...) {
  if (!failure_.empty()) return;
  char text[400];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  failure_ = text;
}

void Checker::claimed(int number, int64_t lease) {
  if (find(number, lease) >= 0) return;  // asked for twice
  claims_of_[number].push_back(static_cast<int>(claims_.size()));
  claims_.push_back({number, lease, 0});
}

int Checker::find(int number, int64_t lease) const {
  for (size_t i = claims_of_[number].size(); i-- > 0;) {
    const int claim = claims_of_[number][i];
    if (claims_[static_cast<size_t>(claim)].lease == lease) return claim;
  }
  return -1;
}

void Checker::marked(int number, const Mark &before, int64_t unix_ms) {
  if (before.kind == Mark::kTime && before.unix_ms > unix_ms)
    fail("the mark of number %d falls from %lld to %lld", number,
         static_cast<long long>(before.unix_ms), static_cast<long long>(unix_ms));
}

void Checker::not_before_put(const Mark &before, int64_t unix_ms) {
  if (before.kind == Mark::kTime && before.unix_ms > unix_ms)
    fail("not_before falls from %lld to %lld", static_cast<long long>(before.unix_ms),
         static_cast<long long>(unix_ms));
}

void Checker::reserved(int number, int64_t lease, int64_t unix_ms) {
  const int claim = find(number, lease);
  if (claim < 0) return fail("a raise of number %d is granted to one without a claim", number);
  Claim &c = claims_[static_cast<size_t>(claim)];
  c.mark = std::max(c.mark, unix_ms);
}

void Checker::published(int who, int claim, int64_t unix_ms) {
  if (claim < 0) return fail("instance %d publishes a mark without a claim", who);
  const Claim &c = claims_[static_cast<size_t>(claim)];
  if (unix_ms > c.mark)
    fail("instance %d publishes the mark %lld of number %d, etcd confirmed %lld", who,
         static_cast<long long>(unix_ms), c.number, static_cast<long long>(c.mark));
}

int Checker::installed(int claim) {
  if (claim < 0) return -1;
  const int holding = static_cast<int>(holdings_.size());
  holdings_.push_back({claim, -1, -1});
  holdings_of_[claims_[static_cast<size_t>(claim)].number].push_back(holding);
  return holding;
}

void Checker::minted(const Mint &m) {
  ids_ += m.last - m.first + 1;
  note(static_cast<uint64_t>(m.first) * 31 + static_cast<uint64_t>(m.last) * 17 + m.node);
  const int64_t first_ms = ms_of_tick(m.first) + kEpochUnixMs;
  const int64_t last_ms = ms_of_tick(m.last) + kEpochUnixMs;
  const long long first = m.first, last = m.last;
  if (m.first < 0 || ms_of_tick(m.last) > kLastMs)
    return fail("instance %d mints the tick %lld, which no ID can carry", m.who, last);
  if (m.holding < 0) return fail("instance %d mints without a claim", m.who);
  Holding &holding = holdings_[static_cast<size_t>(m.holding)];
  const Claim &claim = claims_[static_cast<size_t>(holding.claim)];
  const int number = worker_of(m.node);
  if (region_of(m.node) != m.region || number != claim.number)
    return fail("instance %d mints as node %u, not as what it claimed", m.who, m.node);

  if (last_ms - m.now_unix_ms > kMaxLeadMs)
    return fail("instance %d mints %lld ms ahead of its clock", m.who,
                static_cast<long long>(last_ms - m.now_unix_ms));
  if (first_ms < m.now_unix_ms)
    return fail("instance %d mints %lld ms behind its clock", m.who,
                static_cast<long long>(m.now_unix_ms - first_ms));
  if (last_ms > m.latest_unix_ms)
    return fail("instance %d mints %lld ms later than any fair clock", m.who,
                static_cast<long long>(last_ms - m.latest_unix_ms));
  if (last_ms > claim.mark)
    return fail("instance %d mints %lld ms past the mark that etcd confirmed for number %d", m.who,
                static_cast<long long>(last_ms - claim.mark), number);
  if (m.first <= *m.instance_last)
    return fail("instance %d mints the tick %lld after the tick %lld", m.who, first,
                static_cast<long long>(*m.instance_last));
  *m.instance_last = m.last;

  // Never twice, over all instances and lives.
  std::vector<Span> &spans = spans_[number];
  auto after = spans.end();
  if (!spans.empty() && spans.back().first >= m.first)
    after = std::lower_bound(spans.begin(), spans.end(), m.first,
                             [](const Span &s, int64_t tick) { return s.first < tick; });
  const Span *twice = nullptr;
  if (after != spans.end() && after->first <= m.last) twice = &*after;
  if (after != spans.begin() && (after - 1)->last >= m.first) twice = &*(after - 1);
  if (twice != nullptr)
    return fail("DUPLICATE: number %d, ticks %lld..%lld minted by instance %d as holding %d, and "
                "%lld..%lld as holding %d",
                number, first, last, m.who, m.holding, static_cast<long long>(twice->first),
                static_cast<long long>(twice->last), twice->holding);
  if (after == spans.end() && !spans.empty() && spans.back().holding == m.holding &&
      spans.back().last + 1 == m.first)
    spans.back().last = m.last;
  else
    spans.insert(after, {m.first, m.last, m.holding});

  // One holding of a number ends before the next begins, for ever: their ticks never mix, even where
  // luck kept them apart.
  if (holding.first < 0) holding.first = m.first;
  holding.last = m.last;
  for (const int other : holdings_of_[number]) {
    const Holding &h = holdings_[static_cast<size_t>(other)];
    if (other == m.holding || h.first < 0) continue;
    if (h.last >= holding.first && h.first <= holding.last)
      return fail("number %d: holding %d of instance %d mints %lld..%lld in the midst of holding %d, "
                  "%lld..%lld",
                  number, m.holding, m.who, first, last, other, static_cast<long long>(h.first),
                  static_cast<long long>(h.last));
  }
}

}  // namespace snowflake::sim
