// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "fovea/quantized_attention.hpp"
#include "op/attention/problem.hpp"
#include "op/common/checks.hpp"
#include "op/common/option.hpp"
#include "op/common/workspace_arena.hpp"

namespace fovea::detail {

/// The sequences of a batch whose tokens are quantised.
struct TokenBatch {
  bool ragged = false;
  std::int64_t batch = 0, total_q = 0, total_k = 0;
  std::int64_t max_seq_q = 0, max_seq_k = 0;
  std::optional<BandMask> mask{};  ///< keys that no row sees are not read; without one, all are
  Extents extents{};
};

/// One tensor and its quantised twin. `scale` is a row's stride between groups (RowStrides::row); for V between sequences and heads.
struct QuantizedTensor {
  DType dtype{}, to_dtype{};
  std::int64_t heads = 0, head_dim = 0;
  RowStrides from{}, to{}, scale{}, mean{};
  bool has_scale = false, has_mean = false;
  std::int32_t from_alignment = 0, to_alignment = 0;
};

struct QuantizeQkInt8Problem : TokenBatch {
  QuantizedTensor q{}, k{};
  RowStrides lse_shift{};
  bool has_lse_shift = false;
  Int8Groups groups{};
};

struct QuantizeVProblem : TokenBatch {
  QuantizedTensor v{};
};

/// q_dtype and kv_dtype are i8; v has a dtype of its own.
struct QuantizedAttentionProblem : AttentionProblem {
  DType v_dtype{};
  Int8Groups groups{};
  RowStrides q_scales{}, k_scales{}, v_scales{}, v_means{}, lse_shift{};
  bool has_v_scale = false, has_v_mean = false, has_lse_shift = false;
  bool v_in_tiles = false;  ///< v lies as an entry's kernel reads it. quantize_and_attend alone says so, to an entry that it knows.
};

/// The steps of the whole, on dense tensors between them.
struct QuantizeAndAttendProblem {
  AttentionProblem whole{};  ///< as the caller sees it
  QuantizeQkInt8Problem qk{};
  QuantizeVProblem v{};
  QuantizedAttentionProblem attention{};
  /// Elements of the tensors between the steps; 0 where there is none.
  std::int64_t q_int8 = 0, k_int8 = 0, q_scale = 0, k_scale = 0, k_mean = 0, lse_shift = 0, v_bytes = 0, v_scale = 0, v_mean = 0;
  Extents extents{};
};

inline constexpr std::array kQuantizeQkInt8Options{
    option::kRagged<QuantizeQkInt8Problem>,
    Option<QuantizeQkInt8Problem>{"k_mean", [](const QuantizeQkInt8Problem& p) { return p.k.has_mean; }},
    Option<QuantizeQkInt8Problem>{"lse_shift", [](const QuantizeQkInt8Problem& p) { return p.has_lse_shift; }},
    Option<QuantizeQkInt8Problem>{"groups.granularity",
                                  [](const QuantizeQkInt8Problem& p) { return p.groups.granularity != Int8Groups{}.granularity; }},
    Option<QuantizeQkInt8Problem>{"groups.warp_rows",
                                  [](const QuantizeQkInt8Problem& p) { return p.groups.warp_rows != Int8Groups{}.warp_rows; }}};
inline constexpr std::array kQuantizeVOptions{option::kRagged<QuantizeVProblem>,
                                              Option<QuantizeVProblem>{"v_scale", [](const QuantizeVProblem& p) { return p.v.has_scale; }},
                                              Option<QuantizeVProblem>{"v_mean", [](const QuantizeVProblem& p) { return p.v.has_mean; }}};
inline constexpr std::array kQuantizeAndAttendOptions{
    Option<QuantizeAndAttendProblem>{"ragged", [](const QuantizeAndAttendProblem& p) { return p.whole.ragged; }},
    Option<QuantizeAndAttendProblem>{"mask.left", [](const QuantizeAndAttendProblem& p) { return p.whole.mask.left != kUnbounded; }},
    Option<QuantizeAndAttendProblem>{"mask.right", [](const QuantizeAndAttendProblem& p) { return p.whole.mask.right != kUnbounded; }},
    Option<QuantizeAndAttendProblem>{"mask.anchor (top_left)",
                                     [](const QuantizeAndAttendProblem& p) { return p.whole.mask.anchor == Anchor::top_left; }},
    Option<QuantizeAndAttendProblem>{"lse", [](const QuantizeAndAttendProblem& p) { return p.whole.has_lse; }},
    Option<QuantizeAndAttendProblem>{"v_dtype (e4m3)", [](const QuantizeAndAttendProblem& p) { return p.v.v.has_scale; }},
    Option<QuantizeAndAttendProblem>{"smooth_k", [](const QuantizeAndAttendProblem& p) { return p.qk.k.has_mean; }},
    Option<QuantizeAndAttendProblem>{"smooth_v", [](const QuantizeAndAttendProblem& p) { return p.v.v.has_mean; }},
    Option<QuantizeAndAttendProblem>{
        "groups.granularity", [](const QuantizeAndAttendProblem& p) { return p.attention.groups.granularity != Int8Groups{}.granularity; }},
    Option<QuantizeAndAttendProblem>{
        "groups.warp_rows", [](const QuantizeAndAttendProblem& p) { return p.attention.groups.warp_rows != Int8Groups{}.warp_rows; }},
    Option<QuantizeAndAttendProblem>{"options.batch_invariant", [](const QuantizeAndAttendProblem& p) { return p.whole.batch_invariant; }}};

Result<QuantizeQkInt8Problem> validate(const QuantizeQkInt8Desc& desc, const PlanOptions& options);
Result<QuantizeVProblem> validate(const QuantizeVDesc& desc, const PlanOptions& options);
Result<QuantizedAttentionProblem> validate(const QuantizedAttentionDesc& desc, const PlanOptions& options);
Result<QuantizeAndAttendProblem> validate(const QuantizeAndAttendDesc& desc, const PlanOptions& options);

Result<void> check_args(const QuantizeQkInt8Problem& problem, const QuantizeQkInt8Args& args);
Result<void> check_args(const QuantizeVProblem& problem, const QuantizeVArgs& args);
Result<void> check_args(const QuantizedAttentionProblem& problem, const QuantizedAttentionArgs& args);
Result<void> check_args(const QuantizeAndAttendProblem& problem, const QuantizeAndAttendArgs& args);

Result<void> check_lengths(const QuantizeQkInt8Problem& problem, const QuantizeQkInt8Args& args);
Result<void> check_lengths(const QuantizeVProblem& problem, const QuantizeVArgs& args);
Result<void> check_lengths(const QuantizedAttentionProblem& problem, const QuantizedAttentionArgs& args);
Result<void> check_lengths(const QuantizeAndAttendProblem& problem, const QuantizeAndAttendArgs& args);

/// Head dims outside the contract; the reason to decline with.
std::optional<Error> decline_int8_head_dims(const QuantizeQkInt8Problem& problem);
std::optional<Error> decline_int8_head_dims(const QuantizeVProblem& problem);
std::optional<Error> decline_int8_head_dims(const QuantizedAttentionProblem& problem);
std::optional<Error> decline_int8_head_dims(const QuantizeAndAttendProblem& problem);

/// Buffers between the steps of quantize_and_attend, in the workspace. The steps' own workspace is `rest`.
struct Between {
  std::int8_t *q = nullptr, *k = nullptr;
  std::byte *v = nullptr, *rest = nullptr;
  float *q_scale = nullptr, *k_scale = nullptr, *k_mean = nullptr, *lse_shift = nullptr, *v_scale = nullptr, *v_mean = nullptr;

