// SPDX-License-Identifier: Apache-2.0
/// 8-bit attention. The quantisers run element by element as the public header states them. Attention on quantised tensors is in double
/// precision.
#include <algorithm>
#include <cmath>
#include <limits>

#include "op/quantized_attention/problem.hpp"
#include "reference/attend.hpp"
#include "reference/element.hpp"
#include "reference/implementations.hpp"
#include "reference/reference.hpp"

namespace fovea::reference {
namespace {

constexpr float kSmallest = 1e-7f;
const float kNan = std::numeric_limits<float>::quiet_NaN();

/// Tokens of one sequence in one tensor; those in `seen` count.
struct Tokens {
  std::int64_t batch = 0, first = 0, count = 0, first_block = 0;
  std::vector<char> seen{};

  std::int64_t at(const detail::RowStrides& strides, std::int64_t token, std::int64_t head) const {
    return batch * strides.batch + (first + token) * strides.row + head * strides.head;
  }
};

Tokens tokens_of(const detail::TokenBatch& problem, std::int64_t b, const std::int32_t* cu, std::int64_t length, std::int64_t block) {
  if (!problem.ragged) return {b, 0, length, 0, std::vector<char>(static_cast<std::size_t>(length), 1)};
  const std::int64_t count = cu[b + 1] - cu[b];
  return {0, cu[b], count, cu[b] / block + b, std::vector<char>(static_cast<std::size_t>(count), 1)};
}

Tokens keys_of(const detail::TokenBatch& problem, std::int64_t b, const std::int32_t* cu_q, const std::int32_t* cu_k) {
  Tokens keys = tokens_of(problem, b, cu_k, problem.max_seq_k, 64);
  if (problem.mask) keys.seen = keys_seen(*problem.mask, problem.ragged ? cu_q[b + 1] - cu_q[b] : problem.max_seq_q, keys.count);
  return keys;
}

/// The group of a token, counted within its block.
std::int64_t group_in_block(const Int8Groups& groups, bool is_query, std::int64_t token) {
  if (groups.granularity == Int8Granularity::block) return 0;
  if (!is_query) return groups.granularity == Int8Granularity::warp ? 0 : (token % 8) >> 1;
  const std::int64_t warp = token % 128 / groups.warp_rows;
  return groups.granularity == Int8Granularity::warp ? warp : warp * 8 + token % 8;
}

struct Side {
  const detail::QuantizedTensor& tensor;
  const void* from;
  void* to;
  float* scale;
  const float* mean;  ///< of this sequence, or null
  bool is_query;
};

float centred(const Side& side, const Tokens& tokens, std::int64_t token, std::int64_t head, std::int64_t d) {
  const auto x = static_cast<float>(load(side.tensor.dtype, side.from, tokens.at(side.tensor.from, token, head) + d));
  const detail::RowStrides& at = side.tensor.mean;
  return side.mean != nullptr ? x - side.mean[head * at.head + d] : x;
}

void store_code(const Side& side, const Tokens& tokens, std::int64_t token, std::int64_t head, float scale, float factor) {
  for (std::int64_t d = 0; d < side.tensor.head_dim; ++d) {
    const bool valid = !std::isnan(scale);
    const float code = valid ? std::nearbyint(centred(side, tokens, token, head, d) * factor) : 0.0f;
    store(DType::i8, side.to, tokens.at(side.tensor.to, token, head) + d, static_cast<double>(code));
  }
}

/// The scales and quantised values of one group of one block. `mean` is the mean of the sequence.
void quantize_group(const Side& side, const Tokens& tokens, const Int8Groups& groups, std::int64_t head, std::int64_t block,
                    std::int64_t group) {
  const std::int64_t size = side.is_query ? 128 : 64;
  std::vector<std::int64_t> members;
  for (std::int64_t t = block * size; t < std::min((block + 1) * size, tokens.count); ++t) {
    if (tokens.seen[static_cast<std::size_t>(t)] != 0 && group_in_block(groups, side.is_query, t) == group) members.push_back(t);
  }
  float amax = kSmallest;
  bool finite = true;
  for (const std::int64_t token : members) {
    for (std::int64_t d = 0; d < side.tensor.head_dim; ++d) {
      const float x = centred(side, tokens, token, head, d);
      finite = finite && std::isfinite(x);
      amax = std::max(amax, std::fabs(x));
    }
  }
  const float scale = finite ? amax / 127.0f : kNan;
  const std::int64_t per_block = side.is_query ? groups.q_per_block() : groups.k_per_block();
  const detail::RowStrides& at = side.tensor.scale;
  side.scale[tokens.batch * at.batch + head * at.head + ((tokens.first_block + block) * per_block + group) * at.row] = scale;
  for (const std::int64_t token : members) store_code(side, tokens, token, head, scale, 127.0f / amax);
}

void quantize_side(const Side& side, const Tokens& tokens, const Int8Groups& groups) {
  const std::int64_t size = side.is_query ? 128 : 64, per_block = side.is_query ? groups.q_per_block() : groups.k_per_block();
  for (std::int64_t head = 0; head < side.tensor.heads; ++head) {
    for (std::int64_t block = 0; block * size < tokens.count; ++block) {
      for (std::int64_t group = 0; group < per_block; ++group) quantize_group(side, tokens, groups, head, block, group);
    }
  }
}

/// The mean of each channel over the tokens that count.
void write_mean(const detail::QuantizedTensor& tensor, const void* from, const Tokens& tokens, float* mean) {
  const auto count = static_cast<double>(std::count(tokens.seen.begin(), tokens.seen.end(), 1));
  for (std::int64_t head = 0; head < tensor.heads; ++head) {
    for (std::int64_t d = 0; d < tensor.head_dim; ++d) {
      double sum = 0;
      for (std::int64_t t = 0; t < tokens.count; ++t) {
        if (tokens.seen[static_cast<std::size_t>(t)] != 0) sum += load(tensor.dtype, from, tokens.at(tensor.from, t, head) + d);
      }
      mean[head * tensor.mean.head + d] = count > 0 ? static_cast<float>(sum / count) : 0.0f;
    }
  }
}

void write_shift(const detail::QuantizeQkInt8Problem& problem, const QuantizeQkInt8Args& args, const Tokens& rows, const float* mean) {
  const std::int64_t group = problem.q.heads / problem.k.heads;
  for (std::int64_t row = 0; row < rows.count; ++row) {
    for (std::int64_t head = 0; head < problem.q.heads; ++head) {
      double sum = 0;
      for (std::int64_t d = 0; d < problem.q.head_dim; ++d) {
        sum += load(problem.q.dtype, args.q, rows.at(problem.q.from, row, head) + d) *
               static_cast<double>(mean[head / group * problem.k.mean.head + d]);
      }
      args.lse_shift[rows.at(problem.lse_shift, row, head)] = static_cast<float>(sum);
    }
  }
}

void quantize_channel(const detail::QuantizedTensor& tensor, const QuantizeVArgs& args, const Tokens& tokens, std::int64_t b,
                      std::int64_t head, std::int64_t d) {
  const Side side{tensor, args.v, args.v_out, nullptr, tensor.has_mean ? args.v_mean + b * tensor.mean.batch : nullptr, false};
  float amax = kSmallest;
  bool finite = true;
  std::vector<std::int64_t> members;
  for (std::int64_t t = 0; t < tokens.count; ++t) {
    if (tokens.seen[static_cast<std::size_t>(t)] == 0) continue;
    const float x = centred(side, tokens, t, head, d);
    finite = finite && std::isfinite(x);
    amax = std::max(amax, std::fabs(x));
    members.push_back(t);
  }
  if (tensor.has_scale) args.v_scale[b * tensor.scale.batch + head * tensor.scale.head + d] = finite ? amax / 448.0f : kNan;
  for (const std::int64_t t : members) {
    const float x = centred(side, tokens, t, head, d);
    const float code = tensor.has_scale ? (finite ? x * (448.0f / amax) : 0.0f) : x;
    store(tensor.to_dtype, args.v_out, tokens.at(tensor.to, t, head) + d, static_cast<double>(code));
  }
}

double v_value(const detail::QuantizedAttentionProblem& problem, const QuantizedAttentionArgs& args, std::int64_t b, std::int64_t head,
               std::int64_t d, double code) {
  if (problem.has_v_scale) code *= static_cast<double>(args.v_scale[b * problem.v_scales.batch + head * problem.v_scales.head + d]);
  if (problem.has_v_mean) code += static_cast<double>(args.v_mean[b * problem.v_means.batch + head * problem.v_means.head + d]);
  return code;
}

/// q or k as quantised values and scales.
struct Codes {
  const std::int8_t* codes;
  const float* scales;
  const detail::RowStrides &at, &scale_at;
  bool is_query;
};

/// A row of q or k in double precision.
void dequantize(const Codes& from, const Int8Groups& groups, const Tokens& tokens, std::int64_t token, std::int64_t head,
                std::span<double> to) {
  const std::int64_t size = from.is_query ? 128 : 64, per_block = from.is_query ? groups.q_per_block() : groups.k_per_block();
  const std::int64_t group = (tokens.first_block + token / size) * per_block + group_in_block(groups, from.is_query, token);
  const double scale = from.scales[tokens.batch * from.scale_at.batch + head * from.scale_at.head + group * from.scale_at.row];
  const std::int8_t* codes = from.codes + tokens.at(from.at, token, head);
  for (std::size_t d = 0; d < to.size(); ++d) to[d] = codes[d] * scale;
}

/// One sequence of the batch.
struct Sequence {
  std::int64_t index;
  Tokens rows, keys;
};

void attend_head(const detail::QuantizedAttentionProblem& problem, const QuantizedAttentionArgs& args, const Sequence& sequence,
                 std::int64_t kv_head, AttentionOutput& result) {
  const auto& [b, rows, keys] = sequence;
  const auto dim = static_cast<std::size_t>(problem.head_dim_qk);
  const Codes q_codes{args.q, args.q_scale, problem.q, problem.q_scales, true},
      k_codes{args.k, args.k_scale, problem.k, problem.k_scales, false};
  Matrix k(keys.count, problem.head_dim_qk), v(keys.count, problem.head_dim_v), q(1, problem.head_dim_qk);
  for (std::int64_t key = 0; key < keys.count; ++key) {
    if (keys.seen[static_cast<std::size_t>(key)] == 0) continue;
    dequantize(k_codes, problem.groups, keys, key, kv_head, {k.row(key), dim});
    for (std::int64_t d = 0; d < problem.head_dim_v; ++d) {
      v.row(key)[d] = v_value(problem, args, b, kv_head, d, load(problem.v_dtype, args.v, keys.at(problem.v, key, kv_head) + d));
    }
  }
  for (std::int64_t row = 0; row < rows.count; ++row) {
    const auto visible = visible_keys(problem.mask, row, rows.count, keys.count);
    for (std::int64_t head = kv_head * problem.group(); head < (kv_head + 1) * problem.group(); ++head) {
      dequantize(q_codes, problem.groups, rows, row, head, {q.row(0), dim});
      const std::int64_t flat_row = (problem.ragged ? rows.first : b * problem.max_seq_q) + row, flat = flat_row * problem.heads + head;
      double* out = &result.out[static_cast<std::size_t>(flat * problem.head_dim_v)];
      const double lse = attend(q.row(0), k, v, visible, {.scale = problem.scale}, out).lse;
      const double shift = problem.has_lse_shift ? static_cast<double>(args.lse_shift[rows.at(problem.lse_shift, row, head)]) : 0;
      result.lse[static_cast<std::size_t>(flat)] = visible.empty() ? lse : lse + problem.scale * shift;
      result.written[static_cast<std::size_t>(flat_row)] = 1;
    }
  }
}

detail::TokenBatch token_batch(const detail::QuantizedAttentionProblem& problem) {
  return {problem.ragged, problem.batch, problem.total_q, problem.total_k, problem.max_seq_q, problem.max_seq_k, problem.mask};
}

/// The buffers between the steps of quantize_and_attend.
struct Between {
  explicit Between(const detail::QuantizeAndAttendProblem& p)
      : q(size(p.q_int8)),
        k(size(p.k_int8)),
        v(size(p.v_bytes)),
        q_scale(size(p.q_scale)),
        k_scale(size(p.k_scale)),
        k_mean(size(p.k_mean)),
        shift(size(p.lse_shift)),
        v_scale(size(p.v_scale)),
        v_mean(size(p.v_mean)) {}
  static std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }
  std::vector<std::int8_t> q, k, v;
  std::vector<float> q_scale, k_scale, k_mean, shift, v_scale, v_mean;
};

}  // namespace

