// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "indexer_case.hpp"
#include "noise.hpp"
#include "op/index_logits/keys.hpp"
#include "op/index_logits/problem.hpp"
#include "reference/indexer.hpp"

namespace fovea::check {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int32_t kGarbage = 2147480000;

class IndexTrial final : public Trial {
 public:
  IndexTrial(const IndexCase& spec, Random random) : spec_(spec) {
    const bool paged = !spec.kv_len.empty();
    desc_.q = with_gaps(contiguous(DType::e4m3, {spec.rows, spec.heads, spec.head_dim}), spec.gap);
    desc_.weights = with_gaps(contiguous(DType::f32, {spec.rows, spec.heads}), spec.gap);
    desc_.keep_outside = spec.keep_outside;
    paged ? make_cache() : make_keys();
    desc_.out = with_gaps(contiguous(spec.out, {spec.rows, columns()}), spec.gap);
    desc_.q.alignment = desc_.out.alignment = promised_alignment(spec.gap);
    if (!paged) desc_.k.alignment = promised_alignment(spec.gap);
    q_ = HostileTensor(desc_.q), weights_ = HostileTensor(desc_.weights), out_ = HostileTensor(desc_.out);
    fill(random);
    args_ = {.q = q_.data(),
             .k = k_.data(),
             .k_scale = scale_.as<float>(),
             .weights = weights_.as<float>(),
             .block_table = table_.as<std::int32_t>(),
             .out = out_.data(),
             .first = first_.as<std::int32_t>(),
             .last = last_.as<std::int32_t>(),
             .kv_len = kv_len_.as<std::int32_t>()};
    spoil_unseen_keys();
    seal();
  }

  Result<AnyPlan> plan(const PlanOptions& options, const Place& place) const override {
    return forget_operation(plan_index_logits(desc_, place.device, options), args_, place);
  }

  std::vector<Named> inputs() const override {
    std::vector<Named> all{{"q", q_}, {"k", k_}, {"k_scale", scale_}, {"weights", weights_}};
    if (first_) all.insert(all.end(), {{"first", first_}, {"last", last_}});
    if (table_) all.insert(all.end(), {{"block_table", table_}, {"kv_len", kv_len_}});
    return all;
  }
  std::vector<Named> outputs() const override { return {{"out", out_}}; }

  Work work() const override {
    const double pairs = static_cast<double>(spec_.rows) * static_cast<double>(columns());
    const double q = static_cast<double>(spec_.rows * spec_.heads * spec_.head_dim), out = pairs * static_cast<double>(size_of(spec_.out));
    return {2 * pairs * static_cast<double>(spec_.heads * spec_.head_dim), q + out + static_cast<double>(columns() * (spec_.head_dim + 4)),
            DType::e4m3};
  }

 protected:
  /// Sums of f32, in any order. Matrix units of e4m3 keep some 14 bits of a product.
  std::vector<Answer> expect() const override {
    const detail::IndexLogitsProblem problem = detail::validate(desc_, {}).value();
    const reference::IndexLogitsOutput exact = reference::index_logits(problem, args_);
    Answer answer("out", out_, {1});
    const double rounding = spec_.out == DType::bf16 ? 0x1p-8 : 0;
    answer.within({.absolute = kSumError * static_cast<double>(spec_.heads) * product(), .relative = rounding});
    answer.within_of_native({.absolute = kProductError * std::sqrt(static_cast<double>(spec_.heads)) * product(), .relative = rounding});
    for (std::size_t at = 0; at < exact.logits.size(); ++at) {
      if (spec_.keep_outside && exact.seen[at] == 0) continue;
      const auto index = static_cast<std::int64_t>(at);
      answer.expect(out_.offset(index / columns(), index % columns()), {&exact.logits[at], 1});
    }
    return {answer};
  }

 private:
  static constexpr double kSumError = 0x1p-18, kProductError = 0x1p-10;

  /// Four deviations of q . k.
  double product() const { return 4 * std::sqrt(static_cast<double>(spec_.head_dim)); }

  std::int64_t columns() const {
    if (spec_.kv_len.empty()) return spec_.tokens;
    return spec_.columns != 0 ? spec_.columns : *std::max_element(spec_.kv_len.begin(), spec_.kv_len.end());
  }

  static HostileTensor vector_of(std::int64_t count) { return HostileTensor(contiguous(DType::i32, {count})); }

