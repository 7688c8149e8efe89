# SPDX-License-Identifier: Apache-2.0
"""Which rows of its cache a sequence sees, beside what masks say: those after padding (``cache_leftpad``), or of its chunk.

Attention gets the same memory in smaller pages, and block tables that begin at the first row of the range.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fovea._library import rows_each
from fovea.compat._arguments import check, readable, traced
from fovea.compat._flash_attn_cache import Cache, Queries
from fovea.compat._flash_attn_chunks import check_ends, chunks_of, cuts


class Pages(NamedTuple):
    """A call over a cache as paged attention takes it."""

    queries: Queries
    cache: Cache
    table: Tensor
    lengths: Tensor


class Range(NamedTuple):
    """The rows that sequences see. ``leftpad``, int32 ``[batch]``: those from here on. ``chunk``: those of a query's chunk."""

    leftpad: Tensor | None = None
    chunk: int = 0

    @property
    def is_whole(self) -> bool:
        return self.leftpad is None and not self.chunk

    def check(self, cache: Cache, batch: int) -> None:
        """Refuses padding that the cache cannot have."""
        if self.leftpad is None:
            return
        check(cache.block_table is None, "cache_leftpad", "a tensor", "None (with block_table)")
        check(self.leftpad.dtype == torch.int32, "cache_leftpad.dtype", self.leftpad.dtype, torch.int32)
        check(self.leftpad.shape == (batch,), "cache_leftpad.shape", list(self.leftpad.shape), f"{[batch]} (batch of q)")
        check(self.leftpad.device == cache.k.device, "cache_leftpad.device", self.leftpad.device, f"{cache.k.device}, as k_cache")

    def check_blocks(self, cache: Cache, table: Tensor, ends: list[int], rows: list[int], left: int | None, new: int = 0) -> None:
        """Refuses numbers of blocks that queries see, or that so many new keys go to; other blocks may be anything.

        ends: the tokens of each sequence, new ones included. rows: its queries. left: how many keys before itself a query sees.
        """
        if cache.block_table is None or not table.numel():
            return
        smallest, largest = table.aminmax()
        if smallest >= 0 and largest < cache.k.shape[0]:
            return
        page = cache.k.shape[1]
        for index, (end, count) in enumerate(zip(ends, rows, strict=True)):
            before = end - count
            first = max(before, 0) // self.chunk * self.chunk if self.chunk else 0
            first = min(first if left is None else max(first, before - left), end - new)
            for at in range(first // page, -(-end // page) if count or new else 0):
                block = int(table[index, at])
                check(0 <= block < cache.k.shape[0], f"block_table[{index}][{at}]", block, f"0 to {cache.k.shape[0] - 1}")

    def of(self, given: Pages) -> Pages:
        """The call whose sequences, or parts of sequences, are these rows alone."""
        if self.is_whole:
            return given
        queries, cache, table, lengths = given
        check(table.dtype == torch.int32, "block_table.dtype", table.dtype, torch.int32)
        begin, lengths = self._without_padding(cache, lengths)
        page, columns = 1 if self.leftpad is not None else _divisor(cache.k.shape[1], self.chunk), cache.room
        keys = lengths[:, None]
        if self.chunk:
            queries, starts, keys = _in_chunks(queries, lengths, self.chunk)
            begin, columns = begin + starts, min(columns, self.chunk)
        smaller, blocks_each = _in_pages(cache, page)
        table = _entries(cache, table, begin // page, -(-columns // page), page, blocks_each)
        return Pages(queries, smaller, table, keys.flatten().int())

    def _without_padding(self, cache: Cache, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """The first row of each sequence, ``[batch, 1]``, and its rows from there on."""
        if self.leftpad is not None and readable(self.leftpad, lengths):
            pairs = list(zip(self.leftpad.tolist(), lengths.tolist(), strict=True))
            wrong = next((at for at, (padding, length) in enumerate(pairs) if not 0 <= padding <= max(length, 0)), None)
            if wrong is not None:
                want = f"0 to {pairs[wrong][1]} (tokens of the sequence)"
                check(False, f"cache_leftpad[{wrong}]", pairs[wrong][0], want)
        lengths = lengths.clamp(0, cache.room)
        if self.leftpad is None:
            return torch.zeros_like(lengths)[:, None], lengths
        begin = self.leftpad.clamp(0, cache.room)
        return begin[:, None], (lengths - begin).clamp(min=0)


WHOLE = Range()


def _in_chunks(queries: Queries, lengths: Tensor, chunk: int) -> tuple[Queries, Tensor, Tensor]:
    """Queries whose parts are sequences, and the first row and the rows of each part, ``[batch, parts]``."""
    each = queries.each
    cu = rows_each(queries.q, queries.batch, 1) if queries.cu_seqlens is None else queries.cu_seqlens
    if each is None:
        check_ends("cu_seqlens_q", cu, queries.longest or None)
    longest = min(queries.longest or queries.q.shape[0], queries.q.shape[0])
    parts = chunks_of(longest, chunk)
    rows, keys = cuts(cu.diff() if each is None else each, lengths, chunk, parts)
    if each != 1:
        ends = torch.cat([(cu[:-1, None] + rows[:, :-1]).flatten(), cu[-1:]]).int()
        queries = Queries(queries.q, queries.batch * parts, None, ends, min(longest, chunk))
    return queries, keys[:, :-1], keys.diff(dim=1)


def _divisor(one: int, other: int) -> int:
    """The greatest that both have, of numbers that a tracer may not know either."""
    while other:
        one, other = other, one % other
    return one


def _in_pages(cache: Cache, page: int) -> tuple[Cache, int]:
    """The same memory in smaller pages, and how many of them there are from one block to the next. Odd strides need a copy."""
    k, v, whole = cache.k, cache.v, cache.k.shape[1]
    if page == whole or not whole:
        return cache, 1
    check(v.shape[:2] == k.shape[:2], "v_cache.shape[:2] (blocks, page)", list(v.shape[:2]), f"{list(k.shape[:2])}, as k_cache")
    each, others = _pages_between(k, page), _pages_between(v, page)
    if each is None or each != others or (each != whole // page and traced(k, v)):  # a compiler misreads some gaps
        k, v, each = k.contiguous(), v.contiguous(), whole // page
    count = (k.shape[0] - 1) * each + whole // page if k.shape[0] else 0
    check(count < 1 << 31, "k_cache.shape (blocks * page)", count, "below 2^31")
    return cache._replace(k=_paged(k, count, page), v=_paged(v, count, page)), each


def _paged(cache: Tensor, count: int, page: int) -> Tensor:
    """So many pages of memory that a cache has."""
    shape = count, page, *cache.shape[2:]
    if count * page == cache.shape[0] * cache.shape[1]:
        return cache.view(shape)
    return cache.as_strided(shape, (page * cache.stride(1), *cache.stride()[1:]))


def _pages_between(cache: Tensor, page: int) -> int | None:
    """How many smaller pages lie from one block to the next, where that is a whole number."""
    if cache.shape[0] < 2:
        return cache.shape[1] // page
    step, each = cache.stride(0), page * cache.stride(1)
    return step // each if each > 0 and step >= 0 and step % each == 0 else None


def _entries(cache: Cache, table: Tensor, begin: Tensor, columns: int, page: int, blocks_each: int) -> Tensor:
    """The smaller pages of each part, int32 ``[batch * parts, columns]``, from page ``begin`` on. -1 where there is none."""
    batch, parts = begin.shape
    in_block = max(cache.k.shape[1] // page, 1)
    at = (begin.long()[..., None] + torch.arange(columns, device=table.device)).flatten(1)
    column = at // in_block
    inside = column.clamp(max=max(table.shape[1] - 1, 0))
    if not table.shape[1]:
        return table.new_zeros(batch * parts, 0)
    block = table.gather(1, inside)
    is_there = (column == inside) & (block >= 0) & (block < cache.k.shape[0])
    return torch.where(is_there, block * blocks_each + at % in_block, -1).int().view(batch * parts, columns)
