# SPDX-License-Identifier: Apache-2.0
"""Which rank holds which tokens of which sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import index
from typing import Literal

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from fovea._annotations import unusual
from fovea._calls import adapted
from fovea.distributed._checks import MOST_RANKS, one_of, place, within
from fovea.distributed._exchange import gather

Order = Literal["balanced", "contiguous"]


@adapted()
@dataclass(frozen=True)
class Layout:
    """How the tokens of a batch are dealt to the ranks of a group.

    Each sequence is cut into chunks that differ by one token at most: ``2 * ranks`` of them in the order ``"balanced"``, of which
    rank r has chunk r and chunk ``2 * ranks - 1 - r``, so that causal work is the same on all ranks; ``ranks`` of them in the order
    ``"contiguous"``, of which rank r has chunk r.

    A rank's shard of a fixed batch is ``[batch, tokens, ...]``: its first chunk, then its second. The shard of a ragged batch
    is ``[tokens, ...]``: the first chunks of all sequences one after another, then the second ones.

    Args:
        lengths: The tokens of every sequence of a fixed batch (an int), or of each sequence of a ragged one. Every rank knows them.
        ranks: The ranks of the group.
        order: See above.
    """

    lengths: int | tuple[int, ...]
    ranks: int
    order: Order = "balanced"

    def __post_init__(self) -> None:
        lengths = self.lengths
        if isinstance(lengths, Sequence):
            object.__setattr__(self, "lengths", tuple(index(length) for length in lengths))
        else:
            object.__setattr__(self, "lengths", index(lengths))
        object.__setattr__(self, "ranks", index(self.ranks))
        for name, length in zip(_names(lengths), self.sequences, strict=True):
            within(name, length, 0)
        if sum(self.sequences) >= 1 << 63:
            raise ValueError(f"lengths: got {sum(self.sequences)} tokens, want a number of 64 bits")
        within("ranks", self.ranks, 1, MOST_RANKS)
        one_of("order", self.order, ("balanced", "contiguous"))

    @property
    def ragged(self) -> bool:
        return not isinstance(self.lengths, int)

    @property
    def sequences(self) -> tuple[int, ...]:
        """The length of each sequence; that of a fixed batch stands for all of them."""
        return (self.lengths,) if isinstance(self.lengths, int) else self.lengths

    @property
    def parts(self) -> int:
        """Chunks of a sequence that a rank has."""
        return 2 if self.order == "balanced" else 1

    @adapted()
    def chunk(self, rank: int, part: int, length: int) -> tuple[int, int]:
        """The first token of a chunk, and the one past its last, in a sequence of this length."""
        self._check(rank, part)
        within("length", length, 0)
        return self._chunk(rank, part, length)

    @adapted()
    def chunks(self, rank: int, part: int) -> list[tuple[int, int]]:
        """The first token of a chunk, and the one past its last, in each sequence."""
        self._check(rank, part)
        return self._chunks(rank, part)

    @adapted()
    def rows(self, rank: int, part: int | None = None) -> int:
        """Tokens of a rank's shard (of a fixed batch: of one sequence), or of a part of it."""
        self._check(rank, part or 0)
        parts = range(self.parts) if part is None else (part,)
        return sum(end - begin for each in parts for begin, end in self._chunks(rank, each))

    @adapted()
    def part_slice(self, rank: int, part: int) -> tuple[int, int]:
        """Where a part lies in the shard."""
        rows = self.rows(rank, part)
        begin = sum(self.rows(rank, before) for before in range(part))
        return begin, begin + rows

    @adapted()
    def indices(self, rank: int) -> Tensor:
        """int64 [tokens]: the rows of the unsharded tensor that a shard has, in its order."""
        self._check(rank, 0)
        starts = [0, *accumulate(self.sequences)][:-1]
        return _joined(
            (start + begin, start + end)
            for part in range(self.parts)
            for start, (begin, end) in zip(starts, self._chunks(rank, part), strict=True)
        )

    @adapted()
    def position_ids(self, rank: int, device: torch.device | str | None = None) -> Tensor:
        """int64 [tokens]: the position of each row of a shard in its own sequence, as rotary embeddings want it."""
        self._check(rank, 0)
        try:
            device = None if device is None else torch.device(device)
        except RuntimeError:
            raise ValueError(f"device: got {device!r}, want a device of torch") from None
        return _joined(each for part in range(self.parts) for each in self._chunks(rank, part)).to(device)

    @cached_property
    def order_of_all(self) -> Tensor:
        """int64: the rows of all shards, one behind the other, that make up the unsharded tensor in order."""
        return torch.cat([self.indices(rank) for rank in range(self.ranks)]).argsort()

    def _check(self, rank: int, part: int) -> None:
        within("rank", rank, 0, self.ranks - 1)
        within("part", part, 0, self.parts - 1)

    def _chunks(self, rank: int, part: int) -> list[tuple[int, int]]:
        return [self._chunk(rank, part, length) for length in self.sequences]

    def _chunk(self, rank: int, part: int, length: int) -> tuple[int, int]:
        at = rank if part == 0 else 2 * self.ranks - 1 - rank
        chunks = self.parts * self.ranks
        return at * length // chunks, (at + 1) * length // chunks


