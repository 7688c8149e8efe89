// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "latent_case.hpp"
#include "latent_trial.hpp"
#include "op/sparse_latent_attention/problem.hpp"

namespace fovea::check {
namespace {

constexpr auto kMin = std::numeric_limits<std::int32_t>::min(), kMax = std::numeric_limits<std::int32_t>::max();
constexpr float kInf = std::numeric_limits<float>::infinity();

/// One cache with the lists of every row.
class ListedCache {
 public:
  ListedCache(const SparseCase& spec, const SparseCase::List& list, Random& random)
      : cache({.format = list.format,
               .dtype = spec.dtype,
               .blocks = list.blocks,
               .page = list.page,
               .row = spec.row,
               .gap = spec.gap,
               .vast = spec.vast}),
        spec_(spec),
        list_(list) {
    const TensorDesc shape =
        spec.flat ? contiguous(DType::i32, {spec.seq_q, list.topk}) : contiguous(DType::i32, {spec.batch, spec.seq_q, list.topk});
    indices = HostileTensor(with_gaps(shape, spec.gap > 0 ? 3 : 0));
    if (!list.lengths.empty()) {
      lengths = HostileTensor(contiguous(DType::i32, {static_cast<std::int64_t>(list.lengths.size())}));
      std::copy(list.lengths.begin(), list.lengths.end(), lengths.as<std::int32_t>());
    }
    for (std::int64_t b = 0; b < spec.batch; ++b)
      for (std::int64_t row = 0; row < spec.seq_q; ++row) fill(b, row, random);
  }

  SparseLatentAttentionDesc::Selection desc() const { return {cache.desc(), indices.desc(), static_cast<bool>(lengths)}; }
  SparseLatentAttentionArgs::Selection args() const {
    return {cache.tensor().data(), indices.as<std::int32_t>(), lengths.as<std::int32_t>()};
  }

  /// The same for one row alone, as a batch of one.
  SparseLatentAttentionDesc::Selection desc_of_row() const {
    auto desc = this->desc();
    desc.indices = contiguous(DType::i32, {1, 1, list_.topk});
    return desc;
  }
  SparseLatentAttentionArgs::Selection args_of_row(const LatentRow& at) const {
    auto args = this->args();
    args.indices += row_at(at.sequence, at.row);
    if (lengths) args.topk_length += spec_.flat ? at.row : at.sequence;
    return args;
  }

  /// Tokens that a row lists, in order.
  std::vector<std::int64_t> tokens(std::int64_t b, std::int64_t row) const {
    std::vector<std::int64_t> slots;
    for (std::int64_t i = 0; i < length(b, row); ++i) {
      const std::int64_t slot = indices.as<std::int32_t>()[row_at(b, row) + i];
      if (slot >= 0 && slot < cache.slots()) slots.push_back(slot);
    }
    return slots;
  }

  LatentCache cache;
  HostileTensor indices{}, lengths{};

 private:
  std::int64_t row_at(std::int64_t b, std::int64_t row) const { return spec_.flat ? indices.offset(row) : indices.offset(b, row); }
  std::int64_t length(std::int64_t b, std::int64_t row) const {
    return lengths ? std::min<std::int64_t>(list_.topk, lengths.as<std::int32_t>()[spec_.flat ? row : b]) : list_.topk;
  }

  void fill(std::int64_t b, std::int64_t row, Random& random) {
    const std::int64_t hostile[] = {kMin, -1, cache.slots(), kMax, cache.slots() + 1};
    for (std::int64_t i = 0; i < list_.topk; ++i) {
      // Slot 0 is never filled.
      std::int64_t slot = i < length(b, row) ? 1 + random.below(cache.slots() - 1) : 0;
      if (spec_.lists == Lists::all_invalid || (spec_.lists == Lists::mixed && i % 3 == 1))
        slot = hostile[(i + b + row) % 5];
      else if (slot > 0)
        cache.fill(slot, random);
      indices.as<std::int32_t>()[row_at(b, row) + i] = static_cast<std::int32_t>(slot);
    }
  }

