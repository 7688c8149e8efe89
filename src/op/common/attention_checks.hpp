// SPDX-License-Identifier: Apache-2.0
/// Checks that dense and paged attention share.
#pragma once

#include <string>

#include "op/common/attention_core.hpp"
#include "op/common/checks.hpp"

namespace fovea::detail {

inline constexpr std::int64_t kMaxHeadDim = 256;

/// With nine digits: no two floats have the same ones.
std::string number_text(double number);

/// scale, softcap and head counts; fills core.scale. Call it once the shape fields of `core` are set.
void check_scalars(Checker& check, double scale, double softcap, AttentionCore& core);

/// What the four descriptions promise about addresses.
void set_alignments(AttentionCore& core, const TensorDesc& q, const TensorDesc& k, const TensorDesc& v, const TensorDesc& out);

/// An f32 tensor with one number a row and head, [batch, head, seq_q] or [total_q, head], such as lse. Returns its strides.
RowStrides check_row_numbers(Checker& check, std::string_view name, const TensorDesc& desc, const AttentionCore& core, bool ragged,
                             bool is_output = true);

/// The optional lse: sets core.lse and core.has_lse.
void check_lse(Checker& check, std::string_view name, const std::optional<TensorDesc>& lse, AttentionCore& core, bool ragged);

/// Head dims that no kernel takes; the reason a planner declines with.
std::optional<Error> decline_head_dims(const AttentionCore& core);

/// A bound of lengths, which are i32: 0 to 2^31 - 1.
void check_bound(Checker& check, std::string_view name, std::int64_t bound);

/// cu[0] >= 0, never decreasing, cu[batch] <= total, each length <= bound.
void check_cu_seqlens(Checker& check, std::string_view name, std::span<const std::int32_t> cu, std::int64_t total, std::int64_t bound);

}  // namespace fovea::detail
