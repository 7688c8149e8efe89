// SPDX-License-Identifier: Apache-2.0
/// MMAs of a warpgroup: d (64 x kN) += a (64 x kK) b (kK x kN). Operand a is in shared memory (ss) or in
/// registers (rs), b in shared memory. kK is 16 for f16 and bf16, 32 for e4m3 and int8.
/// Accumulators are f32, or int32 for int8.
///
/// An operand in shared memory is Major::k (contiguous along kK) or Major::mn. Operands of e4m3 and int8
/// are Major::k. Rows have 128 bytes in the 128-byte swizzle. Eight rows are a swizzle atom of 1024
/// bytes, aligned to as much; the caller chooses the stride between atoms.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace fovea::gpu::sm90 {

inline constexpr int kGroupBytes = 1024;  // a swizzle atom: 8 rows x 128 bytes

/// The matrix descriptor of an operand without swizzle, in core matrices of 8 rows x 16 bytes.
/// `leading_bytes`: between core matrices along kK. `stride_bytes`: between those along the other
/// dimension.
__device__ inline std::uint64_t smem_descriptor_no_swizzle(std::uint32_t address, int leading_bytes, int stride_bytes) {
  // The compiler would keep the descriptors of every step in registers throughout a loop.
  asm volatile("" : "+r"(address));
  return (address & 0x3FFFF) >> 4 | static_cast<std::uint64_t>(leading_bytes >> 4) << 16 |
         static_cast<std::uint64_t>(stride_bytes >> 4) << 32;
}

/// The matrix descriptor of an operand in the 128-byte swizzle. `leading_bytes`: between slices of 64
/// columns, which counts for Major::mn alone. `stride_bytes`: between swizzle atoms of eight rows.
__device__ inline std::uint64_t smem_descriptor(std::uint32_t address, int leading_bytes, int stride_bytes) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  return kSwizzle128 | smem_descriptor_no_swizzle(address, leading_bytes, stride_bytes);
}

/// Moves a descriptor by `bytes`, a multiple of 16, within the 256 KiB of its address field. Only the
/// lower word changes. A 64-bit addition takes too many instructions between two MMAs of 64 columns.
__device__ constexpr std::uint64_t advance_descriptor(std::uint64_t descriptor, int bytes) {
  return (descriptor & ~std::uint64_t{0xffffffff}) | (static_cast<std::uint32_t>(descriptor) + static_cast<std::uint32_t>(bytes >> 4));
}

/// Orders earlier writes of registers before the MMAs that follow, which read them.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most kPending committed groups are in flight.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Computes `x`, which is not negative, before the wait that follows. ptxas moves arithmetic behind a
/// wait for MMAs, but not over a branch.
__device__ inline void compute_before_wait(float x) {
  if (x < 0) asm volatile("nanosleep.u32 0;");
}

/// Keeps the compiler from moving uses of the first kFirst accumulators over a wait.
template <int kFirst, int kCount>
__device__ inline void fence_first_operands(float (&accumulators)[kCount]) {
#pragma unroll
  for (int i = 0; i < kFirst; ++i) asm volatile("" : "+f"(accumulators[i])::"memory");
}
template <int kCount>
__device__ inline void fence_operand(float (&accumulators)[kCount]) {
  fence_first_operands<kCount>(accumulators);
}

template <int kCount>
__device__ inline void fence_operand(int (&accumulators)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(accumulators[i])::"memory");
}

template <int kCount>
__device__ inline void fence_operand(std::uint32_t (&operands)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(operands[i])::"memory");
}

/// kCount accumulators from `begin` on: the operand of an MMA of fewer columns.
template <int kCount, int kAll>
__device__ inline float (&accumulator_slice(float (&accumulators)[kAll], int begin))[kCount] {
  return reinterpret_cast<float(&)[kCount]>(accumulators[begin]);
}

enum class Major { k, mn };

template <class Element, int kN>
struct Wgmma;

