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

    from fovea.integrations import _paged_codes
except ImportError:  # before 5.23
    initialization = None  # type: ignore[assignment]

_names: dict[str, tuple[str, str] | None] = {}
"""Names of Fovea's, and the formats that their caches have."""


def admit(name: str, formats: tuple[str, str] | None) -> None:
    """Lets continuous batching run an attention implementation as it runs flash attention.

    The manager of transformers 5.23 and later asks whether a name is one of flash attention: those get lengths instead of masks,
    and block tables for decode steps. This function makes the answer yes for a name of Fovea's. Its models get a cache of these
    formats. Older managers are left alone.
    """
    if initialization is None:
        if formats is not None:
            raise NotImplementedError(f"k_format: got {formats[0]!r}, want None before transformers 5.23")
        return
    if not _names:
        modules: tuple[Any, ...] = (continuous_api, initialization, cache_module)
        for module in modules:
            module.is_flash_attention_requested = _or_ours(module.is_flash_attention_requested)
        ensure = initialization.ensure_decode_fast_path_is_available
        initialization.ensure_decode_fast_path_is_available = _block_tables_on_every_device(ensure)
        continuous_api.PagedAttentionCache = _of_its_formats  # type: ignore[misc, assignment]
    _names[name] = formats


def _of_its_formats(config: Any, *args: Any, **kwargs: Any) -> PagedAttentionCache:
    """The cache that a manager makes for a model."""
    formats = _names.get(config._attn_implementation)
    if formats is None:
        return PagedAttentionCache(config, *args, **kwargs)
    return _paged_codes.CodesCache(formats, config, *args, **kwargs)


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
        formats = _names[config._attn_implementation]
        if formats is not None:
            _paged_codes.check_model(config, formats)
        if not all(ATTN_TYPE_TO_ALLOCATOR[kind].supports_block_table for kind in group_layers_by_attn_type(config)):
            batching.max_blocks_per_request = 0
        return None

    return ensured


@torch.compiler.disable
def update(cache: PagedAttentionCache, layer: int, k: Tensor, v: Tensor, call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Lets the cache take a layer's new keys and values. From transformers 5.24 on, the models do so by themselves.

    Args:
        call: The arguments that the manager passes to every layer. Afterwards it says what is this layer's.

    Returns:
        The keys and values that the cache has of the sequences, or with a block table the new ones, which are not stored yet.
    """
    return cache.update(key_states=k, value_states=v, layer_idx=layer, kwargs=call)


def in_pages(call: dict[str, Any]) -> bool:
    """Whether attention reads the cache in place."""
    return call.get("fovea_codes") is not None or call.get("block_table") is not None


@torch.compiler.disable
def attend(q: Tensor, new: tuple[Tensor, Tensor], call: dict[str, Any], options: dict[str, Any]) -> Tensor:
    """Attention ``[1, tokens, head, dim]`` of a batch's tokens over pages. New rows are in codes already, or not in the cache."""
    options = {name: option for name, option in options.items() if name != "implementation"}  # that of dense attention
    if call.get("fovea_codes") is None:
        return decode(q, new, call, options)
    pages, step = call["fovea_codes"]
    where = (step.block_table, step.kv_len)
    return fovea.paged_attention(q[0], pages.k, pages.v, *where, **step.options, **pages.options, **options)[None]


@torch.compiler.disable
def decode(q: Tensor, new: tuple[Tensor, Tensor], call: dict[str, Any], options: dict[str, Any]) -> Tensor:
    """One token of each sequence, ``[1, tokens, head, dim]``: appended to the cache, and attended from.

    Sequences of length 0 pad the batch. Nothing of theirs is stored.
    """
    if call.get("k_cache") is None or call.get("v_cache") is None:
        raise NotImplementedError(
            "block_table: got one without k_cache and v_cache, want those that the cache's update() leaves beside it"
        )
    cache: tuple[Tensor, Tensor] = call["k_cache"], call["v_cache"]
    block_table, kv_len = call["block_table"], call["cu_seq_lens_k"].diff()
    slots = _paged_codes.last_slots(block_table, kv_len, cache[0].shape[1])
    fovea.paged_cache_append(new[0][0], new[1][0], *cache, slots)
    # Without given ends the library makes a tensor of them, once for all calls: in memory of a graph, others would overwrite it.
    return fovea.paged_attention(q[0], *cache, block_table, kv_len, call["cu_seq_lens_q"], max_seqlen_q=1, **options)[None]
