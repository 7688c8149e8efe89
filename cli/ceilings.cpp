// SPDX-License-Identifier: Apache-2.0
#include "ceilings.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "device_runtime.hpp"
#include "fovea/info.hpp"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#define FOVEA_X86_CEILINGS
#endif

namespace fovea::cli {
namespace {

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// The shortest of several rounds. In a round every thread runs `body(thread)` once.
template <class Body>
double best_round(int threads, int rounds, Body body) {
  double best = 1e30;
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::thread> team;
    const double begin = seconds_now();
    for (int thread = 1; thread < threads; ++thread) team.emplace_back(body, thread);
    body(0);
    for (std::thread& member : team) member.join();
    best = std::min(best, seconds_now() - begin);
  }
  return best;
}

/// A loop of independent instructions: `loops` times, `flops` each time.
struct Kernel {
  std::string_view instruction;
  void (*run)(std::int64_t loops) = nullptr;
  double flops = 0;
};

using Read = void (*)(const std::byte* begin, std::size_t bytes);

double peak(const Kernel& kernel, int threads) {
  constexpr std::int64_t kLoops = 4'000'000;
  return kernel.flops * static_cast<double>(kLoops) * threads / best_round(threads, 5, [&](int) { kernel.run(kLoops); });
}

/// Without a known wide instruction, the compiler's own loops are used.
void plain_products(std::int64_t loops) {
  float sums[64];
  for (float& sum : sums) sum = 1.0f;
  volatile float factor = 0.999f;
  const float f = factor;
  for (std::int64_t i = 0; i < loops; ++i) {
    for (float& sum : sums) sum = sum * f + 1.0f;
  }
  volatile float sink = sums[loops % 64];
  static_cast<void>(sink);
}
void plain_read(const std::byte* begin, std::size_t bytes) {
  std::uint64_t sums[8] = {}, words[8];
  for (std::size_t i = 0; i < bytes; i += sizeof words) {
    std::memcpy(words, begin + i, sizeof words);
    for (std::size_t j = 0; j < 8; ++j) sums[j] += words[j];
  }
  volatile std::uint64_t sink = sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
  static_cast<void>(sink);
}

#ifdef FOVEA_X86_CEILINGS
// The assembly names its registers, so that no compiler can fold, reorder or spill what is measured. Twelve sums cover the latency. They
// start at zero and grow by ones, far from denormal numbers.
#define FOVEA_EACH(text, reg)                                                                                                            \
  text(reg, "0") text(reg, "1") text(reg, "2") text(reg, "3") text(reg, "4") text(reg, "5") text(reg, "6") text(reg, "7") text(reg, "8") \
      text(reg, "9") text(reg, "10") text(reg, "11")
#define FOVEA_ZERO(reg, n) "vxorps %%xmm" n ",%%xmm" n ",%%xmm" n "\n"
#define FOVEA_FMA(reg, n) "vfmadd231ps %%" reg "14,%%" reg "15,%%" reg n "\n"
#define FOVEA_DOT(reg, n) "vdpbf16ps %%" reg "14,%%" reg "15,%%" reg n "\n"
#define FOVEA_LOOP(text, reg, ones)                                                                \
  asm volatile("vbroadcastss %1,%%" reg "14\n vbroadcastss %1,%%" reg                              \
               "15\n" FOVEA_EACH(FOVEA_ZERO, reg) "1:\n" FOVEA_EACH(text, reg) "dec %0\n jnz 1b\n" \
               : "+r"(loops)                                                                       \
               : "m"(ones)                                                                         \
               : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm14", "xmm15")

constexpr float kOne = 1.0f;
constexpr std::uint32_t kTwoBf16Ones = 0x3f803f80U;

__attribute__((target("avx2,fma"))) void fma_ymm(std::int64_t loops) { FOVEA_LOOP(FOVEA_FMA, "ymm", kOne); }
__attribute__((target("avx512f"))) void fma_zmm(std::int64_t loops) { FOVEA_LOOP(FOVEA_FMA, "zmm", kOne); }
__attribute__((target("avx512f"))) void dot_zmm(std::int64_t loops) { FOVEA_LOOP(FOVEA_DOT, "zmm", kTwoBf16Ones); }

/// Loads alone, 256 bytes a turn; nothing else competes with the memory.
__attribute__((target("avx2"))) void read_ymm(const std::byte* begin, std::size_t bytes) {
  const std::byte* end = begin + bytes;
  asm volatile(
      "1:\n vmovups (%0),%%ymm0\n vmovups 32(%0),%%ymm1\n vmovups 64(%0),%%ymm2\n vmovups 96(%0),%%ymm3\n vmovups 128(%0),%%ymm4\n"
      "vmovups 160(%0),%%ymm5\n vmovups 192(%0),%%ymm6\n vmovups 224(%0),%%ymm7\n add $256,%0\n cmp %1,%0\n jb 1b\n"
      : "+r"(begin)
      : "r"(end)
      : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7");
}

/// Four accumulator tiles of 16 x 16, operands of 16 x 32.
void tile_products(std::int64_t loops) {
  struct alignas(64) Config {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  const Config config;
  asm volatile("ldtilecfg %0\n tilezero %%tmm4\n tilezero %%tmm5\n" : : "m"(config));
  asm volatile(
      "1:\n tdpbf16ps %%tmm5,%%tmm4,%%tmm0\n tdpbf16ps %%tmm5,%%tmm4,%%tmm1\n tdpbf16ps %%tmm5,%%tmm4,%%tmm2\n tdpbf16ps "
      "%%tmm5,%%tmm4,%%tmm3\n"
      "dec %0\n jnz 1b\n tilerelease\n"
      : "+r"(loops)
      :
      : "cc");
}

/// Linux grants the tile registers on demand.
bool tiles_granted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has(const std::vector<DeviceInfo>& all, std::string_view feature) {
  const auto& features = all.front().features;
  return std::find(features.begin(), features.end(), feature) != features.end();
}

Kernel f32_kernel(const std::vector<DeviceInfo>& all) {
  if (has(all, "avx512")) return {"vfmadd231ps zmm", fma_zmm, 12 * 32};
  if (has(all, "avx2")) return {"vfmadd231ps ymm", fma_ymm, 12 * 16};
  return {"compiled loop", plain_products, 128};
}

Read read_kernel(const std::vector<DeviceInfo>& all) { return has(all, "avx2") ? read_ymm : plain_read; }

Kernel bf16_kernel(const std::vector<DeviceInfo>& all) {
  if (has(all, "amx_bf16") && tiles_granted()) return {"tdpbf16ps", tile_products, 4 * 16 * 16 * 32 * 2};
  if (has(all, "avx512bf16")) return {"vdpbf16ps zmm", dot_zmm, 12 * 64};
  return {};
}
#else
Kernel f32_kernel(const std::vector<DeviceInfo>&) { return {"compiled loop", plain_products, 128}; }
Kernel bf16_kernel(const std::vector<DeviceInfo>&) { return {}; }
Read read_kernel(const std::vector<DeviceInfo>&) { return plain_read; }
#endif

constexpr std::size_t kMemory = std::size_t{512} << 20;  // bytes that a thread reads

}  // namespace

Ceilings better(const Ceilings& a, const Ceilings& b) {
  Ceilings best = a;
  best.read_bandwidth = std::max(a.read_bandwidth, b.read_bandwidth);
  best.f32_peak = std::max(a.f32_peak, b.f32_peak);
  best.bf16_peak = std::max(a.bf16_peak, b.bf16_peak);
  return best;
}

CeilingMeter::CeilingMeter(int threads) : threads_(threads) {
  for (int thread = 0; thread < threads; ++thread) {
    memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(kMemory));
    std::memset(memory_.back().get(), 1, kMemory);
  }
}

/// Each thread reads its own range once.
double CeilingMeter::read_bandwidth(const std::vector<DeviceInfo>& all) const {
  constexpr int kRounds = 5;
  const Read read = read_kernel(all);
  const double best = best_round(threads_, kRounds, [&](int thread) { read(memory_[static_cast<std::size_t>(thread)].get(), kMemory); });
  return static_cast<double>(kMemory) * threads_ / best;
}

Ceilings CeilingMeter::measure() const {
  const std::vector<DeviceInfo> all = devices();
  const Kernel f32 = f32_kernel(all), bf16 = bf16_kernel(all);
  Ceilings ceilings{
      .threads = threads_, .read_bandwidth = read_bandwidth(all), .f32_peak = peak(f32, threads_), .f32_instruction = f32.instruction};
  ceilings.bf16_peak = bf16.run != nullptr ? peak(bf16, threads_) : 0;
  ceilings.bf16_instruction = bf16.instruction;
  if (ceilings.bf16_peak < ceilings.f32_peak) {  // some processors multiply f32 faster than bf16
    ceilings.bf16_peak = ceilings.f32_peak;
    ceilings.bf16_instruction = f32.instruction;
  }
  return ceilings;
}

Ceilings device_ceilings(Device device, double matrix_peak) {
  constexpr std::size_t kBytes = std::size_t{2} << 30;
  const double bandwidth = 2.0 * static_cast<double>(kBytes) / check::device_copy_seconds(device, kBytes);
  return {.read_bandwidth = bandwidth,
          .f32_peak = matrix_peak,
          .bf16_peak = matrix_peak,
          .f32_instruction = "as bf16",
          .bf16_instruction = matrix_peak > 0 ? "the best matrix product" : "not measured"};
}

}  // namespace fovea::cli
