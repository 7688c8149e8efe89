// SPDX-License-Identifier: Apache-2.0
/// The tile scheduler of paged attention, on an emulated warp, against a serial statement of its rules: every key tile
/// that a row sees is in one split, every partial result has its slot, and every flag that a reduction awaits is set.
#include "gpu/cuda/portable/paged_attention/tile_scheduler.cuh"

#include <gtest/gtest.h>

#include <climits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace fovea::gpu::portable::paged_attention {
namespace {

constexpr std::int64_t kFar = std::int64_t{1} << 40, kEnd = kLimit - 1;  // a mask's bound; the most flattened tiles

struct Batch {
  Params params{};
  BandMask mask{};
  int row_tile = kNarrowRows;
  std::vector<int> cu_seqlens_q{}, kv_len{};
};
struct Found {
  int split;
  WorkTile work;
};
using Job = std::pair<const Params&, std::vector<Found>&>;

template <int kRowTile>
void take_work(const void* job_) {
  const auto& [params, found] = *static_cast<const Job*>(job_);
  for (int split = 0; split < params.splits; ++split) {
    TileScheduler<kRowTile> scheduler(params, split);
    for (WorkTile work = scheduler.next(); !work.is_none(); work = scheduler.next()) {
      if (threadIdx.x == 0) found.push_back({split, work});
    }
  }
}

/// Returns the fault, or nothing. A scheduler that does not end is a fault.
std::string take_all(const Batch& batch, std::vector<Found>& found) {
  const Job job{batch.params, found};
  emulation::collectives_left = 1 << 24;
  const auto kernel = batch.row_tile == kNarrowRows   ? take_work<kNarrowRows>
                      : batch.row_tile == kMiddleRows ? take_work<kMiddleRows>
                                                      : take_work<kWideRows>;
  return emulation::run(kernel, &job, {}).value_or("");
}

/// Keys [begin, end) that some token sees; [every_begin, every_end): that every one sees.
struct Keys {
  std::int64_t begin = LLONG_MAX, end = 0, every_begin = 0, every_end = LLONG_MAX;
  bool none() const { return begin >= end; }
  std::int64_t first() const { return begin / kTileKeys; }
  std::int64_t last() const { return (end + kTileKeys - 1) / kTileKeys; }
};

Keys seen_by(const BandMask& mask, int seq_q, int kv_len, int token_begin, int token_end) {
  Keys keys;
  for (int token = token_begin; token < token_end; ++token) {
    const std::int64_t middle = token + (mask.anchor == Anchor::bottom_right ? kv_len - seq_q : 0);
    const std::int64_t begin = std::max<std::int64_t>(middle - mask.left, 0);
    const std::int64_t end = std::min<std::int64_t>(middle + mask.right + 1, kv_len);
    keys.every_begin = std::max(keys.every_begin, begin);
    keys.every_end = std::min(keys.every_end, end);
    if (begin >= end) continue;
    keys.begin = std::min(keys.begin, begin);
    keys.end = std::max(keys.end, end);
  }
  return keys;
}

struct QueryTileRule {
  BandMask mask;
  int q_begin, seq_q, kv_len, rows, token_begin, token_end;
  Keys seen;
  std::int64_t begin, end;  // flattened tiles, without their bound
};
using Rules = std::map<std::pair<int, int>, QueryTileRule>;  // by sequence and first row

Rules rules_of(const Batch& batch) {
  const Params& p = batch.params;
  const int group = p.group.divisor;
  Rules rules;
  std::int64_t place = 0;
  for (int sequence = 0; sequence < p.batch; ++sequence) {
    const auto row_of_q = [&](int index) { return std::clamp(batch.cu_seqlens_q[static_cast<std::size_t>(index)], 0, p.total_q); };
    const int q_begin = row_of_q(sequence), kv_len = std::clamp(batch.kv_len[static_cast<std::size_t>(sequence)], 0, p.seq_k);
    int seq_q = std::max(row_of_q(sequence + 1) - q_begin, 0);
    if (seq_q > p.seq_q) seq_q = p.co_launched ? 0 : p.seq_q;
    const Keys of_all = seen_by(batch.mask, seq_q, kv_len, 0, seq_q);
    const std::int64_t length = of_all.none() ? 1 : of_all.last() - of_all.first();
    for (int row = 0; row < seq_q * group; row += batch.row_tile, place += length) {
      const int rows = std::min(batch.row_tile, seq_q * group - row), token_begin = row / group, token_end = (row + rows - 1) / group + 1;
      const Keys seen = seen_by(batch.mask, seq_q, kv_len, token_begin, token_end);
      rules[{sequence, row}] = {batch.mask, q_begin, seq_q, kv_len, rows, token_begin, token_end, seen, place, place + length};
    }
  }
  return rules;
}

/// Checks what holds for a work tile by itself.
void check_work(const QueryTileRule& rule, const WorkTile& work) {
  ASSERT_EQ(std::tuple(work.q_begin, work.seq_q, work.rows), std::tuple(rule.q_begin, rule.seq_q, rule.rows));
  ASSERT_EQ(work.uneven, rule.token_end - rule.token_begin > 1);
  for (int token = rule.token_begin; token < rule.token_end; ++token) {
    const Keys seen = seen_by(rule.mask, rule.seq_q, rule.kv_len, token, token + 1);
    const Keys got = seen_by({-work.low, work.high, Anchor::top_left}, rule.seq_q, rule.kv_len, token, token + 1);
    ASSERT_TRUE(got.begin == seen.begin && got.end == seen.end) << "token " << token;
  }
  ASSERT_TRUE(0 <= work.first && work.first < work.last && work.last <= rule.kv_len / kTileKeys + 1);
  std::int64_t full_first = (rule.seen.every_begin + kTileKeys - 1) / kTileKeys, full_last = rule.seen.every_end / kTileKeys;
  if (work.begin < work.end) {
    ASSERT_EQ(work.begin, std::max<std::int64_t>(rule.seen.begin, work.first * kTileKeys));
    ASSERT_EQ(work.end, std::min<std::int64_t>(rule.seen.end, work.last * kTileKeys));
    full_first = std::max<std::int64_t>(full_first, work.first);
    full_last = std::min<std::int64_t>(full_last, work.last);
  } else {
    ASSERT_EQ(work.begin, work.end);
    ASSERT_EQ(work.last, work.first + 1);
    full_last = full_first;
  }
  const int got_first = std::max(work.full_first, work.first), got_last = std::min(work.full_last, work.last);
  ASSERT_EQ(std::max(got_last - got_first, 0), std::max<std::int64_t>(full_last - full_first, 0));
  ASSERT_TRUE(got_first >= got_last || got_first == full_first);
}

/// Checks the work tiles of a query tile in splits `first_split` to `last_split`. Together they have all keys, in the order of the splits.
void check_splits(const QueryTileRule& rule, const std::vector<Found>& found, int first_split, int last_split) {
  ASSERT_EQ(static_cast<int>(found.size()), last_split - first_split + 1);
  std::int64_t covered = rule.seen.none() ? 0 : rule.seen.first();
  for (int expected = first_split; const auto& [split, work] : found) {
    ASSERT_EQ(split, expected++);
    ASSERT_NO_FATAL_FAILURE(check_work(rule, work));
    const bool whole = first_split == last_split;
    ASSERT_EQ(work.slot, whole ? -1 : partial_slot(split, split != first_split));
    ASSERT_EQ(work.last_split, !whole && split == first_split ? last_split : -1);
    if (work.begin == work.end) continue;
    ASSERT_EQ(work.first, covered);
    covered = work.last;
  }
  ASSERT_TRUE(rule.end > kEnd || covered == (rule.seen.none() ? 0 : rule.seen.last())) << "covered " << covered;
}

void check(const Batch& batch) {
  const Rules rules = rules_of(batch);
  std::map<std::pair<int, int>, std::vector<Found>> found;
  std::set<int> slots;
  std::vector<Found> all;
  ASSERT_EQ(take_all(batch, all), "");
  for (const Found& one : all) {
    const auto& [split, work] = one;
    ASSERT_TRUE(rules.contains({work.sequence, work.row})) << "sequence " << work.sequence << ", row " << work.row;
    ASSERT_TRUE(work.slot < 0 || slots.insert(work.slot).second) << "slot " << work.slot;
    found[{work.sequence, work.row}].push_back(one);
  }
  const std::int64_t total = rules.empty() ? 0 : std::min(rules.rbegin()->second.end, kEnd), splits = batch.params.splits;
  const std::int64_t split_length = std::max<std::int64_t>((total + splits - 1) / splits, kLeastKeys / kTileKeys);
  for (const auto& [at, rule] : rules) {
    SCOPED_TRACE("sequence " + std::to_string(at.first) + ", row " + std::to_string(at.second));
    ASSERT_EQ(found.contains(at), rule.begin < total);
    if (rule.begin >= total) continue;
    const std::int64_t end = std::min(rule.end, total), first_split = rule.begin / split_length;
    const bool whole = batch.params.whole || (batch.params.queued && end - rule.begin <= split_length);
    const std::int64_t last_split = whole ? first_split : (end - 1) / split_length;
    ASSERT_NO_FATAL_FAILURE(check_splits(rule, found[at], static_cast<int>(first_split), static_cast<int>(last_split)));
  }
}

std::mt19937 random_bits(1);
int any(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_bits); }
int one_of(const std::vector<int>& of) { return of[static_cast<std::size_t>(any(0, static_cast<int>(of.size()) - 1))]; }

