// SPDX-License-Identifier: Apache-2.0
/// Dense attention, forward: accepts or declines, and launches.
#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "gpu/cuda/common/attention_plan.hpp"
#include "gpu/cuda/common/combine_splits.cuh"
#include "gpu/cuda/common/instances.hpp"
#include "gpu/cuda/sm90/attention/alibi/config.hpp"
#include "gpu/cuda/sm90/attention/config.hpp"
#include "gpu/cuda/sm90/attention/one_wave/plan.hpp"
#include "gpu/cuda/sm90/block_attention/plan.hpp"
#include "gpu/cuda/sm90/dense/plan.hpp"
#include "gpu/cuda/sm90/dense/storage.cuh"
#include "gpu/cuda/sm90/implementations.hpp"
#include "gpu/cuda/sm90/paged_attention/tuning.hpp"
#include "gpu/cuda/sm90/wide_attention/config.hpp"
#include "gpu/plan_state.hpp"
#include "op/attention/problem.hpp"
#include "op/common/head_dims.hpp"

namespace fovea::gpu::sm90::attention {
namespace {

using detail::declined;
using Problem = detail::AttentionProblem;

constexpr std::string_view kName = "cuda.sm90.attention", kName8Bit = "cuda.sm90.attention_e4m3";

using Launch = CudaStatus (*)(const Params&, int, int, Stream);

template <bool kTransform>
Launch e4m3_launch_of(int tuning) {
  return function_of_row<tunings_of(true).size()>(
      tuning, [](auto row) -> Launch { return &launch_attend<Config<__nv_fp8_e4m3, row.value, kTransform>>; });
}
Launch launch_of(DType dtype, bool transform, int tuning) {
  if (dtype == DType::e4m3) return transform ? e4m3_launch_of<true>(tuning) : e4m3_launch_of<false>(tuning);
  return instance_of<tunings_of(false).size()>(dtype, transform, tuning, [](auto of) -> Launch {
    return &launch_attend<Config<typename decltype(of)::Element, of.kRow, of.kWith>>;
  });
}
Launch wide_launch_of(DType dtype, bool transform, int tuning) {
  return instance_of<wide_attention::kTunings.size()>(dtype, transform, tuning, [](auto of) -> Launch {
    return &launch_attend<wide_attention::Config<typename decltype(of)::Element, of.kRow, of.kWith>>;
  });
}

auto alibi_launch_of(DType dtype, int tuning) {
  return instance_of<alibi::kTunings.size()>(
      dtype, tuning, [](auto of) { return &alibi::launch_with_alibi<alibi::Config<typename decltype(of)::Element, of.kRow>>; });
}

/// Declines problems with ALiBi that are left to others.
Result<void> accept_alibi(const Problem& p) {
  if (p.exact_rows) return declined("alibi_slopes", "slopes", "none with exact rows");
  if (auto reason = detail::decline_head_dims(p)) return *reason;
  // A work tile has one slope. Few rows of several heads are faster where heads share a tile.
  if (const int packed = packed_heads(p.group(), p.max_seq_q, dense::kWarpgroupRows, dense::kWarpgroupRows); packed > 1)
    return declined("q.shape (rows, with alibi_slopes)", p.max_seq_q, "more, or one query head to a kv head");
  return {};
}

class State final : public PlanState<Problem, AttentionArgs> {
 public:
  State(const Problem& problem, Device device, const DeviceProperties& properties)
      : PlanState(problem.q_dtype == DType::e4m3 ? kName8Bit : kName, problem, device), multiprocessors_(properties.multiprocessors) {
    if (!is_wide() && !problem.has_alibi_slopes) one_wave_ = one_wave::call_of(problem, multiprocessors_);
    index_ = row_for(problem);
    const Tuning& tuning = tuning_row();
    // A box of several heads needs a stride between them; a warpgroup's rows are loaded as one box.
    const int most = problem.q.head == 0 ? 1 : dense::kWarpgroupRows;
    const int packed = problem.has_alibi_slopes ? 1 : packed_heads(problem.group(), problem.max_seq_q, tuning.row_tile(), most);
    const std::int64_t tokens = tuning.cluster * tuning.row_tile() / packed;  // of a cluster
    const std::int64_t q_tiles = detail::ceil_div(problem.max_seq_q, tokens), heads = problem.heads / packed * problem.batch;
    const std::int64_t key_tiles = detail::ceil_div(most_keys(problem, tokens), tuning.key_tile);
    // Ragged batches are not split: their workspace would shrink where bounds grow.
    const bool whole = problem.batch_invariant || problem.exact_rows || problem.ragged || one_wave_.has_value();
    const int splits = whole ? 1 : splits_of(q_tiles * heads, key_tiles / kLeastSplitTiles, clusters());
    work_tiles_ = q_tiles * heads * splits;
    while (params_.packed() < packed) ++params_.packed_shift;
    const bool first = short_tile_first(tuning, is_8bit()) && dense::is_causal_alone(problem);
    const bool cheap_last = !tuning.overlap && !first;
    params_.order = dense::tile_order(problem, tokens, heads * splits, ctas() / tuning.cluster, cheap_last);
    fill_problem(params_, problem);
    params_.rows = problem.total_q;
    params_.splits = splits;
    splits_ = splits_for(problem, splits);
    splits_.head_dim_v = static_cast<int>(std::min(problem.head_dim_v, kMostColumns));
    params_.lse_strides = problem.lse;
    // Above 0, so that minus infinity stays so.
    params_.scale_log2 = in_base_2(has_natural_alibi() ? 1.0 : problem.scale, std::numeric_limits<float>::min());
    draws_ = !one_wave_ && dense::draws_tickets(problem, work_tiles_, packed, multiprocessors_);
    params_.tickets.section_keys = dense::section_keys(problem);
    if (draws_ && !problem.ragged) params_.sections = dense::section_order(problem, tokens, packed);
    workspace_bytes = splits_.bytes();
    // Room without tickets too: a ragged batch's workspace may not shrink where bounds grow.
    if (draws_ || problem.ragged) workspace_bytes += dense::ticket_bytes(problem.ragged ? problem.batch : 0);
  }

