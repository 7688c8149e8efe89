// SPDX-License-Identifier: Apache-2.0
#include "values.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

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

struct DescribedTarget {
  std::string_view name;
  int capability;
};
constexpr std::array<DescribedTarget, 2> kHipTargets{{{"gfx90a", 90}, {"gfx942", 94}}};

/// Turns the name into its device. Returns false for an unknown name.
bool read_device(std::string_view name, Device& device) {
  constexpr std::string_view kCapability = "sm";
  for (const DescribedTarget& target : kHipTargets) {
    device = {.backend = Backend::hip, .capability = target.capability};
    if (name == target.name) return true;
  }
  for (const Backend backend : {Backend::cpu, Backend::cuda, Backend::hip}) {
    device = {.backend = backend};
    if (name == name_of(backend)) return true;
    const std::string numbered = std::string(name_of(backend)) + ":";
    if (backend == Backend::cpu || !name.starts_with(numbered)) continue;
    return read(name.substr(numbered.size()), device.ordinal) && device.ordinal >= 0;
  }
  device = {.backend = Backend::cuda};
  return name.starts_with(kCapability) && read(name.substr(kCapability.size()), device.capability) && device.capability > 0;
}

}  // namespace

CLI::Validator count(std::int64_t least, std::int64_t most) {
  return {[least, most](const std::string& text) {
            std::int64_t number = 0;
            const bool good = read(text, number) && number >= least && number <= most;
            return good ? std::string() : refusal(text, fmt::format("a whole number from {} to {}", least, most));
          },
          ""};
}

CLI::Validator number() {
  return {[](const std::string& text) {
            double number = 0;
            return read(text, number) ? std::string() : refusal(text, "a number");
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

CLI::Validator one_of(std::vector<std::string> names) {
  return {[names = std::move(names)](const std::string& text) {
            const bool good = std::find(names.begin(), names.end(), text) != names.end();
            return good ? std::string() : refusal(text, fmt::to_string(fmt::join(names, ", ")));
          },
          ""};
}

CLI::Validator enumerator(std::vector<std::pair<std::string, int>> all) {
  return {[all = std::move(all)](std::string& text) {
            std::string want;
            for (const auto& [name, number] : all) {
              if (text == name) {
                text = std::to_string(number);
                return std::string();
              }
              want += (want.empty() ? "" : ", ") + name;
            }
            return refusal(text, want);
          },
          ""};
}

CLI::Validator device_name() {
  return {[](const std::string& text) {
            Device device;
            return read_device(text, device)
                       ? std::string()
                       : refusal(text, "cpu, cuda, cuda:N, hip, hip:N or, of a device that need not be here, sm90 or gfx942");
          },
          ""};
}

Device device_of(const std::string& name) {
  constexpr int kAssumedCuda = 90, kAssumedHip = 94;
  Device device;
  read_device(name, device);
  if (device.backend == Backend::cpu || name != name_of(device.backend)) return device;
  const std::vector<DeviceInfo> all = devices();
  const auto here = std::find_if(all.begin(), all.end(), [&](const DeviceInfo& info) { return info.device.backend == device.backend; });
  if (here != all.end()) return here->device;
  device.capability = device.backend == Backend::cuda ? kAssumedCuda : kAssumedHip;
  return device;
}

std::string described(Device device) {
  for (const DescribedTarget& target : kHipTargets) {
    if (device.backend == Backend::hip && device.capability == target.capability) return fmt::format("target {}", target.name);
  }
  return fmt::format("compute capability {}.{}", device.capability / 10, device.capability % 10);
}

}  // namespace fovea::cli
