// SPDX-License-Identifier: Apache-2.0
/// Products of all heads of a query with a tile of keys by the matrix kernels of attention, then the weighted sum over heads.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>

#include "cpu/implementations.hpp"
#include "cpu/parallel.hpp"
#include "op/index_logits/keys.hpp"
#include "op/index_logits/problem.hpp"

namespace fovea::cpu {
namespace {

using detail::IndexLogitsProblem;
using detail::KeyRange;

constexpr int kKeyTile = 128;  // a multiple of every panel
constexpr auto kStorage = static_cast<std::size_t>(DType::e4m3);
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A thread's memory: q as operands, a packed tile of keys, the products, sums of columns.
struct Scratch {
  std::byte *q, *keys;
  float *scores, *sums;
};

class State final : public detail::PlanState<IndexLogitsArgs> {
 public:
  State(std::string_view name, const IndexLogitsProblem& problem, const AttentionKernels& kernels)
      : problem_(problem),
        kernels_(kernels),
        threads_(worthwhile_threads({.products = static_cast<double>(problem.rows) * static_cast<double>(problem.columns) *
                                                 static_cast<double>(problem.heads * problem.head_dim)},
                                    problem.rows, planned_threads())) {
    implementation = name;
    workspace_bytes = static_cast<std::size_t>(threads_) * bytes_of_thread();
  }

  Result<void> prepare(const IndexLogitsArgs& args, Workspace, Stream) const override { return check_args(problem_, args); }

  Result<void> run(const IndexLogitsArgs& given, Workspace workspace, Stream, bool) const override {
    if (Result<void> good = check_args(problem_, given); !good) return good;
    if (Result<void> good = detail::check_workspace(workspace, workspace_bytes); !good) return good;
    if (problem_.rows * problem_.columns == 0) return {};
    const IndexLogitsArgs args = args_in_use(problem_, given);
    parallel_for(threads_, [&](int thread) {
      std::byte* memory = static_cast<std::byte*>(workspace.data) + static_cast<std::size_t>(thread) * bytes_of_thread();
      const Scratch scratch{memory, memory + q_bytes(), reinterpret_cast<float*>(memory + q_bytes() + key_bytes()),
                            reinterpret_cast<float*>(memory + q_bytes() + key_bytes() + score_bytes())};
      if (kernels_.enter != nullptr) kernels_.enter();
      for (std::int64_t row = problem_.rows * thread / threads_; row < problem_.rows * (thread + 1) / threads_; ++row) {
        score_row(args, row, scratch);
      }
      if (kernels_.leave != nullptr) kernels_.leave();
    });
    return {};
  }

  std::string tuning() const override {
    return std::string(kernels_.arithmetic) + ", " + std::to_string(kKeyTile) + " keys a tile; " + std::to_string(threads_) +
           (threads_ == 1 ? " thread" : " threads");
  }

 private:
  static constexpr std::size_t lines(std::int64_t bytes) { return static_cast<std::size_t>((bytes + kLine - 1) / kLine * kLine); }
  std::size_t q_bytes() const { return lines(problem_.heads * problem_.head_dim * kernels_.qk_bytes()); }
  std::size_t key_bytes() const { return lines(kKeyTile * problem_.head_dim * kernels_.qk_bytes()); }
  std::size_t score_bytes() const { return lines(problem_.heads * kKeyTile * static_cast<std::int64_t>(sizeof(float))); }
  std::size_t bytes_of_thread() const { return q_bytes() + key_bytes() + score_bytes() + lines(kKeyTile * sizeof(float)); }

  void score_row(const IndexLogitsArgs& args, std::int64_t row, const Scratch& scratch) const {
    const KeyRange seen = detail::keys_of_row(problem_, args, row);
    const int dim = static_cast<int>(problem_.head_dim);
    for (std::int64_t head = 0; head < problem_.heads; ++head) {
      kernels_.load_q[kStorage](static_cast<const std::byte*>(args.q) + row * problem_.q_row + head * problem_.q_head, dim, dim, false,
                                scratch.q + head * dim * kernels_.qk_bytes());
    }
    if (kernels_.pack_q != nullptr) kernels_.pack_q(scratch.q, static_cast<int>(problem_.heads), dim);
    fill(args, row, 0, seen.begin);
    for (std::int64_t begin = seen.begin; begin < seen.end; begin += kKeyTile) {
      score_tile(args, row, {begin, std::min(begin + kKeyTile, seen.end)}, scratch);
    }
    fill(args, row, seen.end, problem_.columns);
  }

