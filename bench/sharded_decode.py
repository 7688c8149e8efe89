# SPDX-License-Identifier: Apache-2.0
"""One sequence of bench/context_parallel.py whose cache lies on several GPUs."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

import fovea
from fovea import distributed
from fovea.distributed import PageDeal

HEADS, KV_HEADS, DIM = 32, 8, 128
LATENT_HEADS, LATENT_DIM, PAGE = 128, 576, 64


def random(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device=device)


class Decode:
    """One sequence whose pages are dealt to a group's ranks: a table in order, and a cache that a seed fills."""

    def __init__(self, device: torch.device, kind: str, tokens: int, group: ProcessGroup | None) -> None:
        """Without a group, all pages are here."""
        self.kind, self.group = kind, group
        rank, ranks = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        pages = PageDeal(PAGE, ranks).local_bound(tokens) // PAGE
        self.kv_len = torch.tensor([tokens], dtype=torch.int32, device=device)
        self.table = torch.arange(pages, dtype=torch.int32, device=device)[None]
        torch.manual_seed(4)
        self.step, self.schedule = distributed.Step(), fovea.LatentSchedule()
        self.q = random(device, 1, HEADS, DIM) if kind == "gqa" else random(device, 1, 1, LATENT_HEADS, LATENT_DIM)
        shapes = [(KV_HEADS, DIM)] * 2 if kind == "gqa" else [(1, LATENT_DIM)]
        own = torch.arange(-(-tokens // PAGE), device=device)[rank::ranks]  # none where there are fewer pages than ranks
        self.caches = []
        for shape in shapes:  # page p of the sequence is the same on any number of ranks
            whole = torch.randn(64, PAGE, *shape, dtype=torch.bfloat16, device=device)
            cache = torch.zeros(pages, PAGE, *shape, dtype=torch.bfloat16, device=device)
            cache[: len(own)] = whole[own % 64]
            self.caches.append(cache)

    def run(self, merge: str) -> Tensor:
        """A layer of a step, over the group or by the plain call."""
        options: dict[str, Any] = {} if self.kind == "gqa" else {"scale": 192**-0.5}
        call = (self.q, *self.caches, self.table, self.kv_len)
        if self.group is not None:
            options |= {"group": self.group, "merge": merge, "step": self.step, "check": False}
            return (distributed.paged_attention if self.kind == "gqa" else distributed.latent_attention)(*call, **options)
        if self.kind == "gqa":
            return fovea.paged_attention(*call)
        return fovea.latent_attention(*call, schedule=self.schedule, **options)

    def cache_bytes(self, tokens: int) -> int:
        return tokens * (2 * KV_HEADS * DIM * 2 if self.kind == "gqa" else LATENT_DIM * 2)
