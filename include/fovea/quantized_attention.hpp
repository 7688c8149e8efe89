// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "fovea/attention.hpp"

namespace fovea {

/// Which tokens share one int8 scale, together with all channels of the head.
enum class Int8Granularity : std::uint8_t {
  block,   ///< 128 query rows, 64 keys
  warp,    ///< 32 or 16 query rows, 64 keys
  thread,  ///< in those query rows the ones of equal row % 8; in 64 keys the ones of equal (key % 8) / 2: an mma accumulator fragment
};

/// The groups of one sequence and head, and the shapes that follow. Rows and keys count from the first of the sequence.
struct Int8Groups {
  Int8Granularity granularity = Int8Granularity::thread;
  int warp_rows = 32;  ///< 32 or 16; block granularity ignores it

  static constexpr std::int64_t kQBlock = 128, kKBlock = 64;

  constexpr std::int64_t q_per_block() const {
    if (granularity == Int8Granularity::block) return 1;
    return kQBlock / warp_rows * (granularity == Int8Granularity::thread ? 8 : 1);
  }
  constexpr std::int64_t k_per_block() const { return granularity == Int8Granularity::thread ? 4 : 1; }

  /// Devices divide neither by variables nor in 64 bits: that takes a thread 1000 clocks.
  template <class Int>
  constexpr Int q_group(Int row) const {
    if (granularity == Int8Granularity::block) return row / static_cast<Int>(kQBlock);
    const Int warp = warp_rows == 32 ? row / 32 : row / 16;
    return granularity == Int8Granularity::warp ? warp : warp * 8 + row % 8;
  }
  constexpr std::int64_t k_group(std::int64_t key) const {
    return granularity == Int8Granularity::thread ? key / kKBlock * 4 + key % 8 / 2 : key / kKBlock;
  }

  /// Number of blocks of a fixed batch's sequence.
  static constexpr std::int64_t blocks(std::int64_t seq, std::int64_t block) { return (seq + block - 1) / block; }
  /// A ragged sequence starts a block of its own, found without a sum over the sequences before it; all fit in ragged_blocks().
  static constexpr std::int64_t first_block(std::int64_t cu_seqlen, std::int64_t sequence, std::int64_t block) {
    return cu_seqlen / block + sequence;
  }
  static constexpr std::int64_t ragged_blocks(std::int64_t total, std::int64_t batch, std::int64_t block) { return total / block + batch; }

  /// The dense scale tensor of q: [batch, head, group], or [head, group] when ragged. `q` has at least the axes of its layout.
  constexpr TensorDesc q_scale(const TensorDesc& q, const std::optional<RaggedDesc>& ragged = {}) const {
    return scale_of(q, ragged, kQBlock, q_per_block());
  }
  /// The same of k: [batch, kv_head, group] or [kv_head, group].
  constexpr TensorDesc k_scale(const TensorDesc& k, const std::optional<RaggedDesc>& ragged = {}) const {
    return scale_of(k, ragged, kKBlock, k_per_block());
  }
  /// Numbers for each channel of a sequence: k_mean, v_mean and v_scale are [batch, kv_head, head_dim].
  static constexpr TensorDesc channels(const TensorDesc& kv, const std::optional<RaggedDesc>& ragged = {}) {
    return ragged ? contiguous(DType::f32, {ragged->batch, kv.shape[1], kv.shape[2]})
                  : contiguous(DType::f32, {kv.shape[0], kv.shape[2], kv.shape[3]});
  }

