# SPDX-License-Identifier: Apache-2.0
"""Makers of common block masks, on the device and without loops over blocks.

>>> mask = fovea.block_masks.sliding_window(seq, seq, 4096, sinks=64, device="cuda")
>>> out = fovea.attention(q, k, v, block_mask=mask)

A maker decides about blocks from bounds of their tokens, and computes bits for those that are not wholly seen or hidden. A mask is
worth keeping: layers and steps of one shape share it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fovea._block_mask import BlockMask, Pairs
from fovea._calls import checked

__all__ = ["BlockMask", "dilated", "documents", "grid", "sliding_window", "tile_order", "topk_blocks", "video_window"]

_SIZE = (128, 128)


def _bounds(tokens: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """The least and the largest value of each block of the last dimension."""
    last = tokens[..., -1:].expand(*tokens.shape[:-1], -tokens.shape[-1] % block)
    blocks = torch.cat((tokens, last), -1).unflatten(-1, (-1, block))
    return blocks.amin(-1), blocks.amax(-1)


def _positions(seq_q: int, seq_k: int, size: tuple[int, int], device: torch.device | str) -> tuple[Tensor, ...]:
    """Bounds of the positions of each query block [q_block, 1], and of each key block [k_block]."""
    queries = torch.arange(seq_k - seq_q, seq_k, device=device)
    low_q, high_q = _bounds(queries, size[0])
    low_k, high_k = _bounds(torch.arange(seq_k, device=device), size[1])
    return low_q[:, None], high_q[:, None], low_k, high_k


@checked
def documents(ids: Tensor, *, causal: bool = True, block_size: tuple[int, int] = _SIZE) -> BlockMask:
    """Tokens see those of their own document.

    Args:
        ids: The document of each token, int ``[seq]`` or ``[batch, seq]``; neighbours usually share it.
        causal: Whether a token sees none after itself.
        block_size: Queries and keys of a block.
    """
    ids = ids if ids.dim() == 2 else ids[None]
    seq = ids.shape[1]
    least_q, most_q = (bound[:, None, :, None] for bound in _bounds(ids, block_size[0]))
    least_k, most_k = (bound[:, None, None, :] for bound in _bounds(ids, block_size[1]))
    some = (least_q <= most_k) & (least_k <= most_q)
    every = (least_q == most_q) & (least_k == most_k) & (least_q == least_k)
    if causal:
        low_q, high_q, low_k, high_k = _positions(seq, seq, block_size, ids.device)
        some, every = some & (low_k <= high_q), every & (high_k <= low_q)

    def pairs(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query = query.clamp(max=seq - 1)
        same = ids[batch.clamp(max=ids.shape[0] - 1), query] == ids[batch.clamp(max=ids.shape[0] - 1), key]
        return same & (key <= query) if causal else same

    return BlockMask.from_pairs(some & ~every, every, pairs, seq, block_size)


@checked
def sliding_window(
    seq_q: int,
    seq_k: int,
    window: int,
    *,
    sinks: int = 0,
    block_size: tuple[int, int] = _SIZE,
    device: torch.device | str = "cpu",
) -> BlockMask:
    """A query sees its own key, the ``window - 1`` before it, and the first ``sinks`` keys up to its own.

    The last query and the last key have one position, as with ``anchor="bottom_right"``.
    """
    low_q, high_q, low_k, high_k = _positions(seq_q, seq_k, block_size, device)
    before = low_k <= high_q
    some = before & ((high_k > low_q - window) | (low_k < sinks))
    every = (high_k <= low_q) & ((low_k > high_q - window) | (high_k < sinks))

    def pairs(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        at = query + (seq_k - seq_q)
        return (key <= at) & ((key > at - window) | (key < sinks))

    return BlockMask.from_pairs(some & ~every, some & every, pairs, seq_k, block_size)


@checked
def dilated(
    seq_q: int,
    seq_k: int,
    keys: int,
    dilation: int,
    *,
    block_size: tuple[int, int] = _SIZE,
    device: torch.device | str = "cpu",
) -> BlockMask:
    """A query sees ``keys`` keys up to its own, each ``dilation`` before the next. Blocks within their reach are computed."""
    low_q, high_q, low_k, high_k = _positions(seq_q, seq_k, block_size, device)
    reach = keys * dilation
    some = (low_k <= high_q) & (high_k > low_q - reach)
    every = some & (high_k <= low_q) & (low_k > high_q - reach) if dilation == 1 else some & False

    def pairs(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = query + (seq_k - seq_q) - key
        return (distance >= 0) & (distance < reach) & (distance % dilation == 0)

    return BlockMask.from_pairs(some & ~every, every, pairs, seq_k, block_size)


@checked
def grid(
    seen: Tensor, rows: Tensor, columns: Tensor, *, pairs: Pairs | None = None, block_size: tuple[int, int] = _SIZE
) -> BlockMask:
    """Blocks of any sizes, one beside another, as a mask of blocks of ``block_size``.

    Args:
        seen: Whether queries of a row of the grid see keys of a column: bool ``[batch or 1, head or 1, row, column]``, or without
            the first dimensions.
        rows: The row of each query, int ``[.., seq_q]``, not decreasing; the dimensions before broadcast to those of ``seen``.
        columns: The column of each key, int ``[.., seq_k]``, likewise.
        pairs: Which queries see which keys besides, as for :meth:`fovea.BlockMask.from_pairs`. No block is wholly seen then.
        block_size: Queries and keys of a block.
    """
    seen = seen[(None,) * (4 - seen.dim())]
    rows, columns = (each[(None,) * (3 - each.dim())].long().expand(*seen.shape[:2], -1) for each in (rows, columns))
    (first_row, last_row), (first, last) = _bounds(rows, block_size[0]), _bounds(columns, block_size[1])
    # Sums over the grid from its first corner on: a rectangle's is made of four.
    sums = torch.nn.functional.pad(seen.int().cumsum(2).cumsum(3), (1, 0, 1, 0))

    def at(row: Tensor, column: Tensor) -> Tensor:
        by_row = sums.gather(2, row[..., None].expand(*row.shape, sums.shape[3]))
        return by_row.gather(3, column[:, :, None].expand(*by_row.shape[:3], column.shape[2]))

    count = at(last_row + 1, last + 1) - at(first_row, last + 1) - at(last_row + 1, first) + at(first_row, first)
    area = (last_row + 1 - first_row)[..., None] * (last + 1 - first)[:, :, None]
    some, every = count > 0, (count == area) & (pairs is None)

    def both(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row, column = rows[batch, head, query.clamp(max=rows.shape[2] - 1)], columns[batch, head, key]
        in_grid = seen[batch, head, row, column]
        return in_grid if pairs is None else in_grid & pairs(batch, head, query, key)

    return BlockMask.from_pairs(some & ~every, some & every, both, columns.shape[2], block_size)


@checked
def tile_order(shape: Sequence[int], tile: Sequence[int], device: torch.device | str = "cpu") -> Tensor:
    """Numbers of the tokens of a grid, in row-major order, tile by tile: ``x[:, order]`` has the tokens of a tile side by side."""
    grid = torch.arange(shape[0] * shape[1] * shape[2], device=device).view(*shape)
    for axis, (extent, part) in enumerate(zip(shape, tile, strict=True)):
        if part < 1 or extent % part != 0:
            raise ValueError(f"tile[{axis}]: got {part}, want a divisor of shape[{axis}], {extent}")
    parts = grid.unflatten(2, (-1, tile[2])).unflatten(1, (-1, tile[1])).unflatten(0, (-1, tile[0]))
    return parts.permute(0, 2, 4, 1, 3, 5).flatten()


@checked
def video_window(
    shape: Sequence[int],
    window: Sequence[int],
    *,
    tile: Sequence[int] | None = None,
    block_size: tuple[int, int] = _SIZE,
    device: torch.device | str = "cpu",
) -> BlockMask:
    """Tokens of a video see those that are near in time, height and width.

    Args:
        shape: Frames, rows and columns of tokens, ``(T, H, W)``.
        window: The largest distance in each.
        tile: Extents of the tiles in which tokens lie, as :func:`tile_order` orders them; None is row-major order. Tiles of a
            block's size make most blocks wholly seen or hidden.
        block_size: Queries and keys of a block.
        device: Where the lists are made.
    """
    order = tile_order(shape, tile or (1, 1, shape[2]), device)
    places = torch.stack((order // (shape[1] * shape[2]), order // shape[2] % shape[1], order % shape[2]))
    least_q, most_q = (bound[:, :, None] for bound in _bounds(places, block_size[0]))
    least_k, most_k = (bound[:, None, :] for bound in _bounds(places, block_size[1]))
    reach = torch.tensor(tuple(window), device=device)[:, None, None]
    some = ((least_q - most_k <= reach) & (least_k - most_q <= reach)).all(0)
    every = ((most_q - least_k <= reach) & (most_k - least_q <= reach)).all(0)
    seq = order.numel()

    def pairs(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        near = [(axis[query.clamp(max=seq - 1)] - axis[key]).abs() <= far for axis, far in zip(places, window, strict=True)]
        return near[0] & near[1] & near[2]

    return BlockMask.from_pairs(some & ~every, every, pairs, seq, block_size)


@checked
def topk_blocks(
    q: Tensor,
    k: Tensor,
    topk: int,
    *,
    causal: bool = True,
    shared: bool = False,
    block_size: tuple[int, int] = _SIZE,
) -> BlockMask:
    """The key blocks whose mean key scores highest against the mean query of each query block.

    Args:
        q: ``[batch, seq_q, head, head_dim]``.
        k: ``[batch, seq_k, kv_head, head_dim]``.
        topk: Blocks of a list. A query block's own block is always one of them under ``causal``.
        causal: Whether blocks that begin after a query block's end are left out. Call ``fovea.attention`` with ``causal=True``
            too: it hides the later keys of the block on the diagonal.
        shared: Whether the heads of a group share a list, by the sum of their scores.
        block_size: Queries and keys of a block.

    Nothing waits for the host. Selection has no gradient.

    Source: MoBA (Lu et al. 2025); ``shared`` as in NSA (Yuan et al. 2025).
    """
    with torch.no_grad():
        (batch, seq_q, heads, _), (seq_k, kv_heads) = q.shape, (k.shape[1], k.shape[2])
        pooled_q, pooled_k = _means(q, block_size[0]), _means(k, block_size[1])
        grouped = pooled_q.unflatten(2, (kv_heads, -1))
        scores = torch.einsum("bqkgd,bjkd->bkgqj", grouped, pooled_k)
        if shared:
            scores = scores.sum(2, keepdim=True).expand(-1, -1, heads // kv_heads, -1, -1)
        scores = scores.flatten(1, 2)
        available = torch.full((scores.shape[2],), scores.shape[3], device=q.device)
        if causal:
            low_q, high_q, low_k, high_k = _positions(seq_q, seq_k, block_size, q.device)
            hidden, own = low_k > high_q, (low_k <= high_q) & (high_k >= low_q)
            scores = scores.masked_fill(hidden, -torch.inf).masked_fill(own, torch.inf)
            available = (~hidden).sum(-1)
        indices = scores.topk(min(topk, scores.shape[3]), -1).indices.to(torch.int32)
        counts = available.clamp(max=indices.shape[3]).to(torch.int32).expand(batch, heads, -1).contiguous()
        return BlockMask(counts, indices, block_size=block_size)


def _means(rows: Tensor, block: int) -> Tensor:
    """Means over blocks of tokens, in float32; the last block may be short."""
    tokens = rows.shape[1]
    padded = torch.nn.functional.pad(rows.float(), (0, 0, 0, 0, 0, -tokens % block))
    sums = padded.unflatten(1, (-1, block)).sum(2)
    starts = torch.arange(0, tokens, block, device=rows.device)
    return sums / (tokens - starts).clamp(max=block)[:, None, None]