  void make_keys() {
    desc_.k = with_gaps(contiguous(DType::e4m3, {spec_.tokens, spec_.head_dim}), spec_.gap);
    desc_.k_scale = contiguous(DType::f32, {spec_.tokens});
    k_ = HostileTensor(desc_.k), scale_ = HostileTensor(desc_.k_scale, spec_.scale_misalignment);
    desc_.has_first = desc_.has_last = !spec_.ranges.empty();
    if (spec_.ranges.empty()) return;
    first_ = vector_of(spec_.rows), last_ = vector_of(spec_.rows);
    for (std::int64_t row = 0; row < spec_.rows; ++row) {
      const Columns& range = spec_.ranges[static_cast<std::size_t>(row) % spec_.ranges.size()];
      first_.as<std::int32_t>()[row] = range.first;
      last_.as<std::int32_t>()[row] = range.last;
    }
  }

  /// A planar cache: of each block the codes, then the scales.
  void make_cache() {
    const auto batch = static_cast<std::int64_t>(spec_.kv_len.size());
    const std::int64_t width = spec_.blocks != 0 ? spec_.blocks : (columns() + spec_.page - 1) / spec_.page, blocks = batch * width + 2;
    const std::int64_t block_bytes = spec_.page * (spec_.head_dim + 4);
    const auto storage = std::make_shared<Storage>(static_cast<std::size_t>(blocks * block_bytes), 0);
    desc_.k = contiguous(DType::e4m3, {blocks, spec_.page, spec_.head_dim});
    desc_.k.strides[0] = block_bytes;
    desc_.k.alignment = block_bytes % 16 == 0 ? 16 : 4;
    desc_.k_scale = contiguous(DType::f32, {blocks, spec_.page});
    desc_.k_scale.strides[0] = block_bytes / 4;
    k_ = HostileTensor(desc_.k, storage, 0);
    scale_ = spec_.scale_misalignment == 0 ? HostileTensor(desc_.k_scale, storage, spec_.page * spec_.head_dim / 4)
                                           : HostileTensor(desc_.k_scale, spec_.scale_misalignment);
    desc_.block_table = contiguous(DType::i32, {batch, width});
    desc_.has_kv_len = true;
    table_ = HostileTensor(*desc_.block_table), kv_len_ = vector_of(batch);
    for (std::int64_t i = 0; i < batch; ++i) {
      const std::int32_t length = spec_.kv_len[static_cast<std::size_t>(i)];
      kv_len_.as<std::int32_t>()[i] = length;
      for (std::int64_t block = 0; block < width; ++block) {
        const auto number = static_cast<std::int32_t>((i * width + block) * 7 % (blocks - 1));
        table_.as<std::int32_t>()[i * width + block] = block * spec_.page < length ? number : kGarbage;
      }
    }
    if (spec_.nan) table_.as<std::int32_t>()[0] = -3;  // a block that the cache does not have
  }

  void fill(Random& random) {
    for_each_element(desc_.q, [&](auto row, auto, auto, auto, std::int64_t at) {
      q_.set(at, spec_.nan && row == 1 && random.below(200) == 0 ? kNan : random.normal());
    });
    for_each_element(desc_.weights, [&](auto, auto, auto, auto, std::int64_t at) { weights_.set(at, random.normal()); });
    for_each_element(desc_.k, [&](auto, auto, auto, auto, std::int64_t at) {
      k_.set(at, spec_.nan && random.below(2000) == 0 ? kNan : random.normal());
    });
    for_each_element(desc_.k_scale,
                     [&](auto, auto, auto, auto, std::int64_t at) { scale_.set(at, 0.25f + std::fabs(random.normal()) / 2); });
  }

  void spoil_unseen_keys() {
    const detail::IndexLogitsProblem problem = detail::validate(desc_, {}).value();
    std::unordered_set<std::int64_t> seen;
    for (std::int64_t row = 0; row < problem.rows; ++row) {
      const detail::KeyRange keys = detail::keys_of_row(problem, args_, row);
      for (std::int64_t column = keys.begin; column < keys.end; ++column) {
        const detail::KeyPlace place = detail::place_of_key(problem, args_, row, column);
        if (place.known) seen.insert(place.k);
      }
    }
    for (std::int64_t block = 0; block < problem.blocks; ++block) {
      for (std::int64_t token = 0; token < problem.page; ++token) {
        const std::int64_t key = block * problem.k_block + token * problem.k_token;
        if (seen.contains(key)) continue;
        for (std::int64_t d = 0; d < problem.head_dim; ++d) k_.set(key + d, kNan);
        scale_.set(block * problem.scale_block + token * problem.scale_token, kNan);
      }
    }
  }

  IndexCase spec_;
  IndexLogitsDesc desc_{};
  HostileTensor q_{}, k_{}, scale_{}, weights_{}, out_{}, first_{}, last_{}, table_{}, kv_len_{};
  IndexLogitsArgs args_{};
};

}  // namespace

std::unique_ptr<Trial> bind(const IndexCase& spec) { return std::make_unique<IndexTrial>(spec, Random(13)); }

}  // namespace fovea::check
