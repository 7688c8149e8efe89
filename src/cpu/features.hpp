// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/info.hpp"
#include "fovea/result.hpp"

namespace fovea::cpu {

/// The instruction sets that the processor has, whose registers the operating system saves, and that the environment allows.
/// FOVEA_MAX_CPU_ISA set to scalar, avx2, avx512, avx512vnni, avx512bf16 or amx (on Arm to scalar or neon) allows none beyond that one.
struct Features {
  bool neon = false;        ///< of every 64-bit Arm processor
  bool avx2 = false;        ///< AVX2, FMA, F16C
  bool avx512 = false;      ///< AVX-512 F, BW, VL, DQ
  bool avx512vnni = false;  ///< and AVX512_VNNI
  bool avx512bf16 = false;  ///< and AVX512_BF16
  bool amx_bf16 = false;    ///< AMX-TILE, -BF16, -INT8 and AVX512_VBMI, with the kernel's permission; or emulated tiles (cpu/isa/tiles.hpp)
  bool intel = false;       ///< the maker
};

const Features& features();

/// The error if FOVEA_MAX_CPU_ISA is set to no instruction set.
std::optional<Error> environment_error();

/// This machine's processor.
void append_devices(std::vector<DeviceInfo>& all);

/// "Intel(R) Xeon(R) ..."
std::string processor_name();

/// Why this machine cannot run the kernels of an instruction set; empty if it can.
std::string_view scalar_unavailable();  // always empty
std::string_view neon_unavailable();
std::string_view avx2_unavailable();
std::string_view avx512_unavailable();
std::string_view avx512vnni_unavailable();
std::string_view avx512bf16_unavailable();
std::string_view amx_unavailable();

/// Why AVX-512 alone is faster here than with its bf16 dot products; empty if it is not.
std::string_view avx512bf16_outdone();

}  // namespace fovea::cpu
