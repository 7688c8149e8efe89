# SPDX-License-Identifier: Apache-2.0
"""K and V travel: at step t a rank has those of the rank t places before it, and merges what its queries find there.

The next step's messages are in flight while a step computes. Pairs of ranks without a visible pair of rows send nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fovea.distributed._blocks import Block, Sides, blocks
from fovea.distributed._call import Call
from fovea.distributed._compute import Forward, Merged, attend, differentiate, rows_of, sink_gradient
from fovea.distributed._exchange import Exchange
from fovea.distributed._layout import with_rows

Pair = tuple[Tensor, Tensor]
"""K and V, or out and lse."""


class Ring:
    """The steps of one rank."""

    def __init__(self, call: Call):
        self.call, self.ranks = call, call.layout.ranks

    def blocks(self, q_rank: int, k_rank: int) -> tuple[Block, ...]:
        return blocks(Sides(self.call.layout, q_rank, self.call.layout_k, k_rank), self.call.mask)

    def only_block(self, q: Tensor) -> Block | None:
        """The block that is all of this rank's work, where there is such a one and nothing to merge."""
        found = [block for step in range(self.ranks) for block in self.blocks(self.call.rank, self.owner(step))]
        return found[0] if len(found) == 1 and found[0].q == (0, q.shape[self.call.token_dim]) else None

    def owner(self, step: int) -> int:
        """Whose keys this rank has at a step."""
        return (self.call.rank - step) % self.ranks

    def reader(self, step: int) -> int:
        """Which rank has this one's keys."""
        return (self.call.rank + step) % self.ranks

    def keys(self, step: int, own: Pair) -> tuple[Pair, Exchange]:
        """K and V of a step, and the messages that fill them. No rows where this rank's queries see none of them."""
        exchange = Exchange(self.call.step(f"K and V of step {step} of {self.ranks}"), self.call.group)
        if step in (0, self.ranks):  # none travel, or this was the last one
            return own, exchange
        owner, reader = self.owner(step), self.reader(step)
        needed = bool(self.blocks(self.call.rank, owner))
        rows = self.call.layout_k.rows(owner) if needed else 0
        k, v = (tensor.new_empty(with_rows(tensor, self.call.token_dim, rows)) for tensor in own)
        if self.blocks(reader, self.call.rank):
            exchange.send(own, reader)
        if needed:
            exchange.receive((k, v), owner)
        return (k, v), exchange.start()

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        own, only = (k.contiguous(), v.contiguous()), self.only_block(q)
        merged = Merged(q, v.shape[-1]) if only is None else None
        parts: list[Pair] = []
        held, exchange = self.keys(0, own)
        for step in range(self.ranks):
            following, next_exchange = self.keys(step + 1, own)
            exchange.wait()
            for block in self.blocks(self.call.rank, self.owner(step)):
                if merged is None:
                    parts.append(attend(block, q, held, self.call.scores, sink))
                else:
                    merged.add(block, *attend(block, q, held, self.call.scores))
            held, exchange = following, next_exchange
        return parts[0] if merged is None else merged.result(q.dtype, sink)

    def backward(self, forward: Forward, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """dk and dv of a step go back to the rank that owns the keys, in their dtype.

        It adds them up in float32, in the order of steps.
        """
        own, only = (k.contiguous(), v.contiguous()), self.only_block(forward.q)
        if self.ranks == 1 and only is not None and only.k == (0, k.shape[self.call.token_dim]):
            return differentiate(only, forward, own, self.call.scores)
        dq = torch.zeros_like(forward.q, dtype=torch.float32)
        sums = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in own]
        held, exchange = self.keys(0, own)
        returned: list[Tensor] = []
        returning = Exchange(self.call.name, self.call.group)
        for step in range(self.ranks):
            following, next_exchange = self.keys(step + 1, own)
            exchange.wait()
            parts = self._parts(step, forward, held, dq)
            _add(sums, parts if step == 0 else [])
            returning.wait()
            _add(sums, returned)
            returned, returning = self._return(step, parts, own)
            held, exchange = following, next_exchange
        returning.wait()
        _add(sums, returned)
        dk, dv = (total.to(tensor.dtype) for total, tensor in zip(sums, own, strict=True))
        return dq.to(forward.q.dtype), dk, dv, sink_gradient(forward)

    def _parts(self, step: int, forward: Forward, held: Pair, dq: Tensor) -> list[Tensor]:
        """dk and dv of a step's keys, in float32; adds to dq."""
        parts = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in held]
        for block in self.blocks(self.call.rank, self.owner(step)):
            of_q, *of_keys, _ = differentiate(block, forward, held, self.call.scores)
            rows_of(dq, block.q).add_(of_q)
            for part, gradient in zip(parts, of_keys, strict=True):
                rows_of(part, block.k).add_(gradient)
        return parts

    def _return(self, step: int, parts: list[Tensor], own: Pair) -> tuple[list[Tensor], Exchange]:
        """Sends them to their owner, and receives those of this rank's keys."""
        exchange = Exchange(self.call.step(f"dk and dv of step {step} of {self.ranks}"), self.call.group)
        if step == 0:
            return [], exchange
        if self.blocks(self.call.rank, self.owner(step)):
            exchange.send([part.to(tensor.dtype) for part, tensor in zip(parts, own, strict=True)], self.owner(step))
        buffers: list[Tensor] = []
        if self.blocks(self.reader(step), self.call.rank):
            buffers = [torch.empty_like(tensor) for tensor in own]
            exchange.receive(buffers, self.reader(step))
        return buffers, exchange.start()


def _add(sums: list[Tensor], parts: list[Tensor]) -> None:
    for total, part in zip(sums, parts, strict=False):  # a step may have none
        total.add_(part)
