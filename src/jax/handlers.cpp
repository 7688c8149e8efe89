// SPDX-License-Identifier: Apache-2.0
/// XLA's handlers of the operations: one template over their tables of fields. A call plans where no plan has its key, and runs.
#include <cstdlib>
#include <memory>
#include <new>
#include <type_traits>
#include <unordered_map>

#include "call.hpp"
#include "op/attention/fields.hpp"
#include "op/attention_backward/fields.hpp"
#include "op/common/vector_fields.hpp"
#include "op/paged_attention/fields.hpp"
#include "op/paged_cache_append/fields.hpp"

namespace fovea::jax {
namespace {

/// Where XLA runs the call. XLA has scratch memory for GPUs alone; it is free again once the call has been enqueued.
struct Place {
  Device device{};
  Stream stream{};
  ffi::ScratchAllocator* scratch = nullptr;
};

/// XLA's handlers refuse a larger alignment.
constexpr std::size_t kScratchAlignment = 16;

using HostMemory = std::unique_ptr<void, decltype(&std::free)>;

/// Memory for a plan. `host` keeps that of a CPU until the call is done.
Workspace allocate(std::size_t bytes, const Place& place, HostMemory& host) {
  if (bytes == 0) return {};
  if (place.scratch == nullptr) {
    host.reset(std::aligned_alloc(kWorkspaceAlignment, (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment));
    if (host == nullptr) throw std::bad_alloc();
    return {.data = host.get(), .bytes = bytes};
  }
  std::size_t space = bytes + kWorkspaceAlignment - kScratchAlignment;
  const auto memory = place.scratch->Allocate(space, kScratchAlignment);
  if (!memory) {
    throw Exception(Error{.code = ErrorCode::device_error, .message = "XLA has no " + std::to_string(bytes) + " bytes of scratch memory"});
  }
  void* data = *memory;
  return {.data = std::align(kWorkspaceAlignment, bytes, data, space), .bytes = bytes};
}

void check_dtype(const Buffer& buffer, std::string_view name, DType want) {
  if (buffer.desc.dtype != want) raise_invalid(std::string(name) + ".dtype", name_of(buffer.desc.dtype), name_of(want));
}

/// JAX has no 64-bit integers by default: i32 [count, 2] holds their halves, the lower first.
bool holds_halves(const Buffer& buffer, DType want) {
  return want == DType::i64 && buffer.desc.dtype == DType::i32 && buffer.desc.rank == 2 && buffer.desc.shape[1] == 2;
}

/// A scale: one value or [kv_head].
std::optional<ScaleDesc> describe_scale(const Buffer* buffer, std::string_view name, std::int64_t heads) {
  if (buffer == nullptr) return std::nullopt;
  check_dtype(*buffer, name, DType::f32);
  if (buffer->elements() == 1) return ScaleDesc{};
  if (buffer->desc.rank == 1 && buffer->elements() == heads) return ScaleDesc{.batch_stride = 0, .head_stride = 1};
  raise_invalid(std::string(name) + ".size", std::to_string(buffer->elements()), "1 or " + std::to_string(heads) + " (kv_head)");
}

BandMask take_mask(Call& call) {
  return {.left = call.attribute<std::int64_t>("window_left").value_or(kUnbounded),
          .right = call.attribute<std::int64_t>("window_right").value_or(kUnbounded),
          .anchor = call.attribute<std::int64_t>("top_left").value_or(0) != 0 ? Anchor::top_left : Anchor::bottom_right};
}

std::optional<RaggedDesc> take_ragged(Call& call) {
  const Buffer *cu_seqlens = call.buffer("cu_seqlens_q"), *q = call.buffer("q"), *k = call.buffer("k");
  if (cu_seqlens == nullptr) return std::nullopt;
  return RaggedDesc{.batch = cu_seqlens->elements() - 1,
                    .max_seq_q = call.attribute<std::int64_t>("max_seqlen_q").value_or(q->desc.shape[0]),
                    .max_seq_k = call.attribute<std::int64_t>("max_seqlen_k").value_or(k->desc.shape[0])};
}

template <class Row, class Desc>
void describe_field(Desc& desc, const Row& row, Call& call) {
  using T = typename Row::InDesc;
  if constexpr (std::is_same_v<T, TensorDesc> || std::is_same_v<T, std::optional<TensorDesc>>) {
    if (const Buffer* buffer = call.buffer(row.name)) desc.*Row::kDesc = buffer->desc;
  } else if constexpr (std::is_same_v<T, std::optional<ScaleDesc>>) {
    desc.*Row::kDesc = describe_scale(call.buffer(row.name), row.name, row.count(desc));
  } else if constexpr (std::is_same_v<T, std::optional<RaggedDesc>>) {
    desc.*Row::kDesc = take_ragged(call);
  } else if constexpr (std::is_same_v<T, BandMask>) {
    desc.*Row::kDesc = take_mask(call);
  } else if constexpr (std::is_same_v<T, bool> && Row::kHasPointer) {
    desc.*Row::kDesc = call.buffer(row.name) != nullptr;
  } else if constexpr (std::is_same_v<T, std::int64_t>) {
    desc.*Row::kDesc = call.attribute<std::int64_t>(row.name).value_or(0);
  } else if constexpr (std::is_floating_point_v<T>) {
    desc.*Row::kDesc = static_cast<T>(call.attribute<double>(row.name).value_or(0));
  } else if constexpr (Row::kHasPointer) {
    call.buffer(row.name);  // for the key
  } else {
    constexpr bool kNotHere = std::is_same_v<T, KvFormat> || std::is_same_v<T, std::optional<PackedMaskDesc>>;
    static_assert(std::is_void_v<T> || kNotHere, "this binding does not know the field's type");
  }
}

template <const auto& table>
auto describe(Call& call) {
  typename detail::TypesOf<table>::Desc desc{};
  detail::for_each_field(table, [&](const auto& field) { describe_field(desc, field, call); });
  return desc;
}

/// Vectors that the library reads by pointer alone: it cannot see how long they are.
template <const auto& table, class Desc>
void check_vectors(const Desc& desc, Call& call) {
  detail::for_each_field(table, [&](const auto& field) {
    using Row = std::remove_cvref_t<decltype(field)>;
    if constexpr (detail::kMayBeVector<Row>) {
      const Buffer* buffer = call.buffer(field.name);
      if (buffer == nullptr || field.count == nullptr) return;
      constexpr DType kDType = detail::dtype_of_pointer<Row>();
      const bool halves = holds_halves(*buffer, kDType);
      if (!halves) check_dtype(*buffer, field.name, kDType);
      const std::int64_t got = buffer->elements() / (halves ? 2 : 1), want = field.count(desc);
      if (got != want) raise_invalid(std::string(field.name) + ".size", std::to_string(got), std::to_string(want));
    }
  });
}

template <const auto& table>
auto arguments(Call& call) {
  typename detail::TypesOf<table>::Args args{};
  detail::for_each_field(table, [&](const auto& field) {
    using Row = std::remove_cvref_t<decltype(field)>;
    if constexpr (Row::kHasPointer) {
      if (const Buffer* buffer = call.buffer(field.name)) args.*Row::kArgs = static_cast<typename Row::Pointer>(buffer->address);
    }
  });
  return args;
}

/// An operation whose table of fields says all.
template <const auto& table, auto plan_function>
struct OverFields {
  static auto describe(Call& call) { return jax::describe<table>(call); }
  static constexpr auto kPlan = plan_function;
  template <class Desc>
  static void check(const Desc& desc, Call& call) {
    check_vectors<table>(desc, call);
  }
  static auto arguments(Call& call) { return jax::arguments<table>(call); }
};

using Attention = OverFields<detail::kAttentionFields, plan_attention>;
using PagedAttention = OverFields<detail::kPagedAttentionFields, plan_paged_attention>;
using PagedCacheAppend = OverFields<detail::kPagedCacheAppendFields, plan_paged_cache_append>;

/// The fields of the forward pass and those of its gradient.
struct AttentionBackward {
  static AttentionBackwardDesc describe(Call& call) {
    AttentionBackwardDesc desc = jax::describe<detail::kAttentionBackwardFields>(call);
    desc.forward = jax::describe<detail::kDenseFields>(call);
    return desc;
  }
  static constexpr auto kPlan = plan_attention_backward;
  static void check(const AttentionBackwardDesc& desc, Call& call) {
    check_vectors<detail::kAttentionBackwardFields>(desc, call);
    check_vectors<detail::kDenseFields>(desc.forward, call);
  }
  static AttentionBackwardArgs arguments(Call& call) {
    AttentionBackwardArgs args = jax::arguments<detail::kAttentionBackwardFields>(call);
    args.forward = jax::arguments<detail::kDenseFields>(call);
    return args;
  }
};

/// Programs have few shapes. A thread's plans of an operation are dropped when there are so many.
constexpr std::size_t kMostPlans = 512;

template <class Op>
void run(Call& call, const Place& place) {
  using Desc = decltype(Op::describe(call));
  using Plan = std::remove_cvref_t<decltype(*Op::kPlan(std::declval<Desc>(), Device{}, PlanOptions{}))>;
  thread_local std::unordered_map<std::string, Plan> plans;

  const Desc desc = Op::describe(call);
  const std::string_view implementation = call.attribute<std::string_view>("implementation").value_or("");
  const PlanOptions options{.implementation = implementation,
                            .batch_invariant = call.attribute<std::int64_t>("batch_invariant").value_or(0) != 0,
                            .deterministic = true,
                            .fill_out = true,
                            .fill_lse = true};
  std::string key = call.key();
  key.append(name_of(place.device.backend)).append(std::to_string(place.device.ordinal));
  auto known = plans.find(key);
  if (known == plans.end()) {
    Plan made = Op::kPlan(desc, place.device, options).value();
    Op::check(desc, call);
    if (plans.size() >= kMostPlans) plans.clear();
    known = plans.emplace(std::move(key), std::move(made)).first;
  }
  const Plan& plan = known->second;

  HostMemory host(nullptr, &std::free);
  const Workspace workspace = allocate(plan.workspace_bytes(), place, host);
  plan.run(Op::arguments(call), workspace, place.stream).value();
}

void dispatch(Call& call, const Place& place) {
  const auto operation = call.attribute<std::string_view>("operation").value_or("");
  if (operation == "attention") return run<Attention>(call, place);
  if (operation == "attention_backward") return run<AttentionBackward>(call, place);
  if (operation == "paged_attention") return run<PagedAttention>(call, place);
  if (operation == "paged_cache_append") return run<PagedCacheAppend>(call, place);
  raise_invalid("operation", operation, "attention, attention_backward, paged_attention or paged_cache_append");
}

ffi::Error handle(const Place& place, ffi::RemainingArgs inputs, ffi::RemainingRets outputs, ffi::Dictionary attributes) {
  try {
    Call call(inputs, outputs, attributes);
    dispatch(call, place);
    return ffi::Error::Success();
  } catch (const Exception& exception) {
    const bool invalid = exception.error().code == ErrorCode::invalid_argument;
    return {invalid ? ffi::ErrorCode::kInvalidArgument : ffi::ErrorCode::kUnimplemented, exception.what()};
  } catch (const std::exception& exception) {  // out of memory
    return {ffi::ErrorCode::kInternal, exception.what()};
  }
}

ffi::Error on_cpu(ffi::RemainingArgs inputs, ffi::RemainingRets outputs, ffi::Dictionary attributes) {
  return handle({}, inputs, outputs, attributes);
}

ffi::Error on_cuda(void* stream, std::int32_t ordinal, ffi::ScratchAllocator scratch, ffi::RemainingArgs inputs, ffi::RemainingRets outputs,
                   ffi::Dictionary attributes) {
  const Place place{.device = {.backend = Backend::cuda, .ordinal = ordinal}, .stream = {stream}, .scratch = &scratch};
  return handle(place, inputs, outputs, attributes);
}

}  // namespace
}  // namespace fovea::jax

extern "C" {

#define FOVEA_EXPORTED __attribute__((visibility("default")))

/// The handlers of a platform, which python/fovea/jax registers with XLA.
FOVEA_EXPORTED XLA_FFI_Error* fovea_jax_cpu(XLA_FFI_CallFrame* frame) {
  static const auto handler = fovea::jax::ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs().To(fovea::jax::on_cpu);
  return handler->Call(frame);
}

FOVEA_EXPORTED XLA_FFI_Error* fovea_jax_cuda(XLA_FFI_CallFrame* frame) {
  using namespace fovea::jax;
  static const auto handler = ffi::Ffi::Bind()
                                  .Ctx<ffi::PlatformStream<void*>>()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .Ctx<ffi::ScratchAllocator>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attrs()
                                  .To(on_cuda);
  return handler->Call(frame);
}

}  // extern "C"
