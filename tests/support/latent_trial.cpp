// SPDX-License-Identifier: Apache-2.0
#include "latent_trial.hpp"

#include <algorithm>

namespace fovea::check {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

LatentTrial::LatentTrial(const LatentShape& shape, bool max_logits, Random& random) : shape_(shape) {
  q_ = HostileTensor(row_shape(shape.row));
  for_each_element(q_.desc(), [&](auto, auto, std::int64_t c, std::int64_t d, std::int64_t at) {
    const std::int64_t channel = shape.rows > 0 ? c : d;
    q_.set(at, shape.vast ? shape.vast.q(channel, shape.vast.scale(shape.dtype)) : random.normal());
  });
  out_ = HostileTensor(row_shape(kLatent));
  const TensorDesc numbers =
      shape.rows > 0 ? contiguous(DType::f32, {shape.rows, shape.heads}) : contiguous(DType::f32, {shape.batch, shape.heads, shape.seq_q});
  lse_ = HostileTensor(with_gaps(numbers, shape.gap > 0 ? 3 : 0));
  if (max_logits) max_logits_ = HostileTensor(lse_.desc());
}

TensorDesc LatentTrial::row_shape(std::int64_t last) const {
  TensorDesc desc = with_gaps(shape_.rows > 0 ? contiguous(shape_.dtype, {shape_.rows, shape_.heads, last})
                                              : contiguous(shape_.dtype, {shape_.batch, shape_.seq_q, shape_.heads, last}),
                              shape_.gap);
  desc.alignment = promised_alignment(shape_.gap);
  return desc;
}

std::vector<Named> LatentTrial::outputs() const {
  std::vector<Named> list{{"out", out_}, {"lse", lse_}};
  if (max_logits_) list.push_back({"max_logits", max_logits_});
  return list;
}

std::vector<LatentRow> LatentTrial::judged_rows(Tier tier, const std::vector<std::int64_t>& lengths) const {
  std::int64_t total = 0;
  for (const std::int64_t length : lengths) total += length;
  constexpr std::int64_t kRows = 12, kHeads = 2;
  const std::int64_t step = (total + kRows - 1) / kRows;
  std::vector<LatentRow> rows;
  for (std::size_t b = 0; b < lengths.size(); ++b)
    for (std::int64_t row = 0; row < lengths[b]; ++row) {
      LatentRow at{static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(b), row, 0, shape_.heads};
      if (tier == Tier::bench) {
        at.heads = at.flat % step == 0 || at.flat == total - 1 ? std::min(kHeads, shape_.heads) : 0;
        at.head = at.flat * 37 % (shape_.heads - std::min(kHeads, shape_.heads) + 1);
      }
      rows.push_back(at);
    }
  return rows;
}

std::vector<Answer> LatentTrial::answer(const std::vector<LatentRow>& rows) const {
  Answer outs("out", out_, {shape_.heads, kLatent}), lses("lse", lse_, {shape_.heads}), largest("max_logits", max_logits_, {shape_.heads});
  for (const LatentRow& at : rows) {
    const reference::AttentionOutput known = at.heads > 0 ? exact(at) : reference::AttentionOutput{};
    const PlainOutput simple = plain(at);
    for (std::int64_t head = 0; head < shape_.heads; ++head) {
      const std::int64_t out = offset(out_, at, head), number = number_offset(at, head), i = head - at.head;
      if (i < 0 || i >= at.heads) {
        outs.expect_finite(out, kLatent);
        lses.expect_finite(number, 1);
        if (max_logits_) largest.expect_finite(number, 1);
        continue;
      }
      outs.expect(out, {&known.out[index(i * kLatent)], kLatent}, {&simple.out[index(i * kLatent)], kLatent});
      lses.expect(number, {&known.lse[index(i)], 1}, {&simple.lse[index(i)], 1});
      if (max_logits_) largest.expect(number, {&known.max_logits[index(i)], 1}, {&simple.max_logits[index(i)], 1});
    }
  }
  std::vector<Answer> answers{std::move(outs), std::move(lses.as_logarithm())};
  if (max_logits_) answers.push_back(std::move(largest.as_logarithm()));
  return answers;
}

PlainOutput LatentTrial::plain(const LatentRow& at) const {
  PlainOutput all(at.heads, kLatent);
  std::vector<float> q(index(shape_.row)), k;
  const std::int64_t group = shape_.heads / shape_.kv_heads;
  for (std::int64_t i = 0; i < at.heads; ++i) {
    const Scales scale = scales(at.head + i);
    PlainRow row{.operands = shape_.dtype,
                 .out = shape_.dtype,
                 .dqk = shape_.row,
                 .dv = kLatent,
                 .score_scale = scale.score,
                 .value_scale = scale.value,
                 .sink = scale.sink};
    if (i == 0 || (at.head + i) % group == 0) k = keys(at, (at.head + i) / group);
    for (std::int64_t d = 0; d < shape_.row; ++d) q[index(d)] = q_.at(offset(q_, at, at.head + i) + d);
    if (k.empty()) continue;
    row.attend(q.data(), {k.data(), k.data(), shape_.row, shape_.row, static_cast<std::int64_t>(k.size()) / shape_.row},
               &all.out[index(i * kLatent)]);
    all.lse[index(i)] = row.lse;
    all.max_logits[index(i)] = row.max_logit;
  }
  return all;
}

std::int64_t LatentTrial::offset(const HostileTensor& tensor, const LatentRow& at, std::int64_t head) const {
  return shape_.rows > 0 ? tensor.offset(at.flat, head) : tensor.offset(at.sequence, at.row, head);
}

std::int64_t LatentTrial::number_offset(const LatentRow& at, std::int64_t head) const {
  return shape_.rows > 0 ? lse_.offset(at.flat, head) : lse_.offset(at.sequence, head, at.row);
}

const void* LatentTrial::q_at(const LatentRow& at) const {
  return q_.as<const char>() + offset(q_, at, at.head) * static_cast<std::int64_t>(size_of(shape_.dtype));
}

TensorDesc LatentTrial::q_row(const LatentRow& at) const {
  TensorDesc desc = contiguous(shape_.dtype, {1, 1, at.heads, shape_.row});
  desc.strides[2] = q_.desc().strides[shape_.rows > 0 ? 1 : 2];
  desc.strides[0] = desc.strides[1] = at.heads * desc.strides[2];
  return desc;
}

TensorDesc LatentTrial::out_row(const LatentRow& at) const { return contiguous(shape_.dtype, {1, 1, at.heads, kLatent}); }

double LatentTrial::io_bytes() const {
  const std::int64_t rows = shape_.rows > 0 ? shape_.rows : shape_.batch * shape_.seq_q;
  return static_cast<double>(rows * shape_.heads * (shape_.row + kLatent) * static_cast<std::int64_t>(size_of(shape_.dtype)));
}

}  // namespace fovea::check
