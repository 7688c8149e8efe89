// SPDX-License-Identifier: Apache-2.0
#include "latent_cache.hpp"

#include <algorithm>

#include "operators.hpp"
#include "repeatable_call.hpp"

namespace fovea::binding {
namespace {

struct Call {
  Tensor rows, cache, slot_mapping;
  std::string format;
  ScaleRule rule = ScaleRule::power_of_two;
  PlanOptions options{};
};

/// `implementation` keeps the text that the options refer to.
Call take_quantize(Arguments arguments, std::string& implementation) {
  Call call{.rows = arguments.tensor(), .cache = arguments.tensor(), .slot_mapping = arguments.tensor(), .format = arguments.text()};
  call.rule = arguments.flag() ? ScaleRule::exact : ScaleRule::power_of_two;
  implementation = arguments.text();
  call.options = {.implementation = implementation};
  return call;
}

Call take_dequantize(Arguments arguments, std::string& implementation) {
  Call call{.rows = arguments.tensor(), .cache = arguments.tensor(), .slot_mapping = arguments.tensor(), .format = arguments.text()};
  implementation = arguments.text();
  call.options = {.implementation = implementation};
  return call;
}

/// `plan` is one of the two planning functions of the library, which differ in their results alone.
template <class PlanFunction>
auto make_plan(const Call& call, PlanFunction plan) {
  const LatentCacheConversionDesc desc{
      .rows = describe(call.rows, "rows"), .cache = describe_cache(call.cache, call.format, "cache"), .rule = call.rule};
  follow_torch_threads();
  return Planned(desc, value_or_raise(plan(desc, call_device(), call.options)));
}

/// Both directions have their arguments in the order of the schema: rows, cache, slots.
template <class Args>
Args args_at(const LatentCacheConversionDesc& /*desc*/, void* const* addresses) {
  return {addresses[0], addresses[1], static_cast<const std::int64_t*>(addresses[2])};
}

template <class Args, class Planned>
void run(const Call& call, const Planned& kept) {
  const std::int64_t* slots = int64_vector(call.slot_mapping, "slot_mapping", call.rows.size(0));
  raise_if_failed(binding::run(kept.plan, Args{data(call.rows), data(call.cache), slots}));
  may_be_repeated<args_at<Args>>(kept);
}

/// Those with so many bytes for a token; all, if there are none.
std::string formats_of(std::int64_t bytes) {
  const bool known = std::ranges::any_of(kPackedFormats, [&](const PackedFormat& format) { return format.bytes() == bytes; });
  std::string names;
  for (const PackedFormat& format : kPackedFormats) {
    if (!known || format.bytes() == bytes) names.append(names.empty() ? "" : ", ").append(format.name);
  }
  return names;
}

const PackedFormat& find_format(const std::string& name, const char* cache) {
  for (const PackedFormat& format : kPackedFormats) {
    if (format.name == name) return format;
  }
  raise_invalid(field(cache, "format"), "\"" + name + "\"", name_of(CacheFormat::rows).data() + (", " + formats_of(0)));
}

LatentCacheDesc describe_packed(const Tensor& cache, const PackedFormat& format, const char* name) {
  check_memory(cache, name);
  if (!holds_bytes(cache)) raise_invalid(field(name, "dtype"), dtype_text(cache), "uint8 (" + std::string(format.name) + ")");
  const std::string bytes = std::to_string(format.bytes());
  if (cache.dim() != 3 || cache.size(2) != format.bytes()) {
    raise_invalid(field(name, "shape"), shape_text(cache), "[blocks, page, " + bytes + "] (" + std::string(format.name) + ")");
  }
  const std::int64_t blocks = cache.size(0), page = cache.size(1);
  if (cache.stride(2) != 1) raise_invalid(field(name, "strides[2]"), std::to_string(cache.stride(2)), "1 (contiguous)");
  if (page > 1 && cache.stride(1) != format.bytes()) {
    raise_invalid(field(name, "strides[1]"), std::to_string(cache.stride(1)), bytes + " (only blocks may lie apart)");
  }
  if (blocks > 1 && cache.stride(0) == 0) raise_invalid(field(name, "strides[0]"), "0", std::to_string(page * format.bytes()) + " or more");
  return {.format = format.format,
          .blocks = blocks,
          .page = page,
          .block_stride = blocks > 1 ? cache.stride(0) : 0,
          .alignment = alignment_of(cache)};
}

}  // namespace

LatentCacheDesc describe_cache(const Tensor& cache, const std::string& format, const char* name) {
  if (format != name_of(CacheFormat::rows)) return describe_packed(cache, find_format(format, name), name);
  if (holds_bytes(cache)) {
    const std::int64_t bytes = cache.dim() == 3 ? cache.size(2) : 0;
    raise_invalid(field(name, "format"), "\"rows\"", "the packed format of these bytes: " + formats_of(bytes));
  }
  return {.rows = describe(cache, name)};
}

void quantize_latent_cache(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  const Call call = take_quantize(Arguments(stack), implementation);
  run<QuantizeLatentCacheArgs>(call, remembered([&] { return make_plan(call, plan_quantize_latent_cache); }));
}

void explain_quantize_latent_cache(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  const Call call = take_quantize(Arguments(stack), implementation);
  stack[0] = text_result(make_plan(call, plan_quantize_latent_cache).plan.explain());
}

void dequantize_latent_cache(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  const Call call = take_dequantize(Arguments(stack), implementation);
  run<DequantizeLatentCacheArgs>(call, remembered([&] { return make_plan(call, plan_dequantize_latent_cache); }));
}

void explain_dequantize_latent_cache(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string implementation;
  const Call call = take_dequantize(Arguments(stack), implementation);
  stack[0] = text_result(make_plan(call, plan_dequantize_latent_cache).plan.explain());
}

}  // namespace fovea::binding
