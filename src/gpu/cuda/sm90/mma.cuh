// SPDX-License-Identifier: Apache-2.0
/// Warpgroup matrix products. Operands in shared memory lie in 128-byte swizzled rows: eight rows of 128 bytes are a group of 1024 bytes,
/// aligned to as much; groups follow each other at a stride of the caller's.
#pragma once

#include "gpu/cuda/sm90/ptx.cuh"

namespace fovea::gpu::sm90 {

inline constexpr int kGroupBytes = 1024;  // 8 rows x 128 bytes

/// The 64-bit descriptor of an operand. `across` is the stride between groups of 64 contiguous elements (only where the contiguous
/// dimension is not the contracted one), `along` the stride between groups of eight rows.
__device__ inline std::uint64_t operand_at(std::uint32_t address, int across, int along) {
  asm volatile("" : "+r"(address));  // or the descriptors of every step would be kept in registers throughout the loop around them
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  return kSwizzle128 | (address & 0x3FFFF) >> 4 | static_cast<std::uint64_t>(across >> 4) << 16 |
         static_cast<std::uint64_t>(along >> 4) << 32;
}

/// Moves a descriptor by `bytes`, a multiple of 16; the 256 KiB of the address field are never left. Only the lower word changes: a sum of
/// 64 bits takes more instructions between two products of 64 columns than these leave time for.
__device__ constexpr std::uint64_t advanced(std::uint64_t operand, int bytes) {
  return (operand & ~std::uint64_t{0xffffffff}) | (static_cast<std::uint32_t>(operand) + static_cast<std::uint32_t>(bytes >> 4));
}

/// Registers before this were written by ordinary code; those after it may be read by the products that follow.
__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most kPending committed groups are under way.
template <int kPending>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Has `x`, which is not negative, computed here. ptxas moves arithmetic behind a wait for products that runs beside them, but not over a
/// branch.
__device__ inline void compute_before_wait(float x) {
  if (x < 0) asm volatile("nanosleep.u32 0;");
}

/// Keeps the compiler from moving the uses of accumulators, or of the first kFirst, over a wait.
template <int kFirst, int kCount>
__device__ inline void pin_first(float (&accumulators)[kCount]) {
#pragma unroll
  for (int i = 0; i < kFirst; ++i) asm volatile("" : "+f"(accumulators[i])::"memory");
}
template <int kCount>
__device__ inline void pin(float (&accumulators)[kCount]) {
  pin_first<kCount>(accumulators);
}

template <int kCount>
__device__ inline void pin(std::uint32_t (&operands)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(operands[i])::"memory");
}

// The registers of 32, 64 and 128 accumulators as an instruction names them, and as its operands.
#define FOVEA_REGISTERS_32                                               \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15" \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FOVEA_REGISTERS_64                                                           \
  FOVEA_REGISTERS_32                                                                 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FOVEA_REGISTERS_128                                                                      \
  FOVEA_REGISTERS_64                                                                             \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define FOVEA_SUMS_4(d, i) "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3])
#define FOVEA_SUMS_16(d, i) FOVEA_SUMS_4(d, i), FOVEA_SUMS_4(d, (i) + 4), FOVEA_SUMS_4(d, (i) + 8), FOVEA_SUMS_4(d, (i) + 12)
#define FOVEA_SUMS_32(d, i) FOVEA_SUMS_16(d, i), FOVEA_SUMS_16(d, (i) + 16)
#define FOVEA_SUMS_64(d, i) FOVEA_SUMS_32(d, i), FOVEA_SUMS_32(d, (i) + 32)
#define FOVEA_SUMS_128(d) FOVEA_SUMS_64(d, 0), FOVEA_SUMS_64(d, 64)

template <class Element>
struct Product;

// A product twice, with `a` in shared memory and in registers. R0 to R5: what the operands after the sums are called.
#define FOVEA_PRODUCTS_OF(NAME, PARAMETER, SHAPE, TRANSPOSED, REGISTERS, SUMS, R0, R1, R2, R3, R4, R5)                                    \
  __device__ static void NAME(PARAMETER, std::uint64_t a, std::uint64_t b, bool accumulate) {                                             \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " R2                                                                                   \
                 ", 0;\n"                                                                                                                 \
                 "wgmma.mma_async.sync.aligned." SHAPE " {" REGISTERS "}, " R0 ", " R1 ", p, 1, 1, 0, " TRANSPOSED ";\n}"                 \
                 : SUMS                                                                                                                   \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                                                                    \
  }                                                                                                                                       \
  __device__ static void NAME(PARAMETER, const std::uint32_t* a, std::uint64_t b, bool accumulate) {                                      \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " R5                                                                                   \
                 ", 0;\n"                                                                                                                 \
                 "wgmma.mma_async.sync.aligned." SHAPE " {" REGISTERS "}, {" R0 ", " R1 ", " R2 ", " R3 "}, " R4 ", p, 1, 1, " TRANSPOSED \
                 ";\n}"                                                                                                                   \
                 : SUMS                                                                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));                                \
  }

// One text for both elements, whose instructions differ in a word.
#define FOVEA_PRODUCT(ELEMENT, TYPE)                                                                                                      \
  template <>                                                                                                                             \
  struct Product<ELEMENT> {                                                                                                               \
    /* d (64 x 64) += a (64 x 16) . b (64 x 16)^T */                                                                                      \
    FOVEA_PRODUCTS_OF(scores, float (&d)[32], "m64n64k16.f32." TYPE "." TYPE, "0", FOVEA_REGISTERS_32, FOVEA_SUMS_32(d, 0), "%32", "%33", \
                      "%34", "%35", "%36", "%37")                                                                                         \
    /* d (64 x 256) += a (64 x 16) . b (16 x 256) */                                                                                      \
    FOVEA_PRODUCTS_OF(values, float (&d)[128], "m64n256k16.f32." TYPE "." TYPE, "1", FOVEA_REGISTERS_128, FOVEA_SUMS_128(d), "%128",      \
                      "%129", "%130", "%131", "%132", "%133")                                                                             \
    /* d (64 x 128) += a (64 x 16) . b (16 x 128) */                                                                                      \
    FOVEA_PRODUCTS_OF(half_values, float* d, "m64n128k16.f32." TYPE "." TYPE, "1", FOVEA_REGISTERS_64, FOVEA_SUMS_64(d, 0), "%64", "%65", \
                      "%66", "%67", "%68", "%69")                                                                                         \
  }

FOVEA_PRODUCT(__nv_bfloat16, "bf16");
FOVEA_PRODUCT(__half, "f16");

#undef FOVEA_PRODUCT
#undef FOVEA_PRODUCTS_OF
#undef FOVEA_SUMS_128
#undef FOVEA_SUMS_64
#undef FOVEA_SUMS_32
#undef FOVEA_SUMS_16
#undef FOVEA_SUMS_4
#undef FOVEA_REGISTERS_128
#undef FOVEA_REGISTERS_64
#undef FOVEA_REGISTERS_32

}  // namespace fovea::gpu::sm90
