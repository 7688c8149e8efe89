# SPDX-License-Identifier: Apache-2.0
"""Heads are exchanged for tokens: each rank gets all tokens of some heads, attends as on one rank, and gives the tokens back.

Results have the same bits on any number of ranks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fovea.distributed._blocks import Sides, blocks
from fovea.distributed._call import Call
from fovea.distributed._compute import Forward, Merged, attend, differentiate, rows_of
from fovea.distributed._exchange import to_all
from fovea.distributed._layout import Layout, with_rows


def refusal(heads: int, kv_heads: int, ranks: int, names: tuple[str, str] = ("q.shape (head)", "k.shape (kv_head)")) -> str | None:
    """Why heads cannot be dealt to so many ranks."""
    if heads % ranks != 0:
        return f"{names[0]}: got {heads}, want a multiple of {ranks}, the ranks of the group, for way='heads'"
    if kv_heads % ranks != 0 and ranks % kv_heads != 0:
        return f"{names[1]}: got {kv_heads}, want a multiple or a divisor of {ranks}, the ranks of the group, for way='heads'"
    return None


class Heads:
    """The two exchanges of one rank."""

    def __init__(self, call: Call):
        self.call, self.ranks = call, call.layout.ranks
        whole = Sides(Layout(call.layout.lengths, 1, "contiguous"), 0, Layout(call.layout_k.lengths, 1, "contiguous"), 0)
        self.blocks = blocks(whole, call.mask)

    def dealt(self, heads: int, rank: int) -> tuple[int, int]:
        """The heads of a rank. Fewer kv heads than ranks are each on several ranks."""
        if heads % self.ranks == 0:
            return rank * heads // self.ranks, (rank + 1) * heads // self.ranks
        head = rank * heads // self.ranks
        return head, head + 1

    def to_heads(self, name: str, tensor: Tensor, layout: Layout) -> Tensor:
        """All tokens of this rank's heads, in the order of their sequences, from this rank's tokens of all heads."""
        dim = self.call.token_dim
        parts = [tensor[..., slice(*self.dealt(tensor.shape[-2], rank)), :] for rank in range(self.ranks)]
        own = parts[self.call.rank]
        shapes = [with_rows(own, dim, layout.rows(rank)) for rank in range(self.ranks)]
        shards = to_all(self.call.step(name), parts, shapes, self.call.group)
        return torch.cat(shards, dim).index_select(dim, layout.order_of_all.to(tensor.device))

    def to_tokens(self, name: str, tensor: Tensor, layout: Layout, heads: int) -> Tensor:
        """The way back. Gradients of kv heads that several ranks have are summed, in the order of ranks."""
        dim = self.call.token_dim
        parts = [tensor.index_select(dim, layout.indices(rank).to(tensor.device)) for rank in range(self.ranks)]
        shapes = [with_rows(tensor, dim, layout.rows(self.call.rank))] * self.ranks
        received = to_all(self.call.step(name), parts, shapes, self.call.group)
        if heads % self.ranks == 0:
            return torch.cat(received, dim=-2)
        sharers = self.ranks // heads
        sums = [torch.stack(received[i : i + sharers]).float().sum(dim=0) for i in range(0, self.ranks, sharers)]
        return torch.cat(sums, dim=-2).to(tensor.dtype)

    def numbers_to_tokens(self, name: str, lse: Tensor, heads: int) -> Tensor:
        """The same of lse."""
        columns = (lse.transpose(1, 2) if lse.dim() == 3 else lse)[..., None]
        tokens = self.to_tokens(name, columns, self.call.layout, heads)[..., 0]
        return tokens.transpose(1, 2).contiguous() if lse.dim() == 3 else tokens

    def numbers_to_heads(self, name: str, lse: Tensor) -> Tensor:
        columns = (lse.transpose(1, 2) if lse.dim() == 3 else lse)[..., None]
        heads = self.to_heads(name, columns, self.call.layout)[..., 0]
        return heads.transpose(1, 2) if lse.dim() == 3 else heads

    def forward(self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        heads = q.shape[-2]
        q = self.to_heads("q", q, self.call.layout)
        k, v = self.to_heads("K", k, self.call.layout_k), self.to_heads("V", v, self.call.layout_k)
        merged = Merged(q, v.shape[-1], q.dtype)
        for block in self.blocks:
            own = None if sink is None else sink[slice(*self.dealt(heads, self.call.rank))]
            merged.put(block, *attend(block, q, (k, v), self.call.scores, own))
        out = self.to_tokens("out", merged.out, self.call.layout, heads)
        return out, self.numbers_to_tokens("lse", merged.lse, heads)

    def backward(self, forward: Forward, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """dsink has numbers for this rank's heads, of all tokens; the sum over ranks is that of the others ways too."""
        heads, kv_heads = forward.q.shape[-2], k.shape[-2]
        first, last = self.dealt(heads, self.call.rank)
        layout = self.call.layout
        some = Forward(
            q=self.to_heads("q", forward.q, layout),
            out=self.to_heads("out", forward.out, layout),
            lse=self.numbers_to_heads("lse", forward.lse),
            dout=self.to_heads("dout", forward.dout, layout),
            dlse=None if forward.dlse is None else self.numbers_to_heads("dlse", forward.dlse),
            sink=None if forward.sink is None else forward.sink[first:last],
        )
        k, v = self.to_heads("K", k, self.call.layout_k), self.to_heads("V", v, self.call.layout_k)
        gradients = [torch.zeros_like(tensor, memory_format=torch.contiguous_format) for tensor in (some.q, k, v)]
        dsink = None if forward.sink is None else torch.zeros_like(forward.sink)
        for block in self.blocks:
            *of_block, of_sink = differentiate(block, some, (k, v), self.call.scores)
            for whole, at, part in zip(gradients, (block.q, block.k, block.k), of_block, strict=True):
                rows_of(whole, at).copy_(part)
            if dsink is not None and of_sink is not None:
                dsink[first:last] += of_sink
        dq = self.to_tokens("dq", gradients[0], layout, heads)
        dk, dv = (
            self.to_tokens(f"d{name}", part, self.call.layout_k, kv_heads) for name, part in zip("kv", gradients[1:], strict=True)
        )
        return dq, dk, dv, dsink
