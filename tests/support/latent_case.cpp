// SPDX-License-Identifier: Apache-2.0
#include "latent_case.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "latent_trial.hpp"
#include "op/latent_attention/problem.hpp"

namespace fovea::check {
namespace {

constexpr std::int32_t kGarbageBlock = 2147480000;
constexpr float kCacheScale = 0.37f;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

std::int64_t blocks_of(const LatentCase& spec, const Sequence& sequence) { return (sequence.kv + spec.page - 1) / spec.page; }

/// One block more than is needed.
LatentCacheShape cache_shape(const LatentCase& spec) {
  LatentCacheShape shape{.format = spec.format,
                         .dtype = spec.rows,
                         .page = spec.page,
                         .row = spec.row,
                         .kv_heads = spec.kv_head,
                         .gap = spec.gap,
                         .vast = spec.vast};
  for (const Sequence& sequence : spec.sequences) shape.blocks += blocks_of(spec, sequence);
  return shape;
}

LatentShape q_shape(const LatentCase& spec) {
  LatentShape shape{.dtype = spec.dtype,
                    .batch = static_cast<std::int64_t>(spec.sequences.size()),
                    .seq_q = spec.sequences.front().q,
                    .heads = spec.head,
                    .kv_heads = spec.kv_head,
                    .row = spec.row,
                    .gap = spec.gap,
                    .vast = spec.vast};
  if (spec.ragged) {
    shape.rows = 1;
    for (const Sequence& sequence : spec.sequences) shape.rows += sequence.q;
  }
  return shape;
}

class DenseTrial final : public LatentTrial {
 public:
  DenseTrial(const LatentCase& spec, Random queries, Random tokens)
      : LatentTrial(q_shape(spec), false, queries), spec_(spec), cache_(cache_shape(spec)) {
    fill_tables();
    for (std::size_t b = 0; b < spec_.sequences.size(); ++b)
      for (std::int64_t row = 0; row < spec_.sequences[b].q; ++row) {
        const Keys seen = visible_keys(spec_.mask, spec_.sequences[b], row);
        for (std::int64_t key = seen.begin; key < seen.end; ++key) cache_.fill(slot(static_cast<std::int64_t>(b), key), tokens);
      }
    for (std::size_t b = 0; b < spec_.sequences.size(); ++b)
      for (const NotFinite& odd : spec_.not_finite) {
        const std::int64_t key = spec_.sequences[b].kv - 1 - odd.from_end;
        if (key >= 0) cache_.set(slot(static_cast<std::int64_t>(b), key), odd.channel, odd.value);
      }
    desc_ = {.q = q_.desc(),
             .out = out_.desc(),
             .block_table = table_.desc(),
             .cache = cache_.desc(),
             .lse = lse_.desc(),
             .mask = spec_.mask,
             .scale = spec_.scale,
             .has_scale = spec_.has_scale};
    args_ = {.q = q_.data(),
             .cache = cache_.tensor().data(),
             .out = out_.data(),
             .lse = lse_.as<float>(),
             .block_table = table_.as<std::int32_t>(),
             .cu_seqlens_q = spec_.ragged ? cu_q_.as<std::int32_t>() : nullptr,
             .kv_len = kv_len_.as<std::int32_t>(),
             .cache_scale = scale_.as<float>()};
    seal();
  }

  Result<AnyPlan> plan(const PlanOptions& options, const Place& place) const override {
    return forget_operation(plan_latent_attention(desc_, place.device, options), args_, place);
  }

  std::vector<Named> inputs() const override {
    std::vector<Named> list{{"q", q_}, {"cache", cache_.tensor()}, {"block_table", table_}, {"kv_len", kv_len_}, {"cu_seqlens_q", cu_q_}};
    if (scale_) list.push_back({"cache_scale", scale_});
    return list;
  }

  Work work() const override {
    const double pairs = visible_pairs(spec_.mask, spec_.sequences);
    return {2 * pairs * static_cast<double>(spec_.head * (spec_.row + kLatent)), cache_.bytes() + io_bytes(), spec_.dtype};
  }

