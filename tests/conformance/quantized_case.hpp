// SPDX-License-Identifier: Apache-2.0
/// A case of 8-bit attention with its tensors: sources, what the quantisers make of them, and outputs. Every stride has a gap.
#pragma once

#include <memory>

#include "fovea/quantized_attention.hpp"
#include "latent_support.hpp"
#include "op/attention/validate.hpp"
#include "op/quantized_attention/validate.hpp"

namespace fovea::check {

struct QuantizedCase {
  std::string name{};
  DType dtype = DType::bf16, v_dtype = DType::f16;
  Int8Groups groups{};
  std::int64_t heads = 2, kv_heads = 2, dim = 64;
  std::vector<std::pair<std::int64_t, std::int64_t>> lengths{{70, 70}};  ///< (seq_q, seq_k); all equal unless ragged
  bool ragged = false, smooth_k = true, smooth_v = false;
  BandMask mask{};
  float scale = 0, k_bias = 0, v_bias = 0;
  bool unseen_nan = false, zero_rows = false;
};

inline void PrintTo(const QuantizedCase& spec, std::ostream* out) { *out << spec.name; }

struct BoundQuantized {
  explicit BoundQuantized(const QuantizedCase& of, unsigned seed = 1) : spec(of) {
    for (const auto& [seq_q, seq_k] : spec.lengths) {
      cu_q.push_back(cu_q.back() + static_cast<std::int32_t>(seq_q));
      cu_k.push_back(cu_k.back() + static_cast<std::int32_t>(seq_k));
      longest_q = std::max(longest_q, seq_q);
      longest_k = std::max(longest_k, seq_k);
    }
    if (spec.ragged) ragged = RaggedDesc{batch(), longest_q, longest_k};
    q = tensor(spec.dtype, longest_q, cu_q.back() + 3, spec.heads);
    k = tensor(spec.dtype, longest_k, cu_k.back() + 3, spec.kv_heads);
    v = tensor(spec.dtype, longest_k, cu_k.back() + 3, spec.kv_heads);
    out = HostileTensor(q.desc());
    q_int8 = HostileTensor(of_dtype(q.desc(), DType::i8));
    k_int8 = HostileTensor(of_dtype(k.desc(), DType::i8));
    v_out = HostileTensor(of_dtype(v.desc(), spec.v_dtype));
    q_scale = HostileTensor(gaps(spec.groups.q_scale(q.desc(), ragged)));
    k_scale = HostileTensor(gaps(spec.groups.k_scale(k.desc(), ragged)));
    k_mean = HostileTensor(gaps(Int8Groups::channels(k.desc(), ragged)));
    v_mean = HostileTensor(gaps(Int8Groups::channels(k.desc(), ragged)));
    v_scale = HostileTensor(gaps(Int8Groups::channels(k.desc(), ragged)));
    const std::int64_t b = batch();
    lse = HostileTensor(spec.ragged ? with_gaps(DType::f32, {q.desc().shape[0], spec.heads})
                                    : with_gaps(DType::f32, {b, spec.heads, longest_q}));
    lse_shift = HostileTensor(lse.desc());
    fill(seed);
  }

  std::int64_t batch() const { return static_cast<std::int64_t>(spec.lengths.size()); }
  std::int64_t at(const HostileTensor& t, std::int64_t b, std::int64_t token, std::int64_t head) const {
    const bool query = t.data() == q.data() || t.data() == q_int8.data() || t.data() == out.data();
    return spec.ragged ? t.offset((query ? cu_q : cu_k)[static_cast<std::size_t>(b)] + token, head) : t.offset(b, token, head);
  }

  QuantizeQkInt8Desc qk_desc() const {
    QuantizeQkInt8Desc desc{.q = q.desc(),
                            .k = k.desc(),
                            .q_int8 = q_int8.desc(),
                            .k_int8 = k_int8.desc(),
                            .q_scale = q_scale.desc(),
                            .k_scale = k_scale.desc(),
                            .ragged = ragged,
                            .groups = spec.groups};
    if (spec.smooth_k) desc.k_mean = k_mean.desc(), desc.lse_shift = lse_shift.desc();
    return desc;
  }
  QuantizeQkInt8Args qk_args() const {
    return {q.data(),
            k.data(),
            q_int8.as<std::int8_t>(),
            k_int8.as<std::int8_t>(),
            q_scale.as<float>(),
            k_scale.as<float>(),
            spec.smooth_k ? k_mean.as<float>() : nullptr,
            spec.smooth_k ? lse_shift.as<float>() : nullptr,
            cu(cu_q),
            cu(cu_k)};
  }
  QuantizeVDesc v_desc() const {
    QuantizeVDesc desc{.v = v.desc(), .v_out = v_out.desc(), .ragged = ragged};
    if (spec.v_dtype == DType::e4m3) desc.v_scale = v_scale.desc();
    if (spec.smooth_v) desc.v_mean = v_mean.desc();
    return desc;
  }
  QuantizeVArgs v_args() const {
    return {v.data(), v_out.data(), spec.v_dtype == DType::e4m3 ? v_scale.as<float>() : nullptr,
            spec.smooth_v ? v_mean.as<float>() : nullptr, cu(cu_k)};
  }
  QuantizedAttentionDesc attention_desc() const {
    const QuantizeQkInt8Desc qk = qk_desc();
    const QuantizeVDesc values = v_desc();
    return {.q = qk.q_int8,
            .k = qk.k_int8,
            .v = values.v_out,
            .out = out.desc(),
            .q_scale = qk.q_scale,
            .k_scale = qk.k_scale,
            .v_scale = values.v_scale,
            .v_mean = values.v_mean,
            .lse = lse.desc(),
            .lse_shift = qk.lse_shift,
            .ragged = ragged,
            .mask = spec.mask,
            .scale = spec.scale,
            .groups = spec.groups};
  }
  QuantizedAttentionArgs attention_args() const {
    const QuantizeQkInt8Args qk = qk_args();
    const QuantizeVArgs values = v_args();
    return {qk.q_int8,      qk.k_int8,     values.v_out,    out.data(),   qk.q_scale, qk.k_scale,
            values.v_scale, values.v_mean, lse.as<float>(), qk.lse_shift, cu(cu_q),   cu(cu_k)};
  }
  QuantizeAndAttendDesc whole_desc() const {
    return {.q = q.desc(),
            .k = k.desc(),
            .v = v.desc(),
            .out = out.desc(),
            .lse = lse.desc(),
            .ragged = ragged,
            .mask = spec.mask,
            .scale = spec.scale,
            .groups = spec.groups,
            .v_dtype = spec.v_dtype,
            .smooth_k = spec.smooth_k,
            .smooth_v = spec.smooth_v};
  }
  QuantizeAndAttendArgs whole_args() const { return {q.data(), k.data(), v.data(), out.data(), lse.as<float>(), cu(cu_q), cu(cu_k)}; }