  std::int64_t work_tiles() const { return work_tiles_; }
  std::string tuning() const override {
    if (one_wave_) return one_wave_->tuning();
    return tiles_text(tuning_row(), params_.packed(), splits_.count)
        .append(is_8bit() ? kE4m3Products : "")
        .append(problem_.has_alibi_slopes ? ", with ALiBi" : "");
  }

 private:
  static constexpr int kLeastSplitTiles = 4;         // key tiles
  static constexpr std::int64_t kMostColumns = 256;  // of a launch's results

  bool is_empty() const override { return problem_.batch == 0 || problem_.total_q == 0 || problem_.max_seq_q == 0; }

  Result<void> compute(const AttentionArgs& args, Workspace workspace, Stream stream, bool) const override {
    if (one_wave_) return one_wave_->run(problem_, args, device_.ordinal, stream);
    for (std::int64_t column = 0; column < problem_.head_dim_v; column += kMostColumns) {
      if (Result<void> good = compute_columns(column, columns_from(column, args), workspace, stream); !good) return good;
    }
    return {};
  }

  /// The arguments of a launch for results from `column` on; the first one stores lse.
  AttentionArgs columns_from(std::int64_t column, const AttentionArgs& args) const {
    if (column == 0) return args;
    AttentionArgs part = args;
    const auto bytes = column * static_cast<std::int64_t>(size_of(problem_.q_dtype));
    part.v = static_cast<const std::byte*>(args.v) + bytes;
    part.out = static_cast<std::byte*>(args.out) + bytes;
    part.lse = nullptr;
    return part;
  }

  Result<void> compute_columns(std::int64_t column, const AttentionArgs& args, Workspace workspace, Stream stream) const {
    Params params = params_;
    Splits splits = splits_;
    params.head_dim_v = splits.head_dim_v = static_cast<int>(std::min(problem_.head_dim_v - column, kMostColumns));
    fill_splits(splits, problem_, args, workspace.data);
    params.partial_out = splits.out;
    params.partial_lse = splits.lse;
    if (Result<void> good = fill(params, args); !good) return good;
    if (Result<void> good = prepare_tickets(params, workspace, stream); !good) return good;
    Result<void> done = launch(params, args, stream);
    return done && splits.count > 1 ? launch_combine<true>(splits, problem_.out_dtype, stream) : done;
  }

