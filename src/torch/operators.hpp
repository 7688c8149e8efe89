// SPDX-License-Identifier: Apache-2.0
/// The operators, as torch calls them: `stack` holds the arguments of the schema in library.cpp and takes the results.
#pragma once

#include <torch/csrc/stable/library.h>

#include <cstdint>

namespace fovea::binding {

void attention(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);
void explain_attention(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);
void paged_attention(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);
void explain_paged_attention(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);
void paged_cache_append(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);
void explain_paged_cache_append(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);
void merge_states(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);
void explain_merge_states(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);

void implementations(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);
void devices(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);
void version(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);
void set_num_threads(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);
void num_threads(StableIValue* stack, std::uint64_t arguments, std::uint64_t results);

}  // namespace fovea::binding
