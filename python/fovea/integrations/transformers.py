# SPDX-License-Identifier: Apache-2.0
"""Fovea as an attention implementation of Hugging Face transformers (5.0 or newer).

>>> import fovea.integrations.transformers
>>> fovea.integrations.transformers.register()
>>> model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="fovea")

Padding on either side, packed sequences (``position_ids`` that restart, or ``cu_seq_lens_q`` and its like), sliding windows,
chunked attention, softcap, attention sinks and grouped-query attention give what eager attention gives, and dropout is drawn by
torch's generator. Features that the library cannot compute exactly (attention weights as an output, biases, other masks) raise
NotImplementedError. Queries that see no key,
such as padding on the left, give zeros. Training works: attention is differentiable. Models with an indexer, such as deepseek_v32,
run as long as it lists all keys; longer contexts raise NotImplementedError.

``model.generate_batch`` (continuous batching, transformers 5.23 or newer) takes this name too, on every device. Decode steps read
its paged cache in place, by block tables; in steps with longer queries transformers gathers the keys first. Models with sliding
windows have no block tables there.

``past_key_values=KvCache("int8_token")`` keeps keys and values in a format of :func:`fovea.kv_formats`, which attention reads in
place. ``register("fovea_int8", k_format="int8_token")`` makes a name whose models do so in ``generate_batch``.

``torch.compile(model, fullgraph=True)`` and ``torch.export`` trace through, with and without a cache. Nobody can look at a mask's
values then, so a compiled model refuses masks of the model's own when it is traced, and padding between tokens when it runs.
Without a cache and an ``attention_mask``, its positions may restart, so its attention is that of a ragged batch.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.generation.continuous_batching import PagedAttentionCache
from transformers.masking_utils import causal_mask_function, sdpa_mask

import fovea
from fovea._calls import adapted
from fovea.integrations import _code_cache, _continuous_batching
from fovea.integrations._code_cache import KvCache as KvCache
from fovea.integrations._masked import NEED_EAGER, carrier, masked_attention
from fovea.integrations._row_bands import MaskRefused, row_bands
from fovea.integrations._traced_masks import (
    TracedMask,
    in_place_of_mask,
    lengths_in_mask,
    lengths_of_single_queries,
    traced_mask,
)

_LONGEST = 1 << 24  # tokens
_MOST_VALUES = 1 << 40  # of a mask
_NAMES = {
    "q": "query",
    "k": "key",
    "v": "value",
    "scale": "scaling",
    "sink": "s_aux",
    "cu_seqlens_q": "cu_seq_lens_q",
    "cu_seqlens_k": "cu_seq_lens_k",
    "max_seqlen_q": "max_length_q",
    "max_seqlen_k": "max_length_k",
}
"""Arguments of the attention interface, by those of fovea.attention."""


@adapted()
def register(
    name: str = "fovea", *, implementation: str | None = None, k_format: str | None = None, v_format: str | None = None
) -> None:
    """Makes ``attn_implementation=name`` available to every model that uses transformers' attention interface.

    Args:
        name: The name of this attention.
        implementation: Forces one of :func:`fovea.implementations` by name.
        k_format: A name of :func:`fovea.kv_formats`, of the keys that ``generate_batch`` stores; None is the model's dtype.
        v_format: The format of values; that of keys if None.
    """
    if k_format is None and v_format is not None:
        raise ValueError(f"k_format: got None, want a format, as v_format is {v_format!r}")
    formats = None if k_format is None else _code_cache.formats_of(k_format, v_format)
    AttentionInterface.register(name, partial(attention_forward, implementation=implementation))
    AttentionMaskInterface.register(name, band_mask)
    _continuous_batching.admit(name, formats)


@adapted()
def band_mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Tensor | int = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Tensor | None:
    """The mask interface: reads the mask, and returns a tensor that carries what the attention needs of it.

    Nothing of the caller's is kept. A traced model gets lengths instead, or None. A step that transformers may compile after it
    made the mask gets lengths, too: one query over a static cache.
    """
    shape = (batch_size, q_length, kv_length)
    if torch.compiler.is_compiling():
        offsets = (q_offset, kv_offset)
        mask = TracedMask(*shape, *offsets, mask_function, attention_mask, device)
        return traced_mask(mask, local_size, use_vmap, options)
    _check_extents(shape, kv_offset, attention_mask)

    def visible(begin: int, end: int) -> Tensor:
        piece = sdpa_mask(
            batch_size,
            end - begin,
            kv_length,
            q_offset + begin,
            kv_offset,
            mask_function,
            attention_mask,
            allow_is_causal_skip=False,
            allow_is_bidirectional_skip=False,
            use_vmap=use_vmap,
            device=device,
        )
        assert piece is not None  # both ways to skip a mask are off
        return piece[:, 0]

    bands = row_bands(visible, shape)
    may_be_compiled = q_length == 1 and not options.get("allow_is_causal_skip", True)
    lengths = lengths_of_single_queries(bands, kv_length) if may_be_compiled and isinstance(bands, tuple) else None
    return carrier(bands, shape, device) if lengths is None else in_place_of_mask(lengths.to(device), shape)


def _check_extents(shape: tuple[int, int, int], kv_offset: int, attention_mask: Tensor | None) -> None:
    names = ("batch_size", "q_length", "kv_length", "kv_offset")
    for name, number in zip(names, (*shape, kv_offset), strict=True):
        if not 0 <= number <= _LONGEST:
            raise ValueError(f"{name}: got {number}, want 0 to {_LONGEST}")
    if math.prod(shape) > _MOST_VALUES:
        raise ValueError(f"batch_size * q_length * kv_length: got {math.prod(shape)}, want at most {_MOST_VALUES}, as each is read")
    if attention_mask is None:
        return
    if attention_mask.dim() != 2 or attention_mask.shape[0] < shape[0]:
        raise ValueError(f"attention_mask.shape: got {list(attention_mask.shape)}, want [{shape[0]}, keys] ([batch, keys])")
    if attention_mask.is_floating_point():
        raise ValueError(f"attention_mask.dtype: got {attention_mask.dtype}, want torch.bool or integers, not 0 where a token is")


@adapted(_NAMES, axes=dict.fromkeys(("query", "key", "value"), "batch, head, seq, head_dim"))
def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    cache: PagedAttentionCache | None = None,
    implementation: str | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention interface: query ``[batch, head, seq_q, dim]``, key and value ``[batch, kv_head, seq_k, dim]``.

    Lengths that are given (``cu_seq_lens_q``, ``cu_seq_lens_k``, ``max_length_q``, ``max_length_k``) count instead of the mask.
    With a paged cache, the keys are what it has of each sequence, and the new ones.

    Returns:
        ``[batch, seq_q, head, dim]``, and None for the attention weights, which are never formed.
    """
    paged = cache is not None or _continuous_batching.in_pages(kwargs)
    _refuse_extras(dropout if paged else 0.0, kwargs)
    _check_shapes(query, key, value)
    _check_lists(module, None if paged else key.shape[2], kwargs)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    options: dict[str, Any] = {
        "scale": scaling,
        "softcap": softcap or 0.0,
        "sink": None if s_aux is None else s_aux.float(),
        "implementation": implementation,
    }
    if dropout:
        options["dropout_p"] = dropout
    codes = _code_cache.codes_of(key)
    if codes is not None:
        if dropout:
            raise NotImplementedError(f"dropout: got {dropout}, want 0 over a cache of codes ({NEED_EAGER}, or model.eval())")
        q = _token_major(query)
        window = _window_without_mask(q, key.transpose(1, 2), causal, sliding_window) if attention_mask is None else None
        return _code_cache.attend(codes, q, attention_mask, window, options), None
    if cache is not None:
        key, value = _continuous_batching.update(cache, module.layer_idx, key, value, kwargs)
    q, k, v = (_token_major(tensor) for tensor in (query, key, value))
    if _continuous_batching.in_pages(kwargs):
        return _continuous_batching.attend(q, (k, v), kwargs, options | {"window": _window(causal, sliding_window)}), None
    lengths = _lengths(q, k, attention_mask, kwargs)
    if lengths is not None:
        flat = (tensor.flatten(0, 1) for tensor in (q, k, v))
        out = fovea.attention(*flat, window=_window(causal, sliding_window), **lengths, **options)
        return out.unflatten(0, q.shape[:2]), None
    if attention_mask is None:
        return fovea.attention(q, k, v, window=_window_without_mask(q, k, causal, sliding_window), **options), None
    return masked_attention(q, k, v, attention_mask, options), None


