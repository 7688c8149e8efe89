# SPDX-License-Identifier: Apache-2.0
"""What flash-attn's two interfaces share: attention on tensors of their layouts, and their cache."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fovea._attention import attention
from fovea._library import rows_each
from fovea._paged import paged_attention, paged_cache_append
from fovea.compat._arguments import bound, check, check_axes, checked_scale, rows, run, whole_eights, window


class Scores(NamedTuple):
    """What happens between q @ k^T and the softmax, in flash-attn's words."""

    softmax_scale: float | None
    causal: bool
    window_size: tuple[int, int]
    softcap: float

    def options(self, head_dim: int) -> dict[str, Any]:
        scale = checked_scale("softmax_scale", self.softmax_scale)
        return {
            "scale": head_dim**-0.5 if scale is None else scale,
            "causal": self.causal,
            "window": window(self.window_size),
            "softcap": self.softcap,
        }


class Ragged(NamedTuple):
    """The lengths of a ragged batch, in flash-attn's words and order."""

    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: Tensor | int | None
    max_seqlen_k: Tensor | int | None

    def options(self) -> dict[str, Any]:
        bounds = bound(self.max_seqlen_q), bound(self.max_seqlen_k)
        return dict(zip(self._fields, (*self[:2], *bounds), strict=True))


class Rotary(NamedTuple):
    """A rotary embedding of new keys and of queries: cos and sin are ``[positions, rotary_dim / 2]``."""

    cos: Tensor
    sin: Tensor
    interleaved: bool

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """x ``[batch, seq, head, dim]`` turned to its positions, ``[batch, seq]``; in float32, as flash-attn does."""
        half = self.cos.shape[-1]
        cos, sin = (table[positions.long()].float()[:, :, None] for table in (self.cos, self.sin))
        turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
        one, other = turned.unflatten(-1, (half, 2)).unbind(-1) if self.interleaved else turned.chunk(2, dim=-1)
        pair = one * cos - other * sin, one * sin + other * cos
        turned = torch.stack(pair, dim=-1).flatten(-2) if self.interleaved else torch.cat(pair, dim=-1)
        return torch.cat([turned.to(x.dtype), rest], dim=-1)


class New(NamedTuple):
    """What a call appends to a cache before it attends: ``[batch, seq_new, kv_head, dim]``."""

    k: Tensor
    v: Tensor
    rotary: Rotary | None


