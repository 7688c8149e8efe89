// SPDX-License-Identifier: Apache-2.0
/// The list of work: every visible pair occurs exactly once, within the reserved bounds. Where sums depend on it, it is independent of
/// threads.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <random>
#include <system_error>
#include <thread>
#include <vector>

#include "cpu/attention/plan.hpp"
#include "cpu/parallel.hpp"
#include "fovea/device.hpp"

namespace fovea::cpu {
namespace {

/// A ragged batch over contiguous rows; only lengths matter here.
struct Batch {
  Batch(std::vector<std::int32_t> q, std::vector<std::int32_t> k, std::int64_t group, BandMask mask) {
    for (std::size_t i = 0; i < q.size(); ++i) {
      cu_q.push_back(cu_q.back() + q[i]);
      cu_k.push_back(cu_k.back() + k[i]);
      setup.core.max_seq_q = std::max<std::int64_t>(setup.core.max_seq_q, q[i]);
      setup.core.max_seq_k = std::max<std::int64_t>(setup.core.max_seq_k, k[i]);
    }
    setup.core.batch = static_cast<std::int64_t>(q.size());
    setup.core.total_q = cu_q.back();
    setup.core.kv_heads = 2;
    setup.core.heads = 2 * group;
    setup.core.head_dim_qk = setup.core.head_dim_v = 64;
    setup.core.mask = mask;
    setup.ragged = true;
    setup.attention = &scalar::kKernels.attention;
    setup.rows = &scalar::kKernels.rows;
    plan(2);
  }
  void plan(int threads) {
    setup.threads = threads;
    setup.tuning = choose_tuning(setup.core, *setup.attention, threads, true);
  }
  Call call() const { return {.cu_seqlens_q = cu_q.data(), .cu_seqlens_k = cu_k.data()}; }

  Setup setup{};
  std::vector<std::int32_t> cu_q{0}, cu_k{0};
};

void check_cover(const Batch& batch) {
  std::vector<std::byte> workspace(map_workspace(batch.setup, nullptr).bytes);
  const WorkspaceMap map = map_workspace(batch.setup, workspace.data());
  const Schedule schedule = build_schedule(batch.setup, batch.call(), map);
  const ScheduleBounds bounds = schedule_bounds(batch.setup);
  ASSERT_LE(schedule.entries, bounds.entries);
  const std::int64_t group = batch.setup.core.group();
  for (std::int64_t index = 0; index < batch.setup.core.batch; ++index) {
    const Sequence s = sequence_of(batch.setup, batch.call(), index);
    std::vector<std::int64_t> seen(static_cast<std::size_t>(s.seq_q * group));
    for (std::int64_t i = 0; i < schedule.entries; ++i) {
      const WorkEntry& entry = map.entries[i];
      if (i > 0) {
        ASSERT_GE(map.entries[i - 1].cost, entry.cost) << "longest first";
      }
      if (entry.sequence != index) continue;
      ASSERT_LE(entry.row_end - entry.row_begin, batch.setup.tuning.q_rows);
      if (entry.parts > 1) {
        ASSERT_LE(entry.partial + entry.parts * (entry.row_end - entry.row_begin) * batch.setup.core.kv_heads, bounds.partials);
        ASSERT_LE(entry.counter + batch.setup.core.kv_heads, bounds.counters);
        ASSERT_EQ(map.counters[entry.counter], entry.parts);
      }
      for (std::int64_t row = entry.row_begin; row < entry.row_end; ++row) {
        const detail::KeyRange keys = detail::keys_seen_by(s.band, row / group, s.seq_k);
        seen[static_cast<std::size_t>(row)] +=
            std::max<std::int64_t>(0, std::min(keys.end, entry.key_end) - std::max(keys.begin, entry.key_begin));
      }
    }
    for (std::int64_t row = 0; row < s.seq_q * group; ++row) {
      ASSERT_EQ(seen[static_cast<std::size_t>(row)], detail::keys_seen_by(s.band, row / group, s.seq_k).size())
          << "sequence " << index << " row " << row;
    }
  }
}

TEST(CpuSchedule, CoversEveryVisiblePairOnce) {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) { return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1)); };
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int32_t> q, k;
    for (int i = pick(1, 6); i > 0; --i) {
      q.push_back(pick(0, 3) == 0 ? pick(0, 400) : pick(0, 3));
      k.push_back(pick(0, 2) == 0 ? pick(0, 70000) : pick(0, 2000));
    }
    const BandMask masks[] = {BandMask{}, causal(), sliding_window(100), BandMask{.left = 5, .right = -3}};
    check_cover(Batch(q, k, pick(1, 5), masks[pick(0, 3)]));
  }
}