void quantize_qk_int8(const detail::QuantizeQkInt8Problem& problem, const QuantizeQkInt8Args& args) {
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Tokens rows = tokens_of(problem, b, args.cu_seqlens_q, problem.max_seq_q, 128);
    const Tokens keys = keys_of(problem, b, args.cu_seqlens_q, args.cu_seqlens_k);
    float* mean = problem.k.has_mean ? args.k_mean + b * problem.k.mean.batch : nullptr;
    if (mean != nullptr) write_mean(problem.k, args.k, keys, mean);
    quantize_side({problem.k, args.k, args.k_int8, args.k_scale, mean, false}, keys, problem.groups);
    quantize_side({problem.q, args.q, args.q_int8, args.q_scale, nullptr, true}, rows, problem.groups);
    if (problem.has_lse_shift) write_shift(problem, args, rows, mean);
  }
}

void quantize_v(const detail::QuantizeVProblem& problem, const QuantizeVArgs& args, const std::int32_t* cu_seqlens_q) {
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Tokens keys = keys_of(problem, b, cu_seqlens_q, args.cu_seqlens_k);
    const detail::QuantizedTensor& tensor = problem.v;
    if (tensor.has_mean) write_mean(tensor, args.v, keys, args.v_mean + b * tensor.mean.batch);
    for (std::int64_t head = 0; head < tensor.heads; ++head) {
      for (std::int64_t d = 0; d < tensor.head_dim; ++d) quantize_channel(tensor, args, keys, b, head, d);
    }
  }
}