def dense(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scores: Scores,
    *,
    lengths: Ragged | None = None,
    return_lse: bool,
    scales: dict[str, Any] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """out and, with return_lse, lse: of a fixed batch ``[batch, seq, head, dim]`` and ``[batch, head, seq]``, of a ragged one
    ``[total, head, dim]`` and ``[head, total]``."""
    options = scores.options(q.shape[-1]) | (scales or {}) | ({} if lengths is None else lengths.options())
    padded = whole_eights(*map(rows, (q, k, v)))
    result = run(attention, *padded, return_lse=return_lse, **options)
    out, lse = result if return_lse else (result, None)
    if lse is not None and lengths is not None:
        lse = lse.transpose(0, 1).contiguous()
    return out[..., : v.shape[-1]] if out.shape[-1] != v.shape[-1] else out, lse


def paged_varlen(q: Tensor, k: Tensor, v: Tensor, scores: Scores, lengths: Ragged, block_table: Tensor) -> tuple[Tensor, Tensor]:
    """out and lse as of dense, of a ragged batch whose keys lie in pages: k and v are ``[blocks, page, kv_head, dim]``."""
    bounds = {"max_seqlen_q": bound(lengths.max_seqlen_q) or 0, "max_kv_len": bound(lengths.max_seqlen_k) or 0}
    cache = (rows(k), rows(v), rows(block_table), lengths.cu_seqlens_k.diff())
    out, lse = run(paged_attention, rows(q), *cache, lengths.cu_seqlens_q, return_lse=True, **bounds, **scores.options(q.shape[-1]))
    return out, lse.transpose(0, 1).contiguous()


def appended(k: Tensor | None, v: Tensor | None, cos: Tensor | None, sin: Tensor | None, interleaved: bool) -> New | None:
    """What a call appends, checked."""
    check((k is None) == (v is None), "k and v", "one of them", "both or none")
    check((cos is None) == (sin is None), "rotary_cos and rotary_sin", "one of them", "both or none")
    if k is None or v is None:
        check(cos is None, "rotary_cos", "a tensor", "None (without k and v)")
        return None
    if cos is None or sin is None:
        return New(k, v, None)
    check(cos.dim() == 2, "rotary_cos.rank", cos.dim(), "2 ([positions, rotary_dim / 2])")
    check(sin.shape == cos.shape, "rotary_sin.shape", list(sin.shape), f"{list(cos.shape)}, as rotary_cos")
    check(2 * cos.shape[1] <= k.shape[-1], "rotary_cos.shape[1] (rotary_dim / 2)", cos.shape[1], f"at most {k.shape[-1] // 2}")
    return New(k, v, Rotary(cos, sin, interleaved))


class Cache(NamedTuple):
    """A cache of keys and values, and how many tokens of it each sequence has.

    k and v are ``[blocks, page, kv_head, dim]`` with a block table, ``[batch_cache, seq, kv_head, dim]`` without.
    """

    k: Tensor
    v: Tensor
    seqlens: Tensor | int | None
    batch_idx: Tensor | None
    block_table: Tensor | None

    def whole(self) -> bool:
        """Whether all sequences are of one known length, and dense attention serves."""
        return self.block_table is None and self.batch_idx is None and not isinstance(self.seqlens, Tensor)

    def table(self, batch: int) -> Tensor:
        """The block table; a dense cache has one block a sequence."""
        if self.block_table is not None:
            check(self.batch_idx is None, "cache_batch_idx", "a tensor", "None (with a block table)")
            return rows(self.block_table)
        if self.batch_idx is not None:
            return self.batch_idx.to(torch.int32)[:, None]
        return torch.arange(batch, dtype=torch.int32, device=self.k.device)[:, None]

    def lengths(self, batch: int, new: bool) -> Tensor:
        """``[batch]``, before anything is appended. Without seqlens the cache is full, or to be filled from its start."""
        if isinstance(self.seqlens, Tensor):
            return self.seqlens
        full = self.k.shape[1] if self.block_table is None else self.k.shape[1] * self.block_table.shape[1]
        length = self.seqlens if self.seqlens is not None else 0 if new else full
        return torch.full((batch,), length, dtype=torch.int32, device=self.k.device)


def cached(q: Tensor, cache: Cache, scores: Scores, new: New | None, return_lse: bool) -> tuple[Tensor, Tensor | None]:
    """Attention of q ``[batch, seq, head, dim]`` over a cache, to which new keys and values are appended first: as dense."""
    for name, tensor in (("q", q), ("k_cache", cache.k), ("v_cache", cache.v)):
        check_axes(name, tensor, "batch or blocks, seq or page, head, head_dim")
    if new is None and cache.whole():
        end = int(cache.k.shape[1] if cache.seqlens is None else cache.seqlens)
        check(0 <= end <= cache.k.shape[1], "cache_seqlens", end, f"0 to {cache.k.shape[1]} (the cache's)")
        return dense(q, cache.k[:, :end], cache.v[:, :end], scores, return_lse=return_lse)
    batch, seq_q = q.shape[:2]
    table, lengths = cache.table(batch), cache.lengths(batch, new is not None)
    if new is not None:
        if new.rotary is not None:
            local = scores.causal or window(scores.window_size) != (None, None)
            step = torch.arange(seq_q, device=q.device) if local else torch.zeros(seq_q, dtype=torch.long, device=q.device)
            q = new.rotary(q, lengths[:, None] + step)
        _append(cache, table, lengths, new)
        lengths = lengths + new.k.shape[1]
    cu_seqlens_q = None if seq_q == 1 else rows_each(q, batch, seq_q)
    given = rows(q).flatten(0, 1), cache.k, cache.v, table, lengths, cu_seqlens_q
    result = run(paged_attention, *given, max_seqlen_q=seq_q, return_lse=return_lse, **scores.options(q.shape[-1]))
    out, lse = result if return_lse else (result, None)
    out = out.view(batch, seq_q, *out.shape[1:])
    return out, None if lse is None else lse.view(batch, seq_q, lse.shape[-1]).transpose(1, 2).contiguous()


def ragged_over_cache(
    q: Tensor, cache: Cache, scores: Scores, cu_seqlens_q: Tensor, max_seqlen_q: Tensor | int | None, return_lse: bool
) -> tuple[Tensor, Tensor | None]:
    """Attention of a ragged batch q ``[total_q, head, dim]`` over a cache: as dense."""
    for name, tensor, axes in (
        ("q", q, "total_q, head, head_dim"),
        ("k_cache", cache.k, "batch or blocks, seq or page, head, head_dim"),
        ("v_cache", cache.v, "batch or blocks, seq or page, head, head_dim"),
    ):
        check_axes(name, tensor, axes)
    batch = len(cu_seqlens_q) - 1
    given = rows(q), cache.k, cache.v, cache.table(batch), cache.lengths(batch, False), cu_seqlens_q
    bounds = {"max_seqlen_q": bound(max_seqlen_q) or 0}
    result = run(paged_attention, *given, return_lse=return_lse, **bounds, **scores.options(q.shape[-1]))
    out, lse = result if return_lse else (result, None)
    return out, None if lse is None else lse.transpose(0, 1).contiguous()


def _append(cache: Cache, table: Tensor, lengths: Tensor, new: New) -> None:
    check_axes("k", new.k, "batch, seq_new, kv_head, head_dim")
    check_axes("v", new.v, "batch, seq_new, kv_head, head_dim")
    positions = lengths[:, None] + torch.arange(new.k.shape[1], device=lengths.device)
    page = cache.k.shape[1]
    blocks = positions // page
    if table.device.type == "cpu" and not torch.compiler.is_compiling() and positions.numel():
        room = page * table.shape[1]
        check(bool((positions < room).all()), "cache_seqlens + seq_new", int(positions.max()) + 1, f"at most {room} (the cache's)")
    slots = table.long().gather(1, blocks.long()) * page + positions % page
    k = new.k if new.rotary is None else new.rotary(new.k, positions)
    run(paged_cache_append, rows(k).flatten(0, 1), rows(new.v).flatten(0, 1), cache.k, cache.v, slots.flatten())
