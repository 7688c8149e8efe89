# SPDX-License-Identifier: Apache-2.0
"""The description of a call that all ways share."""

from __future__ import annotations

from dataclasses import dataclass

from torch.distributed import ProcessGroup

from fovea.distributed._blocks import Mask
from fovea.distributed._compute import Scores
from fovea.distributed._layout import Layout


@dataclass(frozen=True)
class Call:
    """One call of attention on one rank, but for its tensors."""

    name: str
    group: ProcessGroup | None
    rank: int
    layout: Layout
    """The layout of q."""
    layout_k: Layout
    mask: Mask
    scores: Scores

    @property
    def token_dim(self) -> int:
        return 0 if self.layout.ragged else 1

    def step(self, what: str) -> str:
        """How errors and counted bytes name a step."""
        return f"{self.name}, {what}"
