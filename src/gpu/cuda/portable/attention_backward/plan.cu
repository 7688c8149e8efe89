// SPDX-License-Identifier: Apache-2.0
/// The gradient of dense attention: accepts or declines, books the workspace, and launches.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpu/cuda/common/gradient/list_plan.hpp"
#include "gpu/cuda/common/gradient/plan.hpp"
#include "gpu/cuda/common/gradient/sequence.cuh"
#include "gpu/cuda/common/instances.hpp"
#include "gpu/cuda/portable/attention_backward/config.hpp"
#include "gpu/cuda/portable/block_attention_backward/config.hpp"
#include "gpu/cuda/portable/implementations.hpp"
#include "gpu/plan_state.hpp"
#include "op/attention_backward/problem.hpp"

namespace fovea::gpu::portable {
namespace attention_backward {
namespace {

using detail::declined;
namespace listed = block_attention_backward;

constexpr std::string_view kName = "cuda.portable.attention_backward";
constexpr int kLowest = 80;                             // asynchronous copies, bf16
constexpr std::int64_t kLimit = std::int64_t{1} << 30;  // tokens and tiles are counted in ints

Result<void> accept(const Problem& problem) {
  if (Result<void> good = accept_shared(problem); !good) return good;
  for (const auto& [name, count] : {std::pair{"q.shape (rows)", std::max(problem.total_q, problem.max_seq_q)},
                                    {"k.shape (rows)", std::max(problem.total_k, problem.max_seq_k)},
                                    {"batch", problem.batch}}) {
    if (count >= kLimit) return declined(name, count, "below 2^30");
  }
  if (!problem.has_block_mask()) return {};
  if (problem.has_score_terms()) return declined("alibi_slopes, bias or dropout_p", "a value", "none beside a packed or block mask");
  if (auto reason = decline_block_mask(problem, {kQueryTile, kUnitKeys})) return *reason;
  return {};
}

using Launch = CudaStatus (*)(const Params&, int, Stream);

Launch launch_of(DType dtype, bool fused, int tuning) {
  return instance_of<kTunings.size()>(dtype, fused, tuning, [](auto of) -> Launch {
    return of.kWith ? &launch_fused<typename decltype(of)::Element, of.kRow>
                    : &launch_differentiate<typename decltype(of)::Element, of.kRow>;
  });
}

enum class BiasedLaunch { separate, fused, dbias };

template <BiasedLaunch kOf>
Launch launch_of_biased(DType dtype, int tuning) {
  return instance_of<kBiasedTunings.size()>(dtype, tuning, [](auto of) -> Launch {
    if constexpr (kOf == BiasedLaunch::separate) return &launch_biased<typename decltype(of)::Element, of.kRow>;
    if constexpr (kOf == BiasedLaunch::fused) return &launch_biased_fused<typename decltype(of)::Element, of.kRow>;
    if constexpr (kOf == BiasedLaunch::dbias) return &launch_dbias<typename decltype(of)::Element, of.kRow>;
  });
}

auto listed_launch_of(DType dtype, int tuning) {
  return instance_of<listed::kTunings.size()>(dtype, tuning,
                                              [](auto of) { return &listed::launch_listed<typename decltype(of)::Element, of.kRow>; });
}

class State final : public PlanState<Problem, AttentionBackwardArgs> {
 public:
  State(const Problem& problem, Device device, const DeviceProperties& properties)
      : PlanState(kName, problem, device), multiprocessors_(properties.multiprocessors) {
    choose_tiles(properties.shared_bytes_per_block);
    if (problem.deterministic || problem.batch_invariant) fused_ = false;
    fill_shape(params_, problem, fused_ ? row_.fused.keys() : row_.keys.rows());
    if (fused_ && !problem.ragged) params_.fixed = fixed_key_tiles(problem);
    params_.row_tiles = static_cast<int>(query_tiles_of(problem, row_.queries.rows()));
    if (problem.has_block_mask()) {
      params_.leaks = !has_no_rows(problem);
      params_.lists = gradient_lists(problem, {kQueryTile, params_.key_tile}, 1, 0);
    }
    fill_tensors();
    fill_dbias();
    workspace_bytes = place_workspace(params_, nullptr);
  }

  int key_tile() const { return params_.key_tile; }
  /// CTAs of the kernel of the bias' gradient, at most.
  std::int64_t dbias_ctas() const {
    const auto tiles = [](std::int64_t extent) { return detail::ceil_div(extent, kLeastTile); };
    const detail::BiasStrides& of = problem_.dbias_extents;
    return of.batch * of.head * tiles(of.row) * tiles(of.key);
  }

