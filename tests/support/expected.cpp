// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <tuple>

#include "bound_case.hpp"
#include "op/attention/problem.hpp"
#include "op/common/kv_format.hpp"
#include "op/merge_states/problem.hpp"
#include "op/paged_attention/problem.hpp"
#include "plain.hpp"
#include "reference/reference.hpp"

namespace fovea::check {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// The results of the reference, row by row.
struct Expected {
  std::vector<double> out{}, lse{};  ///< [rows, head, dv], [rows, head]
  std::vector<char> written{};       ///< [rows] whether the row belongs to a sequence; the others must keep their poison
  std::vector<char> judged{};        ///< [rows] whether the result is known; large cases know only a sample
};

struct RowOfSequence {
  std::int64_t sequence, row;
};

/// Spread over the batch, the ends included.
std::vector<RowOfSequence> sample_of(const Case& spec) {
  constexpr std::int64_t kSamples = 12;
  std::vector<RowOfSequence> all;
  for (std::int64_t b = 0; b < static_cast<std::int64_t>(spec.sequences.size()); ++b)
    for (std::int64_t row = 0; row < spec.sequences[index(b)].q; ++row) all.push_back({b, row});
  const auto count = static_cast<std::int64_t>(all.size());
  if (count <= kSamples) return all;
  std::vector<RowOfSequence> sample;
  for (std::int64_t i = 0; i < kSamples; ++i) sample.push_back(all[index(i * (count - 1) / (kSamples - 1))]);
  return sample;
}

const void* at_element(const HostileTensor& tensor, std::int64_t offset) {
  return tensor.as<const char>() + offset * static_cast<std::int64_t>(size_of(tensor.desc().dtype));
}

reference::AttentionOutput reference_row(const BoundCase& bound, RowOfSequence at, const Request<AttentionDesc, AttentionArgs>& request) {
  const Case& spec = bound.spec;
  const std::int64_t kv = spec.sequences[index(at.sequence)].kv;
  AttentionDesc desc = request.desc;
  const auto rows_of = [](TensorDesc tensor, std::int64_t rows) {
    const std::size_t axis = tensor.rank == 4 ? 1 : 0;
    const std::array<std::int64_t, 4> shape{1, rows, tensor.shape[axis + 1], tensor.shape[axis + 2]};
    const std::array<std::int64_t, 4> strides{tensor.strides[axis] * rows, tensor.strides[axis], tensor.strides[axis + 1], 1};
    return TensorDesc{.dtype = tensor.dtype, .rank = 4, .shape = shape, .strides = strides};
  };
  desc.q = rows_of(desc.q, 1);
  desc.k = rows_of(desc.k, kv);
  desc.v = rows_of(desc.v, kv);
  desc.out = contiguous(desc.out.dtype, {1, 1, spec.head, spec.dv});
  desc.lse.reset();
  desc.ragged.reset();
  desc.mask = mask_of_row(spec.mask, spec.sequences[index(at.sequence)], at.row);
  AttentionArgs args = request.args;
  args.q = at_element(bound.q, bound.row_offset(bound.q, bound.flat_row(at.sequence, at.row), 0));
  args.k = at_element(bound.k, bound.kv_offset(bound.k, at.sequence, 0, 0));
  args.v = at_element(bound.v, bound.kv_offset(bound.v, at.sequence, 0, 0));
  return reference::attention(detail::validate(desc, {}).value(), args);  // every sequence has the same scales
}

reference::AttentionOutput reference_row(const BoundCase& bound, RowOfSequence at,
                                         const Request<PagedAttentionDesc, PagedAttentionArgs>& request) {
  const Case& spec = bound.spec;
  PagedAttentionDesc desc = request.desc;
  desc.q.shape[0] = desc.out.shape[0] = desc.block_table.shape[0] = 1;
  desc.lse.reset();
  desc.max_seq_q = 1;
  desc.mask = mask_of_row(spec.mask, spec.sequences[index(at.sequence)], at.row);
  const std::array<std::int32_t, 2> cu_seqlens_q{0, 1};
  PagedAttentionArgs args = request.args;
  args.q = at_element(bound.q, bound.row_offset(bound.q, bound.flat_row(at.sequence, at.row), 0));
  args.block_table += bound.block_table.offset(at.sequence);
  args.cu_seqlens_q = cu_seqlens_q.data();
  args.kv_len += at.sequence;
  return reference::paged_attention(detail::validate(desc, {}).value(), args);
}

/// The reference, whole or row by row.
struct Exact {
  const BoundCase& bound;
  Expected& expected;

