# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's Python interface (0.6 and 0.7) for attention over Fovea's paged and dense attention.

Names, order and defaults of arguments, layouts and results are FlashInfer's. Differences (whole table: docs/flashinfer.md):

* Tensors may be on the CPU, and float32 too; pages and head dims may have any size that Fovea's attention takes.
* RoPE and ALiBi inside of attention, FP4 out of pages, and kernels of the caller's own raise NotImplementedError.
* Workspace buffers, backends and the choice of tensor cores are taken, and change nothing: Fovea plans by itself.
* A query that sees no key gives 0, and -inf as its lse.
* Other features of FlashInfer (latent attention, cascades, sampling, matrix products and others) are not here.
"""

from fovea.compat.flashinfer import cascade, decode, fp4_quantization, page, prefill, sparse
from fovea.compat.flashinfer.cascade import merge_state, merge_state_in_place, merge_states
from fovea.compat.flashinfer.decode import (
    BatchDecodeWithPagedKVCacheWrapper,
    CUDAGraphBatchDecodeWithPagedKVCacheWrapper,
    single_decode_with_kv_cache,
)
from fovea.compat.flashinfer.fp4_quantization import nvfp4_kv_dequantize, nvfp4_kv_dequantize_paged, nvfp4_kv_quantize
from fovea.compat.flashinfer.page import (
    append_paged_kv_cache,
    get_batch_indices_positions,
    get_seq_lens,
    nvfp4_quantize_append_paged_kv_cache,
    nvfp4_quantize_append_paged_kv_cache_with_slot_mapping,
)
from fovea.compat.flashinfer.prefill import (
    BatchPrefillWithPagedKVCacheWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
    single_prefill_with_kv_cache,
    single_prefill_with_kv_cache_return_lse,
)
from fovea.compat.flashinfer.sparse import BlockSparseAttentionWrapper, VariableBlockSparseAttentionWrapper

__version__ = "0.7.2+fovea"

__all__ = [
    "BatchDecodeWithPagedKVCacheWrapper",
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
    "BlockSparseAttentionWrapper",
    "CUDAGraphBatchDecodeWithPagedKVCacheWrapper",
    "VariableBlockSparseAttentionWrapper",
    "append_paged_kv_cache",
    "cascade",
    "decode",
    "fp4_quantization",
    "get_batch_indices_positions",
    "get_seq_lens",
    "merge_state",
    "merge_state_in_place",
    "merge_states",
    "nvfp4_kv_dequantize",
    "nvfp4_kv_dequantize_paged",
    "nvfp4_kv_quantize",
    "nvfp4_quantize_append_paged_kv_cache",
    "nvfp4_quantize_append_paged_kv_cache_with_slot_mapping",
    "page",
    "prefill",
    "single_decode_with_kv_cache",
    "single_prefill_with_kv_cache",
    "single_prefill_with_kv_cache_return_lse",
    "sparse",
]
