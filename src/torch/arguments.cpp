// SPDX-License-Identifier: Apache-2.0
#include "arguments.hpp"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string_view>

#include "call_words.hpp"

namespace fovea::binding {
namespace {

struct TypePair {
  std::int32_t torch;
  DType fovea;
};

const std::array<TypePair, 8>& type_pairs() {
  static const std::array<TypePair, 8> kPairs{{{aoti_torch_dtype_float32(), DType::f32},
                                               {aoti_torch_dtype_float64(), DType::f64},
                                               {aoti_torch_dtype_bfloat16(), DType::bf16},
                                               {aoti_torch_dtype_float16(), DType::f16},
                                               {aoti_torch_dtype_float8_e4m3fn(), DType::e4m3},
                                               {aoti_torch_dtype_int8(), DType::i8},
                                               {aoti_torch_dtype_int32(), DType::i32},
                                               {aoti_torch_dtype_int64(), DType::i64}}};
  return kPairs;
}

std::int32_t torch_dtype_of(const Tensor& tensor) {
  std::int32_t dtype = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  return dtype;
}

std::optional<DType> dtype_of(const Tensor& tensor) {
  const std::int32_t dtype = torch_dtype_of(tensor);
  for (const TypePair& pair : type_pairs()) {
    if (pair.torch == dtype) return pair.fovea;
  }
  return std::nullopt;
}

/// "[2, 8]"
template <class Extents>
std::string list_text(const Extents& extents) {
  std::string text("[");
  for (const std::int64_t extent : extents) text.append(text.size() > 1 ? ", " : "").append(std::to_string(extent));
  return text.append("]");
}

void require_dtype(const Tensor& tensor, const char* name, DType want) {
  if (dtype_of(tensor) == want) return;
  raise_invalid(field(name, "dtype"), dtype_text(tensor), std::string(name_of(want)));
}

struct StorageUse {
  std::int64_t bytes, needed;
};

/// Bytes of the tensor's storage, and those up to the end of the tensor's last element.
StorageUse storage_of(const Tensor& tensor) {
  StorageUse use{};
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_size(tensor.get(), &use.bytes));
  std::int64_t last = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_storage_offset(tensor.get(), &last));
  const auto shape = tensor.sizes(), strides = tensor.strides();
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 0) return use;
    last += (shape[axis] - 1) * strides[axis];
  }
  use.needed = (last + 1) * static_cast<std::int64_t>(tensor.element_size());
  return use;
}

std::atomic<int>& requested_threads() {
  static std::atomic<int> threads = 0;
  return threads;
}

/// Fovea's work on torch's own threads: a second pool beside it would keep the cores busy waiting.
void torch_parallel(int threads, void (*body)(void* context, int thread), void* context) {
  struct Call {
    void (*body)(void*, int);
    void* context;
  } call{body, context};
  const auto run_range = [](std::int64_t begin, std::int64_t end, void* data) {
    const Call& work = *static_cast<const Call*>(data);
    for (std::int64_t thread = begin; thread < end; ++thread) work.body(work.context, static_cast<int>(thread));
  };
  TORCH_ERROR_CODE_CHECK(torch_parallel_for(0, threads, 1, run_range, &call));
}

}  // namespace

// Not take<std::string>(): in torch 2.11 to 2.13 it leaks the string.
std::string Arguments::text() {
  const auto handle = take<StringHandle>();
  const std::unique_ptr<StringOpaque, AOTITorchError (*)(StringHandle)> owner(handle, torch_delete_string);
  const char* characters = nullptr;
  std::size_t length = 0;
  TORCH_ERROR_CODE_CHECK(torch_string_c_str(handle, &characters));
  TORCH_ERROR_CODE_CHECK(torch_string_length(handle, &length));
  std::string text(characters, length);
  key_.add(text);
  return text;
}

double normal(double value, const char* name) {
  if (value == 0.0 || std::isnormal(static_cast<float>(value))) return value;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.9g", value);
  raise_invalid(name, text.data(), "1.2e-38 to 3.4e38 in magnitude (a normal float)");
}

float narrow(double value, const char* name) { return static_cast<float>(normal(value, name)); }