  template <class Request>
  void operator()(const Request& request) {
    if (bound.spec.tier == Tier::bench) return sampled(request);
    const auto problem = detail::validate(request.desc, {}).value();
    if constexpr (std::is_same_v<decltype(request.args), AttentionArgs>) {
      take(reference::attention(problem, request.args));
    } else {
      take(reference::paged_attention(problem, request.args));
    }
  }
  void operator()(const Request<MergeStatesDesc, MergeStatesArgs>& request) {
    take(reference::merge_states(detail::validate(request.desc, {}).value(), request.args));
  }
  void operator()(const Request<PagedCacheAppendDesc, PagedCacheAppendArgs>&) {}

  void take(reference::AttentionOutput whole) {
    expected.out = std::move(whole.out);
    expected.lse = std::move(whole.lse);
    expected.written = std::move(whole.written);
    expected.judged = expected.written;
  }

  template <class Request>
  void sampled(const Request& request) {
    const std::int64_t row_size = bound.spec.head * bound.spec.dv;
    expected.out.resize(index(bound.flat_rows() * row_size));
    expected.lse.resize(index(bound.flat_rows() * bound.spec.head));
    expected.written.assign(index(bound.flat_rows() - bound.spec.padding_rows), 1);
    expected.written.resize(index(bound.flat_rows()));
    expected.judged.resize(index(bound.flat_rows()));
    for (const RowOfSequence at : sample_of(bound.spec)) {
      const reference::AttentionOutput row = reference_row(bound, at, request);
      const std::int64_t flat = bound.flat_row(at.sequence, at.row);
      std::copy(row.out.begin(), row.out.end(), expected.out.begin() + flat * row_size);
      std::copy(row.lse.begin(), row.lse.end(), expected.lse.begin() + flat * bound.spec.head);
      expected.judged[index(flat)] = 1;
    }
  }
};

/// The codes of an append and their scales, as numbers. Both are exact.
void expect_codes(const BoundCase& bound, bool is_k, std::vector<Answer>& answers) {
  const HostileTensor &cache = is_k ? bound.k : bound.v, &scales = is_k ? bound.k_scale_cache : bound.v_scale_cache;
  const HostileTensor &rows = is_k ? bound.new_k : bound.new_v, &global = is_k ? bound.k_scale : bound.v_scale;
  const KvRowFormat& format = *kv_row_format(is_k ? bound.spec.k_format : bound.spec.v_format);
  const auto* slots = bound.slots.as<std::int64_t>();
  const std::int64_t dim = rows.desc().shape[2], groups = format.scales(dim);
  const DType dtype = scales ? scales.desc().dtype : DType::f32;
  Answer codes(is_k ? "k_cache" : "v_cache", cache, {format.code_bytes(dim)});
  Answer of_scales(is_k ? "k_scale_cache" : "v_scale_cache", scales, {groups});
  std::vector<float> row(index(dim));
  std::vector<std::uint8_t> code_bytes(index(format.code_bytes(dim))), scale_bytes(index(groups) * size_of(dtype) + 4);
  for (std::int64_t token = 0; token < rows.desc().shape[0]; ++token)
    for (std::int64_t head = 0; slots[token] >= 0 && head < bound.spec.kv_head; ++head) {
      for (std::size_t x = 0; x < row.size(); ++x) row[x] = rows.at(rows.offset(token, head) + static_cast<std::int64_t>(x));
      const float factor = global ? global.at(bound.spec.scales == Scales::per_head ? head : 0) : 1.0f;
      detail::encode_kv_row(format, {code_bytes.data(), scale_bytes.data(), dtype}, factor, row);
      std::vector<double> exact;
      for (std::size_t i = 0; i < code_bytes.size(); ++i) exact.push_back(load(DType::i8, code_bytes.data(), static_cast<std::int64_t>(i)));
      codes.expect(bound.slot_offset(cache, slots[token], head), exact);
      exact.clear();
      for (std::int64_t i = 0; i < groups; ++i) exact.push_back(load(dtype, scale_bytes.data(), i));
      if (scales) of_scales.expect(bound.slot_offset(scales, slots[token], head), exact);
    }
  answers.push_back(std::move(codes.within({})));
  if (scales) answers.push_back(std::move(of_scales.within({})));
}

/// Appending is exact: a copy, or the e4m3 code of the f32 quotient.
std::vector<Answer> expect_appended(const BoundCase& bound) {
  const auto* slots = bound.slots.as<std::int64_t>();
  std::vector<Answer> answers;
  for (const auto& [cache, rows, scales] : {std::tuple{&bound.k, &bound.new_k, &bound.k_scale}, {&bound.v, &bound.new_v, &bound.v_scale}}) {
    const bool is_k = cache == &bound.k;
    if ((is_k ? bound.spec.k_format : bound.spec.v_format) != KvFormat::rows) {
      expect_codes(bound, is_k, answers);
      continue;
    }
    Answer answer(is_k ? "k_cache" : "v_cache", *cache, {rows->desc().shape[2]});
    std::vector<double> exact(index(rows->desc().shape[2]));
    for (std::int64_t row = 0; row < rows->desc().shape[0]; ++row)
      for (std::int64_t head = 0; slots[row] >= 0 && head < bound.spec.kv_head; ++head) {
        const float scale = *scales ? scales->at(bound.spec.scales == Scales::per_head ? head : 0) : 1.0f;
        for (std::size_t x = 0; x < exact.size(); ++x) {
          const float value = rows->at(rows->offset(row, head) + static_cast<std::int64_t>(x));
          exact[x] = rounded(cache->desc().dtype, *scales ? value / scale : value);
        }
        answer.expect(bound.slot_offset(*cache, slots[row], head), exact);
      }
    answers.push_back(std::move(answer.within({})));
  }
  return answers;
}

}  // namespace

