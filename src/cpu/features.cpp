// SPDX-License-Identifier: Apache-2.0
#include "cpu/features.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "op/common/checks.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace fovea::cpu {
namespace {

#ifdef FOVEA_EMULATE_AMX
[[maybe_unused]] constexpr bool kEmulatedTiles = true;
#else
[[maybe_unused]] constexpr bool kEmulatedTiles = false;
#endif

#if defined(__x86_64__)

struct CpuidLeaf {
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
};

CpuidLeaf cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) {
  CpuidLeaf r{};
  if (__get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d) == 0) return {};
  return r;
}

constexpr bool bit(std::uint32_t word, int index) { return ((word >> index) & 1U) != 0; }

/// XCR0: the registers that the operating system saves.
std::uint64_t saved_registers() {
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

/// Linux grants the tile registers on demand only. A thread inherits the permission.
bool amx_permitted() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Features detect() {
  Features found{};
  found.intel = cpuid(0).b == 0x756e6547;  // "Genu"
  const CpuidLeaf basic = cpuid(1), extended = cpuid(7), more = cpuid(7, 1);
  if (!bit(basic.c, 27)) return found;  // no xgetbv
  const std::uint64_t saved = saved_registers();
  const bool ymm = (saved & 0x6) == 0x6, zmm = ymm && (saved & 0xe0) == 0xe0, tiles = (saved & 0x60000) == 0x60000;
  found.avx2 = ymm && bit(basic.c, 28) && bit(basic.c, 12) && bit(basic.c, 29) && bit(extended.b, 5);
  found.avx512 = found.avx2 && zmm && bit(extended.b, 16) && bit(extended.b, 17) && bit(extended.b, 30) && bit(extended.b, 31);
  found.avx512vnni = found.avx512 && bit(extended.c, 11);
  found.avx512bf16 = found.avx512 && bit(more.a, 5);
  const bool amx = tiles && bit(extended.d, 24) && bit(extended.d, 22) && bit(extended.d, 25);  // with bf16 and int8
  found.amx_bf16 = found.avx512bf16 && bit(extended.c, 1) && (kEmulatedTiles || (amx && amx_permitted()));
  return found;
}

std::string detect_name() {
  std::array<CpuidLeaf, 3> leaves{cpuid(0x80000002), cpuid(0x80000003), cpuid(0x80000004)};
  std::array<char, sizeof leaves + 1> text{};
  std::memcpy(text.data(), leaves.data(), sizeof leaves);
  std::string name(text.data());
  const auto first = name.find_first_not_of(' '), last = name.find_last_not_of(' ');
  return first == std::string::npos ? "x86-64 processor" : name.substr(first, last - first + 1);
}

#elif defined(__aarch64__)

Features detect() { return {.neon = true}; }
std::string detect_name() { return "64-bit Arm processor"; }

#else

Features detect() { return {}; }
std::string detect_name() { return "processor"; }

#endif

struct InstructionSet {
  std::string_view name, feature;
  bool Features::*has;
};
/// Each instruction set includes those before it, except VNNI and BF16, which come together.
#if defined(__aarch64__)
constexpr std::array<InstructionSet, 1> kInOrder{{{"neon", "neon", &Features::neon}}};
#else
constexpr std::array<InstructionSet, 5> kInOrder{{{"avx2", "avx2", &Features::avx2},
                                                  {"avx512", "avx512", &Features::avx512},
                                                  {"avx512vnni", "avx512vnni", &Features::avx512vnni},
                                                  {"avx512bf16", "avx512bf16", &Features::avx512bf16},
                                                  {"amx", kEmulatedTiles ? "emulated_amx_bf16" : "amx_bf16", &Features::amx_bf16}}};
#endif

/// The limit that the environment sets, read once.
struct Limit {
  Limit() {
    const char* set = std::getenv("FOVEA_MAX_CPU_ISA");
    if (set == nullptr || *set == 0) return;
    const std::string_view name = set;
    std::string names = "scalar";
    bool known = name == names;
    allowed = 0;
    for (std::size_t i = 0; i < kInOrder.size(); ++i) {
      names.append(i + 1 < kInOrder.size() ? ", " : " or ").append(kInOrder[i].name);
      if (name != kInOrder[i].name) continue;
      known = true;
      allowed = i + 1;
    }
    reason = "left out by FOVEA_MAX_CPU_ISA=" + std::string(name);
    if (!known) error = detail::invalid("FOVEA_MAX_CPU_ISA", '"' + std::string(name) + '"', names);
  }

  std::optional<Error> error;
  std::size_t allowed = kInOrder.size();  // number of allowed entries of kInOrder
  std::string reason;                     // why the others are not allowed
};
const Limit& limit() {
  static const Limit kLimit;
  return kLimit;
}

/// The features of this machine, without the limit of the environment.
const Features& machine() {
  static const Features kMachine = detect();
  return kMachine;
}

Features limited(Features found) {
  for (std::size_t i = limit().allowed; i < kInOrder.size(); ++i) found.*kInOrder[i].has = false;
  return found;
}

/// The reason that an instruction set cannot be used: the environment, the machine, or none.
std::string_view unavailable(bool Features::*has, std::string_view needs) {
  if (features().*has) return {};
  return machine().*has ? std::string_view(limit().reason) : needs;
}

}  // namespace

const Features& features() {
  static const Features kFeatures = limited(machine());
  return kFeatures;
}

std::string processor_name() { return detect_name(); }

std::optional<Error> environment_error() { return limit().error; }

std::string_view scalar_unavailable() { return {}; }
std::string_view neon_unavailable() { return unavailable(&Features::neon, "needs a 64-bit Arm processor"); }
std::string_view avx2_unavailable() { return unavailable(&Features::avx2, "needs avx2, fma and f16c"); }
std::string_view avx512_unavailable() { return unavailable(&Features::avx512, "needs avx512f, avx512bw, avx512vl and avx512dq"); }
std::string_view avx512vnni_unavailable() { return unavailable(&Features::avx512vnni, "needs avx512_vnni"); }
std::string_view avx512bf16_unavailable() { return unavailable(&Features::avx512bf16, "needs avx512_bf16"); }
std::string_view amx_unavailable() { return unavailable(&Features::amx_bf16, "needs amx_bf16, and the operating system's permission"); }

/// Measured on Emerald Rapids: half as many dot products a clock as f32 multiply-adds, so no more multiplications, and operands that take
/// longer to pack.
std::string_view avx512bf16_outdone() {
  return features().avx512bf16 && features().intel ? "on Intel's processors vdpbf16ps multiplies no faster than f32 instructions do" : "";
}

void append_devices(std::vector<DeviceInfo>& all) {
  DeviceInfo info{.device = {}, .name = processor_name(), .cores = static_cast<int>(std::thread::hardware_concurrency())};
  for (const InstructionSet& set : kInOrder) {
    if (features().*set.has) info.features.emplace_back(set.feature);
  }
  all.push_back(info);
}

}  // namespace fovea::cpu