BandMask any_mask() {
  const auto bound = [] { return any(0, 1) == 0 ? kFar : any(-70, 300); };
  const Anchor anchor = any(0, 3) == 0 ? Anchor::top_left : Anchor::bottom_right;
  return any(0, 2) == 0 ? BandMask{kFar, 0, anchor} : BandMask{bound(), bound(), anchor};
}

template <bool kGarbage>
Batch any_batch() {
  Batch batch;
  batch.mask = any_mask();
  batch.row_tile = one_of({kNarrowRows, kMiddleRows, kWideRows});
  Params& p = batch.params;
  p.batch = one_of({1, 2, 5, 31, 32, 33, 63, 64, 65, 100, 130});
  p.seq_q = one_of({1, 1, 2, 4, 9, p.batch > 5 ? 20 : 200});
  p.seq_k = one_of({1, 63, 64, 65, 500, 3000, 20000});
  p.group = detail::FastDivmod(one_of({1, 3, 4, 5, 8, 16}));
  p.splits = one_of({1, 2, 3, 7, 16, 33, 132});
  for (bool* flag : {&p.whole, &p.queued, &p.co_launched}) *flag = any(0, 2) == 0;
  batch.cu_seqlens_q.push_back(0);
  for (int i = 0; i < p.batch; ++i) {
    const int tokens = any(0, 4) == 0 ? 0 : any(0, 1) == 0 ? p.seq_q : any(0, p.seq_q + (any(0, 9) == 0 ? 10 : 0));
    batch.cu_seqlens_q.push_back(batch.cu_seqlens_q.back() + tokens);
    batch.kv_len.push_back(one_of({0, 1, p.seq_k, any(0, p.seq_k), any(0, p.seq_k)}));
  }
  p.total_q = batch.cu_seqlens_q.back() + any(0, 1);
  if constexpr (!kGarbage) return batch;
  for (int& x : batch.cu_seqlens_q) x = one_of({x, x, INT_MIN, INT_MAX, -1, any(-9, p.total_q + 9), any(INT_MIN, INT_MAX)});
  for (int& x : batch.kv_len) x = one_of({x, x, INT_MIN, INT_MAX, -1});
  return batch;
}

