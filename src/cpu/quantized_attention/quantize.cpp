// SPDX-License-Identifier: Apache-2.0
/// The quantisers. Each call takes one head of one sequence.
#include "cpu/quantized_attention/quantize.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/attention/item.hpp"
#include "cpu/parallel.hpp"
#include "op/common/band.hpp"

namespace fovea::cpu {
namespace {

constexpr float kSmallest = 1e-7f;
constexpr std::int64_t kMostChannels = 256;
using Channels = std::array<float, kMostChannels>;
alignas(64) constexpr Channels kZeros{};

/// Tokens of one sequence. Those in [begin, end) enter means and scales.
struct Tokens {
  std::int64_t index = 0, batch = 0, first = 0, count = 0, begin = 0, end = 0;
  bool ragged = false;

  std::int64_t at(const detail::RowStrides& strides, std::int64_t token, std::int64_t head) const {
    return batch * strides.batch + (first + token) * strides.row + head * strides.head;
  }
};

Tokens tokens_of(const detail::TokenBatch& problem, std::int64_t index, const std::int32_t* cu, std::int64_t length) {
  Tokens t{.index = index, .batch = index, .count = length};
  if (problem.ragged) t = {.index = index, .first = cu[index], .count = cu[index + 1] - cu[index], .ragged = true};
  t.end = t.count;
  return t;
}

Tokens keys_of(const detail::TokenBatch& problem, std::int64_t index, const std::int32_t* cu_q, const std::int32_t* cu_k) {
  Tokens keys = tokens_of(problem, index, cu_k, problem.max_seq_k);
  if (!problem.mask) return keys;
  const std::int64_t seq_q = problem.ragged ? cu_q[index + 1] - cu_q[index] : problem.max_seq_q;
  const detail::Band band = detail::make_band(*problem.mask, seq_q, keys.count);
  const detail::KeyRange seen = seq_q > 0 ? detail::keys_seen_by_some(band, 0, seq_q, keys.count) : detail::KeyRange{};
  keys.begin = seen.begin;
  keys.end = seen.end;
  return keys;
}

/// One tensor, its quantised twin, and its scales and means.
struct Side {
  const Quantizer& with;
  const detail::QuantizedTensor& tensor;
  const void* from;
  void* to;

