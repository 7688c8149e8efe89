# SPDX-License-Identifier: Apache-2.0
"""Turns the visible ranges of a mask into sequences of a ragged batch with one band in all of them, exactly or not at all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

# Whether positions count the keys that a sequence has more than queries.
_ANCHORS: dict[Literal["bottom_right", "top_left"], int] = {"bottom_right": 1, "top_left": 0}


@dataclass(frozen=True)
class Segments:
    """Queries and keys of a batch as sequences of their own: packed sequences, or the chunks of chunked attention."""

    queries: Tensor | None
    """Indices in ``[batch * seq_q]`` of the queries that see something; None where all do."""
    keys: Tensor | None
    """Indices in ``[batch * seq_k]`` of the keys that somebody sees; None where all are seen."""
    cu_seqlens_q: Tensor
    """int32 ``[sequences + 1]``, in these queries."""
    cu_seqlens_k: Tensor
    """int32 ``[sequences + 1]``, in these keys."""
    longest: tuple[int, int]
    """Bounds of the lengths."""
    window: tuple[int | None, int | None]
    """As fovea.attention takes it, in each sequence."""
    anchor: Literal["bottom_right", "top_left"]

    def to(self, device: torch.device | str) -> Segments:
        """The same with its tensors on a device."""
        if self.cu_seqlens_q.device == torch.device(device):
            return self
        queries, keys = (None if tokens is None else tokens.to(device) for tokens in (self.queries, self.keys))
        cu_seqlens_q, cu_seqlens_k = self.cu_seqlens_q.to(device), self.cu_seqlens_k.to(device)
        return replace(self, queries=queries, keys=keys, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)

    def repeat(self, times: int, seq_q: int, seq_k: int) -> Segments:
        """Those of a batch that has these rows several times."""
        row = torch.arange(times, device=self.cu_seqlens_q.device)[:, None]
        queries, keys = (
            None if tokens is None else (tokens + row * seq).flatten()
            for tokens, seq in ((self.queries, seq_q), (self.keys, seq_k))
        )
        cu_seqlens_q, cu_seqlens_k = (repeat_lengths(cu_seqlens, times) for cu_seqlens in (self.cu_seqlens_q, self.cu_seqlens_k))
        return replace(self, queries=queries, keys=keys, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)


def repeat_lengths(cu_seqlens: Tensor, times: int) -> Tensor:
    """cu_seqlens of the same sequences several times."""
    end = cu_seqlens[-1:] * torch.arange(1, times + 1, dtype=cu_seqlens.dtype, device=cu_seqlens.device)[:, None]
    return torch.cat([cu_seqlens[:1], (end - cu_seqlens[-1:] + cu_seqlens[1:]).flatten()])


def segments(first: Tensor, end: Tensor, count: Tensor, seq_k: int) -> Segments | None:
    """The sequences of a mask. A sequence begins at each query that sees no key which an earlier query sees.

    Args:
        first, end: The first key that each query sees, and one past the last, ``[batch, seq_q]``.
        count: How many keys it sees.

    Returns:
        None where the visible keys are not such sequences.
    """
    all_queries, all_keys = count.numel(), count.shape[0] * seq_k
    queries = (count.flatten() > 0).nonzero().flatten()
    if len(queries) == 0:
        return None
    row = queries // first.shape[1] * seq_k
    first, end, count = first.flatten()[queries] + row, end.flatten()[queries] + row, count.flatten()[queries]
    begins = first >= torch.nn.functional.pad(end.cummax(0).values, (1, 0))[:-1]
    number = begins.cumsum(0) - 1
    begin = first[begins]
    stop = torch.zeros_like(begin).scatter_reduce(0, number, end, "amax")
    lengths_q, lengths_k = number.bincount(), stop - begin
    cu_q, cu_k = (torch.nn.functional.pad(lengths.cumsum(0), (1, 0)) for lengths in (lengths_q, lengths_k))
    keys = torch.arange(int(cu_k[-1])) + (begin - cu_k[:-1]).repeat_interleave(lengths_k)
    index, length = torch.arange(len(queries)) - cu_q[number], lengths_k[number]
    first, end = first - begin[number], end - begin[number]
    tokens = None if len(queries) == all_queries else queries, None if len(keys) == all_keys else keys
    cu_seqlens, longest = (cu_q.to(torch.int32), cu_k.to(torch.int32)), (int(lengths_q.max()), int(lengths_k.max()))
    for anchor, offset in _ANCHORS.items():
        band = common_band(index + offset * (lengths_k - lengths_q)[number], first, end, length)
        if band.gives(first, end, count):
            return Segments(*tokens, *cu_seqlens, longest, (band.left, band.right), anchor)
    return None


class CommonBand(NamedTuple):
    """The only band that some queries' ranges may have, and the ranges that it gives: keys from first, before end."""

    left: int | None
    right: int | None
    first: Tensor
    end: Tensor

    def gives(self, first: Tensor, end: Tensor, count: Tensor) -> bool:
        """Whether every query sees just these keys."""
        bounds = all(bound is None or bound >= 0 for bound in (self.left, self.right))
        return bounds and torch.equal(first, self.first) and torch.equal(end, self.end) and torch.equal(count, end - first)


def common_band(index: Tensor, first: Tensor, end: Tensor, length: Tensor) -> CommonBand:
    """The band of queries and ranges that are counted in a sequence of some length."""
    left, right = _common((index - first)[first > 0]), _common((end - 1 - index)[end < length])
    begins = torch.zeros_like(index) if left is None else (index - left).clamp(min=0)
    return CommonBand(left, right, begins, length if right is None else torch.minimum(index + right + 1, length))


def _common(values: Tensor) -> int | None:
    """The first of some values that should all be the same; None where there is none."""
    return int(values[0]) if len(values) else None
