// SPDX-License-Identifier: Apache-2.0
/// What the library says of itself: rows end with a newline and fields with a tab, for the Python package to split.
#include <string_view>

#include "arguments.hpp"
#include "operators.hpp"
#include "repeatable_call.hpp"

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

}  // namespace

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

void version(StableIValue* stack, std::uint64_t, std::uint64_t) { stack[0] = torch::stable::detail::from(std::string(fovea::version())); }

void short_path_address(StableIValue* stack, std::uint64_t, std::uint64_t) {
  stack[0] = torch::stable::detail::from(static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(&short_path())));
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

}  // namespace fovea::binding
