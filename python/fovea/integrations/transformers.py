# SPDX-License-Identifier: Apache-2.0
"""Fovea as an attention implementation of Hugging Face transformers (5.0 or newer).

>>> import fovea.integrations.transformers
>>> fovea.integrations.transformers.register()
>>> model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="fovea")

Padding on either side, packed sequences (``position_ids`` that restart, or ``cu_seq_lens_q`` and its like), sliding windows,
chunked attention, softcap, attention sinks and grouped-query attention give what eager attention gives. What the library cannot
compute exactly (dropout, attention weights as an output, biases, other masks) raises NotImplementedError. Queries that see no key,
such as padding on the left, give zeros. Training works: attention is differentiable.

``model.generate_batch`` (continuous batching, transformers 5.23) takes this name too, on every device. Decode steps read its paged
cache in place, by block tables; in steps with longer queries transformers gathers the keys first. Models with sliding windows have
no block tables there.

``torch.compile(model, fullgraph=True)`` and ``torch.export`` trace through, with and without a cache. Nobody can look at a mask's
values then, so a compiled model refuses masks of the model's own when it is traced, and padding between tokens when it runs.
Without a cache and an ``attention_mask``, its positions may restart, so its attention is that of a ragged batch.
"""

from collections.abc import Callable
from functools import cache, partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.generation.continuous_batching import PagedAttentionCache
from transformers.masking_utils import causal_mask_function, sdpa_mask

import fovea
from fovea._library import wants_gradients
from fovea.integrations import _continuous_batching
from fovea.integrations._row_bands import MaskRefused, RowBand, row_bands
from fovea.integrations._segments import Segments
from fovea.integrations._traced_masks import TracedMask, traced_mask

_NEED_EAGER = "use attn_implementation='eager' for it"


def register(name: str = "fovea", *, implementation: str | None = None) -> None:
    """Makes ``attn_implementation=name`` available to every model that uses transformers' attention interface.

    Args:
        name: What to call it.
        implementation: Forces one of :func:`fovea.implementations` by name.
    """
    AttentionInterface.register(name, partial(attention_forward, implementation=implementation))
    AttentionMaskInterface.register(name, band_mask)
    _continuous_batching.admit(name)


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
    """The mask interface: keeps what a mask is made of; the first layer reads it once for all.

    It rides on a tensor of one NaN with a mask's four dimensions: models pass it on as it is, and code that computes with it loses
    what it carries and leaves NaN, which the attention refuses. A traced model gets lengths instead, or None.
    """
    if torch.compiler.is_compiling():
        offsets = (q_offset, kv_offset)
        mask = TracedMask(batch_size, q_length, kv_length, *offsets, mask_function, attention_mask, device)
        return traced_mask(mask, local_size, use_vmap, options)

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

    return _keep(
        torch.full((1, 1, 1, 1), torch.nan, device=device), cache(lambda: _bands(visible, batch_size, q_length, kv_length, device))
    )


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
    _refuse_extras(dropout, cache, kwargs)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    options: dict[str, Any] = {
        "scale": scaling,
        "softcap": softcap or 0.0,
        "sink": None if s_aux is None else s_aux.float(),
        "implementation": implementation,
    }
    if cache is not None:
        call = kwargs | options | {"window": _window(True, sliding_window)}
        return _continuous_batching.over_pages(module.layer_idx, query, (key, value), cache, kwargs["cu_seq_lens_q"], call), None
    q, k, v = (_token_major(tensor) for tensor in (query, key, value))
    lengths = _lengths(q, attention_mask, kwargs)
    if lengths is not None:
        flat = (tensor.flatten(0, 1) for tensor in (q, k, v))
        out = fovea.attention(*flat, window=_window(causal, sliding_window), **lengths, **options)
        return out.unflatten(0, q.shape[:2]), None
    if attention_mask is None:
        return fovea.attention(q, k, v, window=_window_without_mask(q, k, causal, sliding_window), **options), None
    bands = _bands_of(attention_mask, q, k)
    if isinstance(bands, Segments):
        return _over_segments(q, k, v, bands, options), None
    return _over_bands(q, k, v, bands, options), None


def _over_segments(q: Tensor, k: Tensor, v: Tensor, segments: Segments, options: dict[str, Any]) -> Tensor:
    flat = []
    for tensor, tokens in ((q, segments.queries), (k, segments.keys), (v, segments.keys)):
        rows = tensor.flatten(0, 1)
        flat.append(rows if tokens is None else rows.index_select(0, tokens))
    out = fovea.attention(
        *flat,
        cu_seqlens_q=segments.cu_seqlens_q,
        cu_seqlens_k=segments.cu_seqlens_k,
        max_seqlen_q=segments.longest[0],
        max_seqlen_k=segments.longest[1],
        window=segments.window,
        anchor=segments.anchor,
        **options,
    )
    if segments.queries is not None:
        out = out.new_zeros(q.shape[0] * q.shape[1], *out.shape[1:]).index_copy(0, segments.queries, out)
    return out.unflatten(0, q.shape[:2])