  std::string tuning() const override {
    const Tuning& row = row_;
    const auto tiles = [](const Tiles& of, std::string_view rows, std::string_view columns) {
      return std::to_string(of.rows()).append(rows).append(" x ") + std::to_string(of.columns).append(columns);
    };
    std::string text;
    if (fused_) {
      text = "dq, dk and dv by " + std::to_string(row.fused.keys()) + " keys x ";
      text += std::to_string(row.fused.queries()) + " queries";
    } else {
      text = "dq by " + tiles(row.queries, " queries", " keys") + ", dk and dv by " + tiles(row.keys, " keys", " queries");
    }
    text += ", for head dims up to " + std::to_string(row.head_dim_qk) + "/" + std::to_string(row.head_dim_v);
    if (problem_.has_block_mask()) text += ", of listed tiles";
    const std::string slow = unaligned();
    if (!slow.empty()) text.append(", by single elements:").append(slow);
    return text;
  }

 private:
  static constexpr std::int64_t kLeastTile = 32;

  bool is_empty() const override { return has_no_rows(problem_) && !problem_.has_sink && problem_.dbias_elements == 0; }
  bool biased() const { return problem_.has_score_terms(); }

  void choose_tiles(int shared_bytes) {
    const Problem& p = problem_;
    if (biased()) {
      tuning_ = biased_index(p.head_dim_qk, p.head_dim_v);
      row_ = kBiasedTunings[static_cast<std::size_t>(tuning_)];
      fused_ = biased_fused_bytes(row_) <= shared_bytes && p.softcap == 0;  // for which registers do not suffice
    } else if (p.has_block_mask()) {
      const std::int64_t head_dim = std::max(p.head_dim_qk, p.head_dim_v);
      const auto index = [&](Gradients of, std::int64_t block) { return listed::tuning_index(of, head_dim, block, shared_bytes); };
      const bool at_once = listed::keys_at_once(head_dim);
      listed_rows_ = {index(Gradients::dq, p.block_q), index(at_once ? Gradients::dk_dv : Gradients::dk, p.block_k)};
      row_ = listed::kTunings[static_cast<std::size_t>(listed_rows_[0])].dense();
      row_.keys = listed::kTunings[static_cast<std::size_t>(listed_rows_[1])].tiles;
      if (!at_once) listed_rows_.push_back(index(Gradients::dv, p.block_k));
    } else {
      tuning_ = tuning_index(p.head_dim_qk, p.head_dim_v, shared_bytes);
      row_ = kTunings[static_cast<std::size_t>(tuning_)];
      fused_ = row_.fused.key_warps > 0;
    }
  }

  Result<void> compute(const AttentionBackwardArgs& args, Workspace workspace, Stream stream, bool) const override {
    listed::Params params = params_;
    place_workspace(params, workspace.data);
    fill(params, args);
    if (problem_.has_block_mask() && !has_no_rows(problem_)) return compute_listed(params, stream);
    return compute_dense(params, stream);
  }

  /// `params` has the type of dense kernels: with another one, calls find the launches beside that type.
  Result<void> compute_dense(const Params& params, Stream stream) const {
    const DType dtype = problem_.q_dtype;
    if (!has_no_rows(problem_)) {
      if (Result<void> done = launch_prepare(params, dtype, stream); !done) return done;
      if (Result<void> done = launch()(params, device_.ordinal, stream); !done) return done;
    }
    if (problem_.dbias_elements > 0) {
      const Launch launch_dbias = launch_of_biased<BiasedLaunch::dbias>(dtype, tuning_);
      if (Result<void> done = launch_dbias(params, device_.ordinal, stream); !done) return done;
    }
    if (!params.leaks && params.dsink == nullptr) return {};
    return (biased() ? launch_finish_biased : launch_finish)(params, dtype, multiprocessors_, stream);
  }

  Result<void> compute_listed(const listed::Params& params, Stream stream) const {
    const DType dtype = problem_.q_dtype;
    if (Result<void> done = listed::launch_prepare(params, dtype, stream); !done) return done;
    for (const int row : listed_rows_) {
      if (Result<void> done = listed_launch_of(dtype, row)(params, device_.ordinal, stream); !done) return done;
    }
    return listed::launch_finish(params, dtype, multiprocessors_, stream);
  }

  Launch launch() const {
    const DType dtype = problem_.q_dtype;
    if (!biased()) return launch_of(dtype, fused_, tuning_);
    if (fused_) return launch_of_biased<BiasedLaunch::fused>(dtype, tuning_);
    return launch_of_biased<BiasedLaunch::separate>(dtype, tuning_);
  }

  /// The tensors whose rows are not aligned to 16 bytes.
  std::string unaligned() const {
    const Params& p = params_;
    std::string names;
    for (const auto& [name, tensor] : {std::pair{" q", &p.q},
                                       {" k", &p.k},
                                       {" v", &p.v},
                                       {" out", &p.out},
                                       {" dout", &p.dout},
                                       {" dq", &p.dq},
                                       {" dk", &p.dk},
                                       {" dv", &p.dv}}) {
      if (!tensor->aligned) names.append(name);
    }
    return names;
  }

