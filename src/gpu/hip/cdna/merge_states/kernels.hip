// SPDX-License-Identifier: Apache-2.0
/// A wave merges one (row, head). It reads every element of all parts before it writes that element, so the result may overwrite one of the
/// parts.
#include "gpu/hip/cdna/element.hpp"
#include "gpu/hip/cdna/merge_states/params.hpp"

namespace fovea::gpu::cdna::merge {

inline constexpr float kLog2e = 1.44269504088896341f, kLn2 = 0.693147180559945309f;

template <class Element>
class Merger {
 public:
  using Storage = typename Element::Storage;

  __device__ Merger(const Params& params_, std::int64_t cell_)
      : params(params_), cell(cell_), row(cell_ / params_.heads), head(cell_ - row * params_.heads) {}

  __device__ __forceinline__ void operator()() {
    weigh();
    for (std::int64_t begin = 0; begin < params.head_dim_v; begin += kLanes) merge(begin);
    if (lane() != 0) return;
    if (!params.last) {
      params.carry.largest[cell] = largest;
      params.carry.sum[cell] = sum;
    } else if (params.result.lse != nullptr) {
      params.result.lse[row * params.result.lse_row + head * params.result.lse_head] = sum > 0 ? largest + log2f(sum) * kLn2 : -INFINITY;
    }
  }

 private:
  /// Lane i has the weight of part i. An empty part has none, and its out is never read.
  __device__ __forceinline__ void weigh() {
    float lse = -INFINITY;
    if (lane() < params.part_count) {
      const auto& from = params.parts[lane()];
      lse = from.lse[row * from.lse_row + head * from.lse_head];
      if (!isfinite(lse)) lse = -INFINITY;
    }
    present = ballot(lse != -INFINITY);
    const float before = params.first ? -INFINITY : params.carry.largest[cell];
    largest = fmaxf(before, largest_of_wave(lse));
    weight = lse == -INFINITY ? 0 : exp2((lse - largest) * kLog2e);
    sum = sum_of_wave(weight);
    kept = before == -INFINITY ? 0 : exp2((before - largest) * kLog2e);
    if (kept > 0) sum += kept * params.carry.sum[cell];
  }

  /// Columns `begin` + lane, over the parts in their order.
  __device__ __forceinline__ void merge(std::int64_t begin) const {
    const std::int64_t d = begin + lane();
    const bool inside = d < params.head_dim_v;
    float* carried = params.carry.out + cell * params.head_dim_v + d;
    float x = 0;
    if (kept > 0 && inside) x = kept * *carried;
    for (int part = 0; part < params.part_count; ++part) {
      const float of_part = std::bit_cast<float>(of_lane(std::bit_cast<int>(weight), part));
      if ((present >> part & 1) == 0 || !inside) continue;
      const auto& from = params.parts[part];
      x = fmaf(of_part, Element::to_f32(static_cast<const Storage*>(from.out)[row * from.out_row + head * from.out_head + d]), x);
    }
    if (!inside) return;
    if (!params.last) {
      *carried = x;
    } else {
      auto* to = static_cast<Storage*>(params.result.out) + row * params.result.out_row + head * params.result.out_head;
      to[d] = Element::from_f32(sum > 0 ? x / sum : 0.0f);
    }
  }

  static __device__ __forceinline__ float largest_of_wave(float x) {
#pragma unroll
    for (int step = 1; step < 16; step *= 2) x = fmaxf(x, of_lane_xor(x, step));
    return largest_of_row(x);
  }

  const Params& params;
  const std::int64_t cell, row, head;
  float largest = -INFINITY, sum = 0, kept = 0;  // of all parts so far; `kept`: factor of what earlier passes carried over
  float weight = 0;                              // of part lane()
  std::uint64_t present = 0;
};

template <class Element>
__device__ __forceinline__ void merge_states(const Params& params) {
  const std::int64_t cell = std::int64_t{workgroup_x()} * kWaves + uniform(thread() / kLanes);
  if (cell < params.cells) Merger<Element>(params, cell)();
}

}  // namespace fovea::gpu::cdna::merge

#define FOVEA_MERGE_KERNEL(name, Element)                                           \
  FOVEA_CDNA_KERNEL(merge_states_##name, fovea::gpu::cdna::merge::Params, 256, 2) { \
    fovea::gpu::cdna::merge::merge_states<fovea::gpu::cdna::Element>(params);       \
  }
FOVEA_MERGE_KERNEL(f32, F32)
FOVEA_MERGE_KERNEL(f16, F16)
FOVEA_MERGE_KERNEL(bf16, Bf16)
