// SPDX-License-Identifier: Apache-2.0
#include "backward_case.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "backward_masks.hpp"
#include "fovea/attention_backward.hpp"
#include "known_gradient.hpp"
#include "noise.hpp"
#include "op/attention_backward/problem.hpp"
#include "plain_backward.hpp"
#include "reference/reference.hpp"
#include "run_case.hpp"

namespace fovea::check {
namespace {

using Values = BackwardCase::Values;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// From the position alone.
float noise(std::uint64_t tag, std::int64_t flat, std::int64_t head, std::int64_t channel) {
  const auto fold = [](std::uint64_t bits, std::int64_t x) { return mix(bits + static_cast<std::uint64_t>(x) + 1); };
  return near_normal(fold(fold(fold(mix(tag), flat), head), channel));
}

class BackwardTrial final : public Trial {
 public:
  explicit BackwardTrial(const BackwardCase& spec) : spec_(spec), masks_(spec) {
    q_begin_ = k_begin_ = {0};
    for (const Sequence& s : spec_.sequences) {
      q_begin_.push_back(q_begin_.back() + s.q);
      k_begin_.push_back(k_begin_.back() + s.kv);
    }
    allocate();
    describe();
    fill();
    point();
    run_forward();
    seal();
  }

  Result<AnyPlan> plan(const PlanOptions& options, const Place& place) const override {
    return forget_operation(plan_attention_backward(desc_, place.device, options), args_, place);
  }
  std::vector<Named> inputs() const override {
    std::vector<Named> list{{"q", q_},     {"k", k_},       {"v", v_},       {"out", out_},           {"dout", dout_},
                            {"lse", lse_}, {"dlse", dlse_}, {"sink", sink_}, {"cu_seqlens_q", cu_q_}, {"cu_seqlens_k", cu_k_}};
    for (const Named& named : masks_.inputs()) list.push_back(named);
    std::erase_if(list, [](const Named& named) { return !named.tensor; });
    return list;
  }
  std::vector<Named> outputs() const override {
    std::vector<Named> list{{"dq", dq_}, {"dk", dk_}, {"dv", dv_}};
    if (spec_.sink) list.push_back({"dsink", dsink_});
    return list;
  }
  /// Five products of each visible pair where the forward pass has two.
  Work work() const override {
    const double pairs = visible_pairs(spec_.mask, spec_.sequences);
    const double products = static_cast<double>(spec_.head * (3 * spec_.dqk + 2 * spec_.dv));
    const std::int64_t q_elements = total_q() * spec_.head * 2 * (spec_.dqk + spec_.dv),
                       k_elements = total_k() * spec_.kv_head * 2 * (spec_.dqk + spec_.dv);
    return {2 * pairs * products, static_cast<double>((q_elements + k_elements) * static_cast<std::int64_t>(size_of(spec_.dtype))),
            spec_.dtype};
  }

 private:
  std::int64_t total_q() const { return q_begin_.back(); }
  std::int64_t total_k() const { return k_begin_.back(); }
  std::int64_t group() const { return spec_.head / spec_.kv_head; }

  void allocate();
  void describe();
  void fill();
  void fill_vast();
  void spoil_unseen();
  void point();
  void run_forward();
  std::vector<Answer> expect() const override;

  static std::int64_t offset(const HostileTensor& tensor, std::int64_t flat, std::int64_t head) {
    const TensorDesc& d = tensor.desc();
    const std::int64_t rows = std::max<std::int64_t>(d.shape[1], 1);
    return d.rank == 4 ? tensor.offset(flat / rows, flat % rows, head) : tensor.offset(flat, head);
  }
  std::int64_t lse_offset(std::int64_t flat, std::int64_t head) const {
    const TensorDesc& d = lse_.desc();
    const std::int64_t rows = std::max<std::int64_t>(d.shape[2], 1);
    return d.rank == 3 ? lse_.offset(flat / rows, head, flat % rows) : lse_.offset(flat, head);
  }
  template <class F>
  static void for_each_row(const HostileTensor& tensor, std::int64_t rows, F&& f) {
    const std::int64_t heads = tensor.desc().shape[static_cast<std::size_t>(tensor.desc().rank) - 2];
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t head = 0; head < heads; ++head) f(row, offset(tensor, row, head));
  }
  void spoil(HostileTensor& tensor, std::int64_t flat, float value) { tensor.set(offset(tensor, flat, 0) + 5, value); }

