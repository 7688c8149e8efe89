// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/info.hpp"
#include "fovea/result.hpp"

namespace fovea::cpu {

/// Instruction sets that the processor has, the operating system saves the registers of, and the environment allows: where
/// FOVEA_MAX_CPU_ISA is set to scalar, avx2, avx512, avx512vnni, avx512bf16 or amx, none beyond that.
struct Features {
  bool avx2 = false;        ///< AVX2, FMA, F16C
  bool avx512 = false;      ///< AVX-512 F, BW, VL, DQ
  bool avx512vnni = false;  ///< and AVX512_VNNI
  bool avx512bf16 = false;  ///< and AVX512_BF16
  bool amx_bf16 = false;    ///< AMX-TILE and AMX-BF16, with the kernel's permission
  bool intel = false;       ///< the maker
};

const Features& features();

/// FOVEA_MAX_CPU_ISA set to what is no instruction set.
std::optional<Error> environment_error();

/// This machine's processor.
void append_devices(std::vector<DeviceInfo>& all);

/// "Intel(R) Xeon(R) ..."
std::string processor_name();

/// What keeps this machine from running an instruction set's kernels, or nothing.
std::string_view scalar_unavailable();  // nothing does
std::string_view avx2_unavailable();
std::string_view avx512_unavailable();
std::string_view avx512vnni_unavailable();
std::string_view avx512bf16_unavailable();
std::string_view amx_unavailable();

/// Why AVX-512 alone is faster here than with its bf16 products, or nothing.
std::string_view avx512bf16_outdone();

}  // namespace fovea::cpu
