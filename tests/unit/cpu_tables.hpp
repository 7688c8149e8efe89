// SPDX-License-Identifier: Apache-2.0
/// The kernel tables that this machine can run, for the tests of their parts.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "cpu/features.hpp"
#include "cpu/kernels.hpp"

namespace fovea::cpu {

struct NamedRows {
  std::string name;
  const RowKernels* kernels;
};

struct NamedAttention {
  std::string name;
  const AttentionKernels* kernels;
  const RowKernels* rows;
  bool bf16;  ///< operands are bf16
};

inline std::ostream& operator<<(std::ostream& out, const NamedRows& table) { return out << table.name; }
inline std::ostream& operator<<(std::ostream& out, const NamedAttention& table) { return out << table.name; }

inline std::vector<NamedRows> row_tables() {
  std::vector<NamedRows> tables{{"scalar", &scalar::kKernels.rows}};
#if defined(__x86_64__)
  if (features().avx2) tables.push_back({"avx2", &avx2::kKernels.rows});
  if (features().avx512) tables.push_back({"avx512", &avx512::kKernels.rows});
#elif defined(__aarch64__)
  tables.push_back({"neon", &neon::kKernels.rows});
#endif
  return tables;
}

inline std::vector<NamedAttention> attention_tables() {
  std::vector<NamedAttention> tables{{"scalar", &scalar::kKernels.attention, &scalar::kKernels.rows, false}};
#if defined(__x86_64__)
  if (features().avx2) tables.push_back({"avx2", &avx2::kKernels.attention, &avx2::kKernels.rows, false});
  if (features().avx512) tables.push_back({"avx512", &avx512::kKernels.attention, &avx512::kKernels.rows, false});
  if (features().avx512bf16) tables.push_back({"avx512bf16", &avx512bf16::kAttention, &avx512::kKernels.rows, true});
  if (features().amx_bf16) tables.push_back({"amx", &amx::kAttention, &avx512::kKernels.rows, true});
#elif defined(__aarch64__)
  tables.push_back({"neon", &neon::kKernels.attention, &neon::kKernels.rows, false});
#endif
  return tables;
}

}  // namespace fovea::cpu
