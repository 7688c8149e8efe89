# SPDX-License-Identifier: Apache-2.0
"""Turns a boolean mask into one band of visible keys for each batch row, exactly or not at all."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fovea.integrations._segments import Segments, common_band, segments

_AT_ONCE = 1 << 24  # values of the mask: a long prompt's mask is never held whole


@dataclass(frozen=True)
class RowBand:
    """The visible keys of the queries of one batch row.

    Query i of ``queries`` sees key j of ``keys`` iff ``-left <= j - i <= right``, both counted from 0 in their ranges; None is
    no bound. Queries outside of ``queries`` see nothing.
    """

    queries: slice
    keys: slice | tuple[int, ...]
    """A range of keys, or the keys one by one where they have gaps."""
    left: int | None
    right: int | None


_BLIND = RowBand(slice(0, 0), slice(0, 0), None, None)
"""No query sees a key."""


class MaskRefused(NotImplementedError):
    """The mask is not a band of visible keys beside padding."""


def row_bands(visible: Callable[[int, int], Tensor], shape: tuple[int, int, int]) -> tuple[RowBand, ...] | Segments:
    """The bands of a mask given in pieces, or where its rows have no such band, sequences within them.

    Args:
        visible: The mask's rows from and to a query, bool ``[batch, rows, seq_k]``, True where the query sees the key.
        shape: ``(batch, seq_q, seq_k)``.

    Raises:
        MaskRefused: The visible keys are neither.
    """
    batch, seq_q, seq_k = shape
    if batch * seq_q * seq_k == 0:
        return (_BLIND,) * batch
    seen = torch.zeros(batch, seq_k, dtype=torch.bool)
    ranges = []
    rows = max(1, _AT_ONCE // (batch * seq_k))
    for begin in range(0, seq_q, rows):
        piece = visible(begin, min(begin + rows, seq_q)).cpu()
        seen |= piece.any(dim=1)
        ranges.append(_ranges(piece))
    first, end, count = (torch.cat([piece[part] for piece in ranges], dim=1) for part in range(3))
    try:
        return tuple(_row_band(row, first[row], end[row], count[row], seen[row]) for row in range(batch))
    except MaskRefused:
        found = segments(first, end, count, seq_k)
        if found is None:
            raise
        return found


def times_in_batch(made_for: tuple[int, int, int], shape: tuple[int, int, int]) -> int:
    """How often the rows of a mask that was made for ``[batch, seq_q, seq_k]`` occur in a call's batch.

    Raises:
        ValueError: The mask is not one of the call's.
    """
    batch = made_for[0]
    if made_for[1:] != shape[1:] or batch not in (1, shape[0]):
        raise ValueError(
            f"attention_mask: got one for {batch} rows of {made_for[1]} queries and {made_for[2]} keys, "
            f"want one for {shape[0]} rows of {shape[1]} queries and {shape[2]} keys"
        )
    return 1 if batch == shape[0] else shape[0]


def _ranges(visible: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First visible key of each query, one past the last, and how many; (0, 0, 0) where there is none."""
    seq_k = visible.shape[-1]
    count = visible.sum(dim=-1)
    as_number = visible.to(torch.uint8)
    first = as_number.argmax(dim=-1)
    end = seq_k - as_number.flip(-1).argmax(dim=-1)
    return first, torch.where(count == 0, 0, end), count


def _row_band(row: int, first: Tensor, end: Tensor, count: Tensor, seen: Tensor) -> RowBand:
    """Finds the band, and proves it by computing every query's range back from it."""
    queries_that_see = count.nonzero().flatten()
    if len(queries_that_see) == 0:
        return _BLIND
    queries = slice(int(queries_that_see[0]), int(queries_that_see[-1]) + 1)
    keys = seen.nonzero().flatten()
    has_gaps = int(keys[-1]) - int(keys[0]) + 1 != len(keys)
    key_range = tuple(keys.tolist()) if has_gaps else slice(int(keys[0]), int(keys[-1]) + 1)
    if len(queries_that_see) == 1:
        return RowBand(queries, key_range, None, None)
    # Keys that nobody sees (padding) are left out, and positions counted among the others.
    position = torch.cat([torch.zeros(1, dtype=torch.long), seen.cumsum(0)])
    first, end, count = position[first[queries]], position[end[queries]], count[queries]
    index = torch.arange(len(first))
    band = common_band(index, first, end, torch.full_like(index, len(keys)))
    empty = band.end <= band.first
    exact = torch.equal(count, torch.where(empty, 0, end - first))
    exact = exact and bool(((band.first == first) & (band.end == end) | empty).all())
    if not exact:
        raise MaskRefused(
            f"attention_mask (row {row} of the batch): got visible keys that are no band beside padding, want causal, "
            "sliding-window or full attention over one run of keys, or over sequences within it "
            "(other masks need attn_implementation='eager')"
        )
    return RowBand(queries, key_range, band.left, band.right)