AttentionOutput quantized_attention(const detail::QuantizedAttentionProblem& problem, const QuantizedAttentionArgs& args) {
  AttentionOutput result = empty_output(problem.total_q, problem.heads, problem.head_dim_v);
  const detail::TokenBatch batch = token_batch(problem);
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence sequence{b, tokens_of(batch, b, args.cu_seqlens_q, problem.max_seq_q, 128),
                            keys_of(batch, b, args.cu_seqlens_q, args.cu_seqlens_k)};
    for (std::int64_t kv_head = 0; kv_head < problem.kv_heads; ++kv_head) attend_head(problem, args, sequence, kv_head, result);
  }
  return result;
}

namespace {

template <class Problem, class Args>
Result<void> good_call(const Problem& problem, const Args& args) {
  if (Result<void> good = check_args(problem, args); !good) return good;
  return check_lengths(problem, args);
}

Result<void> run_qk(const detail::QuantizeQkInt8Problem& problem, const QuantizeQkInt8Args& args) {
  if (Result<void> good = good_call(problem, args); !good) return good;
  quantize_qk_int8(problem, args);
  return {};
}

Result<void> run_v(const detail::QuantizeVProblem& problem, const QuantizeVArgs& args) {
  if (Result<void> good = good_call(problem, args); !good) return good;
  quantize_v(problem, args, nullptr);
  return {};
}

Result<void> run_attention(const detail::QuantizedAttentionProblem& problem, const QuantizedAttentionArgs& args) {
  if (Result<void> good = good_call(problem, args); !good) return good;
  const AttentionOutput result = quantized_attention(problem, args);
  const std::int64_t rows = problem.ragged ? problem.total_q : problem.max_seq_q;
  round_rows({result.out, result.written, rows, problem.heads, problem.head_dim_v}, problem.out_dtype, problem.out, args.out);
  if (problem.has_lse) round_rows({result.lse, result.written, rows, problem.heads}, DType::f32, problem.lse, args.lse);
  return {};
}

Result<void> run_whole(const detail::QuantizeAndAttendProblem& problem, const QuantizeAndAttendArgs& args) {
  if (Result<void> good = good_call(problem, args); !good) return good;
  Between t(problem);
  quantize_qk_int8(problem.qk, {args.q, args.k, t.q.data(), t.k.data(), t.q_scale.data(), t.k_scale.data(), t.k_mean.data(), t.shift.data(),
                                args.cu_seqlens_q, args.cu_seqlens_k});
  quantize_v(problem.v, {args.v, t.v.data(), t.v_scale.data(), t.v_mean.data(), args.cu_seqlens_k}, args.cu_seqlens_q);
  return run_attention(problem.attention,
                       {t.q.data(), t.k.data(), t.v.data(), args.out, t.q_scale.data(), t.k_scale.data(), t.v_scale.data(), t.v_mean.data(),
                        args.lse, t.shift.data(), args.cu_seqlens_q, args.cu_seqlens_k});
}

template <class Operation, typename State<Operation>::Run kRun>
detail::Implementations<Operation> only_entry() {
  return only<Operation>(std::is_same_v<Operation, detail::QuantizedAttention> ? "int8 q and k, f16 or e4m3 v; head dims 64, 96, 128, 256"
                                                                               : "f32, f16, bf16; head dims 64, 96, 128, 256",
                         [](const typename Operation::Problem& problem, Device) -> detail::PlanResult<typename Operation::Args> {
                           if (auto reason = decline_int8_head_dims(problem)) return *reason;
                           return make_state<Operation>(problem, kRun);
                         });
}

}  // namespace

detail::Implementations<detail::QuantizeQkInt8> implementations(detail::QuantizeQkInt8) {
  return only_entry<detail::QuantizeQkInt8, run_qk>();
}
detail::Implementations<detail::QuantizeV> implementations(detail::QuantizeV) { return only_entry<detail::QuantizeV, run_v>(); }
detail::Implementations<detail::QuantizedAttention> implementations(detail::QuantizedAttention) {
  return only_entry<detail::QuantizedAttention, run_attention>();
}
detail::Implementations<detail::QuantizeAndAttend> implementations(detail::QuantizeAndAttend) {
  return only_entry<detail::QuantizeAndAttend, run_whole>();
}

}  // namespace fovea::reference
