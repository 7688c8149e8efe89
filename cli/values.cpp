// SPDX-License-Identifier: Apache-2.0
#include "values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <string_view>

namespace fovea::cli {
namespace {

struct DTypeNames {
  DType dtype;
  std::array<std::string_view, 4> others;
};
constexpr std::array<DTypeNames, 5> kDTypes{{{DType::f32, {"fp32", "float32", "float"}},
                                             {DType::f16, {"fp16", "float16", "half"}},
                                             {DType::bf16, {"bfloat16"}},
                                             {DType::e4m3, {"fp8", "fp8_e4m3", "float8_e4m3fn"}},
                                             {DType::f64, {"fp64", "float64", "double"}}}};

/// The whole of `text` as a number, or false.
template <class Number>
bool read(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

std::string refusal(std::string_view got, std::string_view want) { return fmt::format("got {}, want {}", got, want); }

/// Turns the name into its device. Returns false for an unknown name.
bool read_device(std::string_view name, Device& device) {
  constexpr std::string_view kOrdinal = "cuda:", kCapability = "sm";
  device = {.backend = name == "cpu" ? Backend::cpu : Backend::cuda};
  if (name == "cpu" || name == "cuda") return true;
  if (name.starts_with(kOrdinal)) return read(name.substr(kOrdinal.size()), device.ordinal) && device.ordinal >= 0;
  return name.starts_with(kCapability) && read(name.substr(kCapability.size()), device.capability) && device.capability > 0;
}

}  // namespace

CLI::Validator count(std::int64_t least) {
  return {[least](const std::string& text) {
            constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
            std::int64_t number = 0;
            const bool good = read(text, number) && number >= least && number <= kMost;
            return good ? std::string() : refusal(text, fmt::format("a whole number from {} to {}", least, kMost));
          },
          ""};
}

CLI::Validator positive() {
  return {[](const std::string& text) {
            double number = 0;
            return read(text, number) && number > 0 ? std::string() : refusal(text, "a number above 0");
          },
          ""};
}

CLI::Validator dtype_name() {
  return {[](std::string& text) {
            std::string want;
            for (const auto& [dtype, others] : kDTypes) {
              if (text == name_of(dtype) || (!text.empty() && std::find(others.begin(), others.end(), text) != others.end())) {
                text = std::to_string(static_cast<int>(dtype));
                return std::string();
              }
              want += fmt::format("{}{} ({}", want.empty() ? "" : ", ", name_of(dtype), others[0]);
              for (std::size_t i = 1; i < others.size() && !others[i].empty(); ++i) want += fmt::format(", {}", others[i]);
              want += ")";
            }
            return refusal(text, want);
          },
          ""};
}

CLI::Validator device_name() {
  return {[](const std::string& text) {
            Device device;
            return read_device(text, device) ? std::string()
                                             : refusal(text, "cpu, cuda, cuda:N or, of a device that need not be here, sm90");
          },
          ""};
}

Device device_of(const std::string& name) {
  constexpr int kAssumed = 90;
  Device device;
  read_device(name, device);
  if (name != "cuda") return device;
  const std::vector<DeviceInfo> all = devices();
  const auto here = std::find_if(all.begin(), all.end(), [](const DeviceInfo& info) { return info.device.backend == Backend::cuda; });
  if (here != all.end()) return here->device;
  device.capability = kAssumed;
  return device;
}

}  // namespace fovea::cli
