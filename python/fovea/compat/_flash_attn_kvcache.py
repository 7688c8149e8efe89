# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache of flash-attn's two interfaces: what is appended to the cache, and attention over it."""

from typing import Any

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea._library import rows_each
from fovea.compat._arguments import bound, check, rows
from fovea.compat._flash_attn import UNSCALED, Scales, Scores, dense
from fovea.compat._flash_attn_append import Append, New
from fovea.compat._flash_attn_cache import Cache, Queries, over_pages


def cached(
    q: Tensor, cache: Cache, scores: Scores, new: New | None, return_lse: bool, scales: Scales = UNSCALED
) -> tuple[Tensor, Tensor | None]:
    """Attention of q ``[batch, seq, head, dim]`` over a cache, to which new keys and values are appended first: as dense."""
    if q.dim() != 4:
        check(False, "q.rank", q.dim(), "4 ([batch, seq, head, head_dim])")
    if new is None and cache.whole(q):
        end = cache.room if cache.seqlens is None else cache.seqlens
        cache.check_length("cache_seqlens", end, 0)
        return _over_whole(q, cache.k[:, :end], cache.v[:, :end], scores, return_lse, scales)
    batch, seq_q = q.shape[:2]
    table, lengths = cache.table(batch), cache.lengths(batch, 0 if new is None else new.k.shape[1])
    queries = Queries(rows(q).flatten(0, 1), batch, seq_q, None if seq_q == 1 else rows_each(q, batch, seq_q), seq_q)
    options = scores.options(q.shape[-1])
    if new is not None:
        append = Append(cache, table, lengths, new, options)
        append.check(queries, return_lse, scales)
        queries = queries._replace(q=rows(append(q)).flatten(0, 1))
        lengths = lengths + new.k.shape[1]
    out, lse = over_pages(queries, cache, table, lengths, options, return_lse=return_lse, scales=scales)
    out = out.view(batch, seq_q, *out.shape[1:])
    return out, None if lse is None else lse.view(batch, seq_q, lse.shape[-1]).transpose(1, 2).contiguous()


@adapted({"k": "k_cache", "v": "v_cache"})
def _over_whole(q: Tensor, k_cache: Tensor, v_cache: Tensor, scores: Any, return_lse: bool, scales: Any) -> Any:
    return dense(q, k_cache, v_cache, scores, return_lse=return_lse, others=scales.options())


def ragged_over_cache(
    q: Tensor, cache: Cache, scores: Scores, lengths: tuple[Tensor, Tensor | int | None], return_lse: bool, scales: Scales
) -> tuple[Tensor, Tensor | None]:
    """Attention of a ragged batch q ``[total_q, head, dim]``, of cu_seqlens_q and max_seqlen_q, over a cache: as dense."""
    check(q.dim() == 3, "q.rank", q.dim(), "3 ([total_q, head, head_dim], with cu_seqlens_q)")
    cu_seqlens_q, max_seqlen_q = lengths
    check(len(cu_seqlens_q) > 0, "cu_seqlens_q.shape", list(cu_seqlens_q.shape), "[batch + 1]")
    check(cu_seqlens_q.dtype == torch.int32, "cu_seqlens_q.dtype", cu_seqlens_q.dtype, torch.int32)
    batch = len(cu_seqlens_q) - 1
    queries = Queries(rows(q), batch, None, cu_seqlens_q, bound(max_seqlen_q, "max_seqlen_q") or 0)
    of_cache, options = (cache, cache.table(batch), cache.lengths(batch, 0)), scores.options(q.shape[-1])
    out, lse = over_pages(queries, *of_cache, options, return_lse=return_lse, scales=scales)
    return out, None if lse is None else lse.transpose(0, 1).contiguous()
