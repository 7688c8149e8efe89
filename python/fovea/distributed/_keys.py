# SPDX-License-Identifier: Apache-2.0
"""How K and V of a shard reach other ranks: from a buffer that they read, where GPUs have such a one, else by messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fovea.distributed._call import Call
from fovea.distributed._compute import rows_of
from fovea.distributed._exchange import Exchange, count
from fovea.distributed._layout import with_rows
from fovea.distributed._parts import Rows
from fovea.distributed._peers import Pull, aligned, peer_memory

Pair = tuple[Tensor, Tensor]
"""K and V."""


class Keys:
    """K and V of this rank's shard, from the begin of a call to its end."""

    def __init__(self, call: Call, own: Pair):
        self.call, self.own = call, own
        rows, dim = [call.layout_k.rows(rank) for rank in range(call.layout_k.ranks)], call.token_dim
        most = [aligned(_bytes(tensor, dim, max(rows))) for tensor in own]
        self._offsets = 0, most[0]
        alone = call.layout_k.ranks == 1 or not max(rows)
        self._memory = None if alone else peer_memory(call.group, sum(most), own[0].device)
        if self._memory is not None:
            self._memory.put(own, self._offsets)

    def travel(
        self, what: str, readers: Sequence[int], pieces: Sequence[Rows], rooms: Mapping[int, Sequence[tuple[Rows, Pair]]]
    ) -> Exchange | Pull:
        """Starts the copies or messages that K and V of other ranks come by.

        Args:
            what: The step, in errors and counts.
            readers: Who gets this rank's.
            pieces: The rows of this rank's shard that each of them gets.
            rooms: For each rank whose K and V come here, rows of its shard and where they go.
        """
        step, dim = self.call.step(what), self.call.token_dim
        own = [rows_of(tensor, rows) for rows in pieces for tensor in self.own]
        if self._memory is None:
            exchange = Exchange(step, self.call.group)
            for reader in readers:
                exchange.send(own, reader)
            for owner, places in rooms.items():
                exchange.receive([tensor for _, pair in places for tensor in pair], owner)
            return exchange.start()
        count(step, own, len(readers))
        copies = []
        for owner, places in rooms.items():
            for index, tensor in enumerate(self.own):
                shape = with_rows(tensor, dim, self.call.layout_k.rows(owner))
                theirs = self._memory.view(owner, self._offsets[index], shape, tensor.dtype)
                copies += [(pair[index], rows_of(theirs, rows)) for rows, pair in places]
        return Pull(copies, self._memory, self.own[0].device)


def _bytes(tensor: Tensor, dim: int, rows: int) -> int:
    """Bytes of a shard with so many rows."""
    count = tensor.element_size()
    for extent in with_rows(tensor, dim, rows):
        count *= extent
    return count
