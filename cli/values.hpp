// SPDX-License-Identifier: Apache-2.0
/// Values that options take. Each error says what it got and what it wants.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fovea/fovea.hpp"

namespace fovea::cli {

/// A whole number. Up to 2^31 - 1, products of two of them do not overflow.
CLI::Validator count(std::int64_t least, std::int64_t most = (std::int64_t{1} << 31) - 1);
/// Any number.
CLI::Validator number();
/// More than 0.
CLI::Validator positive();
/// A type by our name or a common other one ("f16", "fp16", "float16", "half"), turned into its number.
CLI::Validator dtype_name();
/// One of `names`.
CLI::Validator one_of(std::vector<std::string> names);
/// The name of an enumerator, turned into its number.
CLI::Validator enumerator(std::vector<std::pair<std::string, int>> all);
/// "cpu", "cuda", "cuda:1", "hip", "hip:1" or, without such a device, "sm90" or "gfx942".
CLI::Validator device_name();

/// The device of a value that passed device_name(). "cuda" and "hip" are the first GPUs here; without one, those that "sm90" and
/// "gfx942" describe.
Device device_of(const std::string& name);

/// "compute capability 9.0" or "target gfx942", of a device that is described.
std::string described(Device device);

}  // namespace fovea::cli