  /// Rows [first, first + rows) of heads [head, head + heads) as a batch of one.
  static TensorDesc part(const HostileTensor& tensor, std::int64_t rows, std::int64_t heads) {
    const std::size_t axis = tensor.desc().rank == 4 ? 1 : 0;
    TensorDesc desc = contiguous(tensor.desc().dtype, {1, rows, heads, tensor.desc().shape[axis + 2]});
    desc.strides[1] = tensor.desc().strides[axis];
    desc.strides[2] = tensor.desc().strides[axis + 1];
    desc.strides[0] = rows * desc.strides[1];
    return desc;
  }
  static const void* at(const HostileTensor& tensor, std::int64_t flat, std::int64_t head) {
    return tensor.as<const char>() + offset(tensor, flat, head) * static_cast<std::int64_t>(size_of(tensor.desc().dtype));
  }
  reference::BackwardOutput exact(std::size_t b, std::int64_t kv_head) const;
  PlainGradients plain(std::size_t b, std::int64_t kv_head) const;

  BackwardCase spec_;
  BackwardMasks masks_;
  std::vector<std::int64_t> q_begin_{}, k_begin_{};
  AttentionBackwardDesc desc_{};
  AttentionBackwardArgs args_{};
  HostileTensor q_{}, k_{}, v_{}, out_{}, dout_{}, lse_{}, dlse_{}, sink_{}, cu_q_{}, cu_k_{}, dq_{}, dk_{}, dv_{}, dsink_{};
};

void BackwardTrial::allocate() {
  const auto batch = static_cast<std::int64_t>(spec_.sequences.size());
  const std::int64_t padding = spec_.padding_rows(), gap = spec_.padded ? 3 : 0;
  const auto tensor = [&](std::int64_t total, std::int64_t heads, std::int64_t dim) {
    const TensorDesc desc =
        spec_.ragged ? contiguous(spec_.dtype, {total + padding, heads, dim}) : contiguous(spec_.dtype, {batch, total / batch, heads, dim});
    return HostileTensor(with_gaps(desc, gap), spec_.padded ? size_of(spec_.dtype) : 0);
  };
  q_ = tensor(total_q(), spec_.head, spec_.dqk);
  dq_ = tensor(total_q(), spec_.head, spec_.dqk);
  out_ = tensor(total_q(), spec_.head, spec_.dv);
  dout_ = tensor(total_q(), spec_.head, spec_.dv);
  k_ = tensor(total_k(), spec_.kv_head, spec_.dqk);
  dk_ = tensor(total_k(), spec_.kv_head, spec_.dqk);
  v_ = tensor(total_k(), spec_.kv_head, spec_.dv);
  dv_ = tensor(total_k(), spec_.kv_head, spec_.dv);
  lse_ = HostileTensor(with_gaps(spec_.ragged ? contiguous(DType::f32, {total_q() + padding, spec_.head})
                                              : contiguous(DType::f32, {batch, spec_.head, total_q() / batch}),
                                 gap));
  if (spec_.dlse) dlse_ = HostileTensor(lse_.desc());
  if (!spec_.sink) return;
  sink_ = HostileTensor(contiguous(DType::f32, {spec_.head}));
  dsink_ = HostileTensor(contiguous(DType::f32, {spec_.head}));
  constexpr float kSinks[] = {0.5f, -kInf, kInf, -1.0f};
  for (std::int64_t h = 0; h < spec_.head; ++h) sink_.set(h, kSinks[h % 4]);
}

void BackwardTrial::describe() {
  desc_.forward = {.q = q_.desc(),
                   .k = k_.desc(),
                   .v = v_.desc(),
                   .out = out_.desc(),
                   .lse = lse_.desc(),
                   .mask = spec_.mask,
                   .scale = spec_.scale,
                   .softcap = spec_.softcap,
                   .has_sink = spec_.sink};
  desc_.dout = dout_.desc();
  desc_.dq = dq_.desc();
  desc_.dk = dk_.desc();
  desc_.dv = dv_.desc();
  if (spec_.dlse) desc_.dlse = dlse_.desc();
  if (!spec_.padded && size_of(spec_.dtype) == 2) {  // the others promise nothing
    AttentionDesc& forward = desc_.forward;
    for (TensorDesc* tensor : {&forward.q, &forward.k, &forward.v, &forward.out, &desc_.dout, &desc_.dq, &desc_.dk, &desc_.dv})
      tensor->alignment = 16;
  }
  if (!spec_.ragged) return;
  const auto batch = static_cast<std::int64_t>(spec_.sequences.size());
  RaggedDesc bounds{.batch = batch};
  cu_q_ = HostileTensor(contiguous(DType::i32, {batch + 1}));
  cu_k_ = HostileTensor(contiguous(DType::i32, {batch + 1}));
  for (std::int64_t b = 0; b <= batch; ++b) {
    cu_q_.as<std::int32_t>()[b] = static_cast<std::int32_t>(q_begin_[index(b)]);
    cu_k_.as<std::int32_t>()[b] = static_cast<std::int32_t>(k_begin_[index(b)]);
  }
  for (const Sequence& s : spec_.sequences) {  // bounds need not be tight
    bounds.max_seq_q = std::max(bounds.max_seq_q, s.q + 5);
    bounds.max_seq_k = std::max(bounds.max_seq_k, s.kv + 5);
  }
  desc_.forward.ragged = bounds;
}

void BackwardTrial::fill() {
  const auto fill = [&](HostileTensor& tensor, std::uint64_t tag, std::int64_t rows, float factor) {
    const auto rank = static_cast<std::size_t>(tensor.desc().rank);
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t h = 0; h < tensor.desc().shape[rank - 2]; ++h)
        for (std::int64_t d = 0; d < tensor.desc().shape[rank - 1]; ++d)
          tensor.set(offset(tensor, row, h) + d, factor * noise(tag, row, h, d));
  };
  fill(q_, 1, total_q(), spec_.values == Values::sharp ? 20.0f : 1.0f);
  fill(k_, 2, total_k(), 1);
  fill(v_, 3, total_k(), 1);
  fill(dout_, 4, total_q(), 1);
  for (std::int64_t row = 0; spec_.dlse && row < total_q(); ++row)
    for (std::int64_t h = 0; h < spec_.head; ++h) dlse_.set(lse_offset(row, h), noise(5, row, h, 0));
  if (spec_.vast) fill_vast();
  const std::int64_t q_middle = total_q() / 2, k_middle = total_k() / 2;
  switch (spec_.values) {
    case Values::nan_query: return spoil(q_, q_middle, kNan);
    case Values::nan_key: return spoil(k_, k_middle, kNan);
    case Values::nan_value: return spoil(v_, k_middle, kNan);
    case Values::nan_dout: return spoil(dout_, q_middle, kNan);
    case Values::nan_dlse: return dlse_.set(lse_offset(q_middle, 0), kNan);
    case Values::unseen_nan: return spoil_unseen();
    case Values::infinite_key:
      spoil(k_, 0, -kInf);
      for (std::int64_t row = 0; row < total_q(); ++row)
        for (std::int64_t h = 0; h < spec_.head; ++h) q_.set(offset(q_, row, h) + 5, 1.0f);
      return;
    default: return;
  }
}

