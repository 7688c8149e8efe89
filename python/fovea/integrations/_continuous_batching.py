# SPDX-License-Identifier: Apache-2.0
"""Attention over the paged cache of transformers' continuous batching, and how its manager comes to run it."""

from functools import wraps
from typing import Any

import torch
from torch import Tensor
from transformers.generation.continuous_batching import PagedAttentionCache, continuous_api
from transformers.generation.continuous_batching import cache as cache_module

import fovea

try:
    from transformers.generation.continuous_batching import initialization
    from transformers.generation.continuous_batching.cache import ATTN_TYPE_TO_ALLOCATOR, group_layers_by_attn_type
except ImportError:  # before 5.23
    initialization = None  # type: ignore[assignment]

_names: set[str] = set()


def admit(name: str) -> None:
    """Lets continuous batching run an attention implementation as it runs flash attention.

    The manager of transformers 5.23 asks whether a name is one of flash attention: those get lengths instead of masks, and block
    tables for decode steps. This function makes the answer yes for a name of Fovea's. Older managers are left alone.
    """
    if initialization is None:
        return
    if not _names:
        modules: tuple[Any, ...] = (continuous_api, initialization, cache_module)
        for module in modules:
            module.is_flash_attention_requested = _or_ours(module.is_flash_attention_requested)
        ensure = initialization.ensure_decode_fast_path_is_available
        initialization.ensure_decode_fast_path_is_available = _block_tables_on_every_device(ensure)
    _names.add(name)


def _or_ours(is_flash_attention_requested: Any) -> Any:
    @wraps(is_flash_attention_requested)
    def asked(config: Any = None, requested_attention_implementation: str | None = None, version: Any = None) -> bool:
        name = requested_attention_implementation if config is None else config._attn_implementation
        return name in _names or is_flash_attention_requested(config, requested_attention_implementation, version)

    return asked


def _block_tables_on_every_device(ensure: Any) -> Any:
    """Flash attention has block tables on CUDA devices alone."""

    @wraps(ensure)
    def ensured(config: Any, batching: Any, *asked: Any) -> None:
        if config._attn_implementation not in _names:
            return ensure(config, batching, *asked)
        if not all(ATTN_TYPE_TO_ALLOCATOR[kind].supports_block_table for kind in group_layers_by_attn_type(config)):
            batching.max_blocks_per_request = 0
        return None

    return ensured


@torch.compiler.disable
def over_pages(
    layer: int, q: Tensor, new: tuple[Tensor, Tensor], cache: PagedAttentionCache, cu_seqlens_q: Tensor, call: dict[str, Any]
) -> Tensor:
    """Attention of new tokens over what the cache has of their sequences, and writes them into the cache.

    Args:
        layer: The layer's number.
        q: ``[1, head, tokens, dim]``.
        new: Their keys and values ``[1, kv_head, tokens, dim]``.
        cu_seqlens_q: The sequences of the tokens.
        call: What the manager passes to every layer, and fovea's options: window, scale, softcap, sink, implementation.

    Returns:
        ``[1, tokens, head, dim]``.
    """
    options = {name: call[name] for name in ("window", "scale", "softcap", "sink")}
    given: dict[str, Any] = {
        name: call.get(name) for name in ("cu_seq_lens_k", "max_length_k", "block_table", "read_index", "write_index")
    }
    k, v = cache.update(key_states=new[0], value_states=new[1], layer_idx=layer, kwargs=given)
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (q, k, v))
    cu_seqlens_k = given["cu_seq_lens_k"]
    if given["block_table"] is not None:
        pages = given["k_cache"], given["v_cache"]
        return _decode(q, (k, v), pages, given["block_table"], cu_seqlens_k.diff(), options)[None]
    lengths: dict[str, Any] = {
        "cu_seqlens_q": cu_seqlens_q.to(torch.int32),
        "cu_seqlens_k": cu_seqlens_k,
        "max_seqlen_q": call.get("max_length_q"),
        "max_seqlen_k": given["max_length_k"],
    }
    return fovea.attention(q, k, v, **lengths, **options, implementation=call["implementation"])[None]


def _decode(
    q: Tensor,
    new: tuple[Tensor, Tensor],
    cache: tuple[Tensor, Tensor],
    block_table: Tensor,
    kv_len: Tensor,
    options: dict[str, Any],
) -> Tensor:
    """One token of each sequence, appended and attended from. Sequences of length 0 pad the batch: nothing of theirs is stored."""
    page = cache[0].shape[1]
    position = kv_len.long() - 1
    block = block_table.gather(1, (position.clamp(min=0) // page)[:, None])[:, 0]
    slots = torch.where(position < 0, -1, block * page + position % page)
    fovea.paged_cache_append(*new, *cache, slots)
    return fovea.paged_attention(q, *cache, block_table, kv_len, **options)
