# SPDX-License-Identifier: Apache-2.0
"""Attention under a mask of four dimensions. Bands that are read off the mask stay on it, for the model's other layers."""

from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

import fovea
from fovea._autocast import autocast
from fovea._library import wants_gradients
from fovea.integrations._row_bands import MaskRefused, RowBand, row_bands, times_in_batch
from fovea.integrations._segments import Segments

Bands = tuple[RowBand, ...] | Segments
"""The visible keys of the rows of a mask's batch."""
NEED_EAGER = "use attn_implementation='eager' for it"


def carrier(bands: Bands, shape: tuple[int, int, int], device: torch.device | str) -> Tensor:
    """A tensor that carries bands to the attention in the place of a mask ``[batch, seq_q, seq_k]``.

    It is one NaN. Models pass it on as it is. Code that computes with it loses the bands and leaves NaN, which the attention
    refuses.
    """
    with torch.inference_mode(False):  # the tensor counts what is written to it
        mask = torch.full((1, 1, 1, 1), torch.nan, device=device)
    _keep(mask, bands, shape, is_all=True)
    return mask


@torch.compiler.disable
def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, options: dict[str, Any]) -> Tensor:
    """Attention ``[batch, seq, head, dim]`` under a mask. Its values decide on the calls, so no tracer goes through."""
    shape = (q.shape[0], q.shape[1], k.shape[1])
    bands, made_for = bands_of(mask, shape)
    times = times_in_batch(made_for, shape)
    if isinstance(bands, Segments):
        bands = bands.to(q.device)
        return _over_segments(q, k, v, bands if times == 1 else bands.repeat(times, *shape[1:]), options)
    q, k, v, _ = autocast(q, k, v, None)  # q has the dtype of the result
    return _over_bands(q, k, v, bands * times, options)


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
        if band.queries == slice(0, 0):
            continue
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


def _take(tensor: Tensor, keys: slice | tuple[int, ...]) -> Tensor:
    return tensor[:, keys] if isinstance(keys, slice) else tensor[:, list(keys)]


def bands_of(mask: Tensor, shape: tuple[int, int, int]) -> tuple[Bands, tuple[int, int, int]]:
    """The bands that band_mask left on the mask, or those read off a mask that the caller made, and what they were made for."""
    kept: _Kept | None = getattr(mask, "_fovea_bands", None)
    if kept is not None and (kept.is_all or kept.made_for[1:] == shape[1:]) and kept.is_of(mask):
        return kept.bands, kept.made_for
    want = (shape[0], 1, *shape[1:])
    if mask.dim() != 4 or any(got not in (1, size) for got, size in zip(mask.shape, want, strict=True)):
        text = f"attention_mask.shape: got {list(mask.shape)}, want {list(want)}, [batch, 1, queries, keys] of the call"
        raise MaskRefused(f"{text} ({NEED_EAGER})") if mask.dim() == 4 and mask.shape[1] > 1 else ValueError(text)
    made_for = (mask.shape[0], *shape[1:])
    seen = _seen(mask)[:, 0].expand(made_for)
    bands = row_bands(lambda begin, end: seen[:, begin:end], made_for)
    _keep(mask, bands, made_for)
    return bands, made_for


def _seen(mask: Tensor) -> Tensor:
    """Which keys the queries see, of a mask that the caller made."""
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise ValueError(f"attention_mask.dtype: got {mask.dtype}, want torch.bool, or numbers to add to the scores")
    seen = mask == 0
    if not (seen | (mask <= torch.finfo(mask.dtype).min)).all():
        raise MaskRefused(f"attention_mask: got a bias that is neither 0 nor the dtype's minimum, want a mask ({NEED_EAGER})")
    return seen


class _Kept(NamedTuple):
    """Bands that were read off a mask, and the mask's state at that time."""

    bands: Bands
    made_for: tuple[int, int, int]
    """Batch, queries and keys."""
    is_all: bool
    """Whether the mask has nothing else in it."""
    written: int | Tensor
    """How often the mask had been written to, or its values where that is not counted."""

    def is_of(self, mask: Tensor) -> bool:
        """Whether the mask is as it was."""
        return torch.equal(mask, self.written) if isinstance(self.written, Tensor) else self.written == mask._version


def _keep(mask: Tensor, bands: Bands, made_for: tuple[int, int, int], is_all: bool = False) -> None:
    written = mask.clone() if mask.is_inference() else mask._version
    mask._fovea_bands = _Kept(bands, made_for, is_all, written)  # type: ignore[attr-defined]
