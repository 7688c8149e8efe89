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
  CacheFormat format = CacheFormat::rows;
  std::optional<CacheFormat> extra{};
  std::int64_t batch = 1, seq_q = 1, seq_k = 4096, heads = 32, kv_heads = 0, dim_qk = 0, dim_v = 0, page = 0;
  std::int64_t topk = 2048, extra_topk = 128, parts = 2;
  bool causal = false, sink = false, lse = false, flat = false;
  std::int64_t window = 0;
  float softcap = 0;
};

/// The options that describe a problem.
void add_problem_options(CLI::App& command, ProblemSize& size);

/// The explanation of a plan, with its workspace.
using Explanation = Result<std::string>;

struct ExplainedOperation {
  std::string_view name;
  Explanation (*explain)(ProblemSize size, Device device, const PlanOptions& options);
};

/// Ordered as operations are listed to people. A new operation is a line here.
const std::vector<ExplainedOperation>& explained_operations();

}  // namespace fovea::cli
