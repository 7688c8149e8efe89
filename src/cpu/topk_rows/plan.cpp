// SPDX-License-Identifier: Apache-2.0
/// One pass over a row keeps what exceeds the least of the best so far. Blocks of columns without such a one are left after one
/// comparison a column, which compilers vectorise.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>

#include "cpu/implementations.hpp"
#include "cpu/parallel.hpp"
#include "op/topk_rows/place.hpp"
#include "op/topk_rows/problem.hpp"

namespace fovea::cpu {
namespace {

using detail::ColumnRange;
using detail::TopkRowsProblem;

constexpr std::int64_t kBlock = 64;               // columns that are tested together
constexpr std::int32_t kNanRank = INT32_MIN + 1;  // below that of -inf
constexpr std::int32_t kNoRank = INT32_MIN;

/// Numbers in the order of the values of a row: NaN below -inf, -0 like 0.
inline std::int32_t rank_of(float value) {
  const auto bits = std::bit_cast<std::int32_t>(value + 0.0f);
  const std::int32_t rank = bits ^ ((bits >> 31) & INT32_MAX);
  return std::isnan(value) ? kNanRank : rank;
}

inline std::int32_t rank_of_bits(std::uint32_t bits) { return rank_of(std::bit_cast<float>(bits)); }
struct F32Values {
  using Code = float;
  static std::int32_t rank(float code) { return rank_of(code); }
};
struct Bf16Values {
  using Code = std::uint16_t;
  static std::int32_t rank(std::uint16_t code) { return rank_of_bits(std::uint32_t{code} << 16); }
};
/// The bits of f16 have the order of their values too.
struct F16Values {
  using Code = std::uint16_t;
  static std::int32_t rank(std::uint16_t code) {
    const std::int32_t magnitude = code & 0x7fff;
    return magnitude > 0x7c00 ? kNanRank : (code & 0x8000) != 0 ? -magnitude : magnitude;
  }
};

/// A candidate: its rank and, among equals larger for a lower column, the column.
using Key = std::uint64_t;
constexpr Key key_of(std::int32_t rank, std::int64_t column) {
  const std::uint32_t high = static_cast<std::uint32_t>(rank) ^ 0x80000000u;
  return Key{high} << 32 | (UINT32_MAX - static_cast<std::uint32_t>(column));
}
constexpr std::int64_t column_of(Key key) { return UINT32_MAX - static_cast<std::uint32_t>(key); }

/// The best of a row so far, among as many candidates as there is room for.
struct Candidates {
  Key* keys;
  std::int64_t k, room;
  std::int64_t count = 0;
  std::int32_t least = kNoRank;  ///< later columns of this rank or below are not among the best

  void add(std::int32_t rank, std::int64_t column) {
    keys[count++] = key_of(rank, column);
    if (count == room) cut();
  }
  void cut() {
    if (count <= k) return;
    std::nth_element(keys, keys + (k - 1), keys + count, std::greater<>());
    count = k;
    least = static_cast<std::int32_t>(static_cast<std::uint32_t>(keys[k - 1] >> 32) ^ 0x80000000u);
  }
};

template <class Values>
void scan(const typename Values::Code* row, ColumnRange range, Candidates& best) {
  std::array<std::int32_t, kBlock> ranks;
  for (std::int64_t begin = range.first; begin < range.last; begin += kBlock) {
    const std::int64_t count = std::min(kBlock, range.last - begin);
    std::int32_t above = 0;
    if (count == kBlock) {
      const std::int32_t least = best.least;
      for (std::int64_t i = 0; i < kBlock; ++i) {
        ranks[static_cast<std::size_t>(i)] = Values::rank(row[begin + i]);
        above |= -static_cast<std::int32_t>(ranks[static_cast<std::size_t>(i)] > least);
      }
    } else {
      for (std::int64_t i = 0; i < count; ++i) ranks[static_cast<std::size_t>(i)] = Values::rank(row[begin + i]);
      above = 1;
    }
    for (std::int64_t i = 0; above != 0 && i < count; ++i) {
      if (ranks[static_cast<std::size_t>(i)] > best.least) best.add(ranks[static_cast<std::size_t>(i)], begin + i);
    }
  }
}

class State final : public detail::PlanState<TopkRowsArgs> {
 public:
  State(std::string_view name, const TopkRowsProblem& problem)
      : problem_(problem),
        best_(std::min(problem.k, problem.columns)),
        room_(std::max<std::int64_t>(2 * best_, kLeastRoom)),
        threads_(worthwhile_threads({.elements = static_cast<double>(problem.rows) * static_cast<double>(problem.columns)}, problem.rows,
                                    planned_threads())) {
    implementation = name;
    workspace_bytes = static_cast<std::size_t>(room_ * threads_) * sizeof(Key);
  }