  const SparseCase& spec_;
  const SparseCase::List& list_;
};

LatentShape q_shape(const SparseCase& spec) {
  return {.dtype = spec.dtype,
          .batch = spec.batch,
          .seq_q = spec.seq_q,
          .rows = spec.flat ? spec.seq_q : 0,
          .heads = spec.head,
          .row = spec.row,
          .gap = spec.gap,
          .vast = spec.vast};
}

class SparseTrial final : public LatentTrial {
 public:
  SparseTrial(const SparseCase& spec, Random random)
      : LatentTrial(q_shape(spec), spec.max_logits, random), spec_(spec), main_(spec_, spec_.main, random) {
    if (spec_.extra) extra_.emplace(spec_, *spec_.extra, random);
    if (spec_.nan_token) main_.cache.set(main_.tokens(1, 0).back(), 17, std::numeric_limits<float>::quiet_NaN());
    if (spec_.sink) sink_ = HostileTensor(contiguous(DType::f32, {spec_.head}));
    for (std::int64_t head = 0; spec_.sink && head < spec_.head; ++head)
      sink_.set(head, head == 0 ? kInf : head == 1 ? -kInf : 3 * random.normal());
    desc_ = {.q = q_.desc(), .out = out_.desc(), .main = main_.desc(), .lse = lse_.desc(), .scale = spec_.scale, .has_sink = spec_.sink};
    args_ = {.q = q_.data(), .out = out_.data(), .main = main_.args(), .lse = lse_.as<float>(), .sink = sink_.as<float>()};
    if (spec_.max_logits) {
      desc_.max_logits = max_logits_.desc();
      args_.max_logits = max_logits_.as<float>();
    }
    if (extra_) {
      desc_.extra = extra_->desc();
      args_.extra = extra_->args();
    }
    seal();
  }

  Result<AnyPlan> plan(const PlanOptions& options, const Place& place) const override {
    return forget_operation(plan_sparse_latent_attention(desc_, place.device, options), args_, place);
  }

  std::vector<Named> inputs() const override {
    std::vector<Named> list{{"q", q_}, {"sink", sink_}};
    for (const ListedCache* from : {&main_, extra_ ? &*extra_ : nullptr})
      if (from != nullptr)
        list.insert(list.end(), {{"cache", from->cache.tensor()}, {"indices", from->indices}, {"topk_length", from->lengths}});
    std::erase_if(list, [](const Named& named) { return !named.tensor; });
    return list;
  }

  Work work() const override {
    double pairs = 0;
    for (std::int64_t b = 0; b < spec_.batch; ++b)
      for (std::int64_t row = 0; row < spec_.seq_q; ++row)
        pairs += static_cast<double>(main_.tokens(b, row).size() + (extra_ ? extra_->tokens(b, row).size() : 0));
    const double bytes = main_.cache.bytes() + (extra_ ? extra_->cache.bytes() : 0);
    return {2 * pairs * static_cast<double>(spec_.head * (spec_.row + kLatent)), bytes + io_bytes(), spec_.dtype};
  }

 private:
  std::vector<Answer> expect() const override {
    return answer(judged_rows(spec_.tier, std::vector<std::int64_t>(static_cast<std::size_t>(spec_.batch), spec_.seq_q)));
  }

  reference::AttentionOutput exact(const LatentRow& at) const override {
    SparseLatentAttentionDesc desc = desc_;
    desc.q = q_row(at);
    desc.out = out_row(at);
    desc.lse.reset();
    desc.max_logits.reset();
    desc.main = main_.desc_of_row();
    SparseLatentAttentionArgs args = args_;
    args.q = q_at(at);
    args.main = main_.args_of_row(at);
    if (spec_.sink) args.sink += at.head;
    if (extra_) {
      desc.extra = extra_->desc_of_row();
      args.extra = extra_->args_of_row(at);
    }
    return reference::sparse_latent_attention(detail::validate(desc, {}).value(), args);
  }

  std::vector<float> keys(const LatentRow& at, std::int64_t) const override {
    std::vector<float> rows;
    for (const ListedCache* from : {&main_, extra_ ? &*extra_ : nullptr}) {
      if (from == nullptr) continue;
      for (const std::int64_t slot : from->tokens(at.sequence, at.row)) {
        rows.resize(rows.size() + static_cast<std::size_t>(spec_.row));
        from->cache.read(slot, 0, &rows[rows.size() - static_cast<std::size_t>(spec_.row)]);
      }
    }
    return rows;
  }

  Scales scales(std::int64_t head) const override {
    const float scale = spec_.scale != 0 ? spec_.scale : 1.0f / std::sqrt(static_cast<float>(spec_.row));
    return {scale, 1.0f, spec_.sink ? sink_.at(head) : -kInf};
  }

  SparseCase spec_;
  ListedCache main_;
  std::optional<ListedCache> extra_{};
  HostileTensor sink_{};
  SparseLatentAttentionDesc desc_{};
  SparseLatentAttentionArgs args_{};
};

}  // namespace

std::unique_ptr<Trial> bind(const SparseCase& spec) { return std::make_unique<SparseTrial>(spec, Random(99)); }

}  // namespace fovea::check
