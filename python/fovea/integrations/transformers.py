# SPDX-License-Identifier: Apache-2.0
"""Fovea as an attention implementation of Hugging Face transformers (5.0 or newer).

>>> import fovea.integrations.transformers
>>> fovea.integrations.transformers.register()
>>> model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="fovea")

Padding on either side, sliding windows, softcap, attention sinks and grouped-query attention give what eager attention gives.
What the library cannot compute exactly (dropout, attention weights as an output, biases, masks that are no band beside
padding) raises NotImplementedError. Queries that see no key, such as padding on the left, give zeros. Training works: attention
is differentiable.
"""

from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function, sdpa_mask

import fovea
from fovea._library import wants_gradients
from fovea.integrations._row_bands import MaskRefused, RowBand, row_bands

_NEED_EAGER = "use attn_implementation='eager' for it"


def register(name: str = "fovea", *, implementation: str | None = None) -> None:
    """Makes ``attn_implementation=name`` available to every model that uses transformers' attention interface.

    Args:
        name: What to call it.
        implementation: Forces one of :func:`fovea.implementations` by name.
    """
    AttentionInterface.register(name, partial(attention_forward, implementation=implementation))
    AttentionMaskInterface.register(name, band_mask)


def band_mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable = causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **_: Any,
) -> Tensor:
    """The mask interface: reads the model's mask once a forward pass and hands its bands to every layer.

    The bands ride on a tensor of one NaN with a mask's four dimensions: models pass it on as it is, and code that computes with
    it loses the bands and leaves NaN, which the attention refuses.
    """

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

    return _keep(torch.full((1, 1, 1, 1), torch.nan, device=device), row_bands(visible, batch_size, q_length, kv_length))


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
    implementation: str | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention interface: query ``[batch, head, seq_q, dim]``, key and value ``[batch, kv_head, seq_k, dim]``.

    Returns:
        ``[batch, seq_q, head, dim]``, and None for the attention weights, which are never formed.
    """
    _refuse_extras(dropout, kwargs)
    q, k, v = (_token_major(tensor) for tensor in (query, key, value))
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        bands = _bands_without_mask(q, k, causal, sliding_window)
    else:
        bands = _bands_of(attention_mask, q, k)
    options: dict[str, Any] = {
        "scale": scaling,
        "softcap": softcap or 0.0,
        "sink": None if s_aux is None else s_aux.float(),
        "implementation": implementation,
        "anchor": "top_left",
    }
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
            **options,
        )
        if differentiable:
            place.copy_(result)
    return out, None


def _token_major(tensor: Tensor) -> Tensor:
    tensor = tensor.transpose(1, 2)
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _take(tensor: Tensor, keys: slice | tuple[int, ...]) -> Tensor:
    return tensor[:, keys] if isinstance(keys, slice) else tensor[:, list(keys)]


def _refuse_extras(dropout: float, kwargs: dict[str, Any]) -> None:
    """What would change the result and is not computed here."""
    if dropout:
        raise NotImplementedError(f"dropout: got {dropout}, want 0 ({_NEED_EAGER}, or model.eval())")
    if kwargs.get("output_attentions"):
        raise NotImplementedError(f"output_attentions: got True, want False (attention weights are never formed; {_NEED_EAGER})")
    for name in ("position_bias", "cu_seq_lens_q", "cu_seq_lens_k", "cache"):
        if kwargs.get(name) is not None:
            raise NotImplementedError(f"{name}: got {type(kwargs[name]).__name__}, want None ({_NEED_EAGER})")


def _bands_without_mask(q: Tensor, k: Tensor, causal: bool, sliding_window: int | None) -> tuple[RowBand, ...]:
    """A model that makes no mask means all keys, or a causal mask if its module says so."""
    batch, seq_q, seq_k = q.shape[0], q.shape[1], k.shape[1]
    whole = slice(0, seq_q), slice(0, seq_k)
    if sliding_window is not None and sliding_window < seq_k and not (causal and seq_q == seq_k):
        raise MaskRefused(
            f"sliding_window: got {sliding_window} without a mask, want causal attention over as many keys as queries"
        )
    if not causal or seq_q == 1:
        return (RowBand(*whole, None, None),) * batch
    if seq_q != seq_k:
        raise MaskRefused(
            f"attention_mask: got None for {seq_q} causal queries over {seq_k} keys, want a mask that says where they begin"
        )
    left = None if sliding_window is None else sliding_window - 1
    return (RowBand(*whole, left, 0),) * batch


def _bands_of(mask: Tensor, q: Tensor, k: Tensor) -> tuple[RowBand, ...]:
    """The bands that band_mask left on the mask, or those read off a 4-dimensional mask that the caller made."""
    kept = getattr(mask, "_fovea_bands", None)
    if kept is not None and kept[0] == _version(mask):
        return kept[1]
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
    bands = row_bands(lambda begin, end: seen[:, begin:end], want[0], want[2], want[3])
    _keep(mask, bands)
    return bands


def _keep(mask: Tensor, bands: tuple[RowBand, ...]) -> Tensor:
    mask._fovea_bands = (_version(mask), bands)  # type: ignore[attr-defined]
    return mask


def _version(mask: Tensor) -> int:
    """Changes when the mask is written to, so that bands read from it earlier are not used again."""
    return 0 if mask.is_inference() else mask._version
