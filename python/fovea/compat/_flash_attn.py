# SPDX-License-Identifier: Apache-2.0
"""Shared by flash-attn's two interfaces: attention on tensors of their layouts. ``_flash_attn_kvcache.py`` has their cache."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fovea._attention import attention
from fovea._library import wants_gradients
from fovea._paged import paged_attention
from fovea.compat._arguments import bound, check, checked_scale, readable, rows, whole_eights, window


class Scores(NamedTuple):
    """The steps between q @ k^T and the softmax, in flash-attn's words: scale, softcap and mask."""

    softmax_scale: Tensor | float | None
    causal: bool
    window_size: tuple[Tensor | int, Tensor | int]
    softcap: float

    def options(self, head_dim: int) -> dict[str, Any]:
        scale = checked_scale("softmax_scale", self.softmax_scale)
        return {
            "scale": head_dim**-0.5 if scale is None and head_dim else scale,
            "causal": self.causal,
            "window": window(self.window_size),
            "softcap": self.softcap,
        }


class Scales(NamedTuple):
    """The factors of float8_e4m3fn values: float32 ``[batch, kv_head]``."""

    q_descale: Tensor | None = None
    k_descale: Tensor | None = None
    v_descale: Tensor | None = None

    def options(self, parts: int = 1) -> dict[str, Any]:
        """The scales of a batch whose sequences are split in so many."""
        return dict(zip(("q_scale", "k_scale", "v_scale"), self.of_parts(parts), strict=True))

    def of_parts(self, parts: int) -> "Scales":
        """The scales of so many parts of each sequence. Those that all sequences share stay shared."""
        return Scales(*(scale if scale is None or parts == 1 else _repeated(scale, parts) for scale in self))


UNSCALED = Scales()


def _repeated(scale: Tensor, parts: int) -> Tensor:
    if scale.dim() == 2 and scale.stride(0) == 0:
        return scale[:1].expand(scale.shape[0] * parts, -1)
    return scale.repeat_interleave(parts, dim=0)


class Ragged(NamedTuple):
    """The lengths of a ragged batch, in flash-attn's words and order."""

    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: Tensor | int | None
    max_seqlen_k: Tensor | int | None

    def options(self) -> dict[str, Any]:
        bounds = bound(self.max_seqlen_q, "max_seqlen_q"), bound(self.max_seqlen_k, "max_seqlen_k")
        return dict(zip(self._fields, (*self[:2], *bounds), strict=True))

    def used(self, seqused_q: Tensor | None, seqused_k: Tensor | None) -> tuple["Ragged", int]:
        """The same rows where each sequence has its first ones alone, and in how many sequences each is split for that.

        Unused queries become sequences without keys, and unused keys sequences without queries: out and gradients are 0 there.
        The caller's bounds do not hold for their lengths.
        """
        (begin_q, used_q, end_q), (begin_k, used_k, _) = (
            _parts(*each) for each in (("q", self.cu_seqlens_q, seqused_q), ("k", self.cu_seqlens_k, seqused_k))
        )
        ends_q, ends_k = [begin_q], [begin_k]
        if seqused_q is not None:  # then come the other rows of q, which see nothing
            ends_q.append(used_q)
            ends_k.append(used_k)
        if seqused_k is not None:  # and then the other keys, which nothing sees
            ends_q.append(end_q)
            ends_k.append(used_k)
        ends = (
            torch.cat([torch.stack(ends, dim=1).flatten(), cu[-1:]])
            for ends, cu in ((ends_q, self.cu_seqlens_q), (ends_k, self.cu_seqlens_k))
        )
        bounds = self.max_seqlen_q if seqused_q is None else None, self.max_seqlen_k if seqused_k is None else None
        return Ragged(*ends, *bounds), len(ends_q)


