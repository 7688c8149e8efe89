// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "latent_case.hpp"
#include "noise.hpp"
#include "op/latent_cache_conversion/problem.hpp"
#include "reference/reference.hpp"

namespace fovea::check {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

using Bytes = std::vector<std::byte>;

Bytes bytes_of(const HostileTensor& tensor) { return {tensor.storage().data(), tensor.storage().data() + tensor.storage().bytes()}; }

/// Magnitudes from far below the smallest scale to beyond the largest; groups of zeros, of one number, and specials.
void fill_rows(const ConversionCase& spec, HostileTensor& rows, Random& random) {
  const bool e4m3 = packed_format(spec.format)->code_type == CodeType::e4m3;  // values beyond 6 * 448 have a test of their own for e2m1
  const bool f16 = spec.dtype == DType::f16;
  for_each_element(rows.desc(), [&](std::int64_t token, std::int64_t d, auto, auto, std::int64_t at) {
    const std::int64_t kind = (token + d / 16) % 12;
    float value = random.normal() * std::ldexp(1.0f, static_cast<int>(random.below(12)) - 6);
    if (kind == 0) value = 0.0f;
    if (kind == 1) value = -0.0f;
    if (kind == 2) value *= 1e-7f;
    if (kind == 3) value *= f16 && !e4m3 ? 50.0f : 2e4f;
    if (kind == 4) value *= f16 || !e4m3 ? 1.0f : 1e36f;
    if (kind == 5) value *= f16 ? 1e-6f : 1e-38f;
    if (kind == 6) value = 448.0f * std::ldexp(1.0f, static_cast<int>(token % 5));
    if (kind == 7 && random.below(40) == 0) value = random.below(2) == 0 ? kNan : -kNan;
    if (kind == 8 && e4m3 && random.below(40) == 0) value = random.below(2) == 0 ? kInf : -kInf;
    rows.set(at, value);
  });
}

/// The first element that differs, or -1. Any NaN of a 16-bit or 32-bit row equals any other.
std::int64_t first_difference(const Bytes& got, const Bytes& want, DType dtype) {
  const std::size_t size = size_of(dtype);
  for (std::size_t at = 0; at < want.size(); at += size) {
    if (std::memcmp(&got[at], &want[at], size) == 0) continue;
    if (size > 1 && std::isnan(load(dtype, &got[at], 0)) && std::isnan(load(dtype, &want[at], 0))) continue;
    return static_cast<std::int64_t>(at / size);
  }
  return -1;
}

/// Both directions: rows, a packed cache, and the slots between them.
class ConversionTrial final : public Trial {
 public:
  ConversionTrial(const ConversionCase& spec, Random random) : spec_(spec), format_(*packed_format(spec.format)) {
    const std::int32_t alignment = promised_alignment(spec.gap);
    TensorDesc rows = with_gaps(contiguous(spec.dtype, {spec.tokens, format_.row()}), spec.gap);
    rows.alignment = alignment;
    rows_ = HostileTensor(rows);
    desc_ = {.rows = rows, .rule = spec.rule};
    desc_.cache = {.format = spec.format, .blocks = spec.blocks, .page = spec.page, .alignment = alignment};
    desc_.cache.block_stride = spec.page * format_.bytes() + 3 * spec.gap;
    if (alignment > 0) desc_.cache.block_stride = (desc_.cache.block_stride + alignment - 1) / alignment * alignment;
    cache_ = HostileTensor(contiguous(DType::e4m3, {spec.blocks * desc_.cache.block_stride}), alignment > 0 ? 0 : 3);
    slots_ = HostileTensor(contiguous(DType::i64, {spec.tokens}));
    for (std::int64_t token = 0; token < spec.tokens; ++token)
      slots_.as<std::int64_t>()[token] = skips(token) ? slot_to_skip(token) : token * 97 % slots();
    fill(random);
    to_cache_ = {rows_.data(), cache_.data(), slots_.as<std::int64_t>()};
    to_rows_ = {rows_.data(), cache_.data(), slots_.as<std::int64_t>()};
    seal();
  }

  Result<AnyPlan> plan(const PlanOptions& options, const Place& place) const override {
    return spec_.quantize ? forget_operation(plan_quantize_latent_cache(desc_, place.device, options), to_cache_, place)
                          : forget_operation(plan_dequantize_latent_cache(desc_, place.device, options), to_rows_, place);
  }

  std::vector<Named> inputs() const override { return {spec_.quantize ? rows() : cache(), {"slot_mapping", slots_}}; }
  std::vector<Named> outputs() const override { return {spec_.quantize ? cache() : rows()}; }

