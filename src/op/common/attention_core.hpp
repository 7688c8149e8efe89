// SPDX-License-Identifier: Apache-2.0
/// Dense, paged and latent attention share these members and their checks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fovea/mask.hpp"
#include "fovea/packed_mask.hpp"
#include "fovea/tensor.hpp"
#include "op/common/checks.hpp"
#include "op/common/strides.hpp"

namespace fovea::detail {

/// The common part of dense and paged attention, once they are validated.
struct AttentionCore {
  DType q_dtype{}, kv_dtype{}, out_dtype{};
  std::int64_t batch = 0;
  std::int64_t total_q = 0;    ///< rows of q over the whole batch
  std::int64_t max_seq_q = 0;  ///< the length of each sequence, or its bound when ragged
  std::int64_t max_seq_k = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim_qk = 0, head_dim_v = 0;
  RowStrides q{}, out{}, lse{};
  BandMask mask{};
  double scale = 0.0;    ///< resolved: never 0; an f32 value unless q is f64, as softcap is
  double softcap = 0.0;  ///< 0: none
  bool has_lse = false, has_sink = false, batch_invariant = false, exact_rows = false;
  std::optional<ScaleDesc> k_scale{}, v_scale{};
  std::optional<PackedMaskDesc> packed_mask{};
  /// Bytes to which run()'s pointers must be aligned, and to which every row then is.
  std::int32_t q_base_alignment = 0, k_base_alignment = 0, v_base_alignment = 0, out_base_alignment = 0;
  std::int32_t q_alignment = 0, k_alignment = 0, v_alignment = 0, out_alignment = 0;

  bool has_alibi_slopes = false, has_bias = false;
  ScaleDesc alibi_slopes{};  ///< strides
  BiasStrides bias{};
  double dropout_p = 0.0;

  /// Whether something is added to the scores.
  constexpr bool has_score_bias() const { return has_alibi_slopes || has_bias; }
  /// Whether there is a bias or dropout.
  constexpr bool has_score_terms() const { return has_score_bias() || dropout_p > 0; }
  /// Query heads that share one kv head: head h reads kv head h / group().
  constexpr std::int64_t group() const { return heads / kv_heads; }
};

inline constexpr std::int64_t kMaxHeadDim = 256;  // of most entries; see head_dims.hpp

/// With nine digits: no two floats have the same ones.
std::string number_text(double number);

/// scale, softcap and head counts. Resolves core.scale and rounds core.softcap. The shape fields and softcap of `core` are set before.
void check_scalars(Checker& check, double scale, AttentionCore& core);

/// The promises of the four descriptions about addresses.
void set_alignments(AttentionCore& core, const TensorDesc& q, const TensorDesc& k, const TensorDesc& v, const TensorDesc& out);

/// An f32 tensor with one number a row and head, [batch, head, seq_q] or [total_q, head], such as lse. Returns its strides.
RowStrides check_row_numbers(Checker& check, std::string_view name, const TensorDesc& desc, const AttentionCore& core, bool ragged,
                             bool is_output = true);

/// The optional lse: sets core.lse and core.has_lse.
void check_lse(Checker& check, std::string_view name, const std::optional<TensorDesc>& lse, AttentionCore& core, bool ragged);

/// Head dims that most kernels do not take; the reason a planner declines with.
std::optional<Error> decline_head_dims(const AttentionCore& core);

/// A bound of lengths, which are i32: 0 to 2^31 - 1.
void check_bound(Checker& check, std::string_view name, std::int64_t bound);

/// cu[0] >= 0, never decreasing, cu[batch] <= total, each length <= bound.
void check_cu_seqlens(Checker& check, std::string_view name, std::span<const std::int32_t> cu, std::int64_t total, std::int64_t bound);

/// A block-table cache as far as lengths and block numbers go.
struct BlockTableView {
  const std::int32_t* entries = nullptr;
  std::int64_t stride = 0;  ///< from one sequence to the next
  std::int64_t page = 0, blocks = 0;
  std::int64_t max_kv_len = 0;  ///< the planned bound
};

/// The most keys of a sequence: what its row of the table has room for, and `max_kv_len` where that says less; 0 says nothing.
std::int64_t bound_of_keys(std::int64_t max_kv_len, std::int64_t max_blocks, std::int64_t page);

/// kv_len[b] is within its bound, and every block that holds a key which some of the sequence's `seq_q` rows sees has a number inside
/// the cache. Other entries may hold anything.
void check_sequence_blocks(Checker& check, const BlockTableView& table, const BandMask& mask, std::int64_t b, std::int64_t seq_q,
                           std::int64_t kv_len);

}  // namespace fovea::detail
