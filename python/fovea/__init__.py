# SPDX-License-Identifier: Apache-2.0
"""Fovea: attention operations for PyTorch.

>>> import fovea
>>> out = fovea.attention(q, k, v, causal=True)  # q [batch, seq_q, head, head_dim], k and v [batch, seq_k, kv_head, head_dim]

The operators behind these functions are ``torch.ops.fovea.*``: they write into tensors that the caller gives, and
``torch.compile(fullgraph=True)`` traces through them.

An argument of another type than its annotation raises ``TypeError``. A call that contradicts itself raises ``ValueError``. A call
that no kernel accepts raises ``NotImplementedError``, which says which ones declined and why. Outputs are untouched then.

:func:`attention` has a gradient, of first order and in reverse mode; it follows ``torch.autocast`` and ``torch.vmap``. Where
autograd wants any other derivative, also of an output or a cache, ``NotImplementedError`` says so. Tensors that an operator
writes count as changed in place.
"""

from fovea import _flops, block_masks, compat  # noqa: F401 (the formulas are registered)
from fovea._attention import attention
from fovea._attention_backward import attention_backward
from fovea._block_mask import BlockMask
from fovea._explain import explain
from fovea._indexer import index_logits, topk_rows
from fovea._info import (
    Device,
    Implementation,
    devices,
    get_exact_rows,
    get_num_threads,
    implementations,
    set_exact_rows,
    set_num_threads,
)
from fovea._kv_format import KvFormat, kv_formats
from fovea._latent import latent_attention, sparse_latent_attention
from fovea._latent_cache import CacheFormat, cache_formats, dequantize_latent_cache, quantize_latent_cache
from fovea._latent_schedule import LatentSchedule
from fovea._library import version as _version
from fovea._masks import pack_mask, tree_mask
from fovea._merge import merge_states
from fovea._paged import paged_attention, paged_cache_append
from fovea._plan import (
    Plan,
    plan_attention,
    plan_latent_attention,
    plan_paged_attention,
    plan_paged_cache_append,
    plan_quantize_and_attend,
    plan_quantized_attention,
    plan_sparse_latent_attention,
)
from fovea._quantized import QuantizedQk, QuantizedV, quantize_and_attend, quantize_qk_int8, quantize_v, quantized_attention
from fovea._sdpa import scaled_dot_product_attention

__version__: str = _version()

__all__ = [
    "BlockMask",
    "CacheFormat",
    "Device",
    "Implementation",
    "KvFormat",
    "LatentSchedule",
    "Plan",
    "QuantizedQk",
    "QuantizedV",
    "attention",
    "attention_backward",
    "block_masks",
    "cache_formats",
    "compat",
    "dequantize_latent_cache",
    "devices",
    "explain",
    "get_exact_rows",
    "get_num_threads",
    "implementations",
    "index_logits",
    "kv_formats",
    "latent_attention",
    "merge_states",
    "pack_mask",
    "paged_attention",
    "paged_cache_append",
    "plan_attention",
    "plan_latent_attention",
    "plan_paged_attention",
    "plan_paged_cache_append",
    "plan_quantize_and_attend",
    "plan_quantized_attention",
    "plan_sparse_latent_attention",
    "quantize_and_attend",
    "quantize_latent_cache",
    "quantize_qk_int8",
    "quantize_v",
    "quantized_attention",
    "scaled_dot_product_attention",
    "set_exact_rows",
    "set_num_threads",
    "sparse_latent_attention",
    "topk_rows",
    "tree_mask",
]
