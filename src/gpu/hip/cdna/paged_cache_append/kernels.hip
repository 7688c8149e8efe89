// SPDX-License-Identifier: Apache-2.0
/// A workgroup writes the K and V rows of one token, all kv heads: its threads divide their elements.
#include "gpu/hip/cdna/element.hpp"
#include "gpu/hip/cdna/paged_cache_append/params.hpp"

namespace fovea::gpu::cdna::append {

/// A row's elements as bits, to be copied.
template <class Storage>
struct Copied {
  using From = Storage;
  using To = Storage;
  static __device__ __forceinline__ To converted(From x, float) { return x; }
};
template <class Element>
struct Quantised {
  using From = typename Element::Storage;
  using To = std::uint8_t;
  static __device__ __forceinline__ To converted(From x, float scale) { return detail::e4m3_from_f32(Element::to_f32(x) / scale); }
};

template <class Type>
__device__ __forceinline__ void append_side(const Side& side, int kv_heads, std::int64_t token, std::int64_t target) {
  if (side.head_dim == 0) return;  // K alone, or V: the other has no memory
  const auto* rows = static_cast<const typename Type::From*>(side.rows) + token * side.row_stride;
  auto* cache = static_cast<typename Type::To*>(side.cache) + target;
  for (int i = thread(); i < kv_heads * side.head_dim; i += kThreads) {
    const int head = i / side.head_dim, x = i - head * side.head_dim;
    const float scale = side.scale == nullptr ? 1.0f : side.scale[head * side.scale_stride];
    cache[head * side.strides.head + x] = Type::converted(rows[head * side.head_stride + x], scale);
  }
}

template <class Type>
__device__ __forceinline__ void append(const Params& params) {
  const std::int64_t token = workgroup_x(), slot = params.slot_mapping[token];
  if (slot < 0 || slot >= params.slots) return;
  const std::int64_t block = slot / params.page, in_page = slot - block * params.page;
  for (const Side& side : params.sides) {
    append_side<Type>(side, params.kv_heads, token, block * side.strides.block + in_page * side.strides.token);
  }
}

}  // namespace fovea::gpu::cdna::append

#define FOVEA_APPEND_KERNEL(suffix, ...)                                                     \
  FOVEA_CDNA_KERNEL(paged_cache_append_##suffix, fovea::gpu::cdna::append::Params, 256, 1) { \
    using namespace fovea::gpu::cdna;                                                        \
    append::append<append::__VA_ARGS__>(params);                                             \
  }
FOVEA_APPEND_KERNEL(2_bytes, Copied<std::uint16_t>)
FOVEA_APPEND_KERNEL(4_bytes, Copied<std::uint32_t>)
FOVEA_APPEND_KERNEL(f32_to_e4m3, Quantised<F32>)
FOVEA_APPEND_KERNEL(f16_to_e4m3, Quantised<F16>)
FOVEA_APPEND_KERNEL(bf16_to_e4m3, Quantised<Bf16>)
