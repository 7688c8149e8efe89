// SPDX-License-Identifier: Apache-2.0
/// The kernel of all quantisers: its items, by tickets where some wait for others.
#pragma once

#include "gpu/cuda/common/programmatic_launch.cuh"
#include "gpu/cuda/portable/quantizers/int8.cuh"
#include "gpu/cuda/portable/quantizers/values.cuh"

namespace fovea::gpu::portable::quantizers {

template <int kHeadDim>
union StepShared {
  LookShared<kHeadDim> look;
  Int8Shared int8;
};

/// A CTA has one item. With tickets it takes items in their order, so whatever an item waits for is computed or being so, on any number of
/// multiprocessors.
template <class Element, int kHeadDim, bool kAligned>
__global__ void __launch_bounds__(threads_for(kHeadDim), ctas_for(kHeadDim)) quantize(const __grid_constant__ Params params) {
  __shared__ StepShared<kHeadDim> shared;
  __shared__ Place place;
  if (threadIdx.x == 0) {
    wait_for_previous_kernel();
    const unsigned index = params.ticket != nullptr ? atomicAdd(params.ticket, 1u) : blockIdx.x;
    place = place_of(params, params.order[static_cast<int>(index)]);
  }
  __syncthreads();
  switch (place.item.step) {
    case Step::look_at_k:
    case Step::look_at_v: return look_at_channels<Element, kHeadDim, kAligned>(params, place, shared.look);
    case Step::quantize_q: return Int8Quantizer<Element, kHeadDim, kAligned, true>(params, place)(shared.int8);
    case Step::quantize_k: return Int8Quantizer<Element, kHeadDim, kAligned, false>(params, place)(shared.int8);
    case Step::quantize_v:
      return params.values_as_f16 ? encode_values<Element, kHeadDim, kAligned, true>(params, place)
                                  : encode_values<Element, kHeadDim, kAligned, false>(params, place);
    case Step::none: return;
  }
}

/// Before a launch with tickets.
__global__ void clear_counters(unsigned* counters, int count);

}  // namespace fovea::gpu::portable::quantizers
