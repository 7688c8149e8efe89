# SPDX-License-Identifier: Apache-2.0
"""K and V of all other ranks come at once.

A forward pass attends to the own keys meanwhile. The others lie side by side then: each part of the queries has one call of all
that it sees in full. A backward pass waits: one call under a causal mask is faster there than two, of a triangle and of the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fovea.distributed._blocks import Block, Places, Sides, beside, blocks, in_order
from fovea.distributed._call import Call
from fovea.distributed._compute import Forward, attend, differentiate, rows_of, sink_gradient
from fovea.distributed._exchange import Exchange
from fovea.distributed._keys import Keys, Pair
from fovea.distributed._layout import with_rows
from fovea.distributed._parts import Merged, Rows, Summed
from fovea.distributed._peers import Pull


class Gathered:
    """The two stages of one rank: its own keys, then those of all others."""

    def __init__(self, call: Call):
        self.call, self.ranks = call, call.layout.ranks
        self.own = self._blocks(call.rank, call.rank)
        others = [rank for rank in range(self.ranks) if rank != call.rank]
        self.readers = [rank for rank in others if self._blocks(rank, call.rank)]
        self.owners = [rank for rank in others if self._blocks(call.rank, rank)]
        self.others, self.places = beside(call.layout, call.layout_k, call.rank, tuple(self.owners), call.mask)

    def _blocks(self, q_rank: int, k_rank: int) -> tuple[Block, ...]:
        return blocks(Sides(self.call.layout, q_rank, self.call.layout_k, k_rank), self.call.mask)

    def pieces(self, rank: int) -> list[Rows]:
        """The rows of a rank's shard that travel together."""
        return [self.call.layout_k.part_slice(rank, part) for part in range(self.call.layout_k.parts)]

    def gather(self, own: Pair, places: Places) -> tuple[Pair, Exchange | Pull]:
        """K and V of all ranks that have places, and what fills them."""
        rows = max((end for of_rank in places.values() for _, (_, end) in of_rank), default=0)
        k, v = (tensor.new_empty(with_rows(tensor, self.call.token_dim, rows)) for tensor in own)
        for piece, at in places.get(self.call.rank, ()):
            rows_of(k, at).copy_(rows_of(own[0], piece))
            rows_of(v, at).copy_(rows_of(own[1], piece))
        rooms = {owner: [(piece, (rows_of(k, at), rows_of(v, at))) for piece, at in places[owner]] for owner in self.owners}
        keys = Keys(self.call, own)
        return (k, v), keys.travel("K and V of all ranks", self.readers, self.pieces(self.call.rank), rooms)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        own = k.contiguous(), v.contiguous()
        others, arriving = self.gather(own, self.places)
        merged = Merged(q, v.shape[-1])
        for block in self.own:
            merged.add(block.q, *attend(block, q, own, self.call.scores))
        arriving.wait()
        for block in self.others:
            merged.add(block.q, *attend(block, q, others, self.call.scores))
        return merged.result(sink)

    def backward(self, forward: Forward, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """A ragged batch has the blocks of a forward pass: in order, each sequence would need a call with a mask of its own."""
        own, layouts = (k.contiguous(), v.contiguous()), (self.call.layout, self.call.layout_k)
        some, places = self.others, self.places
        if not layouts[0].ragged:
            some, places = in_order(*layouts, self.call.rank, self.call.mask)
        keys, arriving = self.gather(own, places)
        of_own = self._differentiate(self.own, forward, own) if layouts[0].ragged else []
        arriving.wait()
        dq, *of_keys = self._differentiate(some, forward, keys)
        received, returning = self._return(of_keys, own, places)
        if of_own:
            dq = dq.add_(of_own[0])
        own_parts = of_own[1:] or [self._own(tensor, places) for tensor in of_keys]
        returning.wait()
        dk, dv = (_summed(part, buffer).to(part.dtype) for part, buffer in zip(own_parts, received, strict=True))
        return dq, dk, dv, sink_gradient(forward)

    def _own(self, tensor: Tensor, places: Places) -> Tensor:
        """This rank's rows of all."""
        return torch.cat([rows_of(tensor, at) for _, at in places[self.call.rank]], self.call.token_dim)

    def _differentiate(self, some: Sequence[Block], forward: Forward, keys: Pair) -> list[Tensor]:
        """dq, dk and dv of some blocks."""
        sums = [Summed(tensor) for tensor in (forward.q, *keys)]
        for block in some:
            *gradients, _ = differentiate(block, forward, keys, self.call.scores)
            for total, rows, part in zip(sums, (block.q, block.k, block.k), gradients, strict=True):
                if part is not None:
                    total.add(rows, part)
        return [total.result() for total in sums]

    def _return(self, of_keys: Sequence[Tensor], own: Pair, places: Places) -> tuple[list[Tensor], Exchange]:
        """Sends dk and dv to their owners, and receives ``[readers, ...]`` of this rank's keys."""
        exchange = Exchange(self.call.step("dk and dv of all ranks"), self.call.group)
        for owner in self.owners:
            exchange.send([rows_of(tensor, at) for _, at in places[owner] for tensor in of_keys], owner)
        received = [tensor.new_empty((len(self.readers), *tensor.shape)) for tensor in own]
        for index, reader in enumerate(self.readers):
            exchange.receive(
                [rows_of(buffer[index], piece) for piece in self.pieces(self.call.rank) for buffer in received], reader
            )
        return received, exchange.start()


def _summed(own: Tensor, received: Tensor) -> Tensor:
    """In float32: first those of the readers, in their order."""
    return received.sum(dim=0, dtype=torch.float32).add_(own) if len(received) else own
