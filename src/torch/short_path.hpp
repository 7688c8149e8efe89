// SPDX-License-Identifier: Apache-2.0
/// The short path to an operator: torch spends a third of a microsecond on each argument that is no tensor. So an operator's other
/// arguments are noted once, and a call consists of its tensors and the number of that note.
#pragma once

#include <torch/csrc/stable/library.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "operators.hpp"

namespace fovea::binding {

/// Whether an operator of this schema has one: not if it takes lists of tensors.
bool has_short_path(std::string_view schema);

/// "str format, float scale": the arguments of such a schema that are no tensors.
std::string noted_arguments(std::string_view schema);

/// Keeps these arguments, which `stack` holds; replaces them by the number of the note.
void note(std::string_view schema, StableIValue* stack);

/// Runs an operator with the arguments of a note and the tensors: `stack` holds the list of them, then the number.
void run_noted(Operator* run, StableIValue* stack);

}  // namespace fovea::binding
