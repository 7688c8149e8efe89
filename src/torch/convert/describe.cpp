// SPDX-License-Identifier: Apache-2.0
#include "describe.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>

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

std::optional<DType> dtype_of(const Tensor& tensor) {
  const std::int32_t dtype = torch_dtype_of(tensor);
  for (const TypePair& pair : type_pairs()) {
    if (pair.torch == dtype) return pair.fovea;
  }
  return std::nullopt;
}

/// Whether the dtype is one that names the codes or scales of a cache's format, or bytes.
bool is_byte(const Tensor& tensor) {
  const std::int32_t dtype = torch_dtype_of(tensor);
  return holds_bytes(tensor) || dtype == aoti_torch_dtype_float8_e5m2();
}

void require_dtype(const Tensor& tensor, const char* name, DType want) {
  if (dtype_of(tensor) == want) return;
  raise_invalid(field(name, "dtype"), dtype_text(tensor), std::string(name_of(want)));
}

/// Names of the formats with so many bytes for a token; of all formats if none has.
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
          .alignment = alignment_of_address(cache.data_ptr())};
}

/// Rows of a ragged tensor.
std::int64_t rows_of(const Tensor& tensor) { return tensor.dim() > 0 ? tensor.size(0) : 0; }

/// Sequences of prefix sums of lengths.
std::int64_t batch_of(const Tensor& cu_seqlens, const char* name) {
  if (cu_seqlens.dim() != 1 || cu_seqlens.size(0) < 1) raise_invalid(field(name, "shape"), shape_text(cu_seqlens), "[batch + 1]");
  return cu_seqlens.size(0) - 1;
}

}  // namespace

std::optional<RaggedDesc> describe_ragged(const Sequences& sequences, const Tensor& q, const Tensor& k) {
  const auto& [cu_seqlens_q, cu_seqlens_k, bounds] = sequences;
  if (!cu_seqlens_q && !cu_seqlens_k) {
    expect_none("max_seqlen_q", bounds.q, "cu_seqlens_q");
    expect_none("max_seqlen_k", bounds.k, "cu_seqlens_k");
    return std::nullopt;
  }
  if (!cu_seqlens_q || !cu_seqlens_k) {
    const bool q_given = cu_seqlens_q.has_value();
    raise_invalid(q_given ? "cu_seqlens_k" : "cu_seqlens_q", "none",
                  q_given ? "a tensor, as cu_seqlens_q is given" : "a tensor, as cu_seqlens_k is given");
  }
  return RaggedDesc{.batch = batch_of(*cu_seqlens_q, "cu_seqlens_q"),
                    .max_seq_q = bounds.q.value_or(rows_of(q)),
                    .max_seq_k = bounds.k.value_or(rows_of(k))};
}

std::optional<RaggedDesc> describe_ragged(const OptionalTensor& cu_seqlens_k, std::optional<std::int64_t> max_seqlen_k, const Tensor& v) {
  if (!cu_seqlens_k) {
    expect_none("max_seqlen_k", max_seqlen_k, "cu_seqlens_k");
    return std::nullopt;
  }
  return RaggedDesc{.batch = batch_of(*cu_seqlens_k, "cu_seqlens_k"), .max_seq_k = max_seqlen_k.value_or(rows_of(v))};
}

Int8Groups Groups::of_plan() const {
  if (warp_rows != 32 && warp_rows != 16) raise_invalid("groups.warp_rows", std::to_string(warp_rows), "32 or 16");
  for (const auto& [known, value] : kGranularities) {
    if (granularity == known) return {value, static_cast<int>(warp_rows)};
  }
  raise_invalid("groups.granularity", "\"" + granularity + "\"", "block, warp or thread");
}

DType v_dtype_of(std::int32_t dtype) {
  if (dtype == aoti_torch_dtype_float16()) return DType::f16;
  if (dtype == aoti_torch_dtype_float8_e4m3fn()) return DType::e4m3;
  raise_invalid("v_dtype", dtype_text(dtype), "float16 or float8_e4m3fn");
}

double normal(double value, const char* name) {
  if (value == 0.0 || std::isnormal(static_cast<float>(value))) return value;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.9g", value);
  raise_invalid(name, text.data(), "1.2e-38 to 3.4e38 in magnitude (a normal float)");
}

float narrow(double value, const char* name) { return static_cast<float>(normal(value, name)); }

void expect_none(const char* name, std::optional<std::int64_t> value, const char* missing) {
  if (value) raise_invalid(name, std::to_string(*value), std::string("none without ").append(missing));
}