def _names(lengths: int | Sequence[int]) -> list[str]:
    """The name of each length in errors."""
    return [f"lengths[{at}]" for at in range(len(lengths))] if isinstance(lengths, Sequence) else ["lengths"]


def _joined(ranges: Iterable[tuple[int, int]]) -> Tensor:
    """int64: the numbers of all ranges, one after another."""
    return torch.cat([torch.zeros(0, dtype=torch.int64), *(torch.arange(begin, end) for begin, end in ranges)])


@adapted()
def shard(tensor: Tensor, layout: Layout, rank: int) -> Tensor:
    """A rank's part of a tensor that every rank has: ``[batch, seq, ...]``, or ragged ``[total, ...]``. Differentiable."""
    dim = 0 if layout.ragged else 1
    total = sum(layout.sequences)
    wrong = None if torch.compiler.is_compiling() else unusual("tensor", tensor)
    if wrong:
        raise ValueError(wrong)
    if tensor.dim() <= dim or tensor.shape[dim] != total:
        got = tuple(tensor.shape)
        raise ValueError(f"tensor.shape: got {got}, want {total} in dimension {dim}, the lengths of the layout")
    return tensor.index_select(dim, layout.indices(rank).to(tensor.device))


@adapted()
def unshard(tensor: Tensor, layout: Layout, group: ProcessGroup | None = None) -> Tensor:
    """The whole tensor on every rank, from the shards of a group. Not differentiable."""
    rank, ranks = place(group)
    if layout.ranks != ranks:
        raise ValueError(f"layout.ranks: got {layout.ranks}, want {ranks}, those of the group")
    dim = 0 if layout.ragged else 1
    if tensor.dim() <= dim or tensor.shape[dim] != layout.rows(rank):
        raise ValueError(
            f"tensor.shape: got {tuple(tensor.shape)}, want {layout.rows(rank)} in dimension {dim}, as rank {rank} has"
        )
    rows = [layout.rows(other) for other in range(ranks)]
    padded = tensor.new_zeros(with_rows(tensor, dim, max(rows)))
    padded.narrow(dim, 0, tensor.shape[dim]).copy_(tensor.detach())
    as_bytes = padded.flatten().view(torch.uint8)  # gloo sends no float8
    all_padded = gather("fovea.distributed.unshard", as_bytes, group).flatten().view(tensor.dtype).view(ranks, *padded.shape)
    shards = [each.narrow(dim, 0, own) for own, each in zip(rows, all_padded, strict=True)]
    return torch.cat(shards, dim).index_select(dim, layout.order_of_all.to(tensor.device))


def with_rows(tensor: Tensor, dim: int, rows: int) -> list[int]:
    """The tensor's shape with another extent."""
    return [*tensor.shape[:dim], rows, *tensor.shape[dim + 1 :]]
