# SPDX-License-Identifier: Apache-2.0
"""Heads are exchanged for tokens: within a node, each rank gets all tokens that the node has, of some heads, and gives them back.

With one node these are all tokens: attention runs as on one rank, so results have the same bits on any number of ranks. Between
nodes, K and V of these heads travel around a ring.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

from fovea.distributed._call import Call
from fovea.distributed._compute import Forward, rows_of
from fovea.distributed._exchange import to_all
from fovea.distributed._layout import Layout, with_rows
from fovea.distributed._nodes import Nodes
from fovea.distributed._ring import Ring

_NAMES = "q.shape (head)", "k.shape (kv_head)"


def refusal(heads: int, kv_heads: int, ranks: int, names: tuple[str, str] = _NAMES) -> str | None:
    """Why heads cannot be dealt to all ranks."""
    return _refusal(heads, kv_heads, ranks, names, "the ranks of the group, for way='heads'")


def refusal_of_node(heads: int, kv_heads: int, ranks: int, names: tuple[str, str] = _NAMES) -> str | None:
    """The same of the ranks of a node."""
    return _refusal(heads, kv_heads, ranks, names, "the ranks of a node, for way='two_level'")


def _refusal(heads: int, kv_heads: int, ranks: int, names: tuple[str, str], whose: str) -> str | None:
    if heads % ranks != 0:
        return f"{names[0]}: got {heads}, want a multiple of {ranks}, {whose}"
    if kv_heads % ranks != 0 and ranks % kv_heads != 0:
        return f"{names[1]}: got {kv_heads}, want a multiple or a divisor of {ranks}, {whose}"
    return None


class Heads:
    """The two exchanges of one rank, and what is between them."""

    def __init__(self, call: Call, nodes: Nodes | None = None):
        nodes = Nodes(call.group, call.layout.ranks, 1, None) if nodes is None else nodes
        self.call, self.group, self.ranks = call, nodes.inside, nodes.ranks
        self.node, self.place = divmod(call.rank, nodes.ranks)
        self.inside = Ring(
            Call(
                name=call.name,
                group=nodes.between,
                rank=self.node,
                layout=_of_nodes(call.layout, nodes.nodes),
                layout_k=_of_nodes(call.layout_k, nodes.nodes),
                mask=call.mask,
                scores=call.scores,
            )
        )

    def dealt(self, heads: int, place: int) -> tuple[int, int]:
        """The heads of a rank of the node. Fewer kv heads than ranks are each on several ranks."""
        if heads % self.ranks == 0:
            return place * heads // self.ranks, (place + 1) * heads // self.ranks
        head = place * heads // self.ranks
        return head, head + 1

    def members(self) -> range:
        """The ranks of this node."""
        return range(self.node * self.ranks, (self.node + 1) * self.ranks)

    def to_heads(self, name: str, tensor: Tensor, layout: Layout) -> Tensor:
        """All tokens of the node, in its layout, of this rank's heads: from this rank's tokens of all heads."""
        dim = self.call.token_dim
        parts = [[tensor[..., slice(*self.dealt(tensor.shape[-2], place)), :]] for place in range(self.ranks)]
        shapes = [[with_rows(parts[self.place][0], dim, layout.rows(rank))] for rank in self.members()]
        shards = [shard for (shard,) in to_all(self.call.step(name), parts, shapes, self.group)]
        if layout.ragged:
            return torch.cat(shards, dim).index_select(dim, _order(layout, self.members(), tensor.device))
        first = self.members()[0]
        return torch.cat([rows_of(shards[rank - first], rows) for rank, rows in _chunks(layout, self.members())], dim)

    def to_tokens(self, name: str, tensor: Tensor, layout: Layout, heads: int) -> Tensor:
        """The way back. Gradients of kv heads that several ranks have are summed, in the order of ranks."""
        dim, each = self.call.token_dim, tensor.shape[-2]
        rows = [layout.part_slice(self.call.rank, part) for part in range(layout.parts)]
        rows = [(0, rows[-1][1])] if layout.ragged else rows
        shapes = [[with_rows(tensor, dim, end - begin) for begin, end in rows]] * self.ranks
        received = to_all(self.call.step(name), self.cut(tensor, layout), shapes, self.group)
        whole = tensor.new_empty((*tensor.shape[:dim], layout.rows(self.call.rank), self.ranks * each, tensor.shape[-1]))
        for place, pieces in enumerate(received):
            for at, piece in zip(rows, pieces, strict=True):
                rows_of(whole[..., place * each : (place + 1) * each, :], at).copy_(piece)
        if heads % self.ranks == 0:
            return whole
        sharers = whole.view(*whole.shape[:-2], heads, self.ranks // heads, whole.shape[-1])
        return sharers.sum(dim=-2, dtype=torch.float32).to(tensor.dtype)

    def cut(self, tensor: Tensor, layout: Layout) -> list[list[Tensor]]:
        """The node's rows as the shards of its ranks, each in pieces."""
        if layout.ragged:
            back = _order(layout, self.members(), tensor.device, back=True).split([layout.rows(rank) for rank in self.members()])
            return [[tensor.index_select(self.call.token_dim, rows)] for rows in back]
        parts: list[list[Tensor]] = [[] for _ in self.members()]
        at = 0
        for rank, (begin, end) in _chunks(layout, self.members()):
            parts[rank - self.members()[0]].append(rows_of(tensor, (at, at + end - begin)))
            at += end - begin
        return parts

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
        own = None if sink is None else sink[slice(*self.dealt(heads, self.place))]
        out, lse = self.inside.forward(q, k, v, own)
        return self.to_tokens("out", out, self.call.layout, heads), self.numbers_to_tokens("lse", lse, heads)

    def backward(self, forward: Forward, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """dsink has numbers for this rank's heads, of the node's tokens; the sum over ranks is that of the other ways too."""
        heads, kv_heads = forward.q.shape[-2], k.shape[-2]
        first, last = self.dealt(heads, self.place)
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
        dq, dk, dv, of_sink = self.inside.backward(some, k, v)
        dsink = None if forward.sink is None else torch.zeros_like(forward.sink)
        if dsink is not None and of_sink is not None:
            dsink[first:last] = of_sink
        dq = self.to_tokens("dq", dq, layout, heads)
        dk, dv = (self.to_tokens(f"d{name}", part, self.call.layout_k, kv_heads) for name, part in (("k", dk), ("v", dv)))
        return dq, dk, dv, dsink


def _chunks(layout: Layout, members: range) -> Iterator[tuple[int, tuple[int, int]]]:
    """The node's shard of a fixed batch, chunk by chunk: whose chunk it is, and the rows of that rank's shard."""
    for part in range(layout.parts):
        for rank in members if part == 0 else reversed(members):
            yield rank, layout.part_slice(rank, part)


@lru_cache(maxsize=16)
def _order(layout: Layout, members: range, device: torch.device, back: bool = False) -> Tensor:
    """Where the node's rows lie in its ranks' shards, one behind the other; or the way back."""
    nodes = layout.ranks // len(members)
    shards = torch.cat([layout.indices(rank) for rank in members])
    own = _of_nodes(layout, nodes).indices(members[0] // len(members))
    order = shards.argsort()[own.argsort().argsort()]
    return (order.argsort() if back else order).to(device)


def _of_nodes(layout: Layout, nodes: int) -> Layout:
    """Which node has which tokens: neighbouring ranks have neighbouring chunks."""
    return Layout(layout.lengths, nodes, layout.order if nodes > 1 else "contiguous")