void raise(const Error& error) {
  switch (error.code) {
    case ErrorCode::invalid_argument: throw std::runtime_error("invalid: " + to_string(error));
    case ErrorCode::unsupported: throw std::runtime_error("unsupported: " + to_string(error));
    case ErrorCode::out_of_workspace:
    case ErrorCode::device_error: break;
  }
  throw std::runtime_error(to_string(error));
}

void raise_invalid(const std::string& subject, const std::string& got, const std::string& want) {
  raise({ErrorCode::invalid_argument, subject + ": got " + got + ", want " + want});
}

void expect_none(const char* name, std::optional<std::int64_t> value, const char* missing) {
  if (value) raise_invalid(name, std::to_string(*value), std::string("none without ").append(missing));
}

std::string field(const char* name, std::string_view member) { return std::string(name).append(".").append(member); }

std::string shape_text(const Tensor& tensor) { return list_text(tensor.sizes()); }

std::string dtype_text(std::int32_t dtype) {
  using torch::stable::detail::from, torch::stable::detail::to;
  try {
    return torch::headeronly::toString(to<torch::headeronly::ScalarType>(from(dtype)));
  } catch (const std::runtime_error&) {
    return "one that extensions cannot name";
  }
}

std::string dtype_text(const Tensor& tensor) { return dtype_text(torch_dtype_of(tensor)); }

StableIValue text_result(std::string_view text) {
  using torch::headeronly::DeviceType, torch::headeronly::ScalarType;
  const std::array size{static_cast<std::int64_t>(text.size())};
  Tensor bytes = torch::stable::empty({size.data(), size.size()}, ScalarType::Byte, std::nullopt, torch::stable::Device(DeviceType::CPU));
  std::ranges::copy(text, static_cast<char*>(bytes.data_ptr()));
  return torch::stable::detail::from(bytes);
}

bool holds_bytes(const Tensor& tensor) { return torch_dtype_of(tensor) == aoti_torch_dtype_uint8(); }

void* data(const Tensor& tensor) { return tensor.data_ptr(); }

std::int32_t alignment_of(const Tensor& tensor) { return alignment_of_address(data(tensor)); }

bool fits_storage(const Tensor& tensor) {
  const StorageUse use = storage_of(tensor);
  return use.needed <= use.bytes;
}

void check_memory(const Tensor& tensor, const char* name) {
  check_device(tensor, name);
  if (tensor.device().type() == torch::headeronly::DeviceType::Meta) return;
  const StorageUse use = storage_of(tensor);
  if (use.needed <= use.bytes) return;
  raise_invalid(field(name, "storage"), std::to_string(use.bytes) + " bytes", "at least " + std::to_string(use.needed));
}

/// Strides of a tensor without elements lead nowhere, and torch's `contiguous()` leaves them as they are.
static void make_contiguous(TensorDesc& desc) {
  std::int64_t stride = 1;
  for (auto axis = static_cast<std::size_t>(desc.rank); axis-- > 0;) {
    desc.strides[axis] = stride;
    stride *= std::max<std::int64_t>(desc.shape[axis], 1);
  }
}

TensorDesc describe(const Tensor& tensor, const char* name) {
  check_memory(tensor, name);
  TensorDesc desc{};
  const std::int64_t rank = tensor.dim();
  if (rank > static_cast<std::int64_t>(desc.shape.size())) raise_invalid(field(name, "rank"), std::to_string(rank), "at most 4");
  const std::optional<DType> dtype = dtype_of(tensor);
  if (!dtype) {
    // Other 8-bit floats are numbers too, with which nothing computes.
    const std::string got = dtype_text(tensor);
    raise({got.starts_with("Float8") ? ErrorCode::unsupported : ErrorCode::invalid_argument,
           field(name, "dtype") + ": got " + got +
               ", want float32, float16, bfloat16, float8_e4m3fn, float64, int8, int32 or int64, as the operation says"});
  }
  desc.dtype = *dtype;
  desc.rank = static_cast<int>(rank);
  std::ranges::copy(tensor.sizes(), desc.shape.begin());
  std::ranges::copy(tensor.strides(), desc.strides.begin());
  if (std::ranges::count(tensor.sizes(), 0) != 0) make_contiguous(desc);
  desc.alignment = alignment_of(tensor);
  return desc;
}

