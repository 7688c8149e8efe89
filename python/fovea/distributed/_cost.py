# SPDX-License-Identifier: Apache-2.0
"""A model of the time of context parallelism: what attention computes, what ranks send, and how much of that runs beside it.

It is a model. Its rates are measured on GPUs of one host (docs/performance.md, bench/results). Those between hosts are stated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import torch

from fovea._calls import adapted
from fovea.distributed._checks import MOST_RANKS, finite, one_of, within
from fovea.distributed._heads import refusal, refusal_of_node

_Problem = TypeVar("_Problem", bound="Problem")
Way = Literal["ring", "gathered", "heads"]
WAYS: tuple[Way, ...] = ("ring", "gathered", "heads")


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
    rectangles: float = 1.0
    """The share of ``backward`` that blocks of queries and keys without a mask reach."""
    exchange: float = 0.0
    """Bytes a second of an exchange between all ranks; 0 is ``link``."""
    decode: float = 0.0
    """Seconds of a decode call, whatever it reads."""
    room: float = math.inf
    """Bytes of K and V that a rank has room for."""

    def __post_init__(self) -> None:
        for name in ("forward", "backward", "memory", "link", "rectangles"):
            finite(name, getattr(self, name), positive=True)
        for name in ("latency", "hop", "exchange", "decode"):
            finite(name, getattr(self, name))
        if not self.room >= 0:
            raise ValueError(f"room: got {self.room}, want 0 or more")

    @adapted()
    def collective(self, ranks: int) -> float:
        """Seconds of a collective call beside those of its bytes."""
        within("ranks", ranks, 1, MOST_RANKS)
        return self.latency + (ranks - 1) * self.hop

    def exchanged(self, sent: float) -> float:
        """Seconds of so many bytes that a rank sends to all others."""
        return sent / (self.exchange or self.link)


# bench/results/nvidia-h200/2026-11-27-context-parallel-variants.json. InfiniBand: 800 Gbit/s both ways; latency and hop assumed.
HOPPER_NVLINK = Machine(
    forward=680e12,
    backward=560e12,
    memory=4.5e12,
    link=300e9,
    latency=11e-6,
    hop=1e-6,
    rectangles=0.82,
    exchange=250e9,
    decode=12e-6,
    room=8e9,
)
_BETWEEN = {"link": 50e9, "latency": 25e-6, "hop": 3e-6, "exchange": 50e9}
HOPPER_INFINIBAND = replace(HOPPER_NVLINK, **_BETWEEN)
_H100_MEMORY = 3.05e12
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
    """Bytes that each rank sends where all ranks have equally many tokens and need all keys: exactly what is counted."""
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
    rows = p.tokens / p.ranks * p.element_bytes / m.memory
    queries, keys = rows * p.heads * p.dim_v, rows * p.kv_heads * (p.dim_qk + p.dim_v)  # seconds to read such a shard
    if way == "heads":
        calls, copied = (8, 14) if p.backward else (5, 8)
        return Estimate(compute + copied * queries, m.exchanged(sent) + calls * m.collective(p.ranks), sent)
    step = compute / p.ranks
    if way == "gathered":
        travel = (sent / 2 if p.backward else sent) / m.link + m.collective(p.ranks)
        if not p.backward:
            return Estimate(compute + 3 * queries + 2 * keys, max(0.0, travel - step), sent)
        return Estimate(compute + 3 * p.ranks * keys, travel + m.exchanged(sent / 2) + m.collective(p.ranks), sent)
    others = (compute - step) / (m.rectangles if p.backward else 1.0)
    travel = sent / (p.ranks - 1) / m.link + m.latency
    merged = (p.ranks + 1) * queries + (8 if p.backward else 2) * keys
    return Estimate(step + others + merged, (p.ranks - 1) * max(0.0, travel - others / (p.ranks - 1)), sent)


@adapted()
def two_level(problem: Problem, ranks_per_node: int, inside: Machine, between: Machine) -> Estimate:
    """Heads within a node, a ring between nodes. ``inside`` and ``between`` differ in their links."""
    p = problem
    within("ranks_per_node", ranks_per_node, 1, p.ranks)
    if p.ranks % ranks_per_node:
        raise ValueError(f"ranks_per_node: got {ranks_per_node}, want a divisor of {p.ranks} (ranks)")
    nodes = p.ranks // ranks_per_node
    exchange = estimate("heads", replace(p, tokens=p.tokens // nodes, pairs=p.pairs / nodes, ranks=ranks_per_node), inside)
    some = replace(p, heads=p.heads // ranks_per_node, kv_heads=max(1, p.kv_heads // ranks_per_node), ranks=nodes)
    around = estimate("ring", some, between)
    return Estimate(around.compute, exchange.exposed + around.exposed, exchange.sent_bytes + around.sent_bytes)


@adapted()
def decode_seconds(cache_bytes: float, result_bytes: float, ranks: int, machine: Machine, flops: float = 0.0) -> float:
    """One step of decoding over a cache of so many bytes that lies on all ranks, then one all-gather of results. Reading the cache
    takes its time, or the products do where many heads share a row."""
    finite("cache_bytes", cache_bytes)
    finite("result_bytes", result_bytes)
    finite("flops", flops)
    within("ranks", ranks, 1, MOST_RANKS)
    merge = 0.0 if ranks == 1 else (ranks - 1) * result_bytes / machine.link + machine.collective(ranks)
    return max(cache_bytes / machine.memory, flops / machine.forward) / ranks + machine.decode + merge


@adapted()
def choose(problem: Problem, machine: Machine, between: Machine | None = None, ranks_per_node: int | None = None) -> str:
    """The way that the model takes for the fastest, of those that the heads allow.

    Args:
        problem: The call.
        machine: Rates within a node.
        between: Those of messages between nodes, which all ways but ``"two_level"`` have then; None is one node.
        ranks_per_node: How many ranks a node has, with ``between``.
    """
    p = problem
    fits = p.tokens * p.kv_heads * (p.dim_qk + p.dim_v) * p.element_bytes <= machine.room
    allowed = {"ring": True, "gathered": fits, "heads": refusal(p.heads, p.kv_heads, p.ranks) is None}
    ways = [way for way in WAYS if allowed[way]]
    seconds: dict[str, float] = {way: estimate(way, p, between or machine).total for way in ways}
    if between is not None and ranks_per_node is not None and refusal_of_node(p.heads, p.kv_heads, ranks_per_node) is None:
        seconds["two_level"] = two_level(p, ranks_per_node, machine, between).total
    return min(seconds, key=lambda way: seconds[way])


@adapted()
def machine_of(device: torch.device) -> Machine:
    """The machine by which the cost model judges a call that names no way."""
    if device.type == "cpu":
        return CPU
    large = torch.cuda.get_device_properties(device).total_memory > 100 << 30
    return HOPPER_NVLINK if large else replace(HOPPER_NVLINK, memory=_H100_MEMORY)


@adapted()
def between_of(device: torch.device) -> Machine:
    """The same of messages between nodes."""
    return CPU if device.type == "cpu" else replace(machine_of(device), **_BETWEEN)
