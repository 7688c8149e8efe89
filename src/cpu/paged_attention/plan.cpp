// SPDX-License-Identifier: Apache-2.0
/// Paged attention is the same engine: only the addresses of K and V rows go through the block table.
#include "cpu/attention/plan.hpp"

#include "cpu/implementations.hpp"
#include "op/paged_attention/problem.hpp"

namespace fovea::cpu {
namespace {

using detail::PagedAttentionProblem;

Call make_call(const PagedAttentionArgs& args) {
  Call call = common_call(args);
  call.k = args.k_cache;
  call.v = args.v_cache;
  call.kv_len = args.kv_len;
  call.block_table = args.block_table;
  call.packed_mask = {args.packed_mask, args.mask_indptr};
  call.k_scale_cache = args.k_scale_cache;
  call.v_scale_cache = args.v_scale_cache;
  return call;
}

KvStrides in_bytes(const detail::CacheStrides& strides, DType dtype) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  return {.block = strides.block * size, .row = strides.token * size, .head = strides.head * size};
}

KvCodes codes_of(KvFormat format, const std::optional<TensorDesc>& scales, std::int64_t dim, DType rows_dtype,
                 const KvRowKernels& kernels) {
  constexpr std::int64_t kWidestVector = 16;
  KvCodes codes{.dim = dim, .stride = round_up(dim, kWidestVector), .bytes = dim * static_cast<std::int64_t>(size_of(rows_dtype))};
  if (const KvRowFormat* row = kv_row_format(format)) {
    codes.decode = kernels.decode[row - kKvFormats.data()];
    codes.bytes = row->code_bytes(dim);
  }
  if (scales) {
    codes.has_scales = true;
    codes.f16_scale = scales->dtype == DType::f16;
    codes.scales = in_bytes({scales->strides[0], scales->strides[1], scales->strides[2]}, scales->dtype);
  }
  return codes;
}

template <class Isa>
Setup setup_of(const PagedAttentionProblem& problem) {
  if (problem.k_format == KvFormat::rows && problem.v_format == KvFormat::rows) return make_setup<Isa>(problem, true);
  detail::AttentionCore core = problem;
  core.kv_dtype = DType::f32;
  Setup setup = make_setup<Isa>(core, true);
  const KvRowKernels& kernels = Isa::kernels().kv_rows;
  setup.kv_cache = KvCache{.k = codes_of(problem.k_format, problem.k_scale_cache, core.head_dim_qk, problem.kv_dtype, kernels),
                           .v = codes_of(problem.v_format, problem.v_scale_cache, core.head_dim_v, problem.kv_dtype, kernels),
                           .rows_dtype = problem.kv_dtype};
  return setup;
}

template <class Isa>
detail::PlanResult<PagedAttentionArgs> plan(const PagedAttentionProblem& problem, Device) {
  if (auto reason = detail::decline_widest_head_dims(problem)) return *reason;
  Setup setup = setup_of<Isa>(problem);
  setup.paged = true;
  setup.page = problem.page;
  setup.table_stride = problem.table_stride;
  setup.k = in_bytes(problem.k, problem.k_format == KvFormat::rows ? problem.kv_dtype : DType::i8);
  setup.v = in_bytes(problem.v, problem.v_format == KvFormat::rows ? problem.kv_dtype : DType::i8);
  using State = AttentionState<PagedAttentionProblem, PagedAttentionArgs>;
  return std::shared_ptr<const detail::PlanState<PagedAttentionArgs>>(
      std::make_shared<State>(kEntryName<detail::PagedAttention, Isa>, problem, setup, make_call));
}

constexpr std::string_view kAccepts = "f32, f16, bf16, e4m3 caches, every KvFormat; head dims that are multiples of 8 up to 512; any page";
constexpr auto kHandled = detail::handles<detail::PagedAttention>(kEngineOptions, "options.exact_rows");

constexpr auto kEntries = Bf16Sets::each([]<class Isa>() { return entry<detail::PagedAttention, Isa>(kAccepts, kHandled, plan<Isa>); });

}  // namespace

detail::Implementations<detail::PagedAttention> implementations(detail::PagedAttention) { return kEntries; }

}  // namespace fovea::cpu