std::optional<TensorDesc> describe(const OptionalTensor& tensor, const char* name) {
  if (!tensor) return std::nullopt;
  return describe(*tensor, name);
}

void* vector_data(const Tensor& tensor, const char* name, DType dtype, std::int64_t count) {
  check_memory(tensor, name);
  require_dtype(tensor, name, dtype);
  if (tensor.dim() != 1 || tensor.size(0) != count) {
    raise_invalid(field(name, "shape"), shape_text(tensor), list_text(std::array{count}));
  }
  if (count > 1 && tensor.stride(0) != 1) raise_invalid(field(name, "strides[0]"), std::to_string(tensor.stride(0)), "1 (contiguous)");
  return data(tensor);
}

const std::int32_t* int32_vector(const Tensor& tensor, const char* name, std::int64_t count) {
  return static_cast<const std::int32_t*>(vector_data(tensor, name, DType::i32, count));
}

const std::int64_t* int64_vector(const Tensor& tensor, const char* name, std::int64_t count) {
  return static_cast<const std::int64_t*>(vector_data(tensor, name, DType::i64, count));
}

const float* float_vector(const OptionalTensor& tensor, const char* name, std::int64_t count) {
  return tensor ? static_cast<const float*>(vector_data(*tensor, name, DType::f32, count)) : nullptr;
}

std::optional<ScaleDesc> describe_scale(const OptionalTensor& tensor, const char* name, std::int64_t batch, std::int64_t kv_head) {
  if (!tensor) return std::nullopt;
  check_memory(*tensor, name);
  require_dtype(*tensor, name, DType::f32);
  const std::int64_t rank = tensor->dim();
  if (tensor->numel() == 1) return ScaleDesc{};
  if (rank == 1 && tensor->size(0) == kv_head) return ScaleDesc{.batch_stride = 0, .head_stride = tensor->stride(0)};
  if (batch > 0 && rank == 2 && tensor->size(0) == batch && tensor->size(1) == kv_head) {
    return ScaleDesc{.batch_stride = tensor->stride(0), .head_stride = tensor->stride(1)};
  }
  std::string want("one element, or ");
  want.append(list_text(std::array{kv_head}));
  if (batch > 0) want.append(", or ").append(list_text(std::array{batch, kv_head}));
  raise_invalid(field(name, "shape"), shape_text(*tensor), want);
}

const std::int32_t* query_lengths(const OptionalTensor& cu_seqlens_q, std::int64_t batch) {
  if (cu_seqlens_q) return int32_vector(*cu_seqlens_q, "cu_seqlens_q", batch + 1);
  if (call_device().backend != Backend::cpu) raise_invalid("cu_seqlens_q", "none", "a tensor on the device of q");
  thread_local std::vector<std::int32_t> lengths;
  const auto count = static_cast<std::size_t>(batch + 1);
  if (lengths.size() < count) {
    lengths.resize(count);
    std::iota(lengths.begin(), lengths.end(), 0);
  }
  return lengths.data();
}

std::int64_t query_bound(const OptionalTensor& cu_seqlens_q, std::int64_t max_seqlen_q, std::int64_t rows, std::int64_t batch) {
  if (cu_seqlens_q) return max_seqlen_q;
  if (rows != batch) {
    raise_invalid("cu_seqlens_q", "none",
                  "a tensor, as " + std::to_string(rows) + " query rows are not one for each of " + std::to_string(batch) + " sequences");
  }
  return max_seqlen_q == 0 ? 1 : max_seqlen_q;
}

int follow_torch_threads() {
  std::uint32_t threads = 0;
  if (requested_threads() == 0 && torch_get_num_threads(&threads) == TORCH_SUCCESS) set_num_threads(static_cast<int>(threads));
  return num_threads();
}

void use_torch_threads(int requested) {
  requested_threads() = requested;
  set_parallel_for(torch_parallel);
  if (requested != 0) set_num_threads(requested);
}

}  // namespace fovea::binding
