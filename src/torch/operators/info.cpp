// SPDX-License-Identifier: Apache-2.0
/// The library about itself: rows end with a newline and fields with a tab, for the Python package to split.
#include <initializer_list>
#include <string_view>

#include "operation.hpp"

namespace fovea::binding {
namespace {

std::string row(std::initializer_list<std::string_view> fields) {
  std::string text;
  for (const std::string_view field : fields) text.append(field).append("\t");
  text.back() = '\n';
  return text;
}

std::string_view name_of(CodeType type) { return type == CodeType::e2m1 ? "e2m1" : "e4m3"; }

std::string_view name_of(ScaleType type) {
  switch (type) {
    case ScaleType::f32: return "f32";
    case ScaleType::ue8m0: return "ue8m0";
    case ScaleType::e4m3: return "e4m3";
  }
  return "unknown";
}

void implementations(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string text;
  for (const ImplementationInfo& info : fovea::implementations()) {
    text += row({info.name, info.operation, name_of(info.backend), info.accepts, info.available ? "" : info.unavailable_because});
  }
  stack[0] = torch::stable::detail::from(text);
}

void devices(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string text;
  for (const DeviceInfo& info : fovea::devices()) {
    std::string features;
    for (const std::string& feature : info.features) features += (features.empty() ? "" : " ") + feature;
    text += row({name_of(info.device.backend), info.name, features, std::to_string(info.cores)});
  }
  stack[0] = torch::stable::detail::from(text);
}

void cache_formats(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string text;
  for (const PackedFormat& format : kPackedFormats) {
    const auto number = [](int value) { return std::to_string(value); };
    text += row({format.name, number(format.bytes()), number(format.row()), number(format.codes), name_of(format.code_type),
                 number(format.group), name_of(format.scale_type), number(format.rope), format.planar ? "planar" : ""});
  }
  stack[0] = torch::stable::detail::from(text);
}

void kv_formats(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string text;
  for (const KvRowFormat& format : kKvFormats) {
    text += row({format.name, name_of(format.code), std::to_string(format.code_bits()), name_of(format.scale), std::to_string(format.group),
                 format.has_global ? "global" : ""});
  }
  stack[0] = torch::stable::detail::from(text);
}

void version(StableIValue* stack, std::uint64_t, std::uint64_t) { stack[0] = torch::stable::detail::from(std::string(fovea::version())); }

void int8_groups(StableIValue* stack, std::uint64_t, std::uint64_t) {
  std::string text;
  for (const auto& [name, granularity] : kGranularities) {
    for (const int warp_rows : {32, 16}) {
      const Int8Groups groups{granularity, warp_rows};
      text.append(name);
      for (const std::int64_t number :
           {std::int64_t{warp_rows}, Int8Groups::kQBlock, groups.q_per_block(), Int8Groups::kKBlock, groups.k_per_block()})
        text.append("\t").append(std::to_string(number));
      text.append("\n");
    }
  }
  stack[0] = torch::stable::detail::from(text);
}

void plan_table_address(StableIValue* stack, std::uint64_t, std::uint64_t) {
  stack[0] = torch::stable::detail::from(static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(&plan_table())));
}

void set_num_threads(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const std::int64_t threads = Arguments(stack).integer();
  if (threads < 0 || threads > 4096) raise_invalid("threads", std::to_string(threads), "0 to 4096 (0: as many as torch)");
  use_torch_threads(static_cast<int>(threads));
}

void num_threads(StableIValue* stack, std::uint64_t, std::uint64_t) {
  follow_torch_threads();
  stack[0] = torch::stable::detail::from(static_cast<std::int64_t>(fovea::num_threads()));
}

void set_exact_rows(StableIValue* stack, std::uint64_t, std::uint64_t) { exact_rows() = Arguments(stack).flag(); }

void get_exact_rows(StableIValue* stack, std::uint64_t, std::uint64_t) { stack[0] = torch::stable::detail::from(exact_rows().load()); }

}  // namespace

std::vector<std::pair<std::string, Operator*>> info_operators() {
  return {{"implementations() -> str", implementations}, {"devices() -> str", devices},
          {"cache_formats() -> str", cache_formats},     {"kv_formats() -> str", kv_formats},
          {"int8_groups() -> str", int8_groups},         {"version() -> str", version},
          {"plan_table() -> int", plan_table_address},   {"set_num_threads(int threads) -> ()", set_num_threads},
          {"num_threads() -> int", num_threads},         {"set_exact_rows(bool exact) -> ()", set_exact_rows},
          {"exact_rows() -> bool", get_exact_rows}};
}

}  // namespace fovea::binding
