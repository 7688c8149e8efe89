# SPDX-License-Identifier: Apache-2.0
"""Caches whose pages are dealt to ranks in turn: page p of a sequence is page ``p // ranks`` of rank ``p % ranks``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea.distributed._checks import MOST_RANKS, within

_MOST = (1 << 31) - 1


@adapted()
@dataclass(frozen=True)
class PageDeal:
    """How the pages of every sequence are dealt. Each rank has a cache and a block table of its own, with its pages in order.

    Args:
        page: Tokens of a page.
        ranks: The ranks of the group.
    """

    page: int
    ranks: int

    def __post_init__(self) -> None:
        within("page", self.page, 1, _MOST)
        within("ranks", self.ranks, 1, MOST_RANKS)

    @adapted()
    def local_length(self, tokens: Tensor, rank: int) -> Tensor:
        """How many of the first ``tokens`` tokens of sequences a rank has: integers as ``tokens``. These are its first ones."""
        within("rank", rank, 0, self.ranks - 1)
        counts("tokens", tokens)
        turn = self.page * self.ranks  # tokens, of which each rank has a page
        whole = tokens if turn <= _MOST else tokens.long()
        own = (whole % turn - rank * self.page).clamp(0, self.page)
        return torch.add(own, whole // turn, alpha=self.page).to(tokens.dtype)

    @adapted()
    def local_bound(self, tokens: int) -> int:
        """A bound of local lengths, whatever the rank, for sequences of at most so many tokens."""
        within("tokens", tokens, 0)
        pages = -(-tokens // self.page)
        return -(-pages // self.ranks) * self.page

    @adapted(axes={"block_table": "batch, max_blocks"})
    def local_slots(self, positions: Tensor, block_table: Tensor, rank: int) -> Tensor:
        """int64 slots of tokens in a rank's cache, -1 for tokens that it has not: for ``paged_cache_append`` and lists of tokens.

        Args:
            positions: int ``[batch, ...]``, positions of tokens in their sequences; negative ones are no tokens.
            block_table: int32 ``[batch, max_blocks]``, the rank's own.

        Raises:
            ValueError: A token of this rank has a page that the table lacks, or whose block is negative. On a GPU, where nothing
                is read by the host, its slot is -1.
        """
        _integers("positions", positions)
        _integers("block_table", block_table)
        within("rank", rank, 0, self.ranks - 1)
        if positions.dim() == 0:
            raise ValueError("positions.rank: got 0, want 1 or more ([batch, ...])")
        if positions.device != block_table.device:
            raise ValueError(f"block_table.device: got {block_table.device}, want {positions.device}, as positions")
        batch, blocks = block_table.shape
        if positions.shape[0] != batch:
            raise ValueError(f"positions.shape[0] (batch): got {positions.shape[0]}, want {batch}, as block_table has")
        page = positions // self.page
        own = (positions >= 0) & (page % self.ranks == rank)
        local = page // self.ranks
        block = _entries(block_table, torch.where(own, local, 0).clamp(max=blocks - 1))
        found = own & (local < blocks) & (block >= 0)
        if is_readable(positions):
            _refuse_missing(own & ~found, local, block_table)
        return torch.where(found, block * self.page + positions % self.page, -1)


def is_readable(tensor: Tensor) -> bool:
    """Whether the host may look at values: a GPU would have to finish its work, and a graph that is traced has none."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def counts(name: str, tensor: Tensor, most: int | None = None) -> None:
    """Refuses a tensor that does not count anything, or more than there is."""
    _integers(name, tensor)
    if not is_readable(tensor):
        return
    wrong = tensor < 0 if most is None else (tensor < 0) | (tensor > most)
    if bool(wrong.any()):
        at = wrong.nonzero()[0].tolist()
        within(name + "".join(f"[{index}]" for index in at), int(tensor[tuple(at)]), 0, most)


def _integers(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name}.dtype: got {tensor.dtype}, want torch.int32 or torch.int64")


def _entries(block_table: Tensor, local: Tensor) -> Tensor:
    """int64: the block of each page; -1 from a table without any."""
    if block_table.shape[1] == 0:
        return torch.full_like(local, -1, dtype=torch.int64)
    return block_table.gather(1, local.reshape(len(local), -1).long()).view_as(local).long()


def _refuse_missing(missing: Tensor, local: Tensor, block_table: Tensor) -> None:
    """Names what the table lacks for the first token that is this rank's and has no slot."""
    if bool(missing.any()):
        at = missing.nonzero()[0].tolist()
        page, blocks = int(local[tuple(at)]), block_table.shape[1]
        within("block_table.shape[1] (max_blocks)", blocks, page + 1)
        within(f"block_table[{at[0]}][{page}] (block number)", int(block_table[at[0], page]), 0)
