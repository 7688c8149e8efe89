// SPDX-License-Identifier: Apache-2.0
/// The operators, as torch calls them: `stack` holds the arguments of the schema in library.cpp and takes the results.
#pragma once

#include <torch/csrc/stable/library.h>

#include <cstdint>

namespace fovea::binding {

/// Each takes (stack, number of arguments, number of results).
using Operator = void(StableIValue*, std::uint64_t, std::uint64_t);

Operator attention, explain_attention;
Operator attention_backward, explain_attention_backward;
Operator paged_attention, explain_paged_attention;
Operator paged_cache_append, explain_paged_cache_append;
Operator merge_states, explain_merge_states;
Operator latent_attention, explain_latent_attention, prepare_latent_attention, schedule_bytes_latent_attention;
Operator sparse_latent_attention, explain_sparse_latent_attention, prepare_sparse_latent_attention, schedule_bytes_sparse_latent_attention;
Operator quantize_latent_cache, explain_quantize_latent_cache;
Operator dequantize_latent_cache, explain_dequantize_latent_cache;
Operator quantize_qk_int8, explain_quantize_qk_int8;
Operator quantize_v, explain_quantize_v;
Operator quantized_attention, explain_quantized_attention;
Operator quantize_and_attend, explain_quantize_and_attend;

Operator implementations, devices, cache_formats, int8_groups, version, set_num_threads, num_threads, short_path_address;

}  // namespace fovea::binding
