// SPDX-License-Identifier: Apache-2.0
/// torch.ops.fovea: the operations' operators, those of autograd, and what the library says of itself.
#include <algorithm>

#include "op/attention/fields.hpp"
#include "operation.hpp"

namespace fovea::binding {
namespace {

const std::vector<Operation>& operations() {
  static const std::vector<Operation> kAll = [] {
    std::vector<Operation> all;
    for (const auto& some : {attention_operations(), paged_operations(), merge_operations(), latent_operations(), latent_cache_operations(),
                             indexer_operations(), quantized_operations()}) {
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }();
  return kAll;
}

/// The same arguments without those that are written.
std::string inputs(const std::string& arguments) {
  std::string kept;
  for (std::size_t begin = 0; begin < arguments.size();) {
    const std::size_t end = std::min(arguments.find(", ", begin), arguments.size());
    const std::string argument = arguments.substr(begin, end - begin);
    if (argument.find("!)") == std::string::npos) kept.append(kept.empty() ? "" : ", ").append(argument);
    begin = end + 2;
  }
  return kept;
}

/// Dense attention for autograd returns new tensors, out and lse. The Python package gives it its kernel, which allocates and calls
/// attention, and its formula, which calls attention_backward.
std::string differentiable_attention() {
  return "differentiable_attention(" + inputs(schema_of(detail::kDenseFields)) +
         ", str implementation, bool batch_invariant, bool deterministic) -> (Tensor, Tensor)";
}

/// Merging for autograd, likewise. Its formula needs no kernel.
constexpr auto kDifferentiableMerge = "differentiable_merge(Tensor[] outs, Tensor[] lses, str implementation) -> (Tensor, Tensor)";

/// The address of an operation's RunKnown.
void known_plans(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const std::string name = Arguments(stack).text() + "(";
  const auto found = std::ranges::find_if(operations(), [&](const Operation& operation) { return operation.schema.starts_with(name); });
  stack[0] = torch::stable::detail::from(found == operations().end() ? std::int64_t{0} : reinterpret_cast<std::int64_t>(found->run_known));
}

/// f(schema, kernel) for each operator with a kernel here.
template <class F>
void for_each_operator(F&& f) {
  for (const auto& [schema, run, explain, plan, known, prepare, schedule_bytes] : operations()) {
    const std::string reading = read_only(schema);
    f(schema + " -> ()", run);
    f("explain_" + reading + " -> Tensor", explain);
    f("plan_" + reading + " -> Tensor", plan);
    if (prepare == nullptr) continue;
    const std::size_t arguments = reading.find('(') + 1;
    f("prepare_" + reading + " -> Tensor", prepare);
    f("schedule_bytes_" + reading.substr(0, arguments) + "Device device, " + reading.substr(arguments) + " -> int", schedule_bytes);
  }
  f("known_plans(str operation) -> int", known_plans);
  for (const auto& [schema, kernel] : info_operators()) f(schema, kernel);
}

}  // namespace

std::string read_only(std::string arguments) {
  for (std::size_t mark = 0; (mark = arguments.find("!)")) != std::string::npos;) arguments.erase(mark - 2, 4);
  return arguments;
}

}  // namespace fovea::binding

STABLE_TORCH_LIBRARY(fovea, library) {
  using namespace fovea::binding;
  for_each_operator([&](const std::string& schema, Operator*) { library.def(schema.c_str()); });
  library.def(differentiable_attention().c_str());
  library.def(kDifferentiableMerge);
  use_torch_threads(0);
}

// One kernel for every device: it looks at the tensors itself, and answers for a device it does not know in the
// library's own words.
STABLE_TORCH_LIBRARY_IMPL(fovea, CompositeExplicitAutograd, library) {
  using namespace fovea::binding;
  for_each_operator([&](const std::string& schema, Operator* kernel) { library.impl(schema.substr(0, schema.find('(')).c_str(), kernel); });
}
