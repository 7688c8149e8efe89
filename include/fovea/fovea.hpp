// SPDX-License-Identifier: Apache-2.0
/// Everything public, in one include.
#pragma once

#include "fovea/attention.hpp"
#include "fovea/attention_backward.hpp"
#include "fovea/cache_format.hpp"
#include "fovea/device.hpp"
#include "fovea/indexer.hpp"
#include "fovea/info.hpp"
#include "fovea/kv_format.hpp"
#include "fovea/latent_attention.hpp"
#include "fovea/mask.hpp"
#include "fovea/merge.hpp"
#include "fovea/packed_mask.hpp"
#include "fovea/paged_attention.hpp"
#include "fovea/plan.hpp"
#include "fovea/quantized_attention.hpp"
#include "fovea/result.hpp"
#include "fovea/standard.hpp"
#include "fovea/tensor.hpp"