def _over_bands(q: Tensor, k: Tensor, v: Tensor, bands: tuple[RowBand, ...], options: dict[str, Any]) -> Tensor:
    differentiable = wants_gradients(q, k, v, options["sink"])
    whole = all(band.queries == slice(0, q.shape[1]) for band in bands)
    shape = (*q.shape[:-1], v.shape[-1])
    out = q.new_empty(shape) if whole and not differentiable else q.new_zeros(shape)
    for band, run in groupby(range(len(bands)), key=bands.__getitem__):
        rows = list(run)
        batch = slice(rows[0], rows[-1] + 1)
        place = out[batch, band.queries]
        given: dict[str, Any] = {} if differentiable else {"out": place}
        result = fovea.attention(
            q[batch, band.queries],
            _take(k[batch], band.keys),
            _take(v[batch], band.keys),
            window=(band.left, band.right),
            **given,
            anchor="top_left",
            **options,
        )
        if differentiable:
            place.copy_(result)
    return out


def _token_major(tensor: Tensor) -> Tensor:
    tensor = tensor.transpose(1, 2)
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _take(tensor: Tensor, keys: slice | tuple[int, ...]) -> Tensor:
    return tensor[:, keys] if isinstance(keys, slice) else tensor[:, list(keys)]


def _refuse_extras(dropout: float, cache: Any, kwargs: dict[str, Any]) -> None:
    """What would change the result and is not computed here."""
    if dropout:
        raise NotImplementedError(f"dropout: got {dropout}, want 0 ({_NEED_EAGER}, or model.eval())")
    if kwargs.get("output_attentions"):
        raise NotImplementedError(f"output_attentions: got True, want False (attention weights are never formed; {_NEED_EAGER})")
    if kwargs.get("position_bias") is not None:
        raise NotImplementedError(f"position_bias: got {type(kwargs['position_bias']).__name__}, want None ({_NEED_EAGER})")
    if cache is not None and not isinstance(cache, PagedAttentionCache):
        raise NotImplementedError(f"cache: got {type(cache).__name__}, want a PagedAttentionCache or None ({_NEED_EAGER})")


def _lengths(q: Tensor, mask: Tensor | None, kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The lengths of a ragged batch: those that the caller gives, or those of a traced model's mask."""
    given = [kwargs.get(f"cu_seq_lens_{name}") for name in "qk"]
    if any(tensor is not None for tensor in given):
        for name, tensor in zip("qk", given, strict=True):
            if tensor is None:
                raise ValueError(f"cu_seq_lens_{name}: got None, want a tensor, as the other of cu_seq_lens_q and cu_seq_lens_k")
        bounds = [_bound(kwargs.get(f"max_length_{name}")) for name in "qk"]
        given = [tensor.to(torch.int32) for tensor in given]
    elif mask is not None and mask.dtype == torch.int32 and mask.shape[:3] == (1, 1, 2):
        given, bounds = list(mask[0, 0].unbind()), [q.shape[1], None]
    else:
        return None
    return {"cu_seqlens_q": given[0], "cu_seqlens_k": given[1], "max_seqlen_q": bounds[0], "max_seqlen_k": bounds[1]}


def _bound(length: Tensor | int | None) -> int | None:
    """A tensor's number is not read: that would wait for the device."""
    return None if isinstance(length, Tensor) else length


def _window(causal: bool, sliding_window: int | None) -> tuple[int | None, int | None] | None:
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


def _bands_of(mask: Tensor, q: Tensor, k: Tensor) -> tuple[RowBand, ...] | Segments:
    """The bands of what band_mask left on the mask, or those read off a 4-dimensional mask that the caller made."""
    kept = getattr(mask, "_fovea_bands", None)
    if kept is not None and kept[0] == _version(mask):
        return kept[1]()
    want = (q.shape[0], 1, q.shape[1], k.shape[1])
    if mask.dim() != 4 or mask.shape[1] != 1 or mask.shape[2:] != want[2:] or mask.shape[0] not in (1, want[0]):
        raise MaskRefused(f"attention_mask.shape: got {list(mask.shape)}, want {list(want)} ({_NEED_EAGER})")
    if mask.dtype == torch.bool:
        seen = mask
    else:
        seen = mask == 0
        if not (seen | (mask <= torch.finfo(mask.dtype).min)).all():
            raise MaskRefused(f"attention_mask: got a bias that is neither 0 nor the dtype's minimum, want a mask ({_NEED_EAGER})")
    seen = seen.expand(want)[:, 0]
    read = cache(lambda: _bands(lambda begin, end: seen[:, begin:end], want[0], want[2], want[3], q.device))
    _keep(mask, read)
    return read()


def _bands(
    visible: Callable[[int, int], Tensor], batch: int, seq_q: int, seq_k: int, device: torch.device | str
) -> tuple[RowBand, ...] | Segments:
    """The bands of a mask, with what the attention needs of them on its device."""
    bands = row_bands(visible, batch, seq_q, seq_k)
    return bands.to(device) if isinstance(bands, Segments) else bands


def _keep(mask: Tensor, read: Callable[[], tuple[RowBand, ...] | Segments]) -> Tensor:
    mask._fovea_bands = (_version(mask), read)  # type: ignore[attr-defined]
    return mask


def _version(mask: Tensor) -> int:
    """Changes when the mask is written to, so that bands read from it earlier are not used again."""
    return 0 if mask.is_inference() else mask._version