  std::size_t dtype() const { return static_cast<std::size_t>(tensor.dtype); }
  int dim() const { return static_cast<int>(tensor.head_dim); }
  Row row(const Tokens& tokens, std::int64_t token, std::int64_t head) const {
    return static_cast<const std::byte*>(from) + tokens.at(tensor.from, token, head) * static_cast<std::int64_t>(size_of(tensor.dtype));
  }
  /// The same, and prefetches a later row of the head: rows may lie pages apart, where no hardware prefetcher follows.
  Row row_and_later(const Tokens& tokens, std::int64_t token, std::int64_t head) const {
    constexpr std::int64_t kAhead = 8;
    const auto bytes = static_cast<std::int64_t>(dim()) * static_cast<std::int64_t>(size_of(tensor.dtype));
    if (token + kAhead < tokens.end) prefetch_row(row(tokens, token + kAhead, head), bytes);
    return row(tokens, token, head);
  }
  void* code(const Tokens& tokens, std::int64_t token, std::int64_t head) const {
    return static_cast<std::byte*>(to) + tokens.at(tensor.to, token, head) * static_cast<std::int64_t>(size_of(tensor.to_dtype));
  }
};

/// Sums of a few rows in f32, added up in double precision.
void write_mean(const Side& side, const Tokens& tokens, std::int64_t head, float* mean) {
  constexpr std::int64_t kRows = 16;
  std::array<double, kMostChannels> sums{};
  for (std::int64_t begin = tokens.begin; begin < tokens.end; begin += kRows) {
    Channels some{};
    for (std::int64_t t = begin; t < std::min(begin + kRows, tokens.end); ++t) {
      side.with.kernels->rows.add_scaled[side.dtype()](some.data(), side.row_and_later(tokens, t, head), 1.0f, side.dim());
    }
    for (std::size_t d = 0; d < kMostChannels; ++d) sums[d] += static_cast<double>(some[d]);
  }
  const auto count = static_cast<double>(std::max<std::int64_t>(tokens.end - tokens.begin, 1));
  for (int d = 0; d < side.dim(); ++d) mean[d] = static_cast<float>(sums[static_cast<std::size_t>(d)] / count);
}

/// The groups of q or of k.
struct Grouping {
  const Int8Groups& groups;
  bool is_query;
  std::int64_t block() const { return is_query ? Int8Groups::kQBlock : Int8Groups::kKBlock; }
  std::int64_t per_block() const { return is_query ? groups.q_per_block() : groups.k_per_block(); }
  std::int64_t of(std::int64_t token) const { return is_query ? groups.q_group(token) : groups.k_group(token); }
};

/// One head of one sequence.
struct Head {
  const Tokens& tokens;
  std::int64_t head;
  const float* mean;
};

/// `scales` are the scales of the block.
void quantize_block(const Side& side, const Grouping& grouping, const Head& of, std::int64_t block, float* scales) {
  const auto& [tokens, head, mean] = of;
  const QuantizeKernels& kernels = side.with.kernels->quantize;
  const std::int64_t begin = std::max(tokens.begin, block * grouping.block()), end = std::min(tokens.end, (block + 1) * grouping.block());
  const std::int64_t first = block * grouping.per_block();
  std::array<float, 64> amax;
  amax.fill(kSmallest);
  for (std::int64_t t = begin; t < end; ++t) {
    float& most = amax[static_cast<std::size_t>(grouping.of(t) - first)];
    const float here = kernels.largest[side.dtype()](side.row_and_later(tokens, t, head), mean, side.dim());
    most = std::isnan(here) || std::isnan(most) ? std::numeric_limits<float>::quiet_NaN() : std::max(most, here);
  }
  for (std::int64_t g = 0; g < grouping.per_block(); ++g) scales[g * side.tensor.scale.row] = amax[static_cast<std::size_t>(g)] / 127.0f;
  for (std::int64_t t = begin; t < end; ++t) {
    const float most = amax[static_cast<std::size_t>(grouping.of(t) - first)];
    void* codes = side.code(tokens, t, head);
    if (std::isnan(most)) {
      std::memset(codes, 0, static_cast<std::size_t>(side.dim()));
    } else {
      kernels.encode_int8[side.dtype()](codes, side.row(tokens, t, head), mean, 127.0f / most, side.dim());
    }
  }
}

void quantize_head(const Side& side, const Grouping& grouping, const Head& of, float* scale) {
  const auto& [tokens, head, mean] = of;
  const std::int64_t first = tokens.ragged ? Int8Groups::first_block(tokens.first, tokens.index, grouping.block()) : 0;
  float* scales = scale + tokens.batch * side.tensor.scale.batch + head * side.tensor.scale.head;
  for (std::int64_t block = 0; block * grouping.block() < tokens.count; ++block) {
    quantize_block(side, grouping, of, block, scales + (first + block) * grouping.per_block() * side.tensor.scale.row);
  }
}

void write_shift(const Side& q, const detail::QuantizeQkInt8Problem& problem, const Tokens& rows, std::int64_t head, const float* mean,
                 float* shift) {
  for (std::int64_t t = 0; t < rows.count; ++t) {
    Channels wide{};
    q.with.kernels->rows.add_scaled[q.dtype()](wide.data(), q.row(rows, t, head), 1.0f, q.dim());
    double sum = 0;
    for (int d = 0; d < q.dim(); ++d) sum += static_cast<double>(wide[static_cast<std::size_t>(d)]) * static_cast<double>(mean[d]);
    shift[rows.at(problem.lse_shift, t, head)] = static_cast<float>(sum);
  }
}

/// Runs over each (sequence, head), in as many threads as the number of tokens is worth.
template <class Body>
void each_head(const Side& side, std::int64_t batch, std::int64_t tokens, const Body& body) {
  const std::int64_t heads = side.tensor.heads, items = batch * heads;
  constexpr double kPasses = 2;
  const int threads =
      worthwhile_threads({.elements = kPasses * static_cast<double>(tokens * heads * side.tensor.head_dim)}, items, side.with.threads);
  parallel_for(threads, [&](int thread) {
    for (std::int64_t i = thread; i < items; i += threads) body(i / heads, i % heads);
  });
}

/// A channel that is not finite has a scale of NaN and quantised values of 0.
void silence(const Side& side, const Tokens& tokens, std::int64_t head, const float* scale) {
  for (int d = 0; d < side.dim(); ++d) {
    if (!std::isnan(scale[d])) continue;
    for (std::int64_t t = tokens.begin; t < tokens.end; ++t) static_cast<std::uint8_t*>(side.code(tokens, t, head))[d] = 0;
  }
}

void quantize_v_head(const Side& side, const Tokens& tokens, std::int64_t head, const float* mean, float* scale) {
  const QuantizeKernels& kernels = side.with.kernels->quantize;
  Channels amax, probe{}, factor;
  amax.fill(kSmallest);
  factor.fill(1.0f);
  if (scale != nullptr) {
    for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
      kernels.channels[side.dtype()](amax.data(), probe.data(), side.row(tokens, t, head), mean, side.dim());
    }
    for (std::size_t d = 0; d < static_cast<std::size_t>(side.dim()); ++d) {
      scale[d] = (amax[d] + probe[d]) / 448.0f;
      factor[d] = 448.0f / amax[d];
    }
  }
  const auto encode = (scale != nullptr ? kernels.encode_e4m3 : kernels.encode_f16)[side.dtype()];
  for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
    encode(side.code(tokens, t, head), side.row_and_later(tokens, t, head), mean, factor.data(), side.dim());
  }
  if (scale != nullptr) silence(side, tokens, head, scale);
}

}  // namespace