def _token_major(tensor: Tensor) -> Tensor:
    tensor = tensor.transpose(1, 2)
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _refuse_extras(dropout: float, kwargs: dict[str, Any]) -> None:
    """Refuses options that would change the result and are not computed here."""
    if dropout:
        raise NotImplementedError(f"dropout: got {dropout}, want 0 over a paged cache ({NEED_EAGER}, or model.eval())")
    if kwargs.get("output_attentions"):
        raise NotImplementedError(f"output_attentions: got True, want False (attention weights are never formed; {NEED_EAGER})")
    if kwargs.get("position_bias") is not None:
        raise NotImplementedError(f"position_bias: got {type(kwargs['position_bias']).__name__}, want None ({NEED_EAGER})")


def _check_lists(module: torch.nn.Module, keys: int | None, kwargs: dict[str, Any]) -> None:
    """Refuses an indexer's lists, of keys or blocks of keys, that leave any key out. The mask still has the keys left out."""
    for name, size in (("indices", 1), ("block_indices", getattr(getattr(module, "indexer", None), "block_size", 1))):
        lists = kwargs.get(name)
        if lists is None or (keys is not None and lists.shape[-1] * size >= keys):
            continue
        of = "a paged cache" if keys is None else f"{keys} keys"
        want = f"all keys in them (a shorter context; {NEED_EAGER})"
        raise NotImplementedError(f"{name}: got lists of {lists.shape[-1] * size} of {of}, want {want}")


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    (batch, heads, _, dim), kv_heads = query.shape, key.shape[1]
    if key.shape[0] != batch or key.shape[3] != dim:
        raise ValueError(f"key.shape: got {list(key.shape)}, want [{batch}, kv_head, seq, {dim}], batch and head_dim of query")
    if value.shape[:3] != key.shape[:3]:
        raise ValueError(f"value.shape: got {list(value.shape)}, want {[*key.shape[:3], 'head_dim']}, as key".replace("'", ""))
    if kv_heads == 0 or heads % kv_heads != 0:
        raise ValueError(f"key.shape[1] (kv_head): got {kv_heads}, want a divisor of {heads}, the heads of query")


