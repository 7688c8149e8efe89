// SPDX-License-Identifier: Apache-2.0
/// Shared by the planners of dense and of paged attention.
#pragma once

#include <memory>
#include <string>

#include "cpu/attention/schedule.hpp"
#include "cpu/attention/setup.hpp"
#include "cpu/implementations.hpp"
#include "op/common/attention_core.hpp"
#include "op/common/head_dims.hpp"
#include "plan/implementation.hpp"

namespace fovea::cpu {

/// Chooses the tile sizes from the shape. README.md has the measurements.
constexpr Tuning choose_tuning(const detail::AttentionCore& core, const AttentionKernels& kernels, int threads, bool ragged) {
  Tuning t{};
  const std::int64_t group = core.group(), max_rows = std::max<std::int64_t>(core.max_seq_q, 1) * group;
  const std::int64_t dims = core.head_dim_qk + core.head_dim_v;

  // A few calls of the micro-kernel share a panel while it is in the first-level cache.
  t.chunk_rows = kernels.block_rows * (kernels.block_rows <= 8 ? 8 : 2);
  t.kv_tile = core.exact_rows ? 128 : 512;  // few rows of many heads pack a tile of each
  t.few_rows = 8;
  t.packs_few = core.exact_rows;
  while (t.kv_tile > 64 && t.kv_tile * dims * kernels.operand_bytes > kernels.tile_bytes) t.kv_tile /= 2;
  t.stream_tile = 128;
  t.split_rows = static_cast<int>(std::clamp<std::int64_t>(group, 16, kMostSplitRows));
  t.split_keys = static_cast<int>(core.exact_rows ? kExactSplitKeys : kSplitKeys);

  // Fewer rows share a packing if some threads would otherwise have no work. No sum depends on it.
  std::int64_t rows = 1024;
  while (rows > kMinQRows && rows * (core.head_dim_qk * kernels.operand_bytes + core.head_dim_v * 4) > kernels.row_bytes) rows /= 2;
  const std::int64_t heads = core.kv_heads * (ragged ? 1 : std::max<std::int64_t>(core.batch, 1));
  while (rows > kMinQRows && heads * ceil_div(max_rows, rows) < 4 * threads) rows /= 2;
  t.q_rows = static_cast<int>(round_up(std::min(std::max<std::int64_t>(rows, t.split_rows), max_rows), kernels.block_rows));
  return t;
}

/// Whether both operands are exactly bf16 values.
constexpr bool has_bf16_products(const detail::AttentionCore& core) {
  const auto is_bf16 = [](DType dtype) { return dtype == DType::bf16 || dtype == DType::e4m3; };
  return is_bf16(core.q_dtype) && is_bf16(core.kv_dtype);
}

/// Options that the attention engine computes, for every operation that it serves.
inline constexpr std::array<std::string_view, 22> kEngineOptions{"ragged",
                                                                 "mask.left",
                                                                 "mask.right",
                                                                 "mask.anchor (top_left)",
                                                                 "softcap",
                                                                 "sink",
                                                                 "lse",
                                                                 "q_scale",
                                                                 "k_scale",
                                                                 "v_scale",
                                                                 "cache_scale",
                                                                 "options.batch_invariant",
                                                                 "alibi_slopes",
                                                                 "bias",
                                                                 "dropout_p",
                                                                 "packed_mask",
                                                                 "k_format",
                                                                 "v_format",
                                                                 "k_scale_cache",
                                                                 "v_scale_cache",
                                                                 "full_block_indices",
                                                                 "partial_block_indices"};

/// Fills in everything but the strides of K and V.
template <class Isa>
Setup make_setup(const detail::AttentionCore& core, bool ragged) {
  const bool bf16 = Isa::bf16() != nullptr && has_bf16_products(core);
  Setup setup{.core = core, .ragged = ragged, .attention = bf16 ? Isa::bf16() : &Isa::kernels().attention, .rows = &Isa::kernels().rows};
  setup.threads = threads_of(core);
  setup.tuning = choose_tuning(core, *setup.attention, setup.threads, ragged);
  if (core.has_score_bias() || core.dropout_p > 0) setup.tuning.few_rows = 0;  // packed tiles alone have them
  return setup;
}

std::string describe(const Setup& setup);

/// Says what no kernel here takes of dense attention.
inline std::optional<Error> decline_dense(const detail::AttentionCore& core) {
  if (core.q_dtype == DType::f64) return detail::declined("q.dtype", "f64", "f32, f16, bf16 or e4m3 (the reference computes f64)");
  return detail::decline_widest_head_dims(core);
}

inline Call common_call(const auto& args) {
  return {.q = args.q,
          .out = args.out,
          .lse = args.lse,
          .sink = args.sink,
          .k_scale = args.k_scale,
          .v_scale = args.v_scale,
          .cu_seqlens_q = args.cu_seqlens_q};
}

/// A plan of dense or paged attention. The CPU needs no schedule from prepare(): building one takes less time than one tile. run() reads
/// and checks the lengths in any case.
template <class Problem, class Args>
class AttentionState final : public detail::PlanState<Args> {
 public:
  using MakeCall = Call (*)(const Args&);

  AttentionState(std::string_view name, const Problem& problem, const Setup& setup, MakeCall make_call)
      : problem_(problem), setup_(setup), make_call_(make_call) {
    this->implementation = name;
    this->workspace_bytes = map_workspace(setup, nullptr).bytes;
  }

  Result<void> prepare(const Args& args, Workspace workspace, Stream) const override { return check(args, workspace); }

  Result<void> run(const Args& args, Workspace workspace, Stream, bool) const override {
    if (Result<void> good = check(args, workspace); !good) return good;
    attend(setup_, make_call_(args), static_cast<std::byte*>(workspace.data));
    return {};
  }

  std::string tuning() const override { return describe(setup_); }

 private:
  Result<void> check(const Args& args, Workspace workspace) const {
    if (Result<void> good = check_args(problem_, args); !good) return good;
    if (Result<void> good = detail::check_workspace(workspace, this->workspace_bytes); !good) return good;
    return check_lengths(problem_, args);
  }

  Problem problem_;
  Setup setup_;
  MakeCall make_call_;
};

}  // namespace fovea::cpu
