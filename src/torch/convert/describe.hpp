// SPDX-License-Identifier: Apache-2.0
/// From torch's tensors and numbers to the library's descriptions.
#pragma once

#include <array>
#include <utility>

#include "arguments.hpp"

namespace fovea::binding {

/// Shape, strides, dtype, and the alignment of the pointer. With `may_hold_codes`, dtypes of one byte that the library lacks are bytes, i8.
TensorDesc describe(const Tensor& tensor, const char* name, bool may_hold_codes = false);
std::optional<TensorDesc> describe(const OptionalTensor& tensor, const char* name, bool may_hold_codes = false);

/// By its name; "rows" is none.
KvFormat kv_format_of(const std::string& format, const char* name);

/// Checks a vector, which the library reads by pointer alone: dtype, one dimension of `count` elements, contiguous.
void check_vector(const Tensor& tensor, const char* name, DType dtype, std::int64_t count);

/// Strides of a dequantisation scale: one element, [kv_head], or (with `batch` > 0) [batch, kv_head].
std::optional<ScaleDesc> describe_scale(const OptionalTensor& tensor, const char* name, std::int64_t batch, std::int64_t kv_head);

/// `format` "rows": a plain tensor, described as it is. Otherwise the name of a packed format, and `cache` is uint8
/// [blocks, page, bytes of a token] with a free block stride; in a planar format only the size of the last two dimensions means something.
LatentCacheDesc describe_cache(const Tensor& cache, const std::string& format, const char* name);

/// uint8, flat as `mask_indptr` says, or [total_q, bytes] or [batch, seq_q, bytes] without it.
std::optional<PackedMaskDesc> describe_packed_mask(const OptionalTensor& mask, std::optional<std::int64_t> tail,
                                                   const OptionalTensor& mask_indptr, const Tensor& q);

/// The value in double precision. A number that is zero or infinite as a float, or no normal one, is refused; 0 means the default.
double normal(double value, const char* name);
float narrow(double value, const char* name);

/// Refuses a number that a call would ignore, as another argument is missing.
void expect_none(const char* name, std::optional<std::int64_t> value, const char* missing);

// ---- lengths -------------------------------------------------------------------------------------------------------------------

/// cu_seqlens_q of one row a sequence, in host memory that the thread keeps.
const std::int32_t* one_row_each(std::int64_t batch);

/// The bound of query lengths to plan with: 1 without cu_seqlens_q, as kernels like to know, if there is one row for each sequence.
std::int64_t query_bound(const OptionalTensor& cu_seqlens_q, std::int64_t max_seqlen_q, std::int64_t rows, std::int64_t batch);

/// Bounds of the lengths in a ragged batch; absent in a fixed one.
struct Bounds {
  std::optional<std::int64_t> q, k;
};

/// The sequences of a ragged batch; all absent in a fixed one.
struct Sequences {
  const OptionalTensor &cu_seqlens_q, &cu_seqlens_k;
  const Bounds& bounds;
};

/// Without a bound from the caller, the longest sequence is at most all rows together.
std::optional<RaggedDesc> describe_ragged(const Sequences& sequences, const Tensor& q, const Tensor& k);

/// The same for keys and values alone.
std::optional<RaggedDesc> describe_ragged(const OptionalTensor& cu_seqlens_k, std::optional<std::int64_t> max_seqlen_k, const Tensor& v);

// ---- 8 bits --------------------------------------------------------------------------------------------------------------------

/// Tokens that share a scale, in torch's words.
struct Groups {
  std::string granularity;
  std::int64_t warp_rows;

  Int8Groups of_plan() const;
};

/// The dtype of v's values from torch's number for it.
DType v_dtype_of(std::int32_t dtype);

inline constexpr std::array kGranularities{std::pair{"block", Int8Granularity::block}, std::pair{"warp", Int8Granularity::warp},
                                           std::pair{"thread", Int8Granularity::thread}};

}  // namespace fovea::binding