/// Strides of a tensor without elements lead nowhere, and torch's `contiguous()` leaves them as they are.
static void make_contiguous(TensorDesc& desc) {
  std::int64_t stride = 1;
  for (auto axis = static_cast<std::size_t>(desc.rank); axis-- > 0;) {
    desc.strides[axis] = stride;
    stride *= std::max<std::int64_t>(desc.shape[axis], 1);
  }
}

TensorDesc describe(const Tensor& tensor, const char* name, bool may_hold_codes) {
  check_memory(tensor, name);
  TensorDesc desc{};
  const std::int64_t rank = tensor.dim();
  if (rank > static_cast<std::int64_t>(desc.shape.size())) raise_invalid(field(name, "rank"), std::to_string(rank), "at most 4");
  std::optional<DType> dtype = dtype_of(tensor);
  if (!dtype && may_hold_codes && is_byte(tensor)) dtype = DType::i8;
  if (!dtype) {
    // No kernel computes with other 8-bit floats, which are numbers all the same.
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
  desc.alignment = alignment_of_address(tensor.data_ptr());
  return desc;
}

std::optional<TensorDesc> describe(const OptionalTensor& tensor, const char* name, bool may_hold_codes) {
  if (!tensor) return std::nullopt;
  return describe(*tensor, name, may_hold_codes);
}

KvFormat kv_format_of(const std::string& format, const char* name) {
  std::string want(name_of(KvFormat::rows));
  if (format == want) return KvFormat::rows;
  for (const KvRowFormat& known : kKvFormats) {
    if (known.name == format) return known.format;
    want.append(", ").append(known.name);
  }
  raise_invalid(name, "\"" + format + "\"", want);
}

void check_vector(const Tensor& tensor, const char* name, DType dtype, std::int64_t count) {
  check_memory(tensor, name);
  require_dtype(tensor, name, dtype);
  if (tensor.dim() != 1 || tensor.size(0) != count) {
    raise_invalid(field(name, "shape"), shape_text(tensor), list_text(std::array{count}));
  }
  if (count > 1 && tensor.stride(0) != 1) raise_invalid(field(name, "strides[0]"), std::to_string(tensor.stride(0)), "1 (contiguous)");
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

const std::int32_t* one_row_each(std::int64_t batch) {
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

std::optional<PackedMaskDesc> describe_packed_mask(const OptionalTensor& mask, std::optional<std::int64_t> tail,
                                                   const OptionalTensor& mask_indptr, const Tensor& q) {
  if (!mask) {
    expect_none("mask_tail", tail, "packed_mask");
    if (mask_indptr) raise_invalid("mask_indptr", "a tensor", "none without packed_mask");
    return std::nullopt;
  }
  if (tail && *tail < 1) raise_invalid("mask_tail", std::to_string(*tail), "1 or more, or none (every key)");
  check_memory(*mask, "packed_mask");
  if (!holds_bytes(*mask)) raise_invalid("packed_mask.dtype", dtype_text(*mask), "uint8 (8 keys a byte)");
  const std::int64_t rank = mask->dim();
  const bool by_rows = rank > 1 && rank + 1 == q.dim();
  std::vector<std::int64_t> rows(q.sizes().begin(), q.sizes().begin() + std::max<std::int64_t>(q.dim() - 2, 0));
  if (rank != 1 && !(by_rows && std::equal(rows.begin(), rows.end(), mask->sizes().begin()))) {
    std::string want = list_text(rows);
    want.back() = ',';
    raise_invalid("packed_mask.shape", shape_text(*mask), "[bytes], or " + want + " bytes] (a row of bytes for each row of q)");
  }
  if (by_rows && mask_indptr) raise_invalid("mask_indptr", "a tensor", "none, as packed_mask has a row of bytes for each row of q");
  std::int64_t dense = 1;
  for (std::int64_t axis = rank - 1; axis >= 0; dense *= mask->size(axis--)) {
    if (mask->size(axis) <= 1 || mask->stride(axis) == dense || mask->numel() == 0) continue;
    raise_invalid(field("packed_mask", "strides[" + std::to_string(axis) + "]"), std::to_string(mask->stride(axis)),
                  std::to_string(dense) + " (contiguous)");
  }
  return PackedMaskDesc{.bytes = mask->numel(), .tail = tail.value_or(0), .row_bytes = by_rows ? mask->size(rank - 1) : 0};
}

LatentCacheDesc describe_cache(const Tensor& cache, const std::string& format, const char* name) {
  if (format != name_of(CacheFormat::rows)) return describe_packed(cache, find_format(format, name), name);
  if (holds_bytes(cache)) {
    const std::int64_t bytes = cache.dim() == 3 ? cache.size(2) : 0;
    raise_invalid(field(name, "format"), "\"rows\"", "the packed format of these bytes: " + formats_of(bytes));
  }
  return {.rows = describe(cache, name)};
}

}  // namespace fovea::binding
