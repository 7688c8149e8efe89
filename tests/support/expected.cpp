// SPDX-License-Identifier: Apache-2.0
#include "expected.hpp"

#include <algorithm>
#include <array>

#include "op/attention/validate.hpp"
#include "op/merge_states/validate.hpp"
#include "op/paged_attention/validate.hpp"
#include "plain.hpp"
#include "reference/reference.hpp"

namespace fovea::check {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

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

/// The band of a lone query row: its own position becomes the last one (bottom-right with one query).
BandMask mask_of_row(const Case& spec, RowOfSequence at) {
  const Sequence sequence = spec.sequences[index(at.sequence)];
  const std::int64_t diagonal = at.row + (spec.mask.anchor == Anchor::bottom_right ? sequence.kv - sequence.q : 0);
  const std::int64_t shift = diagonal - (sequence.kv - 1);
  BandMask mask{.left = spec.mask.left, .right = spec.mask.right};
  if (mask.left != kUnbounded) mask.left -= shift;
  if (mask.right != kUnbounded) mask.right += shift;
  return mask;
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
  desc.mask = mask_of_row(spec, at);
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
  desc.mask = mask_of_row(spec, at);
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

/// Calls f(cache, row in the cache, offset of the new row, its tensor, head) for everything that append must write.
template <class F>
void for_each_appended(const BoundCase& bound, F&& f) {
  const auto* slots = bound.slots.as<std::int64_t>();
  for (const auto& [cache, rows, name] : {std::tuple{&bound.k, &bound.new_k, 'k'}, {&bound.v, &bound.new_v, 'v'}})
    for (std::int64_t row = 0; row < rows->desc().shape[0]; ++row)
      for (std::int64_t head = 0; slots[row] >= 0 && head < bound.spec.kv_head; ++head)
        f(*cache, bound.slot_offset(*cache, slots[row], head), *rows, rows->offset(row, head), name, head);
}

/// Appending is exact: a copy, or the e4m3 code of the f32 quotient.
void expect_appended(const BoundCase& bound, Expected& expected) {
  for_each_appended(
      bound, [&](const HostileTensor& cache, std::int64_t, const HostileTensor& rows, std::int64_t from, char name, std::int64_t head) {
        const HostileTensor& scales = name == 'k' ? bound.k_scale : bound.v_scale;
        const float scale = scales ? scales.at(bound.spec.scales == Scales::per_head ? head : 0) : 1.0f;
        for (std::int64_t x = 0; x < rows.desc().shape[2]; ++x) {
          const float value = rows.at(from + x);
          expected.out.push_back(rounded(cache.desc().dtype, scales ? value / scale : value));
        }
      });
  expected.shape = {static_cast<std::int64_t>(expected.out.size())};
}

Comparison judge_appended(BoundCase& bound, const Expected& expected) {
  std::vector<float> got;
  for_each_appended(bound, [&](const HostileTensor& cache, std::int64_t to, const HostileTensor& rows, std::int64_t, char, std::int64_t) {
    for (std::int64_t x = 0; x < rows.desc().shape[2]; ++x) got.push_back(cache.at(to + x));
    cache.restore(to, rows.desc().shape[2]);
  });
  return compare(got, expected.out, {});
}

/// Keeps the rows that are judged; the others must merely have been written with something finite.
struct Collector {
  const Expected& expected;
  std::vector<float> got{};
  std::vector<double> want{};
  std::int64_t not_finite = 0;

  void add(std::int64_t flat, float value, double exact) {
    if (!expected.judged[index(flat)]) {
      not_finite += std::abs(value) <= std::numeric_limits<float>::max() ? 0 : 1;
      return;
    }
    got.push_back(value);
    want.push_back(exact);
  }
};

}  // namespace

Expected expect(const BoundCase& bound) {
  Expected expected;
  if (bound.spec.operation == Operation::paged_cache_append) {
    expect_appended(bound, expected);
    return expected;
  }
  expected.shape = {bound.flat_rows(), bound.spec.head, bound.spec.dv};
  std::visit(Exact{bound, expected}, bound.request);
  const bool merge = bound.spec.operation == Operation::merge_states;
  const std::vector<float> plain = merge ? plain_merge_states(bound) : plain_attention(bound, expected.judged);
  expected.plain_error = largest_error(plain, expected.out);
  expected.half_ulp = 0.5 * ulp(bound.spec.out_dtype, largest_magnitude(expected.out));
  return expected;
}

std::string what_changed(const BoundCase& bound) {
  for (const Named& named : bound.outputs()) {
    if (!named.tensor.storage().red_zones_intact()) return std::string("the red zone of ").append(named.name).append(" was written");
    if (!named.tensor.storage().sealed_contents_intact())
      return std::string(named.name)
          .append(" was written where it must not be (rows of no sequence, slots of no row, or gaps between rows)");
  }
  for (const Named& named : bound.inputs())
    if (!named.tensor.storage().sealed_contents_intact()) return std::string("the input ").append(named.name).append(" was changed");
  return {};
}

Judgement judge(BoundCase& bound, const Expected& expected) {
  Judgement verdict;
  const auto fail = [&](const std::string& message) {
    verdict.message.append(verdict.ok ? "" : "; ").append(message);
    verdict.ok = false;
  };
  if (bound.spec.operation == Operation::paged_cache_append) {
    const Comparison appended = judge_appended(bound, expected);
    if (!appended.ok()) fail("caches: " + describe(appended, expected.shape));
  } else {
    Collector out{expected}, lse{expected};
    std::vector<std::int64_t> shape = expected.shape;
    shape[0] = std::count(expected.judged.begin(), expected.judged.end(), 1);
    for (std::int64_t flat = 0; flat < bound.flat_rows(); ++flat)
      for (std::int64_t head = 0; expected.written[index(flat)] && head < bound.spec.head; ++head) {
        const std::int64_t at = bound.row_offset(bound.out, flat, head), known = flat * bound.spec.head + head;
        for (std::int64_t x = 0; x < bound.spec.dv; ++x)
          out.add(flat, bound.out.at(at + x), expected.out[index(known * bound.spec.dv + x)]);
        bound.out.restore(at, bound.spec.dv);
        if (!bound.lse) continue;
        lse.add(flat, bound.lse.at(bound.lse_offset(flat, head)), expected.lse[index(known)]);
        bound.lse.restore(bound.lse_offset(flat, head), 1);
      }
    const Comparison outs = compare(out.got, out.want, expected.out_tolerance());
    const Comparison lses = compare(lse.got, lse.want, Expected::lse_tolerance());
    verdict.out_ratio = outs.largest_ratio;
    verdict.lse_ratio = lses.largest_ratio;
    if (!outs.ok()) fail("out: " + describe(outs, shape));
    if (out.not_finite > 0) fail("out: " + std::to_string(out.not_finite) + " elements of rows outside the sample are NaN or infinite");
    shape.pop_back();
    if (!lses.ok()) fail("lse: " + describe(lses, shape));
  }
  if (const std::string changed = what_changed(bound); !changed.empty()) fail(changed);
  bound.reset_outputs();
  return verdict;
}

}  // namespace fovea::check
