# SPDX-License-Identifier: Apache-2.0
"""One rank's queries against another rank's keys, as calls of dense attention: pairs of chunks, each with a band of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, product
from typing import NamedTuple

import torch
from torch import Tensor

from fovea.distributed._layout import Layout


class Mask(NamedTuple):
    """The band over positions of the whole sequence: query i sees key j iff ``-left <= j - (i + offset) <= right``, where offset is
    ``seq_k - seq_q``, or 0 from the top left. None is no bound."""

    left: int | None
    right: int | None
    top_left: bool


class Band(NamedTuple):
    """The same in the rows of a block, from the top left."""

    left: int | None
    right: int | None


class Block(NamedTuple):
    """A call: rows of the query shard, rows of the key shard, and the mask between them."""

    q: tuple[int, int]
    k: tuple[int, int]
    band: Band
    cu_q: tuple[int, ...] = ()
    """Prefix sums of lengths from q[0] on, of a ragged batch."""
    cu_k: tuple[int, ...] = ()


_FULL = Band(None, None)


@dataclass(frozen=True)
class Sides:
    """Whose queries meet whose keys."""

    q: Layout
    q_rank: int
    k: Layout
    k_rank: int


@lru_cache(maxsize=4096)
def blocks(sides: Sides, mask: Mask) -> tuple[Block, ...]:
    """The calls that cover every visible pair once, in a fixed order; none where no query sees a key."""
    if sides.q.ragged:
        pairs = [(a, b) for a in range(sides.q.parts) for b in range(sides.k.parts)]
        return tuple(block for a, b in pairs for block in _ragged_blocks(sides, mask, a, b))
    cells = {}
    for a in range(sides.q.parts):
        for b in range(sides.k.parts):
            (band,) = _bands(sides, mask, a, b)
            if band is not None:
                cells[a, b] = band
    return tuple(_joined(sides, cells))


def _bands(sides: Sides, mask: Mask, a: int, b: int) -> list[Band | None]:
    """The band of each sequence between two parts; None where no query sees a key."""
    found: list[Band | None] = []
    lengths = zip(sides.q.sequences, sides.k.sequences, strict=True)
    for length_q, length_k in lengths:
        q_begin, q_end = sides.q.chunk(sides.q_rank, a, length_q)
        k_begin, k_end = sides.k.chunk(sides.k_rank, b, length_k)
        offset = q_begin - k_begin + (0 if mask.top_left else length_k - length_q)
        left = None if mask.left is None else mask.left - offset
        right = None if mask.right is None else mask.right + offset
        found.append(_needed(Band(left, right), q_end - q_begin, k_end - k_begin))
    return found


def _needed(band: Band, rows: int, keys: int) -> Band | None:
    """The band without bounds that hide nothing between so many rows and keys; None where it hides everything."""
    left = rows if band.left is None else band.left
    right = keys if band.right is None else band.right
    if rows == 0 or keys == 0 or -left > keys - 1 or right < 1 - rows or -left > right:
        return None
    return Band(None if left >= rows - 1 else left, None if right >= keys - 1 else right)


def _joined(sides: Sides, cells: dict[tuple[int, int], Band]) -> Iterator[Block]:
    """The calls of a fixed batch. Parts are neighbours in a shard, so pairs without a mask join, and so does a causal triangle."""
    rows = [sides.q.part_slice(sides.q_rank, a) for a in range(sides.q.parts)]
    keys = [sides.k.part_slice(sides.k_rank, b) for b in range(sides.k.parts)]
    whole = (rows[0][0], rows[-1][1]), (keys[0][0], keys[-1][1])
    triangle = {(0, 0): Band(None, 0), (1, 0): _FULL, (1, 1): Band(None, 0)}
    same = all(one == other for one, other in zip(rows, keys, strict=False))
    if len(cells) == len(rows) * len(keys) and all(band == _FULL for band in cells.values()):
        yield Block(*whole, _FULL)
    elif cells == triangle and same:
        yield Block(*whole, Band(None, 0))
    elif len(rows) == 2 and {a for a, _ in cells} == {0, 1} and _is_column(cells):
        yield Block(whole[0], keys[next(iter(cells))[1]], _FULL)
    elif len(keys) == 2 and {b for _, b in cells} == {0, 1} and _is_row(cells):
        yield Block(rows[next(iter(cells))[0]], whole[1], _FULL)
    else:
        yield from (Block(rows[a], keys[b], band) for (a, b), band in cells.items())


def _is_column(cells: dict[tuple[int, int], Band]) -> bool:
    """Whether the pairs share their keys and have no mask."""
    return len({b for _, b in cells}) == 1 and all(band == _FULL for band in cells.values())


def _is_row(cells: dict[tuple[int, int], Band]) -> bool:
    """Whether the pairs share their queries and have no mask."""
    return len({a for a, _ in cells}) == 1 and all(band == _FULL for band in cells.values())


def _ragged_blocks(sides: Sides, mask: Mask, a: int, b: int) -> Iterator[Block]:
    """One call for all sequences whose bands agree, else one for each sequence that sees anything."""
    q, k = sides.q.chunks(sides.q_rank, a), sides.k.chunks(sides.k_rank, b)
    bands = _bands(sides, mask, a, b)
    sizes = [(q_end - q_begin, k_end - k_begin) for (q_begin, q_end), (k_begin, k_end) in zip(q, k, strict=True)]
    q_at, k_at = sides.q.part_slice(sides.q_rank, a), sides.k.part_slice(sides.k_rank, b)
    cu_q, cu_k = _prefix_sums(q), _prefix_sums(k)
    for one in dict.fromkeys(band for band in bands if band is not None):
        if all(_needed(one, *size) == own for size, own in zip(sizes, bands, strict=True)):
            yield Block(q_at, k_at, one, cu_q, cu_k)
            return
    for n, band in enumerate(bands):
        if band is None:
            continue
        rows, keys = (q_at[0] + cu_q[n], q_at[0] + cu_q[n + 1]), (k_at[0] + cu_k[n], k_at[0] + cu_k[n + 1])
        yield Block(rows, keys, band, (0, cu_q[n + 1] - cu_q[n]), (0, cu_k[n + 1] - cu_k[n]))


Places = dict[int, list[tuple[tuple[int, int], tuple[int, int]]]]
"""For each rank, rows of its key shard and where they lie in a tensor of keys of several ranks."""


@lru_cache(maxsize=4096)
def beside(q: Layout, k: Layout, rank: int, owners: tuple[int, ...], mask: Mask) -> tuple[tuple[Block, ...], Places]:
    """The calls of a rank's queries against the keys of some other ranks that lie side by side, and where these lie.

    Keys that a part of the queries sees in full are neighbours, so they are one call: first those of part 0 alone, then those of
    all parts, then those of part 1 alone.
    """
    cells: dict[tuple[int, int, int], Band] = {}
    if not q.ragged:
        for owner, b, a in product(owners, range(k.parts), range(q.parts)):
            (band,) = _bands(Sides(q, rank, k, owner), mask, a, b)
            if band is not None:
                cells[owner, b, a] = band
    full = {
        (owner, b): {a for a in range(q.parts) if cells.get((owner, b, a)) == _FULL} for owner, b in product(owners, range(k.parts))
    }
    order = sorted(full, key=lambda chunk: (not full[chunk], 1 in full[chunk], 0 not in full[chunk]))
    places: Places = {owner: [] for owner in owners}
    at: dict[tuple[int, int], tuple[int, int]] = {}
    end = 0
    for owner, b in order:
        rows = k.part_slice(owner, b)
        at[owner, b] = end, end + rows[1] - rows[0]
        end = at[owner, b][1]
    for owner, b in product(owners, range(k.parts)):
        places[owner].append((k.part_slice(owner, b), at[owner, b]))
    if q.ragged:
        shifted = ((block, at[owner, 0][0]) for owner in owners for block in blocks(Sides(q, rank, k, owner), mask))
        return tuple(block._replace(k=(block.k[0] + by, block.k[1] + by)) for block, by in shifted), places
    rows_q = [q.part_slice(rank, a) for a in range(q.parts)]
    seen = [[at[chunk] for chunk in order if a in full[chunk]] for a in range(q.parts)]
    found = [Block(rows, (keys[0][0], keys[-1][1]), _FULL) for rows, keys in zip(rows_q, seen, strict=True) if keys]
    if len(found) == 2 and found[0].k == found[1].k:
        found = [Block((rows_q[0][0], rows_q[1][1]), found[0].k, _FULL)]
    found += [Block(rows_q[a], at[owner, b], band) for (owner, b, a), band in cells.items() if band != _FULL]
    return tuple(found), places


@lru_cache(maxsize=4096)
def in_order(q: Layout, k: Layout, rank: int, mask: Mask) -> tuple[tuple[Block, ...], Places]:
    """The calls of a rank's queries against the keys of all ranks in the order of the sequence, and where each rank's go."""
    length = k.sequences[0]
    places = {
        owner: [(k.part_slice(owner, part), k.chunk(owner, part, length)) for part in range(k.parts)] for owner in range(k.ranks)
    }
    return blocks(Sides(q, rank, Layout(k.lengths, 1, "contiguous"), 0), mask), places


def _prefix_sums(chunks: list[tuple[int, int]]) -> tuple[int, ...]:
    return (0, *accumulate(end - begin for begin, end in chunks))


@lru_cache(maxsize=4096)
def on_device(sums: tuple[int, ...], device: torch.device) -> Tensor:
    """Prefix sums as kernels read them."""
    return torch.tensor(sums, dtype=torch.int32, device=device)