def _parts(name: str, cu_seqlens: Tensor, seqused: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Where the rows of each sequence begin, where those that are used end, and where all do."""
    begin, end = cu_seqlens[:-1], cu_seqlens[1:]
    if seqused is None:
        return begin, end, end
    check(seqused.dtype == torch.int32, f"seqused_{name}.dtype", seqused.dtype, torch.int32)
    check(
        seqused.shape == end.shape, f"seqused_{name}.shape", list(seqused.shape), f"{list(end.shape)} (one less cu_seqlens_{name})"
    )
    if readable(cu_seqlens) and readable(seqused):
        lengths = list(zip(seqused.tolist(), (end - begin).tolist(), strict=True))
        wrong = next((index for index, (used, length) in enumerate(lengths) if not 0 <= used <= length), None)
        if wrong is not None:
            check(False, f"seqused_{name}[{wrong}]", lengths[wrong][0], f"0 to {lengths[wrong][1]} (cu_seqlens_{name})")
    return begin, torch.minimum(begin + seqused.clamp(min=0), end), end


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scores: Scores,
    *,
    lengths: Ragged | None = None,
    return_lse: bool,
    others: dict[str, Any] | None = None,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """out and, with return_lse, lse: of a fixed batch ``[batch, seq, head, dim]`` and ``[batch, head, seq]``, of a ragged one
    ``[total, head, dim]`` and ``[head, total]``. ``others``: more arguments of :func:`fovea.attention`."""
    options = scores.options(q.shape[-1]) | (others or {}) | ({} if lengths is None else lengths.options())
    padded = whole_eights(*map(rows, (q, k, v)))
    uncomputed = q.dtype == torch.float8_e4m3fn and wants_gradients(q, k, v)
    if uncomputed:
        padded = tuple(tensor.detach() for tensor in padded)
    result = attention(*padded, return_lse=return_lse, deterministic=deterministic, **options)
    out, lse = result if return_lse else (result, None)
    if lse is not None and lengths is not None:
        lse = lse.transpose(0, 1).contiguous()
    if out.shape[-1] != v.shape[-1]:
        out = out[..., : v.shape[-1]]
    return (_Uncomputed.apply(out, q, k, v) if uncomputed else out), lse


class _Uncomputed(torch.autograd.Function):
    """Results of inputs that require gradients which nothing computes: a backward pass is refused, as in flash-attn."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, *inputs: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError("q.dtype: got torch.float8_e4m3fn, want another one (no backward pass)")


def paged_varlen(q: Tensor, k: Tensor, v: Tensor, scores: Scores, lengths: Ragged, block_table: Tensor) -> tuple[Tensor, Tensor]:
    """out and lse as of dense, of a ragged batch whose keys lie in pages: k and v are ``[blocks, page, kv_head, dim]``."""
    max_q, max_k = bound(lengths.max_seqlen_q, "max_seqlen_q"), bound(lengths.max_seqlen_k, "max_seqlen_k")
    _check_lengths(lengths, k.shape[1] * block_table.shape[1], max_k or None)
    padded = whole_eights(rows(q), rows(k), rows(v))
    cache = (*padded[1:], rows(block_table), lengths.cu_seqlens_k.diff(), lengths.cu_seqlens_q)
    bounds = {"max_seqlen_q": max_q or 0, "max_kv_len": max_k or 0}
    out, lse = paged_attention(padded[0], *cache, return_lse=True, **bounds, **scores.options(q.shape[-1]))
    return out[..., : v.shape[-1]] if out.shape[-1] != v.shape[-1] else out, lse.transpose(0, 1).contiguous()


def _check_lengths(lengths: Ragged, room: int, most: int | None) -> None:
    """cu_seqlens_k of keys in pages, whose differences alone are handed on."""
    cu_q, cu_k = lengths.cu_seqlens_q, lengths.cu_seqlens_k
    check(cu_k.dtype == torch.int32, "cu_seqlens_k.dtype", cu_k.dtype, torch.int32)
    check(cu_k.device == cu_q.device, "cu_seqlens_k.device", cu_k.device, f"{cu_q.device}, as cu_seqlens_q")
    check(cu_k.shape == cu_q.shape, "cu_seqlens_k.shape", list(cu_k.shape), f"{list(cu_q.shape)}, as cu_seqlens_q")
    if not readable(cu_k):
        return
    most = room if most is None else min(room, most)
    for index, length in enumerate(cu_k.diff().tolist()):
        if not 0 <= length <= most:
            check(False, f"cu_seqlens_k[{index + 1}] (length of the sequence)", length, f"0 to {most}")
