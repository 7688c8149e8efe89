# SPDX-License-Identifier: Apache-2.0
"""Whether the ranks of a group make the same call: if not, all of them get the same error and none waits for another."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from fovea.distributed._exchange import all_gather, named

Fields = dict[str, Any]
_Fault = tuple[bool, str]  # whether it is a decline, and its message


def agree(call: str, fields: Fields, fault: Exception | None, device: torch.device, group: ProcessGroup | None) -> None:
    """Raises the same error on every rank where fields differ between ranks, or where a rank has a fault of its own.

    ``fields`` say what must be equal; ``fault`` is what this rank would raise by itself. One all-gather of 8 bytes, and another
    one of all fields where something is wrong.
    """
    said = (str(sorted(fields.items())), None if fault is None else (isinstance(fault, NotImplementedError), str(fault)))
    digest = int.from_bytes(hashlib.sha256(repr(said).encode()).digest()[:8], "little", signed=True)
    ranks = dist.get_world_size(group)
    if ranks == 1 and fault is None:
        return
    own = torch.tensor([digest], dtype=torch.int64, device="cpu" if dist.get_backend(group) == "gloo" else device)
    all_digests = own.new_empty(ranks)
    with named(f"{call}, whether ranks agree", group):
        all_gather(all_digests, own, group=group)
    digests = all_digests.tolist()
    if fault is None and all(other == digests[0] for other in digests):
        return
    everyone: list[tuple[Fields, _Fault | None]] = [({}, None)] * ranks
    dist.all_gather_object(everyone, (fields, said[1]), group=group)
    raise _error(call, everyone)


def _error(call: str, everyone: list[tuple[Fields, _Fault | None]]) -> Exception:
    """The error of the first fault, or of the first field that differs."""
    for rank, (_, fault) in enumerate(everyone):
        if fault is not None:
            return (NotImplementedError if fault[0] else ValueError)(f"{call}: rank {rank}: {fault[1]}")
    first = everyone[0][0]
    for rank, (fields, _) in enumerate(everyone):
        for name in [*first, *fields]:
            if first.get(name) != fields.get(name):
                return ValueError(f"{call}: {name}: got {fields.get(name)} on rank {rank}, want {first.get(name)}, as on rank 0")
    return ValueError(f"{call}: got calls that differ between ranks")
