// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <vector>

#include "c_api/convert.hpp"
#include "c_api/handle.hpp"

namespace fovea::c_api {
namespace {

constexpr std::size_t kPartsWithoutAllocation = 32;

MergeStatesDesc convert(const fovea_merge_states_desc& from) {
  if (from.part_count > MergeStatesDesc::kMostParts) refuse("parts (count): got " + std::to_string(from.part_count) + ", want 1 to 2^20");
  if (from.part_count > 0) want_not_null(from.parts, "parts");
  MergeStatesDesc desc{};
  for (std::size_t i = 0; i < from.part_count; ++i) {
    const std::string name = "parts[" + std::to_string(i) + "]";
    desc.parts.push_back({tensor(from.parts[i].out, name + ".out"), tensor(from.parts[i].lse, name + ".lse")});
  }
  desc.out = tensor(from.out, "out");
  desc.lse = optional_tensor(from.lse, "lse");
  return desc;
}

/// Nothing of the array is read before its length is known to be the planned one.
Result<void> run(const MergeStatesPlan& plan, std::size_t planned, const fovea_merge_states_args& args, Workspace workspace,
                 Stream stream) {
  if (args.part_count != planned)
    refuse("args.parts (count): got " + std::to_string(args.part_count) + ", want " + std::to_string(planned) + ", as planned");
  if (args.part_count > 0) want_not_null(args.parts, "parts");
  std::array<MergeStatesArgs::Part, kPartsWithoutAllocation> few{};
  std::vector<MergeStatesArgs::Part> many(args.part_count > few.size() ? args.part_count : 0);
  const std::span<MergeStatesArgs::Part> parts = many.empty() ? std::span(few).first(args.part_count) : std::span(many);
  for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = {args.parts[i].out, args.parts[i].lse};
  return plan.run({.parts = parts, .out = args.out, .lse = args.lse}, workspace, stream);
}

}  // namespace
}  // namespace fovea::c_api

extern "C" {

using namespace fovea::c_api;

fovea_status fovea_merge_states_plan(const fovea_merge_states_desc* desc, const fovea_options* options, fovea_plan** plan) {
  const fovea_status status =
      plan_into(desc, plan, [&] { return fovea::plan_merge_states(convert(*desc), device(options), plan_options(options)); });
  if (status == FOVEA_OK) (*plan)->part_count = desc->part_count;
  return status;
}

fovea_status fovea_merge_states_run(const fovea_plan* plan, const fovea_merge_states_args* args, void* workspace, size_t workspace_bytes,
                                    void* stream) {
  return with_plan<fovea::MergeStatesPlan>(plan, args, [&](const fovea::MergeStatesPlan& held) {
    return run(held, plan->part_count, *args, {workspace, workspace_bytes}, {stream});
  });
}

}  // extern "C"