def _lengths(q: Tensor, k: Tensor, mask: Tensor | None, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The lengths of a ragged batch: those that the caller gives, or those of a traced model's mask."""
    given = [kwargs.get(f"cu_seq_lens_{name}") for name in "qk"]
    if any(tensor is not None for tensor in given):
        for name, tensor in zip("qk", given, strict=True):
            if tensor is None:
                raise ValueError(f"cu_seq_lens_{name}: got None, want a tensor, as the other of cu_seq_lens_q and cu_seq_lens_k")
        bounds = [_bound(kwargs.get(f"max_length_{name}")) for name in "qk"]
        given = [tensor.to(torch.int32) for tensor in given]
    else:
        lengths = lengths_in_mask(mask, (q.shape[0], q.shape[1], k.shape[1]))
        if lengths is None:
            return None
        given, bounds = list(lengths), [q.shape[1], k.shape[1]]  # no sequence is longer than a row
    return {"cu_seqlens_q": given[0], "cu_seqlens_k": given[1], "max_seqlen_q": bounds[0], "max_seqlen_k": bounds[1]}


def _bound(length: Tensor | int | None) -> int | None:
    """A tensor's number is not read: that would wait for the device."""
    return None if isinstance(length, Tensor) else length


def _window(causal: bool, sliding_window: int | None) -> tuple[int | None, int | None] | None:
    if sliding_window is not None and sliding_window < 1:
        raise ValueError(f"sliding_window: got {sliding_window}, want 1 or more, or None")
    if causal:
        return None if sliding_window is None else sliding_window - 1, 0
    if sliding_window is not None:
        raise MaskRefused(f"sliding_window: got {sliding_window} without a mask, want None, or causal attention")
    return None


def _window_without_mask(q: Tensor, k: Tensor, causal: bool, sliding_window: int | None) -> tuple[int | None, int | None] | None:
    """A model that makes no mask means all keys, or a causal mask if its module says so."""
    seq_q, seq_k = q.shape[1], k.shape[1]
    if sliding_window is not None and sliding_window < seq_k and not (causal and seq_q == seq_k):
        raise MaskRefused(
            f"sliding_window: got {sliding_window} without a mask, want causal attention over as many keys as queries"
        )
    if not causal or seq_q == 1:
        return None
    if seq_q != seq_k:
        raise MaskRefused(
            f"attention_mask: got None for {seq_q} causal queries over {seq_k} keys, want a mask that says where they begin"
        )
    return _window(causal, sliding_window)