TEST(CpuSchedule, PartsDependOnTheSequenceAlone) {
  const auto parts_of = [](const Batch& batch) {
    std::vector<std::byte> workspace(map_workspace(batch.setup, nullptr).bytes);
    const WorkspaceMap map = map_workspace(batch.setup, workspace.data());
    const Schedule schedule = build_schedule(batch.setup, batch.call(), map);
    std::vector<std::pair<std::int64_t, std::int64_t>> parts;
    for (std::int64_t i = 0; i < schedule.entries; ++i) {
      if (map.entries[i].sequence == 0) parts.emplace_back(map.entries[i].key_begin, map.entries[i].key_end);
    }
    std::sort(parts.begin(), parts.end());
    return parts;
  };
  const Batch alone({1}, {40000}, 4, causal()), crowd({1, 300, 1}, {40000, 300, 90000}, 4, causal());
  Batch many = alone;
  many.plan(64);
  EXPECT_GT(parts_of(alone).size(), 1U);
  EXPECT_EQ(parts_of(alone), parts_of(crowd));
  EXPECT_EQ(parts_of(alone), parts_of(many));
}

TEST(CpuSchedule, WorkspaceGrowsWithEveryBound) {
  const auto bytes = [](std::int64_t batch, std::int64_t total_q, std::int64_t max_q, std::int64_t max_k) {
    Batch b({1}, {1}, 4, causal());
    b.setup.core.batch = batch;
    b.setup.core.total_q = total_q;
    b.setup.core.max_seq_q = max_q;
    b.setup.core.max_seq_k = max_k;
    b.plan(2);
    return map_workspace(b.setup, nullptr).bytes;
  };
  const std::vector<std::int64_t> sizes{1, 2, 15, 16, 17, 63, 64, 65, 200, 1023, 1024, 1025, 5000, 32768, 32769, 100000};
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    for (const std::int64_t other : sizes) {
      EXPECT_LE(bytes(sizes[i - 1], other, other, other), bytes(sizes[i], other, other, other));
      EXPECT_LE(bytes(other, sizes[i - 1], other, other), bytes(other, sizes[i], other, other));
      EXPECT_LE(bytes(other, other, sizes[i - 1], other), bytes(other, other, sizes[i], other));
      EXPECT_LE(bytes(other, other, other, sizes[i - 1]), bytes(other, other, other, sizes[i]));
    }
  }
}

std::atomic<int> pool_calls{0};

void backwards(int threads, void (*body)(void* context, int thread), void* context) {
  ++pool_calls;
  for (int thread = threads - 1; thread >= 0; --thread) body(context, thread);
}

TEST(CpuParallel, VisitsEachThreadOnceInAnyPool) {
  for (const bool replaced : {false, true}) {
    pool_calls = 0;
    set_parallel_for(replaced ? backwards : nullptr);
    for (const int threads : {1, 2, 7}) {
      std::vector<std::atomic<int>> visits(static_cast<std::size_t>(threads));
      parallel_for(threads, [&](int thread) { ++visits[static_cast<std::size_t>(thread)]; });
      for (const std::atomic<int>& count : visits) EXPECT_EQ(count, 1);
    }
    EXPECT_EQ(pool_calls, replaced ? 2 : 0);  // one thread runs in place
    set_parallel_for(nullptr);
  }
}

