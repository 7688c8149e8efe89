// SPDX-License-Identifier: Apache-2.0
/// Memory of the caches of a case, plain or in a format of codes.
#pragma once

#include <memory>
#include <vector>

#include "bound_case.hpp"
#include "op/common/kv_format.hpp"

namespace fovea::check {

inline std::size_t misalignment(const Case& spec, DType dtype) { return spec.layout == Layout::unaligned ? size_of(dtype) : 0; }

inline HostileTensor allocate(const Case& spec, const TensorDesc& desc) { return HostileTensor(desc, misalignment(spec, desc.dtype)); }

/// Codes and their scales in one allocation where the case has them so, else one each.
inline void allocate_codes(const Case& spec, const TensorDesc& codes, const TensorDesc& scales, HostileTensor& code_tensor,
                           HostileTensor& scale_tensor) {
  if (!spec.inline_scales) {
    code_tensor = allocate(spec, codes);
    scale_tensor = allocate(spec, scales);
    return;
  }
  const std::int64_t size = static_cast<std::int64_t>(size_of(scales.dtype));
  const auto storage = std::make_shared<Storage>(static_cast<std::size_t>(span_of(scales) * size + codes.shape[3]), 0);
  code_tensor = HostileTensor(codes, storage, 0);
  scale_tensor = HostileTensor(scales, storage, codes.shape[3] / size);
}

inline void allocate_formats(BoundCase& bound, const auto& desc) {
  if (desc.k_scale_cache) allocate_codes(bound.spec, desc.k_cache, *desc.k_scale_cache, bound.k, bound.k_scale_cache);
  if (desc.v_scale_cache) allocate_codes(bound.spec, desc.v_cache, *desc.v_scale_cache, bound.v, bound.v_scale_cache);
}

/// Quantises a row into the codes and scales of a token and head. `token` and `head` count as in the cache.
struct CodeRow {
  KvFormat format;
  HostileTensor &codes, &scales;

  void write(std::int64_t codes_at, std::int64_t scales_at, float global, const std::vector<float>& row) {
    void* to = codes.as<std::uint8_t>() + codes_at;
    const DType dtype = scales ? scales.desc().dtype : DType::f32;
    std::byte* scale = scales ? scales.as<std::byte>() + scales_at * static_cast<std::int64_t>(size_of(dtype)) : nullptr;
    detail::encode_kv_row(*kv_row_format(format), {to, scale, dtype}, global, row);
  }
};

/// K and V in one allocation if they alternate, else one each.
inline void allocate_caches(BoundCase& bound, const TensorDesc& k, const TensorDesc& v) {
  if (bound.spec.layout != Layout::interleaved) {
    bound.k = allocate(bound.spec, k);
    bound.v = allocate(bound.spec, v);
    return;
  }
  const std::int64_t elements = k.shape[0] * k.strides[0];
  const auto storage = std::make_shared<Storage>(static_cast<std::size_t>(elements) * size_of(k.dtype), 0);
  bound.k = HostileTensor(k, storage, 0);
  bound.v = HostileTensor(v, storage, bound.spec.kv_head * bound.spec.dqk);
}

}  // namespace fovea::check
