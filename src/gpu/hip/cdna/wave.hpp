// SPDX-License-Identifier: Apache-2.0
/// Operations of the 64 lanes of a wave together. The instructions are those of gfx90a and gfx942; gpu/hip/emulation/wave.hpp has the same
/// functions for the host. All lanes of a wave call them together, except where a comment says otherwise.
#pragma once

#include "gpu/hip/prelude.hpp"

#ifdef __HIP_DEVICE_COMPILE__

namespace fovea::gpu::cdna {

__device__ __forceinline__ int thread() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
__device__ __forceinline__ int lane() { return static_cast<int>(__builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u))); }
__device__ __forceinline__ int workgroup_x() { return static_cast<int>(__builtin_amdgcn_workgroup_id_x()); }
__device__ __forceinline__ int workgroup_y() { return static_cast<int>(__builtin_amdgcn_workgroup_id_y()); }
__device__ __forceinline__ int workgroup_z() { return static_cast<int>(__builtin_amdgcn_workgroup_id_z()); }

/// A value that is the same in all lanes, in a scalar register.
__device__ __forceinline__ int uniform(int x) { return __builtin_amdgcn_readfirstlane(x); }
/// The value of lane `from`, which is the same number in all lanes.
__device__ __forceinline__ int of_lane(int x, int from) { return __builtin_amdgcn_readlane(x, from); }
__device__ __forceinline__ std::uint64_t ballot(bool condition) { return __builtin_amdgcn_ballot_w64(condition); }

/// The value of lane `lane() ^ 16`: one instruction, which swaps lanes of each half of the wave.
__device__ __forceinline__ float of_lane_xor_16(float x) {
  return __builtin_bit_cast(float, __builtin_amdgcn_ds_swizzle(__builtin_bit_cast(int, x), 16 << 10 | 0x1f));
}
/// The value of lane `lane() ^ mask`, for masks below 64.
__device__ __forceinline__ float of_lane_xor(float x, int mask) {
  return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute((lane() ^ mask) << 2, __builtin_bit_cast(int, x)));
}
__device__ __forceinline__ float of_lane_xor_32(float x) { return of_lane_xor(x, 32); }

/// A data-parallel primitive: the lane that `kControl` names, or `old` where there is none or `kRows` lacks the row of 16 lanes.
template <int kControl, int kRows>
__device__ __forceinline__ int dpp(int old, int x) {
  return __builtin_amdgcn_update_dpp(old, x, kControl, kRows, 0xf, false);
}

/// D += A B of 16 x 16 matrices: lane l holds A[l % 16][4 (l / 16) + e], B[4 (l / 16) + e][l % 16] and D[4 (l / 16) + e][l % 16].
__device__ __forceinline__ Float4 multiply_add_f16(Short4 a, Short4 b, Float4 d) {
  return __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(Vector<_Float16, 4>, a), __builtin_bit_cast(Vector<_Float16, 4>, b), d, 0,
                                               0, 0);
}
__device__ __forceinline__ Float4 multiply_add_bf16(Short4 a, Short4 b, Float4 d) {
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, d, 0, 0, 0);
}

/// All waves of the workgroup arrive and wait; LDS accesses before it come before those after it.
__device__ __forceinline__ void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
/// LDS accesses of the wave before it come before those after it.
__device__ __forceinline__ void wave_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

