// SPDX-License-Identifier: Apache-2.0
/// Problems of every operation from a few numbers: dense tensors, and block tables without gaps.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fovea/fovea.hpp"

namespace fovea::cli {

/// A problem as the options of add_problem_options() describe it.
struct ProblemSize;

/// The types of a problem: of q, and of the cache where that differs.
struct ProblemTypes {
  DType dtype{};
  std::optional<DType> cache{};
  std::optional<CacheFormat> format{};
  std::optional<KvFormat> kv{};
};

/// The usual problem of an operation, in these types.
std::shared_ptr<const ProblemSize> usual_problem(const ProblemTypes& types);

/// The options that describe problems of all operations.
std::shared_ptr<ProblemSize> add_problem_options(CLI::App& command);

/// The explanation of a plan, with its workspace.
using Explanation = Result<std::string>;

/// Values that an operation has where the options say none; 0 is none.
struct UsualValues {
  std::int64_t kv_heads = 0, dim = 0, page = 0;
  CacheFormat format = CacheFormat::rows;
  bool is_causal = false;  ///< without an option too
};

/// `size` with every value that the operation needs.
ProblemSize with_usual_values(ProblemSize size, const UsualValues& usual);

struct ExplainedOperation {
  std::string_view name;
  Explanation (*planned)(const ProblemSize& size, Device device, const PlanOptions& options);  ///< of a size without gaps
  UsualValues usual;
  std::vector<std::string_view> options;  ///< of add_problem_options(), those that describe its problems

  Explanation explain(const ProblemSize& size, Device device, const PlanOptions& options) const;
  bool takes(std::string_view option) const;
};

/// Ordered as operations are listed to people. A new operation is a line here.
const std::vector<ExplainedOperation>& explained_operations();
std::vector<std::string> operation_names();

/// The problem that was read, usual values included: "attention: bf16, batch 1, seq-q 1, ..".
std::string described(const ProblemSize& size, const ExplainedOperation& operation);

/// The fault of the options that `command` was given: some belong to other operations, or change nothing beside others. Else empty.
std::string misplaced_options(const CLI::App& command, const ExplainedOperation& operation, const ProblemSize& size);

}  // namespace fovea::cli
