# SPDX-License-Identifier: Apache-2.0
"""A model of the time of context parallelism: what attention computes, what ranks send, and how much of that runs beside it.

It is a model. Its rates of one GPU are measured (docs/performance.md, bench/results); its link rates are what vendors state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

import torch

from fovea._calls import adapted
from fovea.distributed._checks import MOST_RANKS, finite, one_of, within
from fovea.distributed._heads import refusal

_Problem = TypeVar("_Problem", bound="Problem")
Way = Literal["ring", "gathered", "heads"]
WAYS: tuple[Way, ...] = ("ring", "gathered", "heads")
_CHUNKS = 4  # of kv heads that the gathered way has in flight


@adapted()
@dataclass(frozen=True)
class Machine:
    """Rates of one rank."""

    forward: float
    """Floating-point operations a second of attention, as its forward pass reaches them on one GPU."""
    backward: float
    memory: float
    """Bytes a second."""
    link: float
    """Bytes a second that a rank sends while it receives as many."""
    latency: float
    """Seconds of a message or a collective call, whatever its size."""
    hop: float
    """Further seconds of a collective call for each rank beyond the first."""

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "memory", "link"):
            finite(name, getattr(self, name), positive=True)
        for name in ("latency", "hop"):
            finite(name, getattr(self, name))

    @adapted()
    def collective(self, ranks: int) -> float:
        """What a collective call takes beside its bytes."""
        within("ranks", ranks, 1, MOST_RANKS)
        return self.latency + (ranks - 1) * self.hop


# Attention: bench/results/nvidia-h100/2026-11-24-dense-attention.json, and -dense-backward-by-turns.json, d128 s16384 and s4096.
# Memory: the H200's 4.8 TB/s. Links: 900 GB/s of NVLink and 800 Gbit/s of InfiniBand for both directions. Latency and hop: assumed.
HOPPER_NVLINK = Machine(forward=620e12, backward=540e12, memory=4.8e12, link=450e9, latency=15e-6, hop=1e-6)
HOPPER_INFINIBAND = Machine(forward=620e12, backward=540e12, memory=4.8e12, link=50e9, latency=25e-6, hop=3e-6)
# A few cores that share memory, over gloo.
CPU = Machine(forward=0.5e12, backward=0.3e12, memory=50e9, link=2e9, latency=200e-6, hop=50e-6)


@adapted()
@dataclass(frozen=True)
class Problem:
    """A call over all ranks. ``pairs`` are (query, key) pairs that are visible, of one head."""

    tokens: int
    pairs: float
    heads: int
    kv_heads: int
    dim_qk: int
    dim_v: int
    element_bytes: int
    ranks: int
    backward: bool = False

    def __post_init__(self) -> None:
        within("tokens", self.tokens, 0)
        finite("pairs", self.pairs)
        for name in ("heads", "kv_heads", "dim_qk", "dim_v", "element_bytes"):
            within(name, getattr(self, name), 1)
        within("ranks", self.ranks, 1, MOST_RANKS)

    @classmethod
    @adapted({"dim_qk": "dim"})
    def causal(
        cls: type[_Problem],
        tokens: int,
        ranks: int,
        *,
        heads: int = 32,
        kv_heads: int = 8,
        dim: int = 128,
        backward: bool = False,
    ) -> _Problem:
        """One bf16 sequence under a causal mask."""
        return cls(tokens, tokens * (tokens + 1) / 2, heads, kv_heads, dim, dim, 2, ranks, backward)


@adapted()
@dataclass(frozen=True)
class Estimate:
    """Seconds of one rank, and what it sends."""

    compute: float
    exposed: float
    """Communication that no product hides."""
    sent_bytes: int

    @property
    def total(self) -> float:
        return self.compute + self.exposed


def _check(way: str, problem: Problem) -> None:
    one_of("way", way, WAYS)
    reason = refusal(problem.heads, problem.kv_heads, problem.ranks, ("heads", "kv_heads")) if way == "heads" else None
    if reason is not None:
        raise ValueError(reason)


@adapted()
def sent_bytes(way: Way, problem: Problem) -> int:
    """What each rank sends where all ranks have as many tokens and need all keys: exactly what is counted."""
    _check(way, problem)
    p = problem
    rows, others = p.tokens // p.ranks, p.ranks - 1
    keys = rows * p.kv_heads * (p.dim_qk + p.dim_v) * p.element_bytes
    if way != "heads":
        return others * keys * (2 if p.backward else 1)
    dealt = others * rows * max(1, p.kv_heads // p.ranks) * (p.dim_qk + p.dim_v) * p.element_bytes
    queries = others * rows * p.heads // p.ranks
    if not p.backward:
        return dealt + queries * ((p.dim_qk + p.dim_v) * p.element_bytes + 4)
    back = others * (p.tokens // p.ranks) * max(1, p.kv_heads // p.ranks) * (p.dim_qk + p.dim_v) * p.element_bytes
    return dealt + back + queries * ((2 * p.dim_qk + 2 * p.dim_v) * p.element_bytes + 4)


@adapted()
def estimate(way: Way, problem: Problem, machine: Machine) -> Estimate:
    """The time of one call by a way."""
    p, m = problem, machine
    products = 3 * p.dim_qk + 2 * p.dim_v if p.backward else p.dim_qk + p.dim_v
    compute = 2 * p.pairs * p.heads * products / p.ranks / (m.backward if p.backward else m.forward)
    sent = sent_bytes(way, p)
    if p.ranks == 1:
        return Estimate(compute, 0.0, 0)
    if way == "heads":
        calls = 8 if p.backward else 5
        return Estimate(compute, sent / m.link + calls * m.collective(p.ranks), sent)
    if way == "gathered":
        travel, chunks = sent / m.link + 2 * _CHUNKS * m.collective(p.ranks), _CHUNKS
        beside = (chunks - 1) / chunks
        copies = 4 * p.tokens * p.kv_heads * (p.dim_qk + p.dim_v) * p.element_bytes / m.memory
        return Estimate(compute + copies, travel / chunks + max(0.0, travel * beside - compute * beside), sent)
    step, travel = compute / p.ranks, sent / (p.ranks - 1) / m.link + m.latency
    merged = 16 * p.tokens / p.ranks * p.heads * p.dim_v * (p.ranks - 1) / m.memory
    return Estimate(compute + merged, (p.ranks - 1) * max(0.0, travel - step), sent)


@adapted()
def decode_seconds(cache_bytes: float, result_bytes: float, ranks: int, machine: Machine, flops: float = 0.0) -> float:
    """One step of decoding over a cache of so many bytes that lies on all ranks, then one all-gather of results. Reading the cache
    takes its time, or the products do where many heads share a row."""
    finite("cache_bytes", cache_bytes)
    finite("result_bytes", result_bytes)
    finite("flops", flops)
    within("ranks", ranks, 1, MOST_RANKS)
    merge = 0.0 if ranks == 1 else (ranks - 1) * result_bytes / machine.link + machine.collective(ranks)
    return max(cache_bytes / (0.9 * machine.memory), flops / machine.forward) / ranks + merge


@adapted()
def choose(problem: Problem, machine: Machine) -> Way:
    """The way that the model takes for the fastest, of those that the heads allow."""
    ways = [way for way in WAYS if way != "heads" or refusal(problem.heads, problem.kv_heads, problem.ranks) is None]
    return min(ways, key=lambda way: estimate(way, problem, machine).total)


@adapted()
def machine_of(device: torch.device) -> Machine:
    """What a call is judged by that names no way."""
    return CPU if device.type == "cpu" else HOPPER_NVLINK