  Work work() const override {
    double tokens = 0;
    for (std::int64_t token = 0; token < spec_.tokens; ++token) tokens += skips(token) ? 0 : 1;
    const std::size_t bytes = static_cast<std::size_t>(format_.row()) * size_of(spec_.dtype) + static_cast<std::size_t>(format_.bytes());
    return {0, tokens * static_cast<double>(bytes), spec_.dtype};
  }

 protected:
  /// Bit for bit what the reference writes, and nothing else in the whole tensor.
  void judge_outputs(Judgement& verdict) override {
    const Named output = outputs().front();
    Bytes got = bytes_of(output.tensor);
    if (want_.empty()) want_ = reference_bytes();
    settle_rope(got);
    const std::int64_t at = first_difference(got, want_, output.tensor.desc().dtype);
    if (at >= 0) verdict.fail(std::string(output.name) + ": element " + std::to_string(at) + " of its memory differs from the reference's");
    output.tensor.storage().restore(0, got.size());
  }

 private:
  void fill(Random& random) {
    const auto ordinary = [&](HostileTensor& rows) {
      for_each_element(rows.desc(), [&](auto, auto, auto, auto, std::int64_t at) { rows.set(at, random.normal()); });
    };
    const bool bench = spec_.tier == Tier::bench;  // the timed case has what a model would store
    if (spec_.quantize && bench) {
      ordinary(rows_);
    } else if (spec_.quantize) {
      fill_rows(spec_, rows_, random);
    } else if (bench) {
      HostileTensor rows(rows_.desc());
      ordinary(rows);
      reference::quantize_latent_cache(detail::validate_quantize(desc_).value(), {rows.data(), cache_.data(), slots_.as<std::int64_t>()});
    } else {  // the bytes take every value: all codes under all scales that a byte can hold
      for (std::int64_t at = 0; at < cache_.desc().shape[0]; ++at)
        cache_.as<std::uint8_t>()[at] = static_cast<std::uint8_t>(random.below(256));
    }
  }

  Named rows() const { return {"rows", rows_}; }
  Named cache() const { return {"cache", cache_}; }
  std::int64_t slots() const { return spec_.blocks * spec_.page; }
  bool skips(std::int64_t token) const { return spec_.tier != Tier::bench && token % 3 == 1; }

  std::int64_t slot_to_skip(std::int64_t token) const {
    using Limits = std::numeric_limits<std::int64_t>;
    const std::array wild{slots(), Limits::min(), Limits::max(), std::int64_t{-2}, std::int64_t{1} << 32};
    return spec_.wild_slots ? wild[static_cast<std::size_t>(token) % wild.size()] : -1;
  }

  Bytes reference_bytes() const {
    const HostileTensor output = outputs().front().tensor;
    const HostileTensor copy(output.desc());
    std::vector<std::int64_t> known;
    for (std::int64_t token = 0; token < spec_.tokens; ++token) known.push_back(skips(token) ? -1 : slots_.as<std::int64_t>()[token]);
    if (spec_.quantize) {
      reference::quantize_latent_cache(detail::validate_quantize(desc_).value(), {rows_.data(), copy.data(), known.data()});
    } else {
      reference::dequantize_latent_cache(detail::validate_dequantize(desc_).value(), {copy.data(), cache_.data(), known.data()});
    }
    Bytes want = bytes_of(copy);
    settle_rope(want);
    return want;
  }

  /// A NaN in the plain bf16 part of a packed row keeps no particular payload: replaces each with the same one.
  void settle_rope(Bytes& bytes) const {
    for (std::int64_t slot = 0; spec_.quantize && slot < slots(); ++slot) {
      std::byte* rope = bytes.data() + slot / spec_.page * desc_.cache.block_stride + format_.rope_at(slot % spec_.page);
      for (int i = 0; i < format_.rope; ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, rope + 2 * i, 2);
        if ((bits & 0x7fff) > 0x7f80) bits = static_cast<std::uint16_t>(bits | 0x7fff);
        std::memcpy(rope + 2 * i, &bits, 2);
      }
    }
  }

  ConversionCase spec_;
  const PackedFormat& format_;
  LatentCacheConversionDesc desc_{};
  HostileTensor rows_{}, cache_{}, slots_{};
  QuantizeLatentCacheArgs to_cache_{};
  DequantizeLatentCacheArgs to_rows_{};
  Bytes want_{};
};

}  // namespace

std::unique_ptr<Trial> bind(const ConversionCase& spec) { return std::make_unique<ConversionTrial>(spec, Random(7)); }

}  // namespace fovea::check
