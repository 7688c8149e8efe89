// SPDX-License-Identifier: Apache-2.0
/// The kernel of all quantisers. CTAs take items by tickets if some items wait for others.
#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/portable/quantizers/int8.cuh"
#include "gpu/cuda/portable/quantizers/steps.hpp"
#include "gpu/cuda/portable/quantizers/values.cuh"

namespace fovea::gpu::portable::quantizers {

template <int kHeadDim>
union StepShared {
  LookShared<kHeadDim> look;
  Int8Shared int8;
  TileShared<kHeadDim> tile;
};

template <class Element, int kHeadDim, bool kAligned>
__device__ __forceinline__ void compute(const Params& params, const Place& place, StepShared<kHeadDim>& shared) {
  switch (place.item.step) {
    case Step::look_at_k:
    case Step::look_at_v: return look_at_channels<Element, kHeadDim, kAligned>(params, place, shared.look);
    case Step::quantize_q: return Int8Quantizer<Element, kHeadDim, kAligned, true>(params, place)(shared.int8);
    case Step::quantize_k: return Int8Quantizer<Element, kHeadDim, kAligned, false>(params, place)(shared.int8);
    case Step::quantize_v: return ValueQuantizer<Element, kHeadDim, kAligned>(params, place)(shared.tile);
    case Step::none: return;
  }
}

/// The place of a ticket. After the last one, its column is -1.
__device__ inline Place place_of_ticket(const Params& params, unsigned ticket) {
  if (ticket >= static_cast<unsigned>(params.items)) return {.item = {Step::none, 0, -1}};
  return place_of(params, params.order[static_cast<int>(ticket)]);
}

/// CTAs take items by tickets in their order. An item that another one waits for is thus complete or running, on any number
/// of multiprocessors: a CTA's next ticket is later than its current item. One thread of the last warp takes the next ticket
/// during an item, and finds its place after it. With tickets two ahead, others could wait for an item that has not started.
/// Without tickets a CTA has the item of its index.
template <class Element, int kHeadDim, bool kAligned>
__global__ void __launch_bounds__(threads_for(kHeadDim), ctas_for(kHeadDim)) quantize(const __grid_constant__ Params params) {
  __shared__ StepShared<kHeadDim> shared;
  __shared__ Place places[2];
  const bool takes = threadIdx.x == threads_for(kHeadDim) - 32;
  const auto take = [&] { return atomicAdd(params.ticket, 1u); };
  unsigned ticket = 0;
  if (takes) {
    grid_dependency_wait();
    places[0] = place_of_ticket(params, params.ticket != nullptr ? take() : blockIdx.x);
  }
  __syncthreads();
#pragma unroll 1
  for (int turn = 0; places[turn].item.column >= 0; turn ^= 1) {
    if (takes && params.ticket != nullptr) ticket = take();
    compute<Element, kHeadDim, kAligned>(params, places[turn], shared);
    if (takes && params.ticket != nullptr) places[turn ^ 1] = place_of_ticket(params, ticket);
    if (params.ticket == nullptr) return;
    __syncthreads();
  }
}

template <class Element>
constexpr Kernels kKernels{
    {&quantize<Element, 64, true>, &quantize<Element, 96, true>, &quantize<Element, 128, true>, &quantize<Element, 256, true>},
    {&quantize<Element, 64, false>, &quantize<Element, 96, false>, &quantize<Element, 128, false>, &quantize<Element, 256, false>}};
const Kernels kHalfKernels = kKernels<__half>, kBfloatKernels = kKernels<__nv_bfloat16>;

}  // namespace fovea::gpu::portable::quantizers