// Names of the accumulators in an instruction, in groups of eight or sixteen.
#define FOVEA_D0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FOVEA_D1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FOVEA_D2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define FOVEA_D3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define FOVEA_D4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FOVEA_D5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define FOVEA_D6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define FOVEA_D7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define FOVEA_D8 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define FOVEA_D10 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FOVEA_D12 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define FOVEA_D14 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define FOVEA_NAMES_16 FOVEA_D0 FOVEA_D1
#define FOVEA_NAMES_24 FOVEA_NAMES_16 FOVEA_D2
#define FOVEA_NAMES_32 FOVEA_NAMES_24 FOVEA_D3
#define FOVEA_NAMES_40 FOVEA_NAMES_32 FOVEA_D4
#define FOVEA_NAMES_48 FOVEA_NAMES_40 FOVEA_D5
#define FOVEA_NAMES_56 FOVEA_NAMES_48 FOVEA_D6
#define FOVEA_NAMES_64 FOVEA_NAMES_56 FOVEA_D7
#define FOVEA_NAMES_80 FOVEA_NAMES_64 FOVEA_D8
#define FOVEA_NAMES_96 FOVEA_NAMES_80 FOVEA_D10
#define FOVEA_NAMES_128 FOVEA_NAMES_96 FOVEA_D12 FOVEA_D14

// The accumulators as operands of the instruction, with the constraint R.
#define FOVEA_OPERANDS_8(R, i) \
  R(d[i]), R(d[(i) + 1]), R(d[(i) + 2]), R(d[(i) + 3]), R(d[(i) + 4]), R(d[(i) + 5]), R(d[(i) + 6]), R(d[(i) + 7])
#define FOVEA_OPERANDS_16(R) FOVEA_OPERANDS_8(R, 0), FOVEA_OPERANDS_8(R, 8)
#define FOVEA_OPERANDS_24(R) FOVEA_OPERANDS_16(R), FOVEA_OPERANDS_8(R, 16)
#define FOVEA_OPERANDS_32(R) FOVEA_OPERANDS_24(R), FOVEA_OPERANDS_8(R, 24)
#define FOVEA_OPERANDS_40(R) FOVEA_OPERANDS_32(R), FOVEA_OPERANDS_8(R, 32)
#define FOVEA_OPERANDS_48(R) FOVEA_OPERANDS_40(R), FOVEA_OPERANDS_8(R, 40)
#define FOVEA_OPERANDS_56(R) FOVEA_OPERANDS_48(R), FOVEA_OPERANDS_8(R, 48)
#define FOVEA_OPERANDS_64(R) FOVEA_OPERANDS_56(R), FOVEA_OPERANDS_8(R, 56)
#define FOVEA_OPERANDS_80(R) FOVEA_OPERANDS_64(R), FOVEA_OPERANDS_8(R, 64), FOVEA_OPERANDS_8(R, 72)
#define FOVEA_OPERANDS_96(R) FOVEA_OPERANDS_80(R), FOVEA_OPERANDS_8(R, 80), FOVEA_OPERANDS_8(R, 88)
#define FOVEA_OPERANDS_128(R) \
  FOVEA_OPERANDS_96(R), FOVEA_OPERANDS_8(R, 96), FOVEA_OPERANDS_8(R, 104), FOVEA_OPERANDS_8(R, 112), FOVEA_OPERANDS_8(R, 120)

// Spelling of the majors of a and b in an instruction, and of b alone.
#define FOVEA_MAJORS(A, B) ", " A ", " B
#define FOVEA_MAJOR(R) ", " R
#define FOVEA_NO_MAJOR(...) ""

// SIGNS: the immediates that scale a and b by 1, which integers do not have.
// R0 to R6: names of the operands that follow the accumulators.
#define FOVEA_WGMMA(ELEMENT, SUM, REGISTERS, TYPES, SIGNS, SS_MAJOR, RS_MAJOR, N, COUNT, R0, R1, R2, R3, R4, R5, R6)                  \
  template <>                                                                                                                         \
  struct Wgmma<ELEMENT, N> {                                                                                                          \
    template <Major kB, Major kA = Major::k>                                                                                          \
    static __device__ __forceinline__ void ss(SUM (&d)[COUNT], std::uint64_t a, std::uint64_t b, bool accumulate) {                   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " R2 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N TYPES " {" FOVEA_NAMES_##COUNT \
                   "}, " R0 ", " R1 ", p" SIGNS SS_MAJOR(R4, R3) ";\n}"                                                               \
                   : FOVEA_OPERANDS_##COUNT(REGISTERS)                                                                                \
                   : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kB == Major::mn), "n"(kA == Major::mn));                  \
    }                                                                                                                                 \
    template <Major kB>                                                                                                               \
    static __device__ __forceinline__ void rs(SUM (&d)[COUNT], const std::uint32_t* a, std::uint64_t b, bool accumulate) {            \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " R5 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N TYPES " {" FOVEA_NAMES_##COUNT \
                   "}, {" R0 ", " R1 ", " R2 ", " R3 "}, " R4 ", p" SIGNS RS_MAJOR(R6) ";\n}"                                         \
                   : FOVEA_OPERANDS_##COUNT(REGISTERS)                                                                                \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kB == Major::mn));    \
    }                                                                                                                                 \
  }

