# SPDX-License-Identifier: Apache-2.0
"""The cache of flash-attn's two interfaces, and attention over its pages."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fovea._library import rows_each
from fovea._paged import paged_attention
from fovea.compat._arguments import check, readable, rows, whole_eights
from fovea.compat._flash_attn import UNSCALED, Scales

E4M3 = torch.float8_e4m3fn


class Cache(NamedTuple):
    """A cache of keys and values, and how many tokens of it each sequence has.

    k and v are ``[blocks, page, kv_head, dim]`` with a block table, ``[batch_cache, seq, kv_head, dim]`` without.
    """

    k: Tensor
    v: Tensor
    seqlens: Tensor | int | None
    batch_idx: Tensor | None
    block_table: Tensor | None

    def whole(self, q: Tensor) -> bool:
        """Whether all sequences are of one known length, and dense attention serves. It takes 8 bits on few devices."""
        one_length = self.block_table is None and self.batch_idx is None and not isinstance(self.seqlens, Tensor)
        return one_length and q.dtype != E4M3 and q.dtype == self.k.dtype

    @property
    def room(self) -> int:
        """How many tokens a sequence can have."""
        return self.k.shape[1] if self.block_table is None else self.k.shape[1] * self.block_table.shape[1]

    def table(self, batch: int) -> Tensor:
        """The block table; a dense cache has one block a sequence."""
        if self.batch_idx is not None:
            return self._chosen(self.batch_idx, batch)
        if self.block_table is not None:
            if self.block_table.shape[0] != batch:
                check(False, "block_table.shape[0]", self.block_table.shape[0], f"{batch} (batch of q)")
            return rows(self.block_table)
        if self.k.shape[0] < batch:
            check(False, "k_cache.shape[0]", self.k.shape[0], f"{batch} or more (batch of q)")
        return rows_each(self.k, batch - 1, 1)[:, None]

    def _chosen(self, batch_idx: Tensor, batch: int) -> Tensor:
        """The rows of the cache, or of the block table, that sequences have. One outside has no blocks on a GPU."""
        check(batch_idx.shape == (batch,), "cache_batch_idx.shape", list(batch_idx.shape), f"{[batch]} (batch of q)")
        check(batch_idx.dtype in (torch.int32, torch.int64), "cache_batch_idx.dtype", batch_idx.dtype, torch.int32)
        count = self.k.shape[0] if self.block_table is None else self.block_table.shape[0]
        if readable(batch_idx):
            wrong = next((at for at, index in enumerate(batch_idx.tolist()) if not 0 <= index < count), None)
            if wrong is not None:
                check(False, f"cache_batch_idx[{wrong}]", int(batch_idx[wrong]), f"0 to {count - 1}")
        if self.block_table is None:
            return batch_idx.clamp(-1, count).to(torch.int32)[:, None]
        check(count > 0, "block_table.shape[0]", count, "1 or more")
        inside = batch_idx.clamp(0, count - 1)
        return torch.where((batch_idx == inside)[:, None], self.block_table.index_select(0, inside), -1)

    def lengths(self, batch: int, new: int) -> Tensor:
        """``[batch]``, before so many are appended. Without seqlens the cache is full, or to be filled from its start."""
        if isinstance(self.seqlens, Tensor):
            if self.seqlens.shape != (batch,):
                check(False, "cache_seqlens.shape", list(self.seqlens.shape), f"{[batch]} (batch of q)")
            if self.seqlens.dtype != torch.int32:
                check(False, "cache_seqlens.dtype", self.seqlens.dtype, torch.int32)
            if self.seqlens.device != self.k.device:
                check(False, "cache_seqlens.device", self.seqlens.device, f"{self.k.device}, as k_cache")
            return self.seqlens
        length = self.seqlens if self.seqlens is not None else 0 if new else self.room
        self.check_length("cache_seqlens", length, new)
        return torch.full((batch,), length, dtype=torch.int32, device=self.k.device)

    def check_length(self, name: str, length: int, new: int) -> None:
        """Whether a sequence of this length has room for so many more."""
        if not 0 <= length <= self.room - new:
            tokens = f"the {self.room} tokens of {'k_cache' if self.block_table is None else 'block_table'}"
            check(False, name, length, f"0 to {self.room - new} ({tokens}{f' less {new} new ones' if new else ''})")


class Queries(NamedTuple):
    """Query rows one after another, ``[total_q, head, dim]``, and how they are shared out."""

    q: Tensor
    batch: int
    each: int | None
    """Rows of each sequence; None where cu_seqlens says it."""
    cu_seqlens: Tensor | None
    longest: int

    def of_each(self, factors: Tensor) -> Tensor:
        """Factors ``[batch, head]`` for each row."""
        if self.each is not None or self.cu_seqlens is None:
            return factors.repeat_interleave(self.each or 1, dim=0)
        numbers = torch.arange(self.q.shape[0], dtype=torch.int32, device=self.q.device)
        return factors[torch.searchsorted(self.cu_seqlens[1:].contiguous(), numbers, right=True).clamp(max=max(self.batch - 1, 0))]


def over_pages(
    queries: Queries,
    cache: Cache,
    table: Tensor,
    lengths: Tensor,
    options: dict[str, Any],
    *,
    return_lse: bool,
    scales: Scales = UNSCALED,
) -> tuple[Tensor, Tensor | None]:
    """out ``[total_q, head, dim]`` and lse ``[total_q, head]``."""
    (q, factor), k, v = (queries.q, None), cache.k, cache.v
    if k.dtype == E4M3:
        q, factor, of_cache = _scaled(queries, cache, scales)
        options = options | of_cache
    elif scales != UNSCALED:
        name = next(name for name, scale in scales._asdict().items() if scale is not None)
        check(False, name, "a tensor", f"None (k_cache.dtype is {k.dtype})")
    dim = v.shape[-1]
    if (k.shape[-1] | dim) % 8:
        if k.shape[-1] != q.shape[-1]:
            check(False, "k_cache.shape[3] (head_dim_qk)", k.shape[-1], f"{q.shape[-1]} (head_dim_qk of q)")
        q, k, v = whole_eights(q, k, v)
    given = q, k, v, table, lengths, queries.cu_seqlens
    result = paged_attention(*given, max_seqlen_q=queries.longest, return_lse=return_lse, **options)
    out, lse = result if return_lse else (result, None)
    if out.shape[-1] != dim:
        out = out[..., :dim].contiguous()
    return (out if factor is None else (out.float() * factor[..., None]).to(out.dtype)), lse


def _scaled(queries: Queries, cache: Cache, scales: Scales) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
    """q in 16 bits, what multiplies out, and scales of the cache.

    Scales that all sequences share are the cache's own. Others multiply q, which rounds it, and out.
    """
    q, heads = in_16_bits(queries.q), cache.k.shape[2]
    if scales == UNSCALED:
        return q, None, {}
    for name, scale in scales._asdict().items():
        if scale is not None:
            check(scale.dtype == torch.float32, f"{name}.dtype", scale.dtype, torch.float32)
            want = [queries.batch, heads]
            check(list(scale.shape) == want, f"{name}.shape", list(scale.shape), f"{want} (batch, kv_head)")
    of_q, of_k, of_v = scales
    check(of_q is None or queries.q.dtype == E4M3, "q_descale", "a tensor", f"None (q.dtype is {queries.q.dtype})")
    of_scores = of_k if of_q is None else of_q if of_k is None else of_q * of_k
    if all(scale is None or queries.batch == 1 or scale.stride(0) == 0 for scale in scales):
        shared = {"k_scale": of_scores, "v_scale": of_v}
        return q, None, {name: scale[0].contiguous() for name, scale in shared.items() if scale is not None}
    group = q.shape[1] // heads if heads else 1
    factors = (None if scale is None else queries.of_each(scale.repeat_interleave(group, dim=1)) for scale in (of_scores, of_v))
    scores, out = factors
    return (q if scores is None else (q.float() * scores[..., None]).to(q.dtype)), out, {}


def in_16_bits(tensor: Tensor) -> Tensor:
    """float8_e4m3fn in bfloat16, where each number is exact; another tensor as it is."""
    return tensor.to(torch.bfloat16) if tensor.dtype == E4M3 else tensor
