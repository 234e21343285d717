#include "checker.hpp"

namespace snowflake::sim {

void Checker::reset() {
  failure_.clear();
  claims_.clear();
  for (int n = 0; n < kWorkers; n++) {
    spans_[n].clear();
    of_number_[n].clear();
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
  // Put a second time by the same holder with nobody in between: the same claim.
  if (find(number, lease) >= 0 && find(number, lease) == of_number_[number].back()) return;
  of_number_[number].push_back(static_cast<int>(claims_.size()));
  claims_.push_back({number, lease, 0, -1, -1});
}

int Checker::find(int number, int64_t lease) const {
  for (size_t i = of_number_[number].size(); i-- > 0;) {
    const int claim = of_number_[number][i];
    if (claims_[static_cast<size_t>(claim)].lease == lease) return claim;
  }
  return -1;
}

void Checker::marked(int number, const Mark &before, int64_t unix_ms) {
  if (before.kind == Mark::kTime && before.unix_ms >= unix_ms)
    fail("the mark of number %d falls from %lld to %lld", number,
         static_cast<long long>(before.unix_ms), static_cast<long long>(unix_ms));
}

void Checker::not_before_put(const Mark &before, int64_t unix_ms) {
  if (before.kind == Mark::kTime && before.unix_ms >= unix_ms)
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

void Checker::minted(const Mint &m) {
  ids_ += m.last - m.first + 1;
  note(static_cast<uint64_t>(m.first) * 31 + static_cast<uint64_t>(m.last) * 17 + m.node);
  const int64_t first_ms = ms_of_tick(m.first) + kEpochUnixMs;
  const int64_t last_ms = ms_of_tick(m.last) + kEpochUnixMs;
  const long long first = m.first, last = m.last;
  if (m.first < 0 || ms_of_tick(m.last) > kLastMs)
    return fail("instance %d mints the tick %lld, which no ID can carry", m.who, last);
  if (region_of(m.node) != m.region || m.claim < 0 ||
      worker_of(m.node) != claims_[static_cast<size_t>(m.claim)].number)
    return fail("instance %d mints as node %u, not as what it claimed", m.who, m.node);
  const int number = worker_of(m.node);
  Claim &claim = claims_[static_cast<size_t>(m.claim)];

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
    return fail("DUPLICATE: number %d, ticks %lld..%lld minted by instance %d under claim %d, and "
                "%lld..%lld under claim %d",
                number, first, last, m.who, m.claim, static_cast<long long>(twice->first),
                static_cast<long long>(twice->last), twice->claim);
  if (after == spans.end() && !spans.empty() && spans.back().claim == m.claim &&
      spans.back().last + 1 == m.first)
    spans.back().last = m.last;
  else
    spans.insert(after, {m.first, m.last, m.claim});

  // A later claim of a number starts after all that an earlier one has minted or ever will.
  if (claim.first < 0) claim.first = m.first;
  claim.last = m.last;
  for (const int other : of_number_[number]) {
    const Claim &c = claims_[static_cast<size_t>(other)];
    if (other == m.claim || c.first < 0) continue;
    if (other < m.claim ? c.last >= m.first : c.first <= m.last)
      return fail("number %d: claim %d of instance %d mints %lld..%lld, claim %d minted %lld..%lld",
                  number, m.claim, m.who, first, last, other, static_cast<long long>(c.first),
                  static_cast<long long>(c.last));
  }
}

}  // namespace snowflake::sim
