// SPDX-License-Identifier: Apache-2.0
/// Packs latent rows into slots of a cache, and unpacks them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "cpu/implementations.hpp"
#include "cpu/parallel.hpp"
#include "op/common/numeric.hpp"
#include "op/latent_cache_conversion/problem.hpp"

namespace fovea::cpu {
namespace {

using detail::LatentCacheConversionProblem;

/// One packed token.
struct Token {
  std::byte *codes = nullptr, *scales = nullptr, *rope = nullptr;
};

Token token_at(const LatentCacheConversionProblem& problem, const PackedFormat& format, void* cache, std::int64_t slot) {
  const std::int64_t page = problem.cache.page, offset = slot % page;
  std::byte* block = static_cast<std::byte*>(cache) + slot / page * problem.cache.block_stride;
  return {block + format.codes_at(offset), block + format.scales_at(offset, page), block + format.rope_at(offset)};
}

/// The smallest n with 2^n >= x, for x > 0.
int ceil_log2(float x) {
  int exponent = 0;
  return std::frexp(x, &exponent) == 0.5f ? exponent - 1 : exponent;
}

/// The scale of an e4m3 group whose largest magnitude is `largest`. A NaN is kept in its quantised value, not in the scale.
float choose_scale(const PackedFormat& format, ScaleRule rule, float largest) {
  const float wanted = std::isnan(largest) ? 1.0f : std::min(largest, std::numeric_limits<float>::max()) / 448.0f;
  const float floored = rule == ScaleRule::power_of_two ? std::max(wanted, 1e-4f) : wanted == 0 ? 1.0f : wanted;
  if (rule == ScaleRule::exact && format.scale_type == ScaleType::f32) return floored;
  return std::ldexp(1.0f, std::clamp(ceil_log2(floored), -127, 127));
}

void store_scale(const PackedFormat& format, float scale, std::byte* scales, int group) {
  if (format.scale_type == ScaleType::f32) {
    std::memcpy(scales + group * 4, &scale, sizeof scale);
  } else {
    scales[group] = static_cast<std::byte>(std::ilogb(scale) + 127);
  }
}

/// The scale of an e2m1 group. e2m1 has no NaN, so the scale is NaN, with the sign of the first NaN of the group.
std::uint8_t choose_e4m3_scale(float largest) {
  return detail::e4m3_from_f32(std::isnan(largest) ? largest : std::min(largest, std::numeric_limits<float>::max()) / 6.0f);
}

struct Converter {
  const LatentCacheConversionProblem& problem;
  const PackedFormat& format;
  const Kernels& kernels;

  void encode(const std::byte* row, const Token& token) const {
    const auto dtype = static_cast<std::size_t>(problem.dtype);
    const auto size = static_cast<int>(size_of(problem.dtype));
    const LatentKernels& packed = kernels.packed_rows;
    std::memset(token.scales, 0, static_cast<std::size_t>(format.scale_bytes));
    for (int group = 0; group < format.groups(); ++group, row += format.group * size) {
      const float largest = packed.largest[dtype](row, format.group);
      std::byte* codes = token.codes + group * format.code_bytes() / format.groups();
      if (format.code_type == CodeType::e2m1) {
        const std::uint8_t scale = choose_e4m3_scale(largest);
        token.scales[group] = static_cast<std::byte>(scale);
        packed.encode_e2m1[dtype](codes, row, detail::f32_from_e4m3(scale), format.group);
      } else {
        const float scale = choose_scale(format, problem.rule, largest);
        store_scale(format, scale, token.scales, group);
        kernels.rows.quantize[dtype](codes, row, scale, format.group);
      }
    }
    packed.to_bf16[dtype](token.rope, row, format.rope);
  }

