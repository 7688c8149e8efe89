# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache of flash-attn's two interfaces: what is appended to the cache, and attention over it."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea._library import rows_each
from fovea.compat._arguments import bound, check, readable, rows
from fovea.compat._flash_attn import UNSCALED, Scales, Scores
from fovea.compat._flash_attn_append import Append, New
from fovea.compat._flash_attn_cache import Cache, Queries, over_pages
from fovea.compat._flash_attn_chunks import chunked
from fovea.compat._flash_attn_latent import check_qv, latent_cache, over_latent_rows
from fovea.compat._flash_attn_ranges import WHOLE, Pages, Range


class Attend(NamedTuple):
    """Attention over a cache, but for its queries and lengths."""

    cache: Cache
    table: Tensor
    options: dict[str, Any]
    return_lse: bool
    scales: Scales
    range: Range
    qv: Tensor | None
    """Rows ``[total_q, head, 512]`` beside q."""

    @property
    def is_plain(self) -> bool:
        return self.scales == UNSCALED and self.range.is_whole and self.qv is None

    def __call__(self, queries: Queries, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """out ``[total_q, head, dim]`` and lse ``[total_q, head]``."""
        cache = self.cache if self.qv is None else latent_cache(self.cache)
        pages = self.range.of(Pages(queries, cache, self.table, lengths))
        if self.qv is None:
            scales = self.scales.of_parts(pages.queries.batch // max(queries.batch, 1))
            return over_pages(*pages, self.options, return_lse=self.return_lse, scales=scales)
        queries, cache, table, lengths = pages
        options = {name: value for name, value in self.options.items() if name != "softcap"}
        options |= {"max_seqlen_q": queries.longest, "return_lse": self.return_lse}
        result = over_latent_rows(queries.q, self.qv, cache.k, table, lengths, queries.cu_seqlens, options)
        return result if self.return_lse else (result, None)


class Call(NamedTuple):
    """The arguments of a call beside its queries, its cache and new keys."""

    scores: Scores
    return_lse: bool
    scales: Scales = UNSCALED
    range: Range = WHOLE
    qv: Tensor | None = None

    def over(self, q: Tensor, cache: Cache, table: Tensor) -> Attend:
        dim, qv = q.shape[-1], self.qv
        if qv is not None:
            check_qv(qv, q, cache, self.scores.softcap, self.scales)
            dim, qv = dim + qv.shape[-1], rows(qv).reshape(-1, *qv.shape[-2:])
        self.range.check(cache, table.shape[0])
        return Attend(cache, table, self.scores.options(dim), self.return_lse, self.scales, self.range, qv)

    def check_values(self, queries: Queries, attend: Attend, lengths: Tensor) -> None:
        """Lengths and blocks of a cache to which nothing is appended. Paged attention looks at those that it gets as they are."""
        if self.range.is_whole or not readable(lengths):
            return
        cache, ends = attend.cache, lengths.tolist()
        for index, length in enumerate(ends):
            cache.check_length(f"cache_seqlens[{index}]", length, 0)
        cu, each = queries.cu_seqlens, queries.each
        if readable(attend.table) and (cu is None or readable(cu)):
            counts = [each or 0] * len(ends) if each is not None or cu is None else cu.diff().tolist()
            self.range.check_blocks(cache, attend.table, ends, counts, attend.options["window"][0])


def cached(q: Tensor, cache: Cache, call: Call, new: New | None) -> tuple[Tensor, Tensor | None]:
    """Attention of q ``[batch, seq, head, dim]`` over a cache, to which new keys and values are appended first: as dense."""
    if q.dim() != 4:
        check(False, "q.rank", q.dim(), "4 ([batch, seq, head, head_dim])")
    if new is None and call.range.leftpad is None and call.qv is None and cache.whole(q):
        end = cache.room if cache.seqlens is None else cache.seqlens
        cache.check_length("cache_seqlens", end, 0)
        return _over_whole(q, cache.k[:, :end], cache.v[:, :end], call)
    batch, seq_q = q.shape[:2]
    table, lengths = cache.table(batch), cache.lengths(batch, 0 if new is None else new.k.shape[1])
    queries = Queries(rows(q).flatten(0, 1), batch, seq_q, None if seq_q == 1 else rows_each(q, batch, seq_q), seq_q)
    attend = call.over(q, cache, table)
    if new is None:
        call.check_values(queries, attend, lengths)
    else:
        append = Append(cache, table, lengths, new, attend.options)
        append.check(queries, attend)
        queries = queries._replace(q=rows(append(q)).flatten(0, 1))
        lengths = lengths + new.k.shape[1]
    out, lse = attend(queries, lengths)
    out = out.view(batch, seq_q, *out.shape[1:])
    return out, None if lse is None else lse.view(batch, seq_q, lse.shape[-1]).transpose(1, 2).contiguous()


@adapted({"k": "k_cache", "v": "v_cache"})
def _over_whole(q: Tensor, k_cache: Tensor, v_cache: Tensor, call: Any) -> Any:
    return chunked(q, k_cache, v_cache, call.scores, call.range.chunk, scales=call.scales, return_lse=call.return_lse)


def ragged_over_cache(
    q: Tensor, cache: Cache, call: Call, cu_seqlens_q: Tensor, max_seqlen_q: Tensor | int | None
) -> tuple[Tensor, Tensor | None]:
    """Attention of a ragged batch q ``[total_q, head, dim]`` over a cache: as dense."""
    check(q.dim() == 3, "q.rank", q.dim(), "3 ([total_q, head, head_dim], with cu_seqlens_q)")
    check(len(cu_seqlens_q) > 0, "cu_seqlens_q.shape", list(cu_seqlens_q.shape), "[batch + 1]")
    check(cu_seqlens_q.dtype == torch.int32, "cu_seqlens_q.dtype", cu_seqlens_q.dtype, torch.int32)
    batch = len(cu_seqlens_q) - 1
    queries = Queries(rows(q), batch, None, cu_seqlens_q, bound(max_seqlen_q, "max_seqlen_q") or 0)
    lengths = cache.lengths(batch, 0)
    attend = call.over(q, cache, cache.table(batch))
    call.check_values(queries, attend, lengths)
    out, lse = attend(queries, lengths)
    return out, None if lse is None else lse.transpose(0, 1).contiguous()
