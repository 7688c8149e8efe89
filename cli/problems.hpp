// SPDX-License-Identifier: Apache-2.0
/// Problems of every operation from a few numbers: dense tensors, and block tables without gaps.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/fovea.hpp"

namespace fovea::cli {

/// 0 or an empty value stands for the usual value of the operation.
struct ProblemSize {
  DType dtype = DType::bf16;
  std::optional<DType> cache{};
  std::optional<CacheFormat> format{};
  std::optional<CacheFormat> extra{};
  std::int64_t batch = 1, seq_q = 1, seq_k = 4096, heads = 32, kv_heads = 0, dim_qk = 0, dim_v = 0, page = 0;
  std::int64_t topk = 2048, extra_topk = 128, parts = 2;
  bool causal = false, sink = false, lse = false, flat = false;
  std::int64_t window = 0;
  float softcap = 0;
};

/// The options that describe problems of all operations.
void add_problem_options(CLI::App& command, ProblemSize& size);

/// The explanation of a plan, with its workspace.
using Explanation = Result<std::string>;

struct ExplainedOperation {
  std::string_view name;
  Explanation (*explain)(ProblemSize size, Device device, const PlanOptions& options);
  std::vector<std::string_view> options;  ///< of add_problem_options(), those that describe its problems

  bool takes(std::string_view option) const;
};

/// Ordered as operations are listed to people. A new operation is a line here.
const std::vector<ExplainedOperation>& explained_operations();

/// What is wrong with the options that `command` was given: some belong to other operations, or change nothing beside others. Else empty.
std::string misplaced_options(const CLI::App& command, const ExplainedOperation& operation, const ProblemSize& size);

}  // namespace fovea::cli