  Result<void> launch(const Params& params, const AttentionArgs& args, Stream stream) const {
    const DType dtype = problem_.q_dtype;
    if (problem_.has_alibi_slopes) {
      const alibi::Params with{params, dense::alibi_of(problem_, args.alibi_slopes)};
      return alibi_launch_of(dtype, index_)(with, ctas(), device_.ordinal, stream);
    }
    const bool transform = transforms_scores(problem_);
    const Launch launch = is_wide() ? wide_launch_of(dtype, transform, index_) : launch_of(dtype, transform, index_);
    return launch(params, ctas(), device_.ordinal, stream);
  }

  /// Has CTAs draw tickets, which are behind all else in the workspace.
  Result<void> prepare_tickets(Params& params, Workspace workspace, Stream stream) const {
    if (!draws_) return {};
    auto* at = static_cast<std::byte*>(workspace.data) + splits_.bytes();
    params.tickets.drawn = reinterpret_cast<int*>(at);
    if (problem_.ragged) params.tickets.sequences = params.tickets.drawn + dense::kTicketInts;
    const dense::SequenceLengths lengths{params.cu_seqlens_q, params.cu_seqlens_k, params.batch, params.seq_q, params.seq_k};
    return dense::launch_prepare(params.tickets, lengths, stream);
  }

  /// Exact rows have the tiles of paged attention for sequences of any length: equal tiles give equal bits.
  int row_for(const Problem& problem) const {
    if (problem.exact_rows) return paged_attention::row_of(paged_attention::kernel_of(problem.head_dim_qk, problem.head_dim_v, 0));
    return tuning_index(tunings(), problem.head_dim_qk, std::min(problem.head_dim_v, kMostColumns), query_rows(), same_keys());
  }

  /// Query rows by which tuning.hpp chooses tiles. Long sequences have most of a ragged batch's work,
  /// unless nearly all are short. Under a causal mask, tiles of 128 rows serve lengths below 6144, as they
  /// lose less at the diagonal, or below 4096 with tickets. With batch_invariant, no length chooses.
  std::int64_t query_rows() const {
    if (problem_.batch_invariant) return 0;
    if (problem_.ragged) {
      const std::int64_t average = problem_.total_q / std::max<std::int64_t>(problem_.batch, 1);
      return std::min(2 * problem_.max_seq_q, 8 * average);
    }
    if (problem_.mask.right == kUnbounded) return problem_.max_seq_q;
    if (!dense::is_causal_alone(problem_) || problem_.has_alibi_slopes) return problem_.max_seq_q / 2;
    return dense::has_wide_sections(problem_, 1) ? problem_.max_seq_q : problem_.max_seq_q * 2 / 3;
  }

  /// Whether all query tiles of a head see the same keys.
  bool same_keys() const { return !problem_.ragged && problem_.mask.left == kUnbounded && problem_.mask.right == kUnbounded; }

  bool is_8bit() const { return size_of(problem_.q_dtype) == 1; }
  bool is_wide() const { return std::max(problem_.head_dim_qk, problem_.head_dim_v) > detail::kMaxHeadDim; }
  bool has_natural_alibi() const { return problem_.has_alibi_slopes && dense::has_natural_scores(problem_); }
  Rows tunings() const {
    if (problem_.has_alibi_slopes) return alibi::kTunings;
    return is_wide() ? Rows(wide_attention::kTunings) : tunings_of(is_8bit());
  }
  const Tuning& tuning_row() const { return tunings()[static_cast<std::size_t>(index_)]; }
  /// Clusters, or CTAs without them, that the device runs at once.
  int clusters() const { return multiprocessors_ / tuning_row().cluster; }
  int ctas() const { return static_cast<int>(std::min<std::int64_t>(work_tiles_, clusters())) * tuning_row().cluster; }