void BackwardTrial::fill_vast() {
  for_each_row(q_, total_q(), [&](std::int64_t, std::int64_t at) {
    for (std::int64_t d = 0; d < spec_.dqk; ++d) q_.set(at + d, spec_.vast.q(d, spec_.scale));
  });
  for_each_row(k_, total_k(), [&](std::int64_t key, std::int64_t at) { k_.set(at, spec_.vast.k(key)); });
  for_each_row(dout_, total_q(), [&](std::int64_t row, std::int64_t at) {
    for (std::int64_t d = 0; d < spec_.dv; ++d)
      if (d != row % spec_.dv) dout_.set(at + d, 0);
  });
}

/// Keys that no query sees, and queries that see no key.
void BackwardTrial::spoil_unseen() {
  for (std::size_t b = 0; b < spec_.sequences.size(); ++b) {
    const Sequence& s = spec_.sequences[b];
    std::vector<char> seen(index(s.kv));
    for (std::int64_t row = 0; row < s.q; ++row) {
      const Keys keys = visible_keys(spec_.mask, s, row);
      bool sees_any = false;  // of head 0
      for (std::int64_t head = group(); head-- > 0;) {
        sees_any = false;
        for (std::int64_t key = keys.begin; key < keys.end; ++key)
          if (masks_.sees(static_cast<std::int64_t>(b), head, row, key)) seen[index(key)] = 1, sees_any = true;
      }
      if (sees_any) continue;
      spoil(q_, q_begin_[b] + row, kInf), spoil(dout_, q_begin_[b] + row, kNan);
      if (spec_.dlse) dlse_.set(lse_offset(q_begin_[b] + row, 0), kNan);
    }
    for (std::int64_t key = 0; key < s.kv; ++key)
      if (seen[index(key)] == 0) spoil(k_, k_begin_[b] + key, kNan), spoil(v_, k_begin_[b] + key, kInf);
  }
}