/// The stores of the wave are visible to the device once a counter after them is.
__device__ __forceinline__ void release_to_device() { __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent"); }
__device__ __forceinline__ void acquire_from_device() { __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent"); }
/// Called by one lane. The value before.
__device__ __forceinline__ int add_on_device(int* counter, int value) {
  return __hip_atomic_fetch_add(counter, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

/// The same word, as a value that the compiler does not know: what is made of it is not shared with another code path.
__device__ __forceinline__ std::uint32_t unknown(std::uint32_t word) {
  asm volatile("" : "+v"(word));
  return word;
}

/// The same numbers in AGPRs, where a kernel with more than 256 registers has its accumulators. Vector instructions do not reach them: the
/// compiler would move a value to the other registers, and back, on every path around such an instruction.
__device__ __forceinline__ Float4 as_accumulator(Float4 x) {
  asm volatile("" : "+a"(x));
  return x;
}

/// The kernel's parameters, to be loaded again where they are used next: all of them do not fit the scalar registers.
template <class Params>
__device__ __forceinline__ const Params& reloaded(const Params&) {
  auto* arguments = __builtin_amdgcn_kernarg_segment_ptr();
  asm volatile("" : "+s"(arguments));
  return *(const Params*)arguments;
}

__device__ __forceinline__ float exp2(float x) { return __builtin_amdgcn_exp2f(x); }
/// For normal numbers, to an ulp.
__device__ __forceinline__ float reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }

/// The low halves of two words, and the high ones: `first` below.
__device__ __forceinline__ std::uint32_t low_halves(std::uint32_t first, std::uint32_t second) {
  return __builtin_amdgcn_perm(second, first, 0x05040100);
}
__device__ __forceinline__ std::uint32_t high_halves(std::uint32_t first, std::uint32_t second) {
  return __builtin_amdgcn_perm(second, first, 0x07060302);
}

/// Both halves of a word as signed integers, shifted.
template <int kBits>
__device__ __forceinline__ std::uint32_t shift_halves_right(std::uint32_t halves) {
  return __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(Vector<short, 2>, halves) >> static_cast<short>(kBits));
}
/// Two products in one instruction.
__device__ __forceinline__ Float2 multiply_pair(float first, float second, float factor) { return Float2{first, second} * factor; }
/// Both halves of a word as f16, times `factor`.
__device__ __forceinline__ std::uint32_t multiply_halves(std::uint32_t halves, float factor) {
  return __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(Vector<_Float16, 2>, halves) * static_cast<_Float16>(factor));
}

/// The workgroup's memory on its compute unit (LDS), by offsets in bytes.
template <int kBytes>
class SharedMemory {
 public:
  template <class T>
  __device__ __forceinline__ T load(int offset) const {
    return *reinterpret_cast<const __attribute__((address_space(3))) T*>(base() + offset);
  }
  template <class T>
  __device__ __forceinline__ void store(int offset, T value) const {
    *reinterpret_cast<__attribute__((address_space(3))) T*>(base() + offset) = value;
  }

 private:
  static __device__ __forceinline__ __attribute__((address_space(3))) unsigned char* base() {
    __attribute__((shared)) static unsigned char memory[kBytes] __attribute__((aligned(16)));
    return (__attribute__((address_space(3))) unsigned char*)memory;
  }
};

}  // namespace fovea::gpu::cdna

/// A kernel of workgroups of `threads` threads, of which at least `waves` waves fit a SIMD. `Params` is its one argument.
#define FOVEA_CDNA_KERNEL(name, Params, threads, waves)                                                                                    \
  extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(threads, threads), amdgpu_waves_per_eu(waves))) void name( \
      const Params params)

#else
#include "gpu/hip/emulation/wave.hpp"
#endif

namespace fovea::gpu::cdna {

__device__ __forceinline__ bool any(bool condition) { return ballot(condition) != 0; }

/// Over the lanes up to and with this one. Rows of 16 lanes by shifts, then the last lane of each row to the rows after it.
__device__ __forceinline__ int prefix_sum(int x) {
  constexpr int kShift = 0x110, kOfRowBefore = 0x142, kOfLane31 = 0x143;
  x += dpp<kShift + 1, 0xf>(0, x);
  x += dpp<kShift + 2, 0xf>(0, x);
  x += dpp<kShift + 4, 0xf>(0, x);
  x += dpp<kShift + 8, 0xf>(0, x);
  x += dpp<kOfRowBefore, 0xa>(0, x);
  return x + dpp<kOfLane31, 0xc>(0, x);
}

/// Over all lanes, in all lanes: the same steps.
__device__ __forceinline__ float sum_of_wave(float x) {
  constexpr int kShift = 0x110, kOfRowBefore = 0x142, kOfLane31 = 0x143;
  const auto add = [&]<int kControl, int kRows>() { x += std::bit_cast<float>(dpp<kControl, kRows>(0, std::bit_cast<int>(x))); };
  add.template operator()<kShift + 1, 0xf>();
  add.template operator()<kShift + 2, 0xf>();
  add.template operator()<kShift + 4, 0xf>();
  add.template operator()<kShift + 8, 0xf>();
  add.template operator()<kOfRowBefore, 0xa>();
  add.template operator()<kOfLane31, 0xc>();
  return std::bit_cast<float>(of_lane(std::bit_cast<int>(x), kLanes - 1));
}

/// Four lanes share a row of scores: l, l ^ 16, l ^ 32 and l ^ 48. DPP moves values within rows of 16 lanes or from their last lanes alone.
__device__ __forceinline__ float largest_of_row(float x) {
  x = fmaxf(x, of_lane_xor_16(x));
  return fmaxf(x, of_lane_xor_32(x));
}
__device__ __forceinline__ float sum_of_row(float x) {
  x += of_lane_xor_16(x);
  return x + of_lane_xor_32(x);
}

/// The operations that gpu/common/softmax.cuh asks for.
struct Wave {
  static __device__ __forceinline__ float exp2(float x) { return cdna::exp2(x); }
  static __device__ __forceinline__ float quotient(float a, float b) { return a * reciprocal(b); }
};

}  // namespace fovea::gpu::cdna
