# SPDX-License-Identifier: Apache-2.0
"""Whether numbers are in range, and whether this process is in a group."""

from __future__ import annotations

import math

import torch.distributed as dist
from torch.distributed import ProcessGroup

MOST_RANKS = 1 << 16


def within(name: str, value: int, least: int, most: int | None = None) -> None:
    """Refuses a number outside its bounds. NaN is outside any."""
    if not (least <= value if most is None else least <= value <= most):
        raise ValueError(f"{name}: got {value}, want {f'{least} or more' if most is None else f'{least} to {most}'}")


def one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        words = ", ".join(map(repr, choices[:-1]))
        raise ValueError(f"{name}: got {value!r}, want {words} or {choices[-1]!r}")


def finite(name: str, value: float, *, positive: bool = False) -> None:
    """Refuses NaN, infinity and negative numbers; with positive, zero too."""
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise ValueError(f"{name}: got {value}, want a finite number, {'more than 0' if positive else '0 or more'}")


def place(group: ProcessGroup | None) -> tuple[int, int]:
    """This process's rank in a group, and how many ranks it has."""
    if not dist.is_initialized():
        raise ValueError("group: got none, want torch.distributed.init_process_group() before this call")
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ValueError(f"group: got one without this process, want one that has it (rank: got {rank}, want 0 or more)")
    return rank, ranks