  /// Sets the fields that a run knows.
  Result<void> fill(Params& params, const AttentionArgs& args) const {
    const int packed = params.packed(), keys = tuning_row().key_tile / tuning_row().cluster;
    std::array<RowsDesc, 4> tensors = dense::forward_tensors(problem_, problem_.out_dtype);
    tensors[2].columns = tensors[3].columns = params.head_dim_v;
    dense::fill_rows(params, tensors, {args.q, args.k, args.v, args.out}, dense::kWarpgroupRows / packed, keys);
    params.f32_out = problem_.out_dtype == DType::f32;
    if (Result<void> good = dense::encode_maps(params, tensors, packed, stages_results(tuning_row(), !is_8bit())); !good) return good;
    params.q_scale = dense::descale_of(problem_.q_scale, args.q_scale);
    params.k_scale = dense::descale_of(problem_.k_scale, args.k_scale);
    params.v_scale = dense::descale_of(problem_.v_scale, args.v_scale);
    fill_lists(params, problem_, args);
    params.lse = problem_.has_lse ? args.lse : nullptr;
    return {};
  }

  int multiprocessors_;
  std::optional<one_wave::Call> one_wave_;  ///< in place of all that follows
  int index_ = 0;                           ///< row of tuning.hpp
  std::int64_t work_tiles_ = 0;
  bool draws_ = false;  ///< CTAs draw tickets
  Splits splits_{};
  Params params_{};
};

template <bool k8Bit>
detail::PlanResult<AttentionArgs> plan(const Problem& problem, Device device) {
  if (auto reason = decline_device(device, kCapability, kCapability)) return *reason;
  const bool is_8bit = problem.q_dtype == DType::e4m3, is_16bit = problem.q_dtype == DType::bf16 || problem.q_dtype == DType::f16;
  if (!(k8Bit ? is_8bit : is_16bit)) return declined("q.dtype", name_of(problem.q_dtype), k8Bit ? "e4m3" : "bf16 or f16");
  const bool narrow = k8Bit || problem.exact_rows;
  if (auto reason = narrow ? detail::decline_head_dims(problem) : detail::decline_widest_head_dims(problem)) return *reason;
  if (Result<void> good = dense::accept_dense(problem, dense::forward_tensors(problem, problem.out_dtype)); !good) return good.error();
  if (problem.has_alibi_slopes) {
    if (Result<void> good = accept_alibi(problem); !good) return good.error();
  }
  auto state = std::make_shared<State>(problem, device, *properties(device));
  if (state->work_tiles() >= kCountLimit) return declined("q.shape (work tiles)", state->work_tiles(), "below 2^30");
  return std::shared_ptr<const detail::PlanState<AttentionArgs>>(std::move(state));
}

using Row = detail::Implementation<detail::Attention>;
constexpr Row kRows[]{
    {kName, "f16, bf16; head dims that are multiples of 8 up to 512; rows aligned to 16 bytes",
     detail::handles<detail::Attention>(kScoreOptions, "ragged", "alibi_slopes", "options.batch_invariant", "options.exact_rows"),
     Backend::cuda, unavailable<kCapability, kCapability>, plan<false>},
    {kName8Bit, "e4m3; head dims up to 256; rows aligned to 16 bytes; probabilities are rounded to e4m3",
     detail::handles<detail::Attention>(kScoreOptions, "ragged", "q_scale", "k_scale", "v_scale", "options.batch_invariant"), Backend::cuda,
     unavailable<kCapability, kCapability>, plan<true>},
    {block_attention::kName, "block masks; f16, bf16; head dims up to 128; blocks of 128; rows aligned to 16 bytes",
     detail::handles<detail::Attention>(kScoreOptions, "ragged", "q_scale", "k_scale", "v_scale", "full_block_indices",
                                        "partial_block_indices", "options.batch_invariant"),
     Backend::cuda, unavailable<kCapability, kCapability>, block_attention::plan},
};

}  // namespace
}  // namespace fovea::gpu::sm90::attention

namespace fovea::gpu::sm90 {

detail::Implementations<detail::Attention> implementations(detail::Attention) { return attention::kRows; }

}  // namespace fovea::gpu::sm90