void BackwardTrial::point() {
  args_.forward = {.q = q_.data(),
                   .k = k_.data(),
                   .v = v_.data(),
                   .out = out_.data(),
                   .lse = lse_.as<float>(),
                   .sink = sink_.as<const float>(),
                   .cu_seqlens_q = cu_q_.as<const std::int32_t>(),
                   .cu_seqlens_k = cu_k_.as<const std::int32_t>()};
  args_.dout = dout_.data();
  args_.dq = dq_.data();
  args_.dk = dk_.data();
  args_.dv = dv_.data();
  args_.dsink = dsink_.as<float>();
  args_.dlse = dlse_.as<const float>();
  masks_.add_to(desc_.forward, args_.forward);
}

/// The reference gives out and lse. Large cases take the fastest implementation; the exact gradients come from q, k, v and dout alone.
void BackwardTrial::run_forward() {
  const auto plan = plan_attention(desc_.forward, {}, {.implementation = spec_.tier == Tier::bench ? "" : "reference.attention"});
  if (!plan) throw std::runtime_error(plan.error().message);
  const HostileWorkspace workspace(plan->workspace_bytes());
  if (const auto done = plan->run(args_.forward, workspace.view()); !done) throw std::runtime_error(done.error().message);
}

/// One kv head of one sequence, with its query heads.
reference::BackwardOutput BackwardTrial::exact(std::size_t b, std::int64_t kv_head) const {
  const Sequence& s = spec_.sequences[b];
  const std::int64_t head = kv_head * group();
  AttentionBackwardDesc desc = desc_;
  desc.forward.ragged.reset();
  desc.forward.q = desc.dq = part(q_, s.q, group());
  desc.forward.out = part(out_, s.q, group());
  desc.dout = part(dout_, s.q, group());
  desc.forward.k = desc.dk = part(k_, s.kv, 1);
  desc.forward.v = desc.dv = part(v_, s.kv, 1);
  desc.forward.lse = contiguous(DType::f32, {1, group(), s.q});
  AttentionBackwardArgs args = args_;
  args.forward.q = at(q_, q_begin_[b], head);
  args.forward.k = at(k_, k_begin_[b], kv_head);
  args.forward.v = at(v_, k_begin_[b], kv_head);
  args.dout = at(dout_, q_begin_[b], head);
  masks_.add_part(static_cast<std::int64_t>(b), head, group(), desc.forward, args.forward);
  if (spec_.sink) args.forward.sink += head;
  if (spec_.dlse) {
    const TensorDesc& all = dlse_.desc();
    const bool fixed = all.rank == 3;
    desc.dlse = contiguous(DType::f32, {1, group(), s.q});
    desc.dlse->strides = {0, all.strides[1], fixed ? all.strides[2] : all.strides[0]};
    args.dlse += lse_offset(q_begin_[b], head);
  }
  return reference::attention_backward(detail::validate(desc, {}).value(), args);
}