void quantize_qk_int8(const Quantizer& with, const detail::QuantizeQkInt8Problem& problem, const QuantizeQkInt8Args& args) {
  const Side q{with, problem.q, args.q, args.q_int8}, k{with, problem.k, args.k, args.k_int8};
  const auto mean_of = [&](std::int64_t b, std::int64_t kv_head) {
    return args.k_mean + b * problem.k.mean.batch + kv_head * problem.k.mean.head;
  };
  each_head(k, problem.batch, problem.total_k, [&](std::int64_t b, std::int64_t head) {
    const Tokens keys = keys_of(problem, b, args.cu_seqlens_q, args.cu_seqlens_k);
    if (problem.k.has_mean) write_mean(k, keys, head, mean_of(b, head));
    quantize_head(k, {problem.groups, false}, {keys, head, problem.k.has_mean ? mean_of(b, head) : kZeros.data()}, args.k_scale);
  });
  each_head(q, problem.batch, problem.total_q, [&](std::int64_t b, std::int64_t head) {
    const Tokens rows = tokens_of(problem, b, args.cu_seqlens_q, problem.max_seq_q);
    quantize_head(q, {problem.groups, true}, {rows, head, kZeros.data()}, args.q_scale);
    const std::int64_t kv_head = head / (problem.q.heads / problem.k.heads);
    if (problem.has_lse_shift) write_shift(q, problem, rows, head, mean_of(b, kv_head), args.lse_shift);
  });
}

void quantize_v(const Quantizer& with, const detail::QuantizeVProblem& problem, const QuantizeVArgs& args,
                const std::int32_t* cu_seqlens_q) {
  const Side v{with, problem.v, args.v, args.v_out};
  each_head(v, problem.batch, problem.total_k, [&](std::int64_t b, std::int64_t head) {
    const Tokens keys = keys_of(problem, b, cu_seqlens_q, args.cu_seqlens_k);
    float* mean = problem.v.has_mean ? args.v_mean + b * problem.v.mean.batch + head * problem.v.mean.head : nullptr;
    float* scale = problem.v.has_scale ? args.v_scale + b * problem.v.scale.batch + head * problem.v.scale.head : nullptr;
    if (mean != nullptr) write_mean(v, keys, head, mean);
    quantize_v_head(v, keys, head, mean != nullptr ? mean : kZeros.data(), scale);
  });
}

}  // namespace fovea::cpu
