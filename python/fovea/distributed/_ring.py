# SPDX-License-Identifier: Apache-2.0
"""K and V travel: at step t a rank has those of the rank t places before it, and attends to them.

The next step's copies are in flight while a step computes. Pairs of ranks without a visible pair of rows send nothing.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from fovea.distributed._blocks import Block, Sides, blocks
from fovea.distributed._call import Call
from fovea.distributed._compute import Forward, attend, differentiate, sink_gradient
from fovea.distributed._exchange import Exchange
from fovea.distributed._keys import Keys, Pair
from fovea.distributed._layout import with_rows
from fovea.distributed._parts import Merged, Summed
from fovea.distributed._peers import Pull


class Ring:
    """The steps of one rank."""

    def __init__(self, call: Call):
        self.call, self.ranks = call, call.layout.ranks

    def blocks(self, q_rank: int, k_rank: int) -> tuple[Block, ...]:
        return blocks(Sides(self.call.layout, q_rank, self.call.layout_k, k_rank), self.call.mask)

    def disjoint(self) -> bool:
        """Whether no two blocks have queries in common: there is nothing to merge."""
        rows = sorted(block.q for step in range(self.ranks) for block in self.blocks(self.call.rank, self.owner(step)))
        return all(before[1] <= after[0] for before, after in pairwise(rows))

    def owner(self, step: int) -> int:
        """Whose keys this rank has at a step."""
        return (self.call.rank - step) % self.ranks

    def reader(self, step: int) -> int:
        """Which rank has this one's keys."""
        return (self.call.rank + step) % self.ranks

    def travel(self, step: int, keys: Keys) -> tuple[Pair, Exchange | Pull]:
        """K and V of a step, and what fills them. No rows where this rank's queries see none of them."""
        what = f"K and V of step {step} of {self.ranks}"
        if step in (0, self.ranks):  # none travel, or this was the last one
            return keys.own, Exchange(self.call.step(what), self.call.group)
        owner, reader = self.owner(step), self.reader(step)
        needed = bool(self.blocks(self.call.rank, owner))
        rows = 0, self.call.layout_k.rows(owner) if needed else 0
        k, v = (tensor.new_empty(with_rows(tensor, self.call.token_dim, rows[1])) for tensor in keys.own)
        readers = [reader] if self.blocks(reader, self.call.rank) else []
        whole = 0, self.call.layout_k.rows(self.call.rank)
        return (k, v), keys.travel(what, readers, [whole], {owner: [(rows, (k, v))]} if needed else {})

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        keys, disjoint = Keys(self.call, (k.contiguous(), v.contiguous())), self.disjoint()
        merged, own_sink = Merged(q, v.shape[-1]), sink if disjoint else None
        held, arriving = self.travel(0, keys)
        for step in range(self.ranks):
            following, next_arriving = self.travel(step + 1, keys)
            arriving.wait()
            for block in self.blocks(self.call.rank, self.owner(step)):
                merged.add(block.q, *attend(block, q, held, self.call.scores, own_sink))
            held, arriving = following, next_arriving
        return merged.result(None if disjoint else sink)

    def backward(self, forward: Forward, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """dk and dv of a step go back to the rank that owns the keys, in their dtype.

        It adds them up in float32, in the order of steps.
        """
        own = k.contiguous(), v.contiguous()
        keys = Keys(self.call, own)
        dq, sums = Summed(forward.q), [Summed(tensor) for tensor in own]
        held, arriving = self.travel(0, keys)
        returned: list[Tensor] = []
        returning = Exchange(self.call.name, self.call.group)
        for step in range(self.ranks):
            following, next_arriving = self.travel(step + 1, keys)
            arriving.wait()
            parts = self._parts(step, forward, held, dq)
            returning.wait()
            _add(sums, parts if step == 0 else returned)
            returned, returning = self._return(step, parts, own)
            held, arriving = following, next_arriving
        returning.wait()
        _add(sums, returned)
        dk, dv = (total.result() for total in sums)
        return dq.result(), dk, dv, sink_gradient(forward)

    def _parts(self, step: int, forward: Forward, held: Pair, dq: Summed) -> list[Tensor]:
        """dk and dv of a step's keys; adds to dq."""
        parts = [Summed(tensor) for tensor in held]
        for block in self.blocks(self.call.rank, self.owner(step)):
            of_q, *of_keys, _ = differentiate(block, forward, held, self.call.scores)
            dq.add(block.q, of_q)
            for part, gradient in zip(parts, of_keys, strict=True):
                part.add(block.k, gradient)
        return [part.result() for part in parts]

    def _return(self, step: int, parts: list[Tensor], own: Pair) -> tuple[list[Tensor], Exchange]:
        """Sends them to their owner, and receives those of this rank's keys."""
        exchange = Exchange(self.call.step(f"dk and dv of step {step} of {self.ranks}"), self.call.group)
        if step == 0:
            return [], exchange
        if self.blocks(self.call.rank, self.owner(step)):
            exchange.send(parts, self.owner(step))
        buffers: list[Tensor] = []
        if self.blocks(self.reader(step), self.call.rank):
            buffers = [torch.empty_like(tensor) for tensor in own]
            exchange.receive(buffers, self.reader(step))
        return buffers, exchange.start()


def _add(sums: list[Summed], parts: list[Tensor]) -> None:
    for total, part in zip(sums, parts, strict=False):  # a step may have none
        total.add((0, part.shape[-3]), part)