  Result<void> prepare(const TopkRowsArgs& args, Workspace, Stream) const override { return check_args(problem_, args); }

  Result<void> run(const TopkRowsArgs& given, Workspace workspace, Stream, bool) const override {
    if (Result<void> good = check_args(problem_, given); !good) return good;
    if (Result<void> good = detail::check_workspace(workspace, workspace_bytes); !good) return good;
    if (problem_.rows * problem_.k == 0) return {};
    const TopkRowsArgs args = args_in_use(problem_, given);
    parallel_for(threads_, [&](int thread) {
      Key* keys = static_cast<Key*>(workspace.data) + room_ * thread;
      for (std::int64_t row = problem_.rows * thread / threads_; row < problem_.rows * (thread + 1) / threads_; ++row) {
        list_row(args, row, {.keys = keys, .k = best_, .room = room_});
      }
    });
    return {};
  }

  std::string tuning() const override { return "one pass a row; " + std::to_string(threads_) + (threads_ == 1 ? " thread" : " threads"); }

 private:
  static constexpr std::int64_t kLeastRoom = 256;

  void list_row(const TopkRowsArgs& args, std::int64_t row, Candidates best) const {
    const ColumnRange range = detail::columns_of_row(args.first, args.last, row, problem_.columns);
    const auto* logits = static_cast<const std::byte*>(args.logits) + row * problem_.row_stride * element();
    switch (problem_.dtype) {
      case DType::f32: scan<F32Values>(reinterpret_cast<const float*>(logits), range, best); break;
      case DType::f16: scan<F16Values>(reinterpret_cast<const std::uint16_t*>(logits), range, best); break;
      default: scan<Bf16Values>(reinterpret_cast<const std::uint16_t*>(logits), range, best); break;
    }
    best.cut();
    if (problem_.sorted) {
      std::sort(best.keys, best.keys + best.count, std::greater<>());
    } else {
      std::sort(best.keys, best.keys + best.count, [](Key a, Key b) { return column_of(a) < column_of(b); });
    }
    const detail::Places places = detail::places_of_row(problem_, args, row);
    std::int32_t* list = args.out + row * problem_.out_stride;
    for (std::int64_t i = 0; i < best.count; ++i) list[i] = places.of(column_of(best.keys[i]) - range.first);
    std::fill(list + best.count, list + problem_.k, -1);
  }

  std::int64_t element() const { return static_cast<std::int64_t>(size_of(problem_.dtype)); }

  TopkRowsProblem problem_;
  std::int64_t best_, room_;
  int threads_;
};

detail::PlanResult<TopkRowsArgs> plan(const TopkRowsProblem& problem, Device) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;  // candidates of all threads
  const std::int64_t best = std::min(problem.k, problem.columns);
  if (best >= kMost / planned_threads()) return detail::declined("out.shape[1] (k)", best, "less than 2^40 over threads");
  return std::shared_ptr<const detail::PlanState<TopkRowsArgs>>(std::make_shared<State>(kEntryName<detail::TopkRows, Scalar>, problem));
}

constexpr auto kEntry = entry<detail::TopkRows, Scalar>(
    "f32, f16, bf16; any k", detail::handles<detail::TopkRows>("first", "last", "offset", "block_table", "sorted"), plan);

}  // namespace

detail::Implementations<detail::TopkRows> implementations(detail::TopkRows) { return {&kEntry, 1}; }

}  // namespace fovea::cpu
