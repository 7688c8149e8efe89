# SPDX-License-Identifier: Apache-2.0
"""Caches whose pages are dealt to ranks in turn: page p of a sequence is page ``p // ranks`` of rank ``p % ranks``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PageDeal:
    """How the pages of every sequence are dealt. Each rank has a cache and a block table of its own, with its pages in order.

    Args:
        page: Tokens of a page.
        ranks: The ranks of the group.
    """

    page: int
    ranks: int

    def local_length(self, tokens: Tensor, rank: int) -> Tensor:
        """How many of the first ``tokens`` tokens of sequences a rank has: int32 as ``tokens``. These are its first ones."""
        whole, rest = tokens // self.page, tokens % self.page
        own = (whole + (self.ranks - 1 - rank)) // self.ranks * self.page
        return torch.where(whole % self.ranks == rank, own + rest, own)

    def local_bound(self, tokens: int) -> int:
        """A bound of local lengths, whatever the rank, for sequences of at most so many tokens."""
        pages = -(-tokens // self.page)
        return -(-pages // self.ranks) * self.page

    def local_slots(self, positions: Tensor, block_table: Tensor, rank: int) -> Tensor:
        """int64 slots of tokens in a rank's cache, -1 for tokens that it has not: for ``paged_cache_append`` and lists of tokens.

        Args:
            positions: int ``[batch, ...]``, positions of tokens in their sequences; negative ones are no tokens.
            block_table: int32 ``[batch, max_blocks]``, the rank's own.
        """
        page = positions // self.page
        own = (positions >= 0) & (page % self.ranks == rank)
        local = torch.where(own, page // self.ranks, 0).long()
        block = block_table.gather(1, local.flatten(1)).view_as(local).long()
        return torch.where(own, block * self.page + positions % self.page, -1)
