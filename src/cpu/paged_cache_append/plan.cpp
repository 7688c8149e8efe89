// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "cpu/implementations.hpp"
#include "cpu/parallel.hpp"
#include "op/common/kv_format.hpp"
#include "op/paged_cache_append/problem.hpp"

namespace fovea::cpu {
namespace {

using detail::AppendSide;
using detail::PagedCacheAppendProblem;

/// K or V of a call.
struct Side {
  const AppendSide& strides;
  const void* rows = nullptr;
  void* cache = nullptr;
  const float* scale = nullptr;
  void* scale_cache = nullptr;
};

/// Values of a row that is quantised with scales of its own.
constexpr std::int64_t kMostCodes = 1024;

/// A row of one head as codes, with the scales that follow from it.
void encode_row(const PagedCacheAppendProblem& problem, const RowKernels& kernels, const Side& side, const void* from, std::int64_t slot,
                std::int64_t head) {
  const AppendSide& s = side.strides;
  const TensorDesc scales = s.scale_cache.value_or(TensorDesc{});
  const std::int64_t block = slot / problem.page, offset = slot % problem.page;
  const std::int64_t codes_at = block * s.cache.block + offset * s.cache.token + head * s.cache.head;
  const std::int64_t scales_at = block * scales.strides[0] + offset * scales.strides[1] + head * scales.strides[2];
  std::array<float, kMostCodes> row;
  std::fill_n(row.begin(), s.head_dim, 0.0f);
  kernels.add_scaled[static_cast<std::size_t>(problem.dtype)](row.data(), from, 1.0f, s.head_dim);
  const detail::KvRowBytes bytes{static_cast<std::byte*>(side.cache) + codes_at,
                                 static_cast<std::byte*>(side.scale_cache) + scales_at * static_cast<std::int64_t>(size_of(scales.dtype)),
                                 scales.dtype};
  const float global = s.scale && side.scale != nullptr ? side.scale[head * s.scale->head_stride] : 1.0f;
  detail::encode_kv_row(*kv_row_format(s.format), bytes, global, std::span(row).first(static_cast<std::size_t>(s.head_dim)));
}

/// Row `token` of every head into a slot: copied, or quantised where the cache is e4m3.
void append_row(const PagedCacheAppendProblem& problem, const RowKernels& kernels, const Side& side, std::int64_t token,
                std::int64_t slot) {
  if (side.strides.head_dim == 0) return;  // K alone, or V: the other has no memory
  const auto from_size = static_cast<std::int64_t>(size_of(problem.dtype)),
             to_size = static_cast<std::int64_t>(size_of(problem.cache_dtype));
  const AppendSide& s = side.strides;
  const std::int64_t target = slot / problem.page * s.cache.block + slot % problem.page * s.cache.token;
  for (std::int64_t head = 0; head < problem.kv_heads; ++head) {
    const std::byte* from = static_cast<const std::byte*>(side.rows) + (token * s.row_stride + head * s.head_stride) * from_size;
    if (s.format != KvFormat::rows) {
      encode_row(problem, kernels, side, from, slot, head);
      continue;
    }
    std::byte* to = static_cast<std::byte*>(side.cache) + (target + head * s.cache.head) * to_size;
    if (problem.cache_dtype == problem.dtype) {
      std::memcpy(to, from, static_cast<std::size_t>(s.head_dim * to_size));
    } else {
      const float scale = s.scale && side.scale != nullptr ? side.scale[head * s.scale->head_stride] : 1.0f;
      kernels.quantize[static_cast<std::size_t>(problem.dtype)](to, from, scale, s.head_dim);
    }
  }
}

Work work_of(const PagedCacheAppendProblem& problem) {
  return {.elements = static_cast<double>(problem.tokens * problem.kv_heads * (problem.k.head_dim + problem.v.head_dim))};
}

class State final : public detail::PlanState<PagedCacheAppendArgs> {
 public:
  State(std::string_view name, const PagedCacheAppendProblem& problem, const RowKernels& kernels)
      : problem_(problem), kernels_(kernels), threads_(worthwhile_threads(work_of(problem), problem.tokens, planned_threads())) {
    implementation = name;
  }

  Result<void> prepare(const PagedCacheAppendArgs& args, Workspace, Stream) const override { return check(args); }

  Result<void> run(const PagedCacheAppendArgs& args, Workspace, Stream, bool) const override {
    if (Result<void> good = check(args); !good) return good;
    const Side k{problem_.k, args.k, args.k_cache, args.k_scale, args.k_scale_cache};
    const Side v{problem_.v, args.v, args.v_cache, args.v_scale, args.v_scale_cache};
    parallel_for(threads_, [&](int thread) {
      for (std::int64_t token = problem_.tokens * thread / threads_; token < problem_.tokens * (thread + 1) / threads_; ++token) {
        const std::int64_t slot = args.slot_mapping[token];
        if (slot < 0) continue;
        append_row(problem_, kernels_, k, token, slot);
        append_row(problem_, kernels_, v, token, slot);
      }
    });
    return {};
  }

  std::string tuning() const override {
    return "one token at a time; " + std::to_string(threads_) + (threads_ == 1 ? " thread" : " threads");
  }

 private:
  Result<void> check(const PagedCacheAppendArgs& args) const {
    if (Result<void> good = check_args(problem_, args); !good) return good;
    return check_slots(problem_, args);
  }

  PagedCacheAppendProblem problem_;
  const RowKernels& kernels_;
  int threads_;
};

/// Rows of codes are quantised in one piece.
std::optional<Error> decline_long_codes(const AppendSide& side, std::string_view subject) {
  if (side.format == KvFormat::rows || side.head_dim <= kMostCodes) return std::nullopt;
  return detail::declined(subject, side.head_dim, "1024 or less of a KvFormat");
}

template <class Isa>
detail::PlanResult<PagedCacheAppendArgs> plan(const PagedCacheAppendProblem& problem, Device) {
  if (auto reason = decline_long_codes(problem.k, "k.shape[2] (head_dim)")) return *reason;
  if (auto reason = decline_long_codes(problem.v, "v.shape[2] (head_dim)")) return *reason;
  return std::shared_ptr<const detail::PlanState<PagedCacheAppendArgs>>(
      std::make_shared<State>(kEntryName<detail::PagedCacheAppend, Isa>, problem, Isa::kernels().rows));
}

constexpr std::string_view kAccepts = "f32, f16, bf16 rows; same dtype or e4m3 caches, every KvFormat";
constexpr auto kHandled = detail::handles<detail::PagedCacheAppend>("k_scale", "v_scale", "k_format", "v_format");

constexpr auto kEntries = RowSets::each([]<class Isa>() { return entry<detail::PagedCacheAppend, Isa>(kAccepts, kHandled, plan<Isa>); });

}  // namespace

detail::Implementations<detail::PagedCacheAppend> implementations(detail::PagedCacheAppend) { return kEntries; }

}  // namespace fovea::cpu
