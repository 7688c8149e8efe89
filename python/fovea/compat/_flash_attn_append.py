# SPDX-License-Identifier: Apache-2.0
"""New keys and values that flash-attn's functions append to their cache, and rotary embeddings."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fovea._dispatch import refuse_tangents
from fovea._explain import explain
from fovea._library import wants_gradients
from fovea._paged import paged_cache_append
from fovea.compat._arguments import check, readable, rows
from fovea.compat._flash_attn import UNSCALED
from fovea.compat._flash_attn_cache import E4M3, Cache, Queries, in_16_bits
from fovea.compat._flash_attn_ranges import Range

_planned: set[Any] = set()
"""Calls whose attention has a plan, by all that decides about it."""
_MOST_PLANNED = 4096


class Rotary(NamedTuple):
    """A rotary embedding of new keys and of queries: cos and sin are ``[positions, rotary_dim / 2]``."""

    cos: Tensor
    sin: Tensor
    interleaved: bool
    seqlens: Tensor | None
    """Where the positions of each sequence begin, if not where its new keys do."""

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of positions ``[batch, seq]``: float32 ``[batch, seq, 1, rotary_dim / 2]``, NaN past the table's ends."""
        room = self.cos.shape[0]
        if readable(positions):
            first, last = map(int, positions.aminmax()) if positions.numel() else (0, -1)
            if first < 0 or last >= room:
                check(False, "rotary_cos.shape[0] (positions)", room, f"positions {first} to {last} in it")
            cos, sin = (table[positions].float() for table in (self.cos, self.sin))
        else:
            check(room > 0, "rotary_cos.shape[0] (positions)", room, "1 or more")
            inside = positions.clamp(0, room - 1)
            known = (positions == inside)[..., None]
            cos, sin = (torch.where(known, table[inside].float(), torch.nan) for table in (self.cos, self.sin))
        return cos[:, :, None], sin[:, :, None]

    def turn(self, x: Tensor, at: tuple[Tensor, Tensor]) -> Tensor:
        """x ``[batch, seq, head, dim]`` turned to its positions; in float32, as flash-attn does."""
        (cos, sin), half = at, self.cos.shape[-1]
        turned, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
        one, other = turned.unflatten(-1, (half, 2)).unbind(-1) if self.interleaved else turned.chunk(2, dim=-1)
        pair = one * cos - other * sin, one * sin + other * cos
        turned = torch.stack(pair, dim=-1).flatten(-2) if self.interleaved else torch.cat(pair, dim=-1)
        return torch.cat([turned.to(x.dtype), rest], dim=-1)


