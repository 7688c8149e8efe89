// SPDX-License-Identifier: Apache-2.0
/// How the C functions reach the C++ ones: the plan behind the opaque handle, and the one place where errors turn into a status.
#pragma once

#include <cstddef>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "fovea/c.h"
#include "fovea/fovea.hpp"

struct fovea_plan {
  std::variant<fovea::AttentionPlan, fovea::AttentionBackwardPlan, fovea::PagedAttentionPlan, fovea::PagedCacheAppendPlan,
               fovea::MergeStatesPlan, fovea::LatentAttentionPlan, fovea::SparseLatentAttentionPlan, fovea::QuantizeLatentCachePlan,
               fovea::DequantizeLatentCachePlan, fovea::IndexLogitsPlan, fovea::TopkRowsPlan, fovea::QuantizeQkInt8Plan,
               fovea::QuantizeVPlan, fovea::QuantizedAttentionPlan, fovea::QuantizeAndAttendPlan>
      plan;
  std::string implementation;  // with its terminating zero
  std::size_t part_count = 0;  // merge_states: as planned
};

namespace fovea::c_api {

/// Keeps the message for fovea_last_error() and returns the code's status.
fovea_status fail(const Error& error) noexcept;

template <class PlanType>
constexpr std::string_view kOperation = "";
template <>
inline constexpr std::string_view kOperation<AttentionPlan> = "an attention plan";
template <>
inline constexpr std::string_view kOperation<PagedAttentionPlan> = "a paged_attention plan";
template <>
inline constexpr std::string_view kOperation<PagedCacheAppendPlan> = "a paged_cache_append plan";
template <>
inline constexpr std::string_view kOperation<MergeStatesPlan> = "a merge_states plan";
template <>
inline constexpr std::string_view kOperation<AttentionBackwardPlan> = "an attention_backward plan";
template <>
inline constexpr std::string_view kOperation<LatentAttentionPlan> = "a latent_attention plan";
template <>
inline constexpr std::string_view kOperation<SparseLatentAttentionPlan> = "a sparse_latent_attention plan";
template <>
inline constexpr std::string_view kOperation<QuantizeLatentCachePlan> = "a quantize_latent_cache plan";
template <>
inline constexpr std::string_view kOperation<DequantizeLatentCachePlan> = "a dequantize_latent_cache plan";
template <>
inline constexpr std::string_view kOperation<IndexLogitsPlan> = "an index_logits plan";
template <>
inline constexpr std::string_view kOperation<TopkRowsPlan> = "a topk_rows plan";
template <>
inline constexpr std::string_view kOperation<QuantizeQkInt8Plan> = "a quantize_qk_int8 plan";
template <>
inline constexpr std::string_view kOperation<QuantizeVPlan> = "a quantize_v plan";
template <>
inline constexpr std::string_view kOperation<QuantizedAttentionPlan> = "a quantized_attention plan";
template <>
inline constexpr std::string_view kOperation<QuantizeAndAttendPlan> = "a quantize_and_attend plan";

/// Runs `body`, which returns a Result<void> or throws, and lets nothing out but a status.
template <class Body>
fovea_status guarded(Body&& body) noexcept {
  try {
    const Result<void> done = std::forward<Body>(body)();
    return done ? FOVEA_OK : fail(done.error());
  } catch (const Exception& exception) {
    return fail(exception.error());
  } catch (const std::exception& exception) {  // out of memory
    return fail(Error{ErrorCode::device_error, exception.what()});
  }
}

[[noreturn]] void refuse(std::string message);

template <class Pointer>
void want_not_null(Pointer* pointer, std::string_view name) {
  if (pointer == nullptr) refuse(std::string(name) + ": got null, want a pointer");
}

/// `make` plans; on success the handle is in `*plan`, otherwise `*plan` is null.
template <class Desc, class Make>
fovea_status plan_into(const Desc* desc, fovea_plan** plan, Make&& make) noexcept {
  return guarded([&]() -> Result<void> {
    want_not_null(plan, "plan");
    *plan = nullptr;
    want_not_null(desc, "desc");
    auto made = std::forward<Make>(make)();
    if (!made) return made.error();
    std::string implementation(made->implementation());
    *plan = new fovea_plan{.plan = *std::move(made), .implementation = std::move(implementation)};
    return {};
  });
}

/// Hands the C++ plan behind the handle to `call`.
template <class PlanType, class Args, class Call>
fovea_status with_plan(const fovea_plan* plan, const Args* args, Call&& call) noexcept {
  return guarded([&]() -> Result<void> {
    const PlanType* held = plan == nullptr ? nullptr : std::get_if<PlanType>(&plan->plan);
    if (held == nullptr) {
      refuse("plan: got " + (plan == nullptr ? std::string("null") : plan->implementation) + ", want " + std::string(kOperation<PlanType>));
    }
    want_not_null(args, "args");
    return std::forward<Call>(call)(*held);
  });
}

}  // namespace fovea::c_api
