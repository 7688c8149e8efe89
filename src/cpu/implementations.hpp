// SPDX-License-Identifier: Apache-2.0
/// The instruction sets of this build, and the CPU's entries of the ordered lists, fastest instruction set first.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "cpu/features.hpp"
#include "cpu/kernels.hpp"
#include "plan/implementation.hpp"

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

/// Instruction sets, fastest first.
template <class... Isa>
struct InstructionSets {
  /// make<Isa>() for each of them.
  template <class Make>
  static constexpr auto each(Make make) {
    return std::array{make.template operator()<Isa>()...};
  }
};

/// The ones that the entries of a list need: with products of their own for bf16 or int8, or for rows alone.
#if defined(FOVEA_X86)
using Bf16Sets = InstructionSets<Amx, Avx512Bf16, Avx512, Avx2, Scalar>;
using Int8Sets = InstructionSets<Amx, Avx512Vnni, Avx512, Avx2, Scalar>;
using RowSets = InstructionSets<Avx512, Avx2, Scalar>;
#elif defined(FOVEA_NEON)
using Bf16Sets = InstructionSets<Neon, Scalar>;
using Int8Sets = Bf16Sets;
using RowSets = Bf16Sets;
#else
using Bf16Sets = InstructionSets<Scalar>;
using Int8Sets = Bf16Sets;
using RowSets = Bf16Sets;
#endif

/// "cpu.avx2.attention", put together at compile time.
template <class Operation, class Isa>
inline constexpr auto kEntryNameText = [] {
  constexpr std::string_view kBackend = "cpu.";
  std::array<char, kBackend.size() + Isa::kName.size() + 1 + Operation::kName.size()> text{};
  std::size_t at = 0;
  for (const std::string_view piece : {kBackend, Isa::kName, std::string_view("."), Operation::kName}) {
    for (const char letter : piece) text[at++] = letter;
  }
  return text;
}();
template <class Operation, class Isa>
inline constexpr std::string_view kEntryName{kEntryNameText<Operation, Isa>.data(), kEntryNameText<Operation, Isa>.size()};

/// For the `outdone` of an entry.
template <class Isa, class Problem>
constexpr std::string_view (*outdone())(const Problem&, Device) {
  if constexpr (requires { Isa::kOutdone; }) {
    return [](const Problem&, Device) { return Isa::kOutdone(); };
  } else {
    return nullptr;
  }
}

template <class Operation>
using PlanFunction = detail::PlanResult<typename Operation::Args> (*)(const typename Operation::Problem&, Device);

template <class Operation, class Isa>
constexpr detail::Implementation<Operation> entry(std::string_view accepts, const detail::Handled<Operation>& handled,
                                                  PlanFunction<Operation> plan) {
  return {kEntryName<Operation, Isa>, accepts, handled, Backend::cpu, Isa::kUnavailable, plan, outdone<Isa, typename Operation::Problem>()};
}

detail::Implementations<detail::Attention> implementations(detail::Attention);
detail::Implementations<detail::AttentionBackward> implementations(detail::AttentionBackward);
detail::Implementations<detail::PagedAttention> implementations(detail::PagedAttention);
detail::Implementations<detail::PagedCacheAppend> implementations(detail::PagedCacheAppend);
detail::Implementations<detail::MergeStates> implementations(detail::MergeStates);
detail::Implementations<detail::LatentAttention> implementations(detail::LatentAttention);
detail::Implementations<detail::SparseLatentAttention> implementations(detail::SparseLatentAttention);
detail::Implementations<detail::QuantizeLatentCache> implementations(detail::QuantizeLatentCache);
detail::Implementations<detail::DequantizeLatentCache> implementations(detail::DequantizeLatentCache);
detail::Implementations<detail::IndexLogits> implementations(detail::IndexLogits);
detail::Implementations<detail::TopkRows> implementations(detail::TopkRows);
detail::Implementations<detail::QuantizeQkInt8> implementations(detail::QuantizeQkInt8);
detail::Implementations<detail::QuantizeV> implementations(detail::QuantizeV);
detail::Implementations<detail::QuantizedAttention> implementations(detail::QuantizedAttention);
detail::Implementations<detail::QuantizeAndAttend> implementations(detail::QuantizeAndAttend);

}  // namespace fovea::cpu