  FixedKeyTiles fixed_key_tiles(const Problem& problem) const {
    const detail::Band band = detail::make_band(problem.mask, problem.max_seq_q, problem.max_seq_k);
    FixedKeyTiles tiles{.count = static_cast<int>(detail::ceil_div(problem.max_seq_k, row_.fused.keys())),
                        .low = static_cast<int>(band.low),
                        .high = static_cast<int>(band.high)};
    const bool full = tiles.low <= 1 - problem.max_seq_q && tiles.high >= problem.max_seq_k - 1;
    tiles.beside = full ? 1 : kHeadsBeside;
    tiles.group = divmod_by(std::int64_t{tiles.beside} * tiles.count);
    tiles.kv_heads = divmod_by(problem.kv_heads);
    return tiles;
  }

  void fill_tensors() {
    const Problem& p = problem_;
    const auto tensor = [](const detail::RowStrides& strides, std::int32_t alignment) {
      return Tensor{{nullptr, strides}, alignment % 16 == 0};
    };
    params_.q = tensor(p.q, p.q_alignment);
    params_.k = tensor(p.k, p.k_alignment);
    params_.v = tensor(p.v, p.v_alignment);
    params_.out = tensor(p.out, p.out_alignment);
    params_.dout = tensor(p.dout, p.dout_alignment);
    params_.dq = tensor(p.dq, p.dq_alignment);
    params_.dk = tensor(p.dk, p.dk_alignment);
    params_.dv = tensor(p.dv, p.dv_alignment);
  }

  /// A CTA goes through several key tiles where each is of one head, so that it loads queries once.
  void fill_dbias() {
    const Problem& p = problem_;
    const detail::BiasStrides& of = p.dbias_extents;
    params_.dbias_strides = p.dbias;
    params_.dbias_extents = of;
    const bool whole = of.batch == p.batch && of.head == p.heads && of.row > 1 && of.key > 1;
    params_.dbias_group = whole ? 8 : 1;
  }

  /// Returns its bytes.
  std::size_t place_workspace(listed::Params& params, void* base) const {
    detail::WorkspaceArena arena = arena_at(base);
    place_shared(arena, params, problem_.has_sink);
    const std::int64_t queries = std::int64_t{params.heads} * params.query_tiles * kQueryTile;
    params.dq_sums = arena.take<float>(fused_ ? queries * row_.head_dim_qk : 0);
    if (problem_.has_block_mask()) place_lists(arena, params.lists, problem_);
    return arena.bytes();
  }

  /// Adds the arguments of a run.
  void fill(listed::Params& params, const AttentionBackwardArgs& args) const {
    fill_run(params, problem_, args);
    if (problem_.has_block_mask()) fill_lists_of(params.lists, problem_, args.forward);
    params.q.data = args.forward.q;
    params.k.data = args.forward.k;
    params.v.data = args.forward.v;
    params.out.data = args.forward.out;
    params.dout.data = args.dout;
    params.dq.data = args.dq;
    if (biased()) params.bias = {problem_, args.forward};
    params.dbias = args.dbias;
    params.dk.data = args.dk;
    params.dv.data = args.dv;
  }

  int multiprocessors_;
  int tuning_ = 0;                  // of the dense kernels
  std::vector<int> listed_rows_{};  // of those for block masks: dq first, then dk
  Tuning row_{};
  bool fused_ = false;  // one kernel for all gradients, whose sums of dq have no order
  listed::Params params_{};
};

detail::PlanResult<AttentionBackwardArgs> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kLowest, kAnyLater)) return *reason;
  if (Result<void> good = accept(problem); !good) return good.error();
  if (problem.has_score_terms()) {
    const std::int64_t most = std::max(problem.head_dim_qk, problem.head_dim_v);
    if (most > kBiasedTunings.back().head_dim_qk) return declined("head_dim (with ALiBi, a bias or dropout)", most, "at most 128");
  }
  auto state = std::make_shared<State>(problem, device, *properties(device));
  if (state->dbias_ctas() >= kLimit) return declined("bias.shape (tiles)", state->dbias_ctas(), "below 2^30");
  const std::int64_t tiles = most_tiles(problem, state->key_tile());
  if (tiles >= kLimit) return declined("q.shape, k.shape (tiles)", tiles, "below 2^30");
  return std::shared_ptr<const detail::PlanState<AttentionBackwardArgs>>(std::move(state));
}

constexpr detail::Implementation<detail::AttentionBackward> kRow{
    kName,
    "f16, bf16; head dims that are multiples of 8 up to 256; any strides",
    detail::handles<detail::AttentionBackward>("ragged", "full_block_indices", "partial_block_indices", "mask.left", "mask.right",
                                               "mask.anchor (top_left)", "softcap", "sink", "dlse", "alibi_slopes", "bias", "dropout_p",
                                               "dbias", "options.batch_invariant", "options.deterministic"),
    Backend::cuda,
    unavailable<kLowest, kAnyLater>,
    plan};

}  // namespace
}  // namespace attention_backward

detail::Implementations<detail::AttentionBackward> implementations(detail::AttentionBackward) { return {&attention_backward::kRow, 1}; }

}  // namespace fovea::gpu::portable
