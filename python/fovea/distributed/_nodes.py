# SPDX-License-Identifier: Apache-2.0
"""Groups within nodes, and between them."""

from __future__ import annotations

from typing import NamedTuple

import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh


class Nodes(NamedTuple):
    """The ranks of a group by nodes: rank r is rank ``r % ranks`` of node ``r // ranks``."""

    inside: ProcessGroup | None
    """This rank's node."""
    ranks: int
    """Ranks of a node."""
    nodes: int
    between: ProcessGroup | None
    """The ranks at this place of all nodes."""


def nodes_of(mesh: DeviceMesh) -> Nodes:
    return Nodes(mesh.get_group(1), mesh.size(1), mesh.size(0), mesh.get_group(0))


def check_mesh(mesh: DeviceMesh | None, way: str, group: ProcessGroup | None) -> None:
    """Whether it has the ranks of the group, node by node."""
    if mesh is None:
        if way == "two_level":
            raise ValueError("mesh: got None, want a DeviceMesh of nodes and their ranks, for way='two_level'")
        return
    if mesh.ndim != 2:
        raise ValueError(f"mesh.ndim: got {mesh.ndim}, want 2 (nodes, ranks of a node)")
    ranks, wanted = mesh.mesh.flatten().tolist(), dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
    if ranks != wanted:
        raise ValueError(f"mesh.mesh: got the ranks {ranks}, want {wanted}, those of the group in their order")