PlainGradients BackwardTrial::plain(std::size_t b, std::int64_t kv_head) const {
  const Sequence& s = spec_.sequences[b];
  const auto rows = [](const HostileTensor& tensor, std::int64_t first, std::int64_t count, std::int64_t head) {
    const std::int64_t dim = tensor.desc().shape[static_cast<std::size_t>(tensor.desc().rank) - 1];
    std::vector<float> values(index(count * dim));
    for (std::int64_t row = 0; row < count; ++row)
      for (std::int64_t d = 0; d < dim; ++d) values[index(row * dim + d)] = tensor.at(offset(tensor, first + row, head) + d);
    return values;
  };
  PlainBackward work{.dtype = spec_.dtype,
                     .dqk = spec_.dqk,
                     .dv = spec_.dv,
                     .scale = spec_.scale != 0 ? spec_.scale : 1 / std::sqrt(static_cast<float>(spec_.dqk)),
                     .softcap = spec_.softcap,
                     .mask = spec_.mask,
                     .sequence = s,
                     .k = rows(k_, k_begin_[b], s.kv, kv_head),
                     .v = rows(v_, k_begin_[b], s.kv, kv_head)};
  PlainGradients gradients(s, group(), spec_.dqk, spec_.dv);
  for (std::int64_t i = 0; i < group(); ++i) {
    const std::int64_t head = kv_head * group() + i;
    std::vector<float> lse, dlse(index(s.q));
    for (std::int64_t row = 0; row < s.q; ++row) {
      const std::int64_t at = lse_offset(q_begin_[b] + row, head);
      lse.push_back(lse_.at(at));
      if (spec_.dlse) dlse[index(row)] = dlse_.at(at);
    }
    work.add_head({rows(q_, q_begin_[b], s.q, head), rows(out_, q_begin_[b], s.q, head), rows(dout_, q_begin_[b], s.q, head), lse, dlse,
                   spec_.sink ? sink_.at(head) : -kInf, i,
                   [&](std::int64_t row, std::int64_t key) { return masks_.sees(static_cast<std::int64_t>(b), head, row, key); }},
                  gradients);
  }
  gradients.round(spec_.dtype);
  return gradients;
}

std::vector<Answer> BackwardTrial::expect() const {
  KnownGradient dq(total_q(), spec_.head, spec_.dqk), dk(total_k(), spec_.kv_head, spec_.dqk), dv(total_k(), spec_.kv_head, spec_.dv),
      dsink(1, spec_.head, 1);
  for (std::size_t b = 0; b < spec_.sequences.size(); ++b)
    for (std::int64_t kv_head = 0; kv_head < spec_.kv_head; ++kv_head) {
      if (spec_.tier == Tier::bench && (b > 0 || kv_head != spec_.kv_head / 2)) continue;  // a large case has known results for one head
      const reference::BackwardOutput exact = this->exact(b, kv_head);
      const PlainGradients plain = this->plain(b, kv_head);
      dq.take(q_begin_[b], kv_head * group(), group(), exact.dq, plain.dq);
      dk.take(k_begin_[b], kv_head, 1, exact.dk, plain.dk);
      dv.take(k_begin_[b], kv_head, 1, exact.dv, plain.dv);
      dsink.take(0, kv_head * group(), group(), exact.dsink, plain.dsink);
    }
  std::vector<Answer> answers;
  const auto add = [&](std::string_view name, const HostileTensor& tensor, const KnownGradient& gradient) {
    Answer answer(name, tensor, {gradient.heads, gradient.dim});
    const auto dim = index(gradient.dim);
    for (std::size_t i = 0; i < gradient.known.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / gradient.heads, head = static_cast<std::int64_t>(i) % gradient.heads;
      const std::int64_t at = tensor.desc().rank == 1 ? head : offset(tensor, row, head);
      if (gradient.known[i] != 0)
        answer.expect(at, {&gradient.exact[i * dim], dim}, {&gradient.plain[i * dim], dim});
      else
        answer.expect_finite(at, gradient.dim);
    }
    answers.push_back(std::move(answer));
  };
  add("dq", dq_, dq);
  add("dk", dk_, dk);
  add("dv", dv_, dv);
  if (spec_.sink) add("dsink", dsink_, dsink);
  return answers;
}

}  // namespace

std::unique_ptr<Trial> bind(const BackwardCase& spec) { return std::make_unique<BackwardTrial>(spec); }

}  // namespace fovea::check