  QuantizeQkInt8Args qk(const QuantizeAndAttendArgs& args) const {
    return {args.q, args.k, q, k, q_scale, k_scale, k_mean, lse_shift, args.cu_seqlens_q, args.cu_seqlens_k};
  }
  QuantizeVArgs values(const QuantizeAndAttendArgs& args) const { return {args.v, v, v_scale, v_mean, args.cu_seqlens_k}; }
  QuantizedAttentionArgs attention(const QuantizeAndAttendArgs& args) const {
    return {q, k, v, args.out, q_scale, k_scale, v_scale, v_mean, args.lse, lse_shift, args.cu_seqlens_q, args.cu_seqlens_k};
  }
};

/// Without a base it only counts bytes.
inline Between map_between(const QuantizeAndAttendProblem& problem, std::size_t rest, std::byte* base, std::size_t* bytes = nullptr) {
  WorkspaceArena arena(base);
  const auto floats = [&](std::int64_t count) { return count > 0 ? arena.take<float>(count) : nullptr; };
  Between b{};
  b.q = arena.take<std::int8_t>(problem.q_int8);
  b.k = arena.take<std::int8_t>(problem.k_int8);
  b.v = arena.take<std::byte>(problem.v_bytes);
  b.q_scale = floats(problem.q_scale);
  b.k_scale = floats(problem.k_scale);
  b.k_mean = floats(problem.k_mean);
  b.lse_shift = floats(problem.lse_shift);
  b.v_scale = floats(problem.v_scale);
  b.v_mean = floats(problem.v_mean);
  b.rest = arena.take<std::byte>(static_cast<std::int64_t>(rest));
  if (bytes != nullptr) *bytes = arena.bytes();
  return b;
}

}  // namespace fovea::detail