  void decode(const Token& token, std::byte* row) const {
    const auto index = static_cast<std::size_t>(&format - kPackedFormats.data());
    kernels.packed_rows.decode[index][static_cast<std::size_t>(problem.dtype)]({token.codes, token.scales, token.rope}, row);
  }
};

Work work_of(const LatentCacheConversionProblem& problem) {
  constexpr double kElements = 576;  // bytes of a row, approximately
  return {.elements = kElements * static_cast<double>(problem.tokens)};
}

/// Calls convert(row, token) for every token that has a slot.
template <class Convert>
void for_each_token(const LatentCacheConversionProblem& problem, const std::int64_t* slot_mapping, int threads, const Convert& convert) {
  parallel_for(threads, [&](int thread) {
    for (std::int64_t token = problem.tokens * thread / threads; token < problem.tokens * (thread + 1) / threads; ++token) {
      if (slot_mapping[token] >= 0)
        convert(token * problem.row_stride * static_cast<std::int64_t>(size_of(problem.dtype)), slot_mapping[token]);
    }
  });
}

void convert_all(const Converter& converter, const QuantizeLatentCacheArgs& args, int threads) {
  for_each_token(converter.problem, args.slot_mapping, threads, [&](std::int64_t row, std::int64_t slot) {
    converter.encode(static_cast<const std::byte*>(args.rows) + row, token_at(converter.problem, converter.format, args.cache, slot));
  });
}

void convert_all(const Converter& converter, const DequantizeLatentCacheArgs& args, int threads) {
  for_each_token(converter.problem, args.slot_mapping, threads, [&](std::int64_t row, std::int64_t slot) {
    const Token token = token_at(converter.problem, converter.format, const_cast<void*>(args.cache), slot);  // only read
    converter.decode(token, static_cast<std::byte*>(args.rows) + row);
  });
}

template <class Operation>
class State final : public detail::PlanState<typename Operation::Args> {
  using Args = typename Operation::Args;

 public:
  State(std::string_view name, const typename Operation::Problem& problem, const Kernels& kernels)
      : problem_(problem), kernels_(kernels), threads_(worthwhile_threads(work_of(problem), problem.tokens, planned_threads())) {
    this->implementation = name;
  }

  Result<void> prepare(const Args& args, Workspace, Stream) const override { return check(args); }

  Result<void> run(const Args& args, Workspace, Stream, bool) const override {
    if (Result<void> good = check(args); !good) return good;
    convert_all(Converter{problem_, *packed_format(problem_.cache.format), kernels_}, args, threads_);
    return {};
  }

  std::string tuning() const override {
    return "one token at a time; " + std::to_string(threads_) + (threads_ == 1 ? " thread" : " threads");
  }

 private:
  Result<void> check(const Args& args) const {
    if (Result<void> good = check_args(problem_, args); !good) return good;
    return check_slots(problem_, args.slot_mapping);
  }

  typename Operation::Problem problem_;
  const Kernels& kernels_;
  int threads_;
};

template <class Operation, class Isa>
detail::PlanResult<typename Operation::Args> plan(const typename Operation::Problem& problem, Device) {
  using Plan = detail::PlanState<typename Operation::Args>;
  return std::shared_ptr<const Plan>(std::make_shared<State<Operation>>(kEntryName<Operation, Isa>, problem, Isa::kernels()));
}

template <class Operation>
constexpr auto kHandled = detail::handles<detail::QuantizeLatentCache>("rule (exact)");
template <>
constexpr auto kHandled<detail::DequantizeLatentCache> = detail::handles<detail::DequantizeLatentCache>();

template <class Operation>
constexpr auto kEntries = RowSets::each([]<class Isa>() {
  return entry<Operation, Isa>("every packed format; f32, f16, bf16 rows", kHandled<Operation>, plan<Operation, Isa>);
});

}  // namespace

detail::Implementations<detail::QuantizeLatentCache> implementations(detail::QuantizeLatentCache) {
  return kEntries<detail::QuantizeLatentCache>;
}
detail::Implementations<detail::DequantizeLatentCache> implementations(detail::DequantizeLatentCache) {
  return kEntries<detail::DequantizeLatentCache>;
}

}  // namespace fovea::cpu
