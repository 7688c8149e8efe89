# SPDX-License-Identifier: Apache-2.0
"""flashinfer.prefill over Fovea."""

from fovea.compat.flashinfer._paged_prefill import BatchPrefillWithPagedKVCacheWrapper
from fovea.compat.flashinfer._ragged_prefill import BatchPrefillWithRaggedKVCacheWrapper
from fovea.compat.flashinfer._single_prefill import single_prefill_with_kv_cache, single_prefill_with_kv_cache_return_lse

__all__ = [
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
    "single_prefill_with_kv_cache",
    "single_prefill_with_kv_cache_return_lse",
]
