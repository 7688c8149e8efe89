# SPDX-License-Identifier: Apache-2.0
"""K and V of all ranks come to each of them, some kv heads at a time: the next ones are in flight while attention computes.

Each rank then has all keys of its queries, so nothing is merged. dk and dv go to their owners, which add them up in the order of
ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fovea.distributed._blocks import Sides, blocks
from fovea.distributed._call import Call
from fovea.distributed._compute import Forward, Merged, Scores, attend, differentiate, rows_of, sink_gradient
from fovea.distributed._exchange import Gather, to_all
from fovea.distributed._layout import Layout, with_rows

_CHUNKS = 4
"""Chunks of kv heads, at most: all but the first gather beside a product, and the last product has none beside it."""


class Gathered:
    """The chunks of one rank."""

    def __init__(self, call: Call):
        self.call, self.ranks = call, call.layout_k.ranks
        self.whole = Layout(call.layout_k.lengths, 1, "contiguous")
        self.blocks = blocks(Sides(call.layout, call.rank, self.whole, 0), call.mask)
        self.most = max(call.layout_k.rows(rank) for rank in range(self.ranks))

    def chunks(self, kv_heads: int) -> list[tuple[int, int]]:
        count = min(_CHUNKS, kv_heads) if self.ranks > 1 else 1
        return [(i * kv_heads // count, (i + 1) * kv_heads // count) for i in range(count)]

    def start(self, k: Tensor, v: Tensor, heads: tuple[int, int]) -> list[Gather]:
        """The gathers of K and V of some heads, padded to the rows of the largest shard."""
        gathers = []
        for name, tensor in (("K", k), ("V", v)):
            padded = tensor.new_zeros(with_rows(tensor[..., heads[0] : heads[1], :], self.call.token_dim, self.most))
            rows_of(padded, (0, tensor.shape[self.call.token_dim])).copy_(tensor[..., heads[0] : heads[1], :])
            gathers.append(Gather(self.call.step(f"{name} of kv heads {heads[0]} to {heads[1] - 1}"), padded, self.call.group))
        return gathers

    def ordered(self, gathered: Tensor) -> Tensor:
        """All rows in the order of their sequences, from ``[ranks, ...]``."""
        dim = self.call.token_dim
        shards = [rows_of(gathered[rank], (0, self.call.layout_k.rows(rank))) for rank in range(self.ranks)]
        return torch.cat(shards, dim).index_select(dim, self.call.layout_k.order_of_all.to(gathered.device))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        outs, lses = [], []
        chunks, group = self.chunks(k.shape[-2]), q.shape[-2] // k.shape[-2]
        gathers = self.start(k, v, chunks[0])
        for index, heads in enumerate(chunks):
            keys, values = (self.ordered(gather.wait()) for gather in gathers)
            gathers = self.start(k, v, chunks[index + 1]) if index + 1 < len(chunks) else []
            first, last = heads[0] * group, heads[1] * group
            out, lse = self._attend(q[..., first:last, :], keys, values, None if sink is None else sink[first:last])
            outs.append(out)
            lses.append(lse)
        return torch.cat(outs, dim=-2), torch.cat(lses, dim=1)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        """Blocks have all keys of their queries, and no queries in common."""
        merged = Merged(q, v.shape[-1], q.dtype)
        for block in self.blocks:
            merged.put(block, *attend(block, q, (k, v), self.call.scores, sink))
        return merged.out, merged.lse

    def backward(self, forward: Forward, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        gradients: list[tuple[Tensor, ...]] = []
        chunks, group = self.chunks(k.shape[-2]), forward.q.shape[-2] // k.shape[-2]
        gathers = self.start(k, v, chunks[0])
        for index, heads in enumerate(chunks):
            keys, values = (self.ordered(gather.wait()) for gather in gathers)
            gathers = self.start(k, v, chunks[index + 1]) if index + 1 < len(chunks) else []
            some = forward.heads(heads[0] * group, heads[1] * group)
            gradients.append(self._differentiate(some, keys, values, self.call.scores))
        dq, dk, dv = (torch.cat(parts, dim=-2) for parts in zip(*gradients, strict=True))
        return dq, dk, dv, sink_gradient(forward)

    def _differentiate(self, forward: Forward, k: Tensor, v: Tensor, scores: Scores) -> tuple[Tensor, ...]:
        dq = torch.zeros_like(forward.q, memory_format=torch.contiguous_format)
        sums = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in (k, v)]
        for block in self.blocks:
            of_q, *of_keys, _ = differentiate(block, forward, (k, v), scores)
            rows_of(dq, block.q).copy_(of_q)
            for total, part in zip(sums, of_keys, strict=True):
                rows_of(total, block.k).add_(part)
        return dq, *(self._to_owners(name, total.to(k.dtype)) for name, total in zip(("dk", "dv"), sums, strict=True))

    def _to_owners(self, name: str, gradient: Tensor) -> Tensor:
        """The sum over ranks of the rows that this rank owns."""
        layout, dim = self.call.layout_k, self.call.token_dim
        parts = [gradient.index_select(dim, layout.indices(rank).to(gradient.device)) for rank in range(self.ranks)]
        shape = with_rows(gradient, dim, layout.rows(self.call.rank))
        received = to_all(self.call.step(name), parts, [shape] * self.ranks, self.call.group)
        total = torch.zeros(shape, dtype=torch.float32, device=gradient.device)
        for part in received:
            total.add_(part)
        return total.to(gradient.dtype)
