// SPDX-License-Identifier: Apache-2.0
#include "c_api/convert.hpp"
#include "c_api/handle.hpp"

namespace fovea::c_api {
namespace {

std::string& last_error() {
  thread_local std::string message;
  return message;
}

/// A C enumerator as its C++ twin, which counts from 0 in the same order.
template <class To>
To enumerator(std::int32_t value, int count, const std::string& name) {
  if (value < 0 || value >= count) refuse(name + ": got " + std::to_string(value) + ", want 0 .. " + std::to_string(count - 1));
  return static_cast<To>(value);
}

static_assert(static_cast<int>(DType::f64) == FOVEA_F64 && static_cast<int>(DType::i8) == FOVEA_I8);
static_assert(static_cast<int>(Anchor::bottom_right) == FOVEA_BOTTOM_RIGHT && static_cast<int>(Backend::hip) == FOVEA_HIP);
static_assert(static_cast<int>(CacheFormat::v41_fp4) == FOVEA_V41_FP4 && static_cast<int>(ScaleRule::exact) == FOVEA_EXACT);
static_assert(static_cast<int>(KvFormat::int8_token) == FOVEA_KV_INT8_TOKEN && static_cast<int>(KvFormat::mxfp8) == FOVEA_KV_MXFP8);
static_assert(static_cast<int>(Int8Granularity::block) == FOVEA_INT8_BLOCK &&
              static_cast<int>(Int8Granularity::thread) == FOVEA_INT8_THREAD);
static_assert(static_cast<int>(ErrorCode::device_error) + 1 == FOVEA_DEVICE_ERROR);

}  // namespace

fovea_status fail(const Error& error) noexcept {
  try {
    last_error() = to_string(error);
  } catch (const std::exception&) {
    last_error().clear();  // no memory for the message; the status still says it
  }
  return static_cast<fovea_status>(error.code) + 1;
}

void refuse(std::string message) { throw Exception(Error{ErrorCode::invalid_argument, std::move(message)}); }

DType dtype(fovea_dtype from, std::string_view name) { return enumerator<DType>(from, FOVEA_F64 + 1, std::string(name)); }

TensorDesc tensor(const fovea_tensor& from, std::string_view name) {
  TensorDesc desc{};
  desc.dtype = dtype(from.dtype, std::string(name) + ".dtype");
  desc.rank = from.rank;
  for (std::size_t axis = 0; axis < desc.shape.size(); ++axis) {
    desc.shape[axis] = from.shape[axis];
    desc.strides[axis] = from.strides[axis];
  }
  desc.alignment = from.alignment;
  return desc;
}

BandMask mask(const fovea_mask& from) {
  return {.left = from.left, .right = from.right, .anchor = enumerator<Anchor>(from.anchor, FOVEA_BOTTOM_RIGHT + 1, "mask.anchor")};
}

LatentCacheDesc latent_cache(const fovea_latent_cache& from, std::string_view name) {
  LatentCacheDesc desc{};
  desc.format = enumerator<CacheFormat>(from.format, FOVEA_V41_FP4 + 1, std::string(name) + ".format");
  if (desc.format == CacheFormat::rows) desc.rows = tensor(from.rows, std::string(name) + ".rows");
  desc.blocks = from.blocks;
  desc.page = from.page;
  desc.block_stride = from.block_stride;
  desc.alignment = from.alignment;
  return desc;
}

KvFormat kv_format(fovea_kv_format from, std::string_view name) {
  return enumerator<KvFormat>(from, FOVEA_KV_MXFP8 + 1, std::string(name));
}

ScaleRule scale_rule(fovea_scale_rule from) { return enumerator<ScaleRule>(from, FOVEA_EXACT + 1, "rule"); }

Int8Groups groups(const fovea_int8_groups* from) {
  if (from == nullptr) return {};
  return {enumerator<Int8Granularity>(from->granularity, FOVEA_INT8_THREAD + 1, "groups.granularity"), from->warp_rows};
}

Device device(const fovea_options* from) {
  if (from == nullptr) return {};
  return {.backend = enumerator<Backend>(from->backend, FOVEA_HIP + 1, "options.backend"), .ordinal = from->ordinal};
}

PlanOptions plan_options(const fovea_options* from) {
  if (from == nullptr) return {};
  return {.implementation = from->implementation == nullptr ? std::string_view{} : from->implementation,
          .batch_invariant = from->batch_invariant != 0,
          .exact_rows = from->exact_rows != 0,
          .deterministic = from->deterministic != 0};
}

}  // namespace fovea::c_api

extern "C" {

const char* fovea_last_error(void) { return fovea::c_api::last_error().c_str(); }

const char* fovea_version(void) { return fovea::version().data(); }  // a literal, so it ends in a zero

fovea_tensor fovea_contiguous(fovea_dtype dtype, int32_t rank, const int64_t* shape) {
  fovea_tensor tensor{};
  tensor.dtype = dtype;
  tensor.rank = shape == nullptr ? 0 : rank;
  if (shape == nullptr || rank > 4) return tensor;  // planning refuses the rank
  uint64_t stride = 1;                              // unsigned: shapes that overflow are refused by planning too
  for (int32_t axis = rank - 1; axis >= 0; --axis) {
    tensor.shape[axis] = shape[axis];
    tensor.strides[axis] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(shape[axis]);
  }
  return tensor;
}

fovea_mask fovea_causal(void) { return {FOVEA_UNBOUNDED, 0, FOVEA_BOTTOM_RIGHT}; }

fovea_mask fovea_sliding_window(int64_t tokens) { return {fovea::sliding_window(tokens).left, 0, FOVEA_BOTTOM_RIGHT}; }

void fovea_plan_destroy(fovea_plan* plan) { delete plan; }

size_t fovea_plan_workspace_bytes(const fovea_plan* plan) {
  return plan == nullptr ? 0 : std::visit([](const auto& held) { return held.workspace_bytes(); }, plan->plan);
}

const char* fovea_plan_implementation(const fovea_plan* plan) { return plan == nullptr ? "" : plan->implementation.c_str(); }

const char* fovea_plan_explain(const fovea_plan* plan) {
  thread_local std::string text;
  const fovea_status status = fovea::c_api::guarded([&]() -> fovea::Result<void> {
    text = plan == nullptr ? std::string() : std::visit([](const auto& held) { return held.explain(); }, plan->plan);
    return {};
  });
  return status == FOVEA_OK ? text.c_str() : "";
}

void fovea_set_num_threads(int32_t threads) { fovea::set_num_threads(threads); }

int32_t fovea_num_threads(void) { return fovea::num_threads(); }

void fovea_set_parallel_for(fovea_parallel_for parallel_for) { fovea::set_parallel_for(parallel_for); }

}  // extern "C"
