# SPDX-License-Identifier: Apache-2.0
"""Which rank holds which tokens of which sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from fovea._calls import adapted
from fovea.distributed._exchange import gather

Order = Literal["balanced", "contiguous"]


@adapted()
@dataclass(frozen=True)
class Layout:
    """How the tokens of a batch are dealt to the ranks of a group.

    Each sequence is cut into chunks that differ by one token at most: ``2 * ranks`` of them in the order ``"balanced"``, of which
    rank r has chunk r and chunk ``2 * ranks - 1 - r``, so that causal work is the same on all ranks; ``ranks`` of them in the order
    ``"contiguous"``, of which rank r has chunk r.

    A rank's shard of a fixed batch is ``[batch, tokens, ...]``: its first chunk, then its second. That of a ragged batch is
    ``[tokens, ...]``: the first chunks of all sequences one after another, then the second ones.

    Args:
        lengths: The tokens of every sequence of a fixed batch (an int), or of each sequence of a ragged one. Every rank knows them.
        ranks: The ranks of the group.
        order: See above.
    """

    lengths: int | tuple[int, ...]
    ranks: int
    order: Order = "balanced"

    def __post_init__(self) -> None:
        if isinstance(self.lengths, Sequence):
            object.__setattr__(self, "lengths", tuple(int(length) for length in self.lengths))
        if any(length < 0 for length in self.sequences):
            raise ValueError(f"layout.lengths: got {self.lengths}, want 0 or more")
        if self.ranks < 1:
            raise ValueError(f"layout.ranks: got {self.ranks}, want 1 or more")
        if self.order not in ("balanced", "contiguous"):
            raise ValueError(f"layout.order: got {self.order!r}, want 'balanced' or 'contiguous'")

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

    def chunk(self, rank: int, part: int, length: int) -> tuple[int, int]:
        """The first token of a chunk, and the one past its last, in a sequence of this length."""
        index = rank if part == 0 else 2 * self.ranks - 1 - rank
        chunks = self.parts * self.ranks
        return index * length // chunks, (index + 1) * length // chunks

    def chunks(self, rank: int, part: int) -> list[tuple[int, int]]:
        """That of each sequence."""
        return [self.chunk(rank, part, length) for length in self.sequences]

    def rows(self, rank: int, part: int | None = None) -> int:
        """Tokens of a rank's shard (of a fixed batch: of one sequence), or of a part of it."""
        parts = range(self.parts) if part is None else (part,)
        return sum(end - begin for each in parts for begin, end in self.chunks(rank, each))

    def part_slice(self, rank: int, part: int) -> tuple[int, int]:
        """Where a part lies in the shard."""
        begin = sum(self.rows(rank, before) for before in range(part))
        return begin, begin + self.rows(rank, part)

    def indices(self, rank: int) -> Tensor:
        """int64 [tokens]: the rows of the unsharded tensor that a shard has, in its order."""
        starts = [0, *accumulate(self.sequences)][:-1]
        ranges = [
            torch.arange(start + begin, start + end)
            for part in range(self.parts)
            for start, (begin, end) in zip(starts, self.chunks(rank, part), strict=True)
        ]
        return torch.cat(ranges) if ranges else torch.zeros(0, dtype=torch.int64)

    def position_ids(self, rank: int, device: torch.device | str | None = None) -> Tensor:
        """int64 [tokens]: the position of each row of a shard in its own sequence, as rotary embeddings want it."""
        ranges = [torch.arange(begin, end) for part in range(self.parts) for begin, end in self.chunks(rank, part)]
        return (torch.cat(ranges) if ranges else torch.zeros(0, dtype=torch.int64)).to(device)

    @cached_property
    def order_of_all(self) -> Tensor:
        """int64: the rows of all shards, one behind the other, that make up the unsharded tensor in order."""
        return torch.cat([self.indices(rank) for rank in range(self.ranks)]).argsort()


@adapted()
def shard(tensor: Tensor, layout: Layout, rank: int) -> Tensor:
    """A rank's part of a tensor that every rank has: ``[batch, seq, ...]``, or ragged ``[total, ...]``. Differentiable."""
    dim = 0 if layout.ragged else 1
    total = sum(layout.sequences)
    if tensor.dim() <= dim or tensor.shape[dim] != total:
        got = tuple(tensor.shape)
        raise ValueError(f"tensor.shape: got {got}, want {total} in dimension {dim}, the lengths of the layout")
    return tensor.index_select(dim, layout.indices(rank).to(tensor.device))


def unshard(tensor: Tensor, layout: Layout, group: ProcessGroup | None = None) -> Tensor:
    """The whole tensor on every rank, from the shards of a group. Not differentiable."""
    dim, rank = 0 if layout.ragged else 1, dist.get_rank(group)
    if tensor.dim() <= dim or tensor.shape[dim] != layout.rows(rank):
        raise ValueError(
            f"tensor.shape: got {tuple(tensor.shape)}, want {layout.rows(rank)} in dimension {dim}, as rank {rank} has"
        )
    most = max(layout.rows(other) for other in range(layout.ranks))
    padded = tensor.new_zeros(with_rows(tensor, dim, most))
    padded.narrow(dim, 0, tensor.shape[dim]).copy_(tensor.detach())
    all_padded = gather("fovea.distributed.unshard", padded, group)
    shards = [each.narrow(dim, 0, layout.rows(other)) for other, each in enumerate(all_padded)]
    return torch.cat(shards, dim).index_select(dim, layout.order_of_all.to(tensor.device))


def with_rows(tensor: Tensor, dim: int, rows: int) -> list[int]:
    """The tensor's shape with another extent."""
    return [*tensor.shape[:dim], rows, *tensor.shape[dim + 1 :]]