/// Overlapping sequences with up to five times the flattened tiles that a plan allows.
Batch overflowing_batch() {
  Batch batch = any_batch<false>();
  Params& p = batch.params;
  p.batch = 80;
  p.group = detail::FastDivmod(batch.row_tile);
  p.total_q = p.seq_q = 16;
  p.seq_k = 1 << 29;
  p.splits = one_of({1, 7, 132, 1000});
  batch.mask = {kFar, any(0, 1) == 0 ? 0 : kFar};
  batch.cu_seqlens_q.resize(81);
  batch.kv_len.resize(80);
  for (int i = 0; int& x : batch.cu_seqlens_q) x = any(0, 9) == 0 ? any(0, 16) : 16 * (++i % 2);
  for (int& x : batch.kv_len) x = any(p.seq_k / 2, p.seq_k);
  return batch;
}

void check_many(int count, Batch (*make)()) {
  for (int i = 0; i < count; ++i) {
    Batch batch = make();
    Params& p = batch.params;
    p.splits_divmod = detail::FastDivmod(p.splits);
    p.mask = detail::NarrowMask(batch.mask);
    p.cu_seqlens_q = batch.cu_seqlens_q.data();
    p.kv_len = batch.kv_len.data();
    SCOPED_TRACE("batch " + std::to_string(i) + " of " + std::to_string(p.batch) + " sequences, " + std::to_string(p.splits) + " splits");
    ASSERT_NO_FATAL_FAILURE(check(batch));
  }
}

TEST(TileScheduler, GivesEveryKeyTileToOneSplit) { check_many(400, any_batch<false>); }
TEST(TileScheduler, KeepsItsRulesForAnyLengths) { check_many(200, any_batch<true>); }
TEST(TileScheduler, KeepsItsRulesWhereTheBoundIsInsideAQueryTile) { check_many(50, overflowing_batch); }

}  // namespace
}  // namespace fovea::gpu::portable::paged_attention