/// Expected numbers: one thread for each 200 us of an estimated 32 products or 4 elements a nanosecond.
TEST(CpuParallel, ThreadsThatWorkIsWorth) {
  EXPECT_EQ(worthwhile_threads({}, 100, 64), 1);
  EXPECT_EQ(worthwhile_threads({.products = 12.7e6}, 100, 64), 1);
  EXPECT_EQ(worthwhile_threads({.products = 12.9e6}, 100, 64), 2);
  EXPECT_EQ(worthwhile_threads({.products = 6.5e6, .elements = 0.8e6}, 100, 64), 2);
  EXPECT_EQ(worthwhile_threads({.products = 1e12}, 100, 64), 64);
  EXPECT_EQ(worthwhile_threads({.products = 1e12}, 5, 64), 5);
  EXPECT_EQ(worthwhile_threads({.products = 1e30}, INT64_MAX, 1), 1);
}

/// head x 64 over this many tokens, as planned with this many threads.
Setup planned(std::int64_t tokens, std::int64_t heads, int threads) {
  detail::AttentionCore core{};
  core.batch = 1;
  core.heads = core.kv_heads = heads;
  core.total_q = core.max_seq_q = core.max_seq_k = tokens;
  core.head_dim_qk = core.head_dim_v = 64;
  set_num_threads(threads);
  const Setup setup = make_setup<Scalar>(core, false);
  set_num_threads(0);
  return setup;
}

TEST(CpuSchedule, SmallCallsTakeOneThreadAndItsMemory) {
  EXPECT_EQ(planned(18, 8, 64).threads, 1);
  EXPECT_EQ(planned(70, 8, 64).threads, 1);
  EXPECT_EQ(map_workspace(planned(18, 8, 64), nullptr).bytes, map_workspace(planned(18, 8, 1), nullptr).bytes);
  EXPECT_LT(map_workspace(planned(18, 8, 64), nullptr).bytes, std::size_t{512} << 10);
}

TEST(CpuSchedule, LargeCallsTakeAllThreads) {
  EXPECT_EQ(planned(4096, 8, 64).threads, 64);
  EXPECT_EQ(planned(4096, 8, 3).threads, 3);
  const int some = planned(512, 8, 64).threads;
  EXPECT_GT(some, 1);
  EXPECT_LT(map_workspace(planned(512, 8, 64), nullptr).bytes, map_workspace(planned(512, 8, 1), nullptr).bytes * (some + 1));
}

/// A real thread, until the first `left` have been started.
struct ScarceThread : std::thread {
  static inline std::atomic<int> left{0};
  ScarceThread() = default;
  template <class... Args>
  explicit ScarceThread(Args&&... args) : std::thread(started(), std::forward<Args>(args)...) {}

 private:
  struct Call {
    void operator()(auto f, auto... args) const { f(args...); }
  };
  static Call started() {
    if (left-- <= 0) throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    return {};
  }
};

TEST(CpuParallel, GoesOnWithTheThreadsThatStart) {
  for (const int left : {0, 1, 3, 100}) {
    ScarceThread::left = left;
    std::array<std::atomic<int>, 9> visits{};
    run_chain<ScarceThread>(
        0, static_cast<int>(visits.size()),
        [](void* context, int thread) { ++(*static_cast<std::array<std::atomic<int>, 9>*>(context))[static_cast<std::size_t>(thread)]; },
        &visits);
    for (const std::atomic<int>& count : visits) EXPECT_EQ(count, 1) << left << " threads to be had";
  }
}

TEST(CpuParallel, NumberOfThreads) {
  const int usual = num_threads();
  EXPECT_GE(usual, 1);
  set_num_threads(3);
  EXPECT_EQ(num_threads(), 3);
  set_num_threads(0);
  EXPECT_EQ(num_threads(), usual);
}

}  // namespace
}  // namespace fovea::cpu