 private:
  /// Blocks from the last to the second; the first one stays unused.
  void fill_tables() {
    const auto batch = static_cast<std::int64_t>(spec_.sequences.size());
    std::int64_t widest = 0, next = cache_.slots() / spec_.page - 1;
    for (const Sequence& sequence : spec_.sequences) widest = std::max(widest, blocks_of(spec_, sequence));
    table_ = HostileTensor(with_gaps(contiguous(DType::i32, {batch, widest + 2}), spec_.gap));
    std::fill_n(table_.as<std::int32_t>(), span_of(table_.desc()), kGarbageBlock);
    kv_len_ = HostileTensor(contiguous(DType::i32, {batch}));
    cu_q_ = HostileTensor(contiguous(DType::i32, {batch + 1}));
    cu_q_.as<std::int32_t>()[0] = 0;
    for (std::int64_t b = 0; b < batch; ++b) {
      const Sequence& sequence = spec_.sequences[index(b)];
      kv_len_.as<std::int32_t>()[b] = static_cast<std::int32_t>(sequence.kv);
      cu_q_.as<std::int32_t>()[b + 1] = cu_q_.as<std::int32_t>()[b] + static_cast<std::int32_t>(sequence.q);
      for (std::int64_t block = 0; block < blocks_of(spec_, sequence); ++block)
        table_.as<std::int32_t>()[table_.offset(b, block)] = static_cast<std::int32_t>(next--);
    }
    if (!spec_.has_scale) return;
    scale_ = HostileTensor(contiguous(DType::f32, {1}));
    scale_.set(0, spec_.nan_scale ? std::numeric_limits<float>::quiet_NaN() : kCacheScale);
  }

  std::int64_t slot(std::int64_t b, std::int64_t key) const {
    return table_.as<std::int32_t>()[table_.offset(b, key / spec_.page)] * spec_.page + key % spec_.page;
  }

  std::vector<Answer> expect() const override {
    std::vector<std::int64_t> lengths;
    for (const Sequence& sequence : spec_.sequences) lengths.push_back(sequence.q);
    return answer(judged_rows(spec_.tier, lengths));
  }

  reference::AttentionOutput exact(const LatentRow& at) const override {
    LatentAttentionDesc desc = desc_;
    desc.q = q_row(at);
    desc.out = out_row(at);
    desc.lse.reset();
    desc.block_table.shape[0] = 1;
    desc.mask = mask_of_row(spec_.mask, spec_.sequences[index(at.sequence)], at.row);
    LatentAttentionArgs args = args_;
    args.q = q_at(at);
    args.block_table += table_.offset(at.sequence);
    args.kv_len += at.sequence;
    return reference::latent_attention(detail::validate(desc, {}).value(), args);
  }

  std::vector<float> keys(const LatentRow& at, std::int64_t kv_head) const override {
    const Keys seen = visible_keys(spec_.mask, spec_.sequences[index(at.sequence)], at.row);
    std::vector<float> rows(index((seen.end - seen.begin) * spec_.row));
    for (std::int64_t key = seen.begin; key < seen.end; ++key)
      cache_.read(slot(at.sequence, key), kv_head, &rows[index((key - seen.begin) * spec_.row)]);
    return rows;
  }

  Scales scales(std::int64_t) const override {
    const float cache = scale_ ? scale_.at(0) : 1.0f;
    const float scale = spec_.scale != 0 ? spec_.scale : 1.0f / std::sqrt(static_cast<float>(spec_.row));
    return {scale * cache, cache, -std::numeric_limits<float>::infinity()};
  }

  LatentCase spec_;
  LatentCache cache_;
  HostileTensor table_{}, kv_len_{}, cu_q_{}, scale_{};
  LatentAttentionDesc desc_{};
  LatentAttentionArgs args_{};
};

}  // namespace

std::unique_ptr<Trial> bind(const LatentCase& spec) { return std::make_unique<DenseTrial>(spec, Random(1234), Random(4321)); }

}  // namespace fovea::check