 private:
  static constexpr TensorDesc scale_of(const TensorDesc& rows, const std::optional<RaggedDesc>& ragged, std::int64_t block,
                                       std::int64_t per_block) {
    if (ragged) return contiguous(DType::f32, {rows.shape[1], ragged_blocks(rows.shape[0], ragged->batch, block) * per_block});
    return contiguous(DType::f32, {rows.shape[0], rows.shape[2], blocks(rows.shape[1], block) * per_block});
  }
};

/// Quantises q and k to symmetric int8.
///
/// For each group, with x the elements of q, or of k less `k_mean` (in f32): amax = max(max|x|, 1e-7); scale = amax / 127;
/// code = x * (127 / amax), every operation in f32, rounded half to even. A group with a NaN or an infinity gets the scale NaN and codes
/// of 0, so every row that reads it becomes NaN. Groups of a sequence's last block without a token get the scale of zeros.
///
/// Fixed batch: q, q_int8 [batch, seq_q, head, d]; k, k_int8 [batch, seq_k, kv_head, d]. Ragged: [total_q, head, d], [total_k, kv_head, d].
/// dtypes: q and k of one dtype, f32 (CPU), f16 or bf16; q_int8, k_int8 i8; the rest f32. Head dims: 64, 96, 128, 256.
///
/// K smoothing happens when k_mean is described: [batch, kv_head, d], written with the mean over the tokens of the sequence. The softmax
/// does not change. lse does, and lse_shift = q . k_mean (in f32, laid out as lse: [batch, head, seq_q] or [total_q, head]) corrects it.
/// Method: SageAttention (Zhang et al. 2024, arXiv:2410.02367) and SageAttention2 (arXiv:2411.10958).
struct QuantizeQkInt8Desc {
  TensorDesc q{}, k{}, q_int8{}, k_int8{};
  TensorDesc q_scale{}, k_scale{};  ///< shapes of Int8Groups::q_scale, k_scale; any strides
  std::optional<TensorDesc> k_mean{};
  std::optional<TensorDesc> lse_shift{};  ///< only with k_mean
  std::optional<RaggedDesc> ragged{};
  Int8Groups groups{};
};

struct QuantizeQkInt8Args {
  const void* q = nullptr;
  const void* k = nullptr;
  std::int8_t* q_int8 = nullptr;
  std::int8_t* k_int8 = nullptr;
  float* q_scale = nullptr;
  float* k_scale = nullptr;
  float* k_mean = nullptr;
  float* lse_shift = nullptr;
  const std::int32_t* cu_seqlens_q = nullptr;  ///< [batch + 1], ragged only
  const std::int32_t* cu_seqlens_k = nullptr;
};

using QuantizeQkInt8Plan = Plan<QuantizeQkInt8Args>;

/// Prepares v: e4m3 with one scale for each channel of a sequence, or f16 without scales.
///
/// With x the elements of v, less `v_mean` where it is described (V smoothing), in f32:
/// e4m3: amax = max(max|x|, 1e-7) over the tokens of the sequence; v_scale = amax / 448; code = e4m3(x * (448 / amax)), half to even. A
/// channel with a NaN or an infinity gets the scale NaN and codes of 0.
/// f16: f16(x), half to even; beyond 65504 that is infinity, so smooth or use e4m3 where v is that large.
///
/// v [batch, seq_k, kv_head, d] or [total_k, kv_head, d] in f32 (CPU), f16 or bf16; v_out alike in e4m3 or f16; v_scale (e4m3 only) and
/// v_mean f32 [batch, kv_head, d].
struct QuantizeVDesc {
  TensorDesc v{}, v_out{};
  std::optional<TensorDesc> v_scale{};  ///< exactly when v_out is e4m3
  std::optional<TensorDesc> v_mean{};
  std::optional<RaggedDesc> ragged{};  ///< max_seq_q is ignored
};

struct QuantizeVArgs {
  const void* v = nullptr;
  void* v_out = nullptr;
  float* v_scale = nullptr;
  float* v_mean = nullptr;
  const std::int32_t* cu_seqlens_k = nullptr;
};

using QuantizeVPlan = Plan<QuantizeVArgs>;

/// Attention on quantised tensors: with q = q_int8 * q_scale, k = k_int8 * k_scale, v = v_codes * v_scale + v_mean,
/// out = softmax(mask(scale * q k^T)) v and lse = log(sum(exp(scale * q k^T))) + scale * lse_shift, natural.
///
/// Layouts as above; q, k i8, codes -127 .. 127; v f16, or e4m3 with v_scale; out f16, bf16 or f32. Integer dot products are exact; scores
/// and sums are f32, and weights too but where docs/numerics.md says otherwise. A row that sees no key gives out = 0 and lse = -inf. head %
/// kv_head == 0. Rows of out and lse that no sequence of a ragged batch has as in AttentionDesc.
struct QuantizedAttentionDesc {
  TensorDesc q{}, k{}, v{}, out{};
  TensorDesc q_scale{}, k_scale{};
  std::optional<TensorDesc> v_scale{};  ///< exactly when v is e4m3
  std::optional<TensorDesc> v_mean{};
  std::optional<TensorDesc> lse{};
  std::optional<TensorDesc> lse_shift{};  ///< written by quantize_qk_int8; only with lse
  std::optional<RaggedDesc> ragged{};
  BandMask mask{};
  float scale = 0.0f;  ///< 0 means head_dim ** -0.5
  Int8Groups groups{};
};

struct QuantizedAttentionArgs {
  const std::int8_t* q = nullptr;
  const std::int8_t* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  const float* q_scale = nullptr;
  const float* k_scale = nullptr;
  const float* v_scale = nullptr;
  const float* v_mean = nullptr;
  float* lse = nullptr;
  const float* lse_shift = nullptr;
  const std::int32_t* cu_seqlens_q = nullptr;
  const std::int32_t* cu_seqlens_k = nullptr;
};

using QuantizedAttentionPlan = Plan<QuantizedAttentionArgs>;

/// All of it in one call: quantises q, k and v into the workspace and attends. Keys that no row sees are not read.
/// q, k, v of one dtype, f32 (CPU), f16 or bf16, laid out as in AttentionDesc; out of that dtype.
struct QuantizeAndAttendDesc {
  TensorDesc q{}, k{}, v{}, out{};
  std::optional<TensorDesc> lse{};
  std::optional<RaggedDesc> ragged{};
  BandMask mask{};
  float scale = 0.0f;
  Int8Groups groups{};
  DType v_dtype = DType::f16;  ///< f16 or e4m3
  bool smooth_k = true, smooth_v = false;
};

struct QuantizeAndAttendArgs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  const std::int32_t* cu_seqlens_q = nullptr;
  const std::int32_t* cu_seqlens_k = nullptr;
};

using QuantizeAndAttendPlan = Plan<QuantizeAndAttendArgs>;

/// Errors: invalid_argument when the description contradicts itself, unsupported when no implementation accepts it.
Result<QuantizeQkInt8Plan> plan_quantize_qk_int8(const QuantizeQkInt8Desc& desc, Device device = {}, const PlanOptions& options = {});
Result<QuantizeVPlan> plan_quantize_v(const QuantizeVDesc& desc, Device device = {}, const PlanOptions& options = {});
Result<QuantizedAttentionPlan> plan_quantized_attention(const QuantizedAttentionDesc& desc, Device device = {},
                                                        const PlanOptions& options = {});
Result<QuantizeAndAttendPlan> plan_quantize_and_attend(const QuantizeAndAttendDesc& desc, Device device = {},
                                                       const PlanOptions& options = {});

}  // namespace fovea
