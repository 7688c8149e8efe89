# SPDX-License-Identifier: Apache-2.0
"""Results of several calls for the rows of one shard.

They stay as they are until all are there. Then one pass over memory joins them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from fovea._dispatch import OPERATORS
from fovea.distributed._compute import new_lse, numbers_of, rows_of, sink_share

Rows = tuple[int, int]
_MOST = 8  # parts that are kept: one more joins them in float32

_merge_states = OPERATORS["merge_states"]


class Merged:
    """out and lse of a shard from blocks of keys, which may share queries."""

    def __init__(self, q: Tensor, dim_v: int):
        self._q, self._dim_v = q, dim_v
        self._all = 0, q.shape[-3]
        self._parts: list[tuple[Rows, Tensor, Tensor]] = []

    def add(self, rows: Rows, out: Tensor, lse: Tensor) -> None:
        if len(self._parts) == _MOST:
            self._parts = [(self._all, *self._joined(torch.float32))]
        self._parts.append((rows, out, lse))

    def result(self, sink: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """With the sink, which joins the denominator once all keys are in."""
        if sink is None:
            return self._joined(self._q.dtype)
        out, lse = self._joined(torch.float32)
        return out.mul_(sink_share(lse, sink)).to(self._q.dtype), lse

    def _joined(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if len(self._parts) == 1 and self._parts[0][0] == self._all:
            return self._parts[0][1].to(dtype), self._parts[0][2]
        out, lse = self._q.new_empty((*self._q.shape[:-1], self._dim_v), dtype=dtype), new_lse(self._q)
        for rows, found in _spans([rows for rows, _, _ in self._parts], self._all[1]):
            parts = [self._parts[index] for index in found]
            outs = [rows_of(part, _within(rows, at)) for at, part, _ in parts]
            lses = [numbers_of(part, _within(rows, at)) for at, _, part in parts]
            _merge(outs, lses, rows_of(out, rows), numbers_of(lse, rows))
        return out, lse


def _merge(outs: list[Tensor], lses: list[Tensor], out: Tensor, lse: Tensor) -> None:
    """Into out and lse, in float32 between."""
    if not outs:
        out.zero_()
        lse.fill_(-torch.inf)
    elif len(outs) == 1:
        out.copy_(outs[0])
        lse.copy_(lses[0])
    elif any(part.dtype != out.dtype for part in outs):
        whole = torch.empty_like(out, dtype=torch.float32)
        _merge([part.float() for part in outs], lses, whole, lse)
        out.copy_(whole)
    elif out.dim() == 3:
        _merge_states(outs, lses, out, lse, "")
    else:
        by_batch = zip(zip(*outs, strict=True), zip(*(part.transpose(1, 2) for part in lses), strict=True), strict=True)
        for (of_out, of_lse), into, into_lse in zip(by_batch, out, lse.transpose(1, 2), strict=True):
            _merge_states(list(of_out), list(of_lse), into, into_lse, "")


class Summed:
    """Gradients of a shard's rows, from blocks that may share them."""

    def __init__(self, like: Tensor):
        self._like, self._all = like, (0, like.shape[-3])
        self._parts: list[tuple[Rows, Tensor]] = []

    def add(self, rows: Rows, part: Tensor) -> None:
        if len(self._parts) == _MOST:
            self._parts = [(self._all, self._joined(torch.float32))]
        self._parts.append((rows, part))

    def result(self) -> Tensor:
        return self._joined(self._like.dtype)

    def _joined(self, dtype: torch.dtype) -> Tensor:
        if len(self._parts) == 1 and self._parts[0][0] == self._all:
            return self._parts[0][1].to(dtype)
        total = torch.empty_like(self._like, dtype=dtype, memory_format=torch.contiguous_format)
        for rows, found in _spans([rows for rows, _ in self._parts], self._all[1]):
            parts = [rows_of(self._parts[index][1], _within(rows, self._parts[index][0])) for index in found]
            _sum(parts, rows_of(total, rows))
        return total


def _sum(parts: Sequence[Tensor], total: Tensor) -> None:
    """Into total: one rounding, in the order of the parts."""
    if not parts:
        total.zero_()
    elif len(parts) == 1:
        total.copy_(parts[0])
    elif len(parts) == 2 and all(part.dtype == total.dtype for part in parts):
        torch.add(*parts, out=total)
    else:
        whole = parts[0].to(torch.float32, copy=True)
        for part in parts[1:]:
            whole.add_(part)
        total.copy_(whole)


def _spans(ranges: Sequence[Rows], rows: int) -> Iterator[tuple[Rows, list[int]]]:
    """Rows that the same ranges cover, and which these are."""
    cuts = sorted({0, rows, *(cut for each in ranges for cut in each)})
    for begin, end in pairwise(cuts):
        yield (begin, end), [index for index, (first, last) in enumerate(ranges) if first <= begin and end <= last]


def _within(rows: Rows, part: Rows) -> Rows:
    """Rows of the shard as rows of a part."""
    return rows[0] - part[0], rows[1] - part[0]