  /// Unquantised attention in double precision.
  reference::AttentionOutput exact() const {
    const AttentionDesc desc{.q = q.desc(),
                             .k = k.desc(),
                             .v = v.desc(),
                             .out = out.desc(),
                             .lse = lse.desc(),
                             .ragged = ragged,
                             .mask = spec.mask,
                             .scale = spec.scale};
    return reference::attention(*detail::validate(desc, {}),
                                {.q = q.data(), .k = k.data(), .v = v.data(), .cu_seqlens_q = cu(cu_q), .cu_seqlens_k = cu(cu_k)});
  }

  QuantizedCase spec;
  std::vector<std::int32_t> cu_q{0}, cu_k{0};
  std::int64_t longest_q = 0, longest_k = 0;
  std::optional<RaggedDesc> ragged{};
  HostileTensor q, k, v, out, q_int8, k_int8, v_out, q_scale, k_scale, k_mean, v_mean, v_scale, lse, lse_shift;

 private:
  const std::int32_t* cu(const std::vector<std::int32_t>& lengths) const { return spec.ragged ? lengths.data() : nullptr; }
  static TensorDesc of_dtype(TensorDesc desc, DType dtype) {
    desc.dtype = dtype;
    return desc;
  }
  static TensorDesc gaps(const TensorDesc& dense) {
    TensorDesc desc = dense;
    for (int axis = desc.rank - 2; axis >= 0; --axis) {
      const auto a = static_cast<std::size_t>(axis);
      desc.strides[a] = desc.shape[a + 1] * desc.strides[a + 1] + 5;
    }
    return desc;
  }
  HostileTensor tensor(DType dtype, std::int64_t longest, std::int64_t total, std::int64_t heads) const {
    return HostileTensor(spec.ragged ? with_gaps(dtype, {total, heads, spec.dim}) : with_gaps(dtype, {batch(), longest, heads, spec.dim}));
  }

  /// Rows past the last sequence stay NaN, and so do, if asked for, keys that no row sees.
  void fill(unsigned seed) {
    Random random(seed);
    std::vector<float> k_bias, v_bias;
    for (std::int64_t i = 0; i < spec.kv_heads * spec.dim; ++i) {
      k_bias.push_back(spec.k_bias * random.normal());
      v_bias.push_back(spec.v_bias * random.normal());
    }
    for (std::int64_t b = 0; b < batch(); ++b) {
      const auto [seq_q, seq_k] = spec.lengths[static_cast<std::size_t>(b)];
      for (std::int64_t t = 0; t < seq_q; ++t) {
        for (std::int64_t i = 0; i < spec.heads * spec.dim; ++i)
          q.set(at(q, b, t, i / spec.dim) + i % spec.dim, spec.zero_rows && t % 32 < 20 ? 0.0f : random.normal());
      }
      const std::vector<char> seen = reference::keys_seen(spec.mask, seq_q, seq_k);
      for (std::int64_t t = 0; t < seq_k; ++t) {
        if (spec.unseen_nan && seen[static_cast<std::size_t>(t)] == 0) continue;
        for (std::int64_t i = 0; i < spec.kv_heads * spec.dim; ++i) {
          const auto channel = static_cast<std::size_t>(i);
          const bool zero = spec.zero_rows && t / 64 % 2 == 0;
          k.set(at(k, b, t, i / spec.dim) + i % spec.dim, zero ? 0.0f : k_bias[channel] + random.normal());
          v.set(at(v, b, t, i / spec.dim) + i % spec.dim,
                zero || (spec.zero_rows && i % 7 == 0) ? 0.0f : v_bias[channel] + random.normal());
        }
      }
    }
  }
};

}  // namespace fovea::check