  void score_tile(const IndexLogitsArgs& args, std::int64_t row, const KeyRange& tile, const Scratch& scratch) const {
    std::array<Row, kKeyTile> rows;
    std::array<float, kKeyTile> scales{};
    const auto count = static_cast<std::size_t>(tile.end - tile.begin);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::int64_t column = tile.begin + static_cast<std::int64_t>(std::min(i, count - 1));
      const detail::KeyPlace place = detail::place_of_key(problem_, args, row, column);
      rows[i] = place.known ? static_cast<const std::byte*>(args.k) + place.k : args.q;  // any memory: the scale makes it NaN
      scales[i] = place.known ? args.k_scale[place.scale] : kNan;
    }
    const int dim = static_cast<int>(problem_.head_dim), heads = static_cast<int>(problem_.heads);
    kernels_.pack_keys[kStorage](rows.data(), kKeyTile, dim, dim, scratch.keys);
    for (int head = 0; head < heads; head += kernels_.block_rows) {
      const RowBlock block{.row = head, .rows = std::min(kernels_.block_rows, heads - head), .key_begin = 0, .key_end = kKeyTile};
      kernels_.scores({.q = scratch.q,
                       .keys = scratch.keys,
                       .scores = scratch.scores,
                       .q_stride = dim,
                       .score_stride = kKeyTile,
                       .head_dim = dim,
                       .blocks = &block,
                       .block_count = 1});
    }
    add_heads(args.weights + row * problem_.weights_row, scratch);
    for (std::size_t i = 0; i < count; ++i) store(args, row, tile.begin + static_cast<std::int64_t>(i), scratch.sums[i] * scales[i]);
  }

  void add_heads(const float* weights, const Scratch& scratch) const {
    std::fill_n(scratch.sums, kKeyTile, 0.0f);
    for (std::int64_t head = 0; head < problem_.heads; ++head) {
      const float* scores = scratch.scores + head * kKeyTile;
      const float weight = weights[head];
      for (int i = 0; i < kKeyTile; ++i) scratch.sums[i] += (scores[i] < 0.0f ? 0.0f : scores[i]) * weight;  // NaN stays
    }
  }

  void fill(const IndexLogitsArgs& args, std::int64_t row, std::int64_t begin, std::int64_t end) const {
    if (problem_.keep_outside) return;
    for (std::int64_t column = begin; column < end; ++column) store(args, row, column, -std::numeric_limits<float>::infinity());
  }

  void store(const IndexLogitsArgs& args, std::int64_t row, std::int64_t column, float value) const {
    const std::int64_t at = row * problem_.out_row + column;
    if (problem_.out_dtype == DType::f32) {
      static_cast<float*>(args.out)[at] = value;
    } else {
      const auto bits = std::bit_cast<std::uint32_t>(value);
      const std::uint32_t rounded = std::isnan(value) ? 0x7fc00000u : bits + 0x7fffu + (bits >> 16 & 1);
      static_cast<std::uint16_t*>(args.out)[at] = static_cast<std::uint16_t>(rounded >> 16);
    }
  }

  IndexLogitsProblem problem_;
  const AttentionKernels& kernels_;
  int threads_;
};

template <class Isa>
detail::PlanResult<IndexLogitsArgs> plan(const IndexLogitsProblem& problem, Device) {
  constexpr std::int64_t kMostHeads = 1 << 16;
  if (problem.heads > kMostHeads) return detail::declined("q.shape[1] (head)", problem.heads, "at most 65536");
  return std::shared_ptr<const detail::PlanState<IndexLogitsArgs>>(
      std::make_shared<State>(kEntryName<detail::IndexLogits, Isa>, problem, Isa::kernels().attention));
}

constexpr auto kHandled = detail::handles<detail::IndexLogits>("block_table", "first", "last", "keep_outside");
constexpr auto kEntries =
    RowSets::each([]<class Isa>() { return entry<detail::IndexLogits, Isa>("e4m3 q and k, flat or paged", kHandled, plan<Isa>); });

}  // namespace

detail::Implementations<detail::IndexLogits> implementations(detail::IndexLogits) { return kEntries; }

}  // namespace fovea::cpu