class New(NamedTuple):
    """The keys and values that a call appends to a cache before it attends: ``[batch, seq_new, kv_head, dim]``."""

    k: Tensor
    v: Tensor
    rotary: Rotary | None

    def rows(self, at: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        """New rows ``[tokens, kv_head, dim]``, turned. float8_e4m3fn is exact in bfloat16, and becomes the same again."""
        k, v = (in_16_bits(tensor) for tensor in (self.k, self.v))
        k = k if self.rotary is None or at is None else self.rotary.turn(k, at)
        return rows(k).flatten(0, 1), rows(v).flatten(0, 1)


def appended(
    k: Tensor | None, v: Tensor | None, cos: Tensor | None, sin: Tensor | None, interleaved: bool, seqlens: Tensor | None = None
) -> New | None:
    """The checked keys and values that a call appends; None without any."""
    check((k is None) == (v is None), "k and v", "one of them", "both or none")
    check((cos is None) == (sin is None), "rotary_cos and rotary_sin", "one of them", "both or none")
    if k is None or v is None:
        check(cos is None, "rotary_cos", "a tensor", "None (without k and v)")
        return None
    check(k.dim() == 4, "k.rank", k.dim(), "4 ([batch, seq_new, kv_head, head_dim])")
    if v.shape[:3] != k.shape[:3]:
        check(False, "v.shape", list(v.shape), f"{list(k.shape[:3])} and its head_dim, as k")
    if cos is None or sin is None:
        return New(k, v, None)
    check(cos.dim() == 2, "rotary_cos.rank", cos.dim(), "2 ([positions, rotary_dim / 2])")
    check(sin.shape == cos.shape, "rotary_sin.shape", list(sin.shape), f"{list(cos.shape)}, as rotary_cos")
    check(2 * cos.shape[1] <= k.shape[-1], "rotary_cos.shape[1] (rotary_dim / 2)", cos.shape[1], f"at most {k.shape[-1] // 2}")
    for name, table in (("rotary_cos", cos), ("rotary_sin", sin)):
        check(table.device == k.device, f"{name}.device", table.device, f"{k.device}, as k")
    if seqlens is not None:
        check(seqlens.shape == k.shape[:1], "rotary_seqlens.shape", list(seqlens.shape), f"{[k.shape[0]]} (batch)")
        check(not seqlens.is_floating_point(), "rotary_seqlens.dtype", seqlens.dtype, torch.int32)
    return New(k, v, Rotary(cos, sin, interleaved, seqlens))


class Append(NamedTuple):
    """New keys and values of a call, and where they go."""

    cache: Cache
    table: Tensor
    lengths: Tensor
    new: New
    options: dict[str, Any]
    """Options of the attention that follows the append."""

    def check(self, queries: Queries, attend: Any) -> None:
        """Refuses what attention would refuse once the new keys are in the cache."""
        batch, k, q = queries.batch, self.new.k, queries.q
        if k.shape[0] != batch:
            check(False, "k.shape[0]", k.shape[0], f"{batch} (batch of q)")
        if attend.scales != UNSCALED and k.dtype != E4M3:
            check(False, "k.dtype", k.dtype, f"{E4M3}, as k_descale is its factor")
        refuse_tangents(("q",), (q,))
        if not torch.compiler.is_compiling():
            for tensor, name in ((self.table, "block_table"), (self.lengths, "cache_seqlens"), (q, "q")):
                if tensor.data_ptr() % tensor.element_size():
                    check(False, f"{name} (address)", hex(tensor.data_ptr()), f"a multiple of {tensor.element_size()}")
            plan = self._said(queries, attend.return_lse)
            if plan not in _planned or not attend.is_plain or wants_gradients(q):
                explain(attend, queries, self.lengths + (0 if attend.range.is_whole else k.shape[1]))
                if attend.is_plain and len(_planned) < _MOST_PLANNED:
                    _planned.add(plan)
        count, room = k.shape[1], self.cache.room
        if count > room:
            check(False, "k.shape[1] (new tokens)", count, f"at most {room} (those of the cache)")
        if self._is_readable():
            self._check_values(queries.each or 0, attend.range)

    def _said(self, queries: Queries, return_lse: bool) -> tuple[Any, ...]:
        """All that decides about a plan."""
        q, k, v, table, lengths = queries.q, self.cache.k, self.cache.v, self.table, self.lengths
        shapes = q.shape, k.shape, v.shape, table.shape, q.stride(), k.stride(), v.stride(), table.stride(), lengths.stride()
        dtypes = q.dtype, k.dtype, v.dtype, table.dtype, lengths.dtype
        devices = q.device, k.device, v.device, table.device, lengths.device
        return *shapes, *dtypes, *devices, queries.each, return_lse, *self.options.values()

    def _is_readable(self) -> bool:
        return readable(self.table) and readable(self.lengths)

    def _check_values(self, seq_q: int, seen: Range) -> None:
        count, cache, table = self.new.k.shape[1], self.cache, self.table
        ends = [length + count for length in self.lengths.tolist()]
        for index, end in enumerate(ends):
            cache.check_length(f"cache_seqlens[{index}]", end - count, count)
        seen.check_blocks(cache, table, ends, [seq_q] * len(ends), self.options["window"][0], count)

    def __call__(self, q: Tensor) -> Tensor:
        """Writes the new keys and values. Returns q, turned to its positions: all to the first one where no mask counts them."""
        lengths, rotary = self.lengths, self.new.rotary
        count, seq_q = self.new.k.shape[1], q.shape[1]
        steps = torch.arange(max(count, seq_q), device=lengths.device)
        positions, at = lengths[:, None] + steps[:count], None
        if rotary is not None:
            begin = (lengths if rotary.seqlens is None else rotary.seqlens)[:, None]
            at = rotary.at(begin + steps[:count])
            local = self.options["causal"] or self.options["window"] != (None, None)
            at_q = at if local and seq_q == count else rotary.at(begin + (steps[:seq_q] if local else steps[:1]))
            q = rotary.turn(in_16_bits(q), at_q)
        paged_cache_append(*self.new.rows(at), self.cache.k, self.cache.v, self.slots(positions).flatten())
        return q

    def slots(self, positions: Tensor) -> Tensor:
        """Where the tokens at these positions, ``[batch, seq]``, lie in the cache; -1, which is skipped, where it has no place."""
        page, is_checked = self.cache.k.shape[1], self._is_readable()
        inside = positions if is_checked else positions.clamp(0, self.cache.room - 1)
        if self.cache.block_table is None:
            slots = torch.add(inside, self.table, alpha=page)
        else:
            slots = torch.add(inside % page, self.table.gather(1, inside // page), alpha=page)
        return slots if is_checked else torch.where(positions == inside, slots, -1)