std::vector<Answer> BoundCase::expect() const {
  if (spec.operation == Operation::paged_cache_append) return expect_appended(*this);
  Expected expected;
  std::visit(Exact{*this, expected}, request);
  const bool merge = spec.operation == Operation::merge_states;
  const PlainOutput plain = merge ? plain_merge_states(*this) : plain_attention(*this, expected.judged);
  const bool has_native = spec.operation == Operation::attention && spec.dtype == DType::e4m3;
  const PlainOutput native = has_native ? plain_attention(*this, expected.judged, E4m3Products::native) : PlainOutput(0, 0);
  const auto part = [](const std::vector<float>& results, std::int64_t at, std::int64_t count) {
    return results.empty() ? std::span<const float>() : std::span(results).subspan(index(at), index(count));
  };
  Answer outs("out", out, {spec.head, spec.dv}), lses("lse", lse, {spec.head});
  for (std::int64_t flat = 0; flat < flat_rows(); ++flat)
    for (std::int64_t head = 0; expected.written[index(flat)] && head < spec.head; ++head) {
      const std::int64_t at = row_offset(out, flat, head), known = flat * spec.head + head;
      const std::span exact(&expected.out[index(known * spec.dv)], index(spec.dv));
      const bool judged = expected.judged[index(flat)] != 0;
      if (judged)
        outs.expect(at, exact, part(plain.out, known * spec.dv, spec.dv), part(native.out, known * spec.dv, spec.dv));
      else
        outs.expect_finite(at, spec.dv);
      if (!lse) continue;
      if (judged)
        lses.expect(lse_offset(flat, head), {&expected.lse[index(known)], 1}, part(plain.lse, known, 1), part(native.lse, known, 1));
      else
        lses.expect_finite(lse_offset(flat, head), 1);
    }
  std::vector<Answer> answers{std::move(outs)};
  if (lse) answers.push_back(std::move(lses.as_logarithm()));
  return answers;
}

}  // namespace fovea::check