#define FOVEA_WGMMA_ALL(N, COUNT, ...)                                                                                           \
  FOVEA_WGMMA(__nv_bfloat16, float, "+f", "k16.f32.bf16.bf16", ", 1, 1", FOVEA_MAJORS, FOVEA_MAJOR, N, COUNT, __VA_ARGS__);      \
  FOVEA_WGMMA(__half, float, "+f", "k16.f32.f16.f16", ", 1, 1", FOVEA_MAJORS, FOVEA_MAJOR, N, COUNT, __VA_ARGS__);               \
  FOVEA_WGMMA(__nv_fp8_e4m3, float, "+f", "k32.f32.e4m3.e4m3", ", 1, 1", FOVEA_NO_MAJOR, FOVEA_NO_MAJOR, N, COUNT, __VA_ARGS__); \
  FOVEA_WGMMA(std::int8_t, int, "+r", "k32.s32.s8.s8", "", FOVEA_NO_MAJOR, FOVEA_NO_MAJOR, N, COUNT, __VA_ARGS__)

FOVEA_WGMMA_ALL(32, 16, "%16", "%17", "%18", "%19", "%20", "%21", "%22");
FOVEA_WGMMA_ALL(48, 24, "%24", "%25", "%26", "%27", "%28", "%29", "%30");
FOVEA_WGMMA_ALL(64, 32, "%32", "%33", "%34", "%35", "%36", "%37", "%38");
FOVEA_WGMMA_ALL(80, 40, "%40", "%41", "%42", "%43", "%44", "%45", "%46");
FOVEA_WGMMA_ALL(96, 48, "%48", "%49", "%50", "%51", "%52", "%53", "%54");
FOVEA_WGMMA_ALL(112, 56, "%56", "%57", "%58", "%59", "%60", "%61", "%62");
FOVEA_WGMMA_ALL(128, 64, "%64", "%65", "%66", "%67", "%68", "%69", "%70");
FOVEA_WGMMA_ALL(192, 96, "%96", "%97", "%98", "%99", "%100", "%101", "%102");
FOVEA_WGMMA_ALL(256, 128, "%128", "%129", "%130", "%131", "%132", "%133", "%134");

#undef FOVEA_WGMMA_ALL
#undef FOVEA_WGMMA
#undef FOVEA_MAJORS
#undef FOVEA_MAJOR
#undef FOVEA_NO_MAJOR
#undef FOVEA_OPERANDS_8
#undef FOVEA_OPERANDS_16
#undef FOVEA_OPERANDS_24
#undef FOVEA_OPERANDS_32
#undef FOVEA_OPERANDS_40
#undef FOVEA_OPERANDS_48
#undef FOVEA_OPERANDS_56
#undef FOVEA_OPERANDS_64
#undef FOVEA_OPERANDS_80
#undef FOVEA_OPERANDS_96
#undef FOVEA_OPERANDS_128
#undef FOVEA_NAMES_16
#undef FOVEA_NAMES_24
#undef FOVEA_NAMES_32
#undef FOVEA_NAMES_40
#undef FOVEA_NAMES_48
#undef FOVEA_NAMES_56
#undef FOVEA_NAMES_64
#undef FOVEA_NAMES_80
#undef FOVEA_NAMES_96
#undef FOVEA_NAMES_128
#undef FOVEA_D0
#undef FOVEA_D1
#undef FOVEA_D2
#undef FOVEA_D3
#undef FOVEA_D4
#undef FOVEA_D5
#undef FOVEA_D6
#undef FOVEA_D7
#undef FOVEA_D8
#undef FOVEA_D10
#undef FOVEA_D12
#undef FOVEA_D14

}  // namespace fovea::gpu::sm90
