// SPDX-License-Identifier: Apache-2.0
/// The instruction sets of this build, as type parameters of the entries of the ordered lists.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "cpu/features.hpp"
#include "cpu/kernels.hpp"

#if defined(__x86_64__)
#define FOVEA_X86
#elif defined(__aarch64__)
#define FOVEA_NEON
#endif

namespace fovea::cpu {

/// Each names its tables. `bf16()` is the arithmetic for bf16 operands, null if these are widened to f32. `int8()` is the arithmetic of
/// int8 scores. `bf16_latent()` replaces `bf16()` where V is the beginning of K, and `bf16_rows()` then decodes.
struct Scalar {
  static constexpr std::string_view kName = "scalar";
  static constexpr auto kUnavailable = scalar_unavailable;
  static const Kernels& kernels() { return scalar::kKernels; }
  static const AttentionKernels* bf16() { return nullptr; }
  static const AttentionKernels& int8() { return scalar::kKernels.int8; }
};

#ifdef FOVEA_NEON
struct Neon {
  static constexpr std::string_view kName = "neon";
  static constexpr auto kUnavailable = neon_unavailable;
  static const Kernels& kernels() { return neon::kKernels; }
  static const AttentionKernels* bf16() { return nullptr; }
  static const AttentionKernels& int8() { return neon::kKernels.int8; }
};
#endif

#ifdef FOVEA_X86
struct Avx2 {
  static constexpr std::string_view kName = "avx2";
  static constexpr auto kUnavailable = avx2_unavailable;
  static const Kernels& kernels() { return avx2::kKernels; }
  static const AttentionKernels* bf16() { return nullptr; }
  static const AttentionKernels& int8() { return avx2::kKernels.int8; }
};

struct Avx512 {
  static constexpr std::string_view kName = "avx512";
  static constexpr auto kUnavailable = avx512_unavailable;
  static const Kernels& kernels() { return avx512::kKernels; }
  static const AttentionKernels* bf16() { return nullptr; }
  static const AttentionKernels& int8() { return avx512::kKernels.int8; }
};

struct Avx512Vnni {
  static constexpr std::string_view kName = "avx512vnni";
  static constexpr auto kUnavailable = avx512vnni_unavailable;
  static const Kernels& kernels() { return avx512::kKernels; }
  static const AttentionKernels* bf16() { return nullptr; }
  static const AttentionKernels& int8() { return avx512vnni::kInt8; }
};

struct Avx512Bf16 {
  static constexpr std::string_view kName = "avx512bf16";
  static constexpr auto kUnavailable = avx512bf16_unavailable;
  static constexpr auto kOutdone = avx512bf16_outdone;
  static const Kernels& kernels() { return avx512::kKernels; }
  static const AttentionKernels* bf16() { return &avx512bf16::kAttention; }
};

struct Amx {
  static constexpr std::string_view kName = "amx";
  static constexpr bool kTiles = true;  // 8-bit attention has the operands of tiles
  static constexpr auto kUnavailable = amx_unavailable;
  static const Kernels& kernels() { return avx512::kKernels; }
  static const AttentionKernels* bf16() { return &amx::kAttention; }
  static const AttentionKernels* bf16_latent() { return &amx::kLatent; }
  static const LatentKernels* bf16_rows() { return &amx::kLatentRows; }
  static const AttentionKernels& int8() { return amx::kInt8; }
};
#endif

/// For the `outdone` of an entry.
template <class Isa, class Problem>
constexpr std::string_view (*outdone())(const Problem&, Device) {
  if constexpr (requires { Isa::kOutdone; }) {
    return [](const Problem&, Device) { return Isa::kOutdone(); };
  } else {
    return nullptr;
  }
}

/// Text put together at compile time.
template <std::size_t kSize>
struct FixedText {
  std::array<char, kSize> text{};
  constexpr std::string_view view() const { return {text.data(), kSize}; }
};

/// "cpu.avx2.attention" from Avx2 and ".attention".
template <class Isa, std::size_t kSize>
constexpr auto name_of_row(const char (&operation)[kSize]) {
  constexpr std::string_view kBackend = "cpu.";
  FixedText<kBackend.size() + Isa::kName.size() + kSize - 1> name{};
  std::size_t at = 0;
  for (const std::string_view part : {kBackend, Isa::kName, std::string_view(operation)}) {
    for (const char letter : part) name.text[at++] = letter;
  }
  return name;
}

}  // namespace fovea::cpu
