# SPDX-License-Identifier: Apache-2.0
"""Bad arguments of what is distributed: layouts, pages and the model without processes, operations over a group of one rank."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist

import fovea
from fovea import distributed
from fovea.distributed import Layout, PageDeal, cost, shard, unshard

FIXED, RAGGED, DEAL = Layout(16, 2), Layout((3, 0, 9), 3), PageDeal(4, 2)
TABLE = torch.tensor([[0, 1], [2, -1]], dtype=torch.int32)
PROBLEM = cost.Problem.causal(64, 3)
CAUGHT = (TypeError, ValueError, NotImplementedError)


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


BAD = {
    "lengths: got '12', want an int or a tuple": lambda: Layout("12", 2),
    "lengths: got 1.5, want an int or a tuple": lambda: Layout(1.5, 2),
    "lengths: got -1, want 0 or more": lambda: Layout(-1, 2),
    "lengths[1]: got -2, want 0 or more": lambda: Layout((3, -2), 2),
    "lengths[1]: got 2.5, want an int": lambda: Layout([3, 2.5], 2),
    "lengths: got 9223372036854775808, want a number of 64 bits": lambda: Layout(1 << 63, 2),
    "lengths: got 9223372036854775808 tokens, want a number of 64 bits": lambda: Layout((1 << 62, 1 << 62), 2),
    "ranks: got 1.5, want an int": lambda: Layout(16, 1.5),
    "ranks: got nan, want an int": lambda: Layout(16, math.nan),
    "ranks: got -2, want 1 to 65536": lambda: Layout(16, -2),
    "ranks: got 2147483648, want 1 to 65536": lambda: Layout(16, 1 << 31),
    "order: got 'zigzag', want 'balanced' or 'contiguous'": lambda: Layout(16, 2, "zigzag"),
    "rank: got 7, want 0 to 1": lambda: FIXED.indices(7),
    "rank: got -1, want 0 to 1": lambda: FIXED.position_ids(-1),
    "rank: got 2, want 0 to 1": lambda: shard(torch.zeros(1, 16), FIXED, 2),
    "rank: got 3, want 0 to 2": lambda: RAGGED.rows(3),
    "rank: got nan, want an int": lambda: RAGGED.part_slice(math.nan, 0),
    "part: got 2, want 0 to 1": lambda: RAGGED.chunks(0, 2),
    "part: got 1, want 0 to 0": lambda: Layout(16, 2, "contiguous").chunk(0, 1, 16),
    "part: got -1, want 0 to 1": lambda: FIXED.rows(0, -1),
    "length: got -4, want 0 or more": lambda: FIXED.chunk(0, 0, -4),
    "device: got 'abacus', want a device of torch": lambda: FIXED.position_ids(0, "abacus"),
    "tensor.shape: got (1, 5), want 16 in dimension 1": lambda: shard(torch.zeros(1, 5), FIXED, 0),
    "layout.ranks: got 2, want 1, those of the group": lambda: unshard(torch.zeros(1, 16), FIXED),
    "page: got -4, want 1 to 2147483647": lambda: PageDeal(-4, -2),
    "page: got 0.5, want an int": lambda: PageDeal(0.5, 2),
    "ranks: got 0, want 1 to 65536": lambda: PageDeal(4, 0),
    "rank: got 2, want 0 to 1 ": lambda: DEAL.local_length(torch.tensor([3]), 2),
    "tokens[1]: got -5, want 0 or more": lambda: DEAL.local_length(torch.tensor([3, -5]), 0),
    "tokens[0][1]: got -5, want 0 or more": lambda: DEAL.local_length(torch.tensor([[3, -5]]), 0),
    "tokens.dtype: got torch.float32, want torch.int32 or torch.int64": lambda: DEAL.local_length(torch.tensor([3.0]), 0),
    "tokens: got -1, want 0 or more": lambda: DEAL.local_bound(-1),
    "block_table[1][1] (block number): got -1, want 0 or more": lambda: DEAL.local_slots(torch.tensor([[0], [9]]), TABLE, 0),
    "block_table.shape[1] (max_blocks): got 2, want 3 or more": lambda: DEAL.local_slots(torch.tensor([[16], [0]]), TABLE, 0),
    "block_table.shape[1] (max_blocks): got 0, want 1 or more": lambda: DEAL.local_slots(torch.tensor([[0], [0]]), TABLE[:, :0], 0),
    "positions.shape[0] (batch): got 3, want 2": lambda: DEAL.local_slots(torch.zeros(3, 1, dtype=torch.int64), TABLE, 0),
    "positions.rank: got 0, want 1 or more": lambda: DEAL.local_slots(torch.tensor(3), TABLE, 0),
    "positions.dtype: got torch.float32, want torch.int32": lambda: DEAL.local_slots(torch.zeros(2, 1), TABLE, 0),
    "block_table.rank: got 1, want 2 ([batch, max_blocks])": lambda: DEAL.local_slots(torch.zeros(2, 1).long(), TABLE[0], 0),
    "forward: got nan, want a finite number, more than 0": lambda: cost.Machine(math.nan, 1.0, 1.0, 1.0, 0.0, 0.0),
    "latency: got -1.0, want a finite number, 0 or more": lambda: cost.Machine(1.0, 1.0, 1.0, 1.0, -1.0, 0.0),
    "link: got 0.0, want a finite number, more than 0": lambda: cost.Machine(1.0, 1.0, 1.0, 0.0, 0.0, 0.0),
    "ranks: got 2.5, want an int": lambda: cost.CPU.collective(2.5),
    "tokens: got -64, want 0 or more": lambda: cost.Problem.causal(-64, 4),
    "dim: got 0, want 1 or more": lambda: cost.Problem.causal(64, 4, dim=0),
    "pairs: got inf, want a finite number": lambda: cost.Problem(64, math.inf, 4, 2, 16, 16, 2, 4),
    "way: got 'best', want 'ring', 'gathered' or 'heads'": lambda: cost.sent_bytes("best", PROBLEM),
    "heads: got 32, want a multiple of 3": lambda: cost.estimate("heads", PROBLEM, cost.CPU),
    "ranks_per_node: got 2, want a divisor of 3 (ranks)": lambda: cost.two_level(PROBLEM, 2, cost.CPU, cost.CPU),
    "ranks_per_node: got 4, want 1 to 3": lambda: cost.two_level(PROBLEM, 4, cost.CPU, cost.CPU),
    "room: got nan, want 0 or more": lambda: replace(cost.CPU, room=math.nan),
    "problem: got 3, want a fovea.Problem": lambda: cost.choose(3, cost.CPU),
    "cache_bytes: got -1.0, want a finite number": lambda: cost.decode_seconds(-1.0, 1.0, 2, cost.CPU),
    "flops: got nan, want a finite number": lambda: cost.decode_seconds(1.0, 1.0, 2, cost.CPU, math.nan),
    "device: got 'cuda', want a torch.device": lambda: cost.machine_of("cuda"),
    "sent: got list, want a dict": lambda: distributed.Traffic([]),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_layouts_pages_and_problems(message):
    with pytest.raises((TypeError, ValueError)) as raised:
        BAD[message]()
    assert str(raised.value).startswith(message.rstrip())


def test_numbers_of_numpy_are_numbers():
    assert Layout(numpy.int64(16), numpy.int32(2)) == FIXED
    assert Layout(numpy.int64(16), 2).ragged is False
    assert torch.equal(FIXED.indices(numpy.int64(1)), FIXED.indices(1))


def test_slots_of_no_tokens():
    """Positions of other ranks and negative ones need no block."""
    slots = DEAL.local_slots(torch.tensor([[-1, 4, 2], [-7, 13, 5]]), TABLE, 0)
    assert slots.tolist() == [[-1, -1, 2], [-1, -1, -1]]
    assert DEAL.local_slots(torch.tensor([3, 1]), TABLE, 0).tolist() == [3, 9]


def test_counts_inside_counts():
    """Counters that are equal are still two."""
    with distributed.count_traffic() as outer:
        with distributed.count_traffic() as inner:
            pass
        distributed._exchange.count("step", [torch.zeros(4)])
    assert (outer.total, inner.total) == (16, 0)


# ---- operations over one rank, as without any ----------------------------------------------------------------------------------

Call = dict[str, Any]


def dense(draw: random.Random, ragged: bool) -> Call:
    lead, layout = ((), Layout((3, 0, 5), 1, "contiguous")) if ragged else ((2,), Layout(8, 1))
    call = {name: torch.randn(*lead, 8, heads, dim) for name, heads, dim in (("q", 4, 16), ("k", 2, 16), ("v", 2, 8))}
    call |= {"layout": layout, "causal": True, "window": (3, None), "anchor": "bottom_right", "scale": 0.3, "softcap": 2.0}
    return call | {"sink": torch.randn(4), "return_lse": True, "way": draw.choice(["auto", *cost.WAYS]), "layout_k": None}


def paged(draw: random.Random) -> Call:
    call = {"q": torch.randn(3, 4, 16), "k_cache": torch.randn(6, 4, 2, 16), "v_cache": torch.randn(6, 4, 2, 8)}
    call |= {"causal": True, "max_kv_len": 0, "scale": 0.3, "softcap": 0.0, "sink": torch.randn(4), "return_lse": True}
    return call | lengths() | {"cu_seqlens_q": draw.choice([None, torch.tensor([0, 1, 1, 3], dtype=torch.int32)])}


def latent(draw: random.Random) -> Call:
    call = {"q": torch.randn(3, draw.choice([1, 2]), 2, 576), "cache": torch.randn(6, 4, 1, 576), "scale": 0.3, "return_lse": True}
    return call | lengths() | {"cu_seqlens_q": None, "format": "rows", "causal": True, "max_kv_len": 0, "cache_scale": None}


def lengths() -> Call:
    table = torch.arange(6, dtype=torch.int32).view(3, 2)
    return {"block_table": table, "kv_len": torch.tensor([3, 8, 5], dtype=torch.int32)}


def sparse(draw: random.Random) -> Call:
    listed = torch.randint(-1, 24, (2, 3, 8), dtype=torch.int32)
    call = {"q": torch.randn(2, 3, 2, 576), "cache": torch.randn(6, 4, 1, 576), "indices": listed, "topk_length": None}
    return call | {"format": "rows", "scale": 0.3, "sink": torch.randn(2), "return_lse": True}


def alone(**call: Any) -> Any:
    """Dense attention without ranks."""
    layout = call.pop("layout")
    for name in ("way", "layout_k"):
        call.pop(name)
    call |= {name: call[name].contiguous() for name in "qkv"}  # as it is sent
    if layout.ragged:
        cu = torch.tensor([0, *layout.lengths]).cumsum(0).int()
        call |= {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
    return fovea.attention(**call)


OPERATIONS: dict[str, tuple[Callable[[random.Random], Call], Callable[..., Any], Callable[..., Any]]] = {
    "dense": (lambda draw: dense(draw, False), distributed.attention, alone),
    "ragged": (lambda draw: dense(draw, True), distributed.attention, alone),
    "paged": (paged, distributed.paged_attention, fovea.paged_attention),
    "latent": (latent, distributed.latent_attention, fovea.latent_attention),
    "sparse": (sparse, distributed.sparse_latent_attention, fovea.sparse_latent_attention),
}
VALUES = (None, 1.5, math.nan, math.inf, -1, 0, 1, 2, 7, 1 << 31, 1 << 63, True, "12", "", [], (1, 2), {}, object())
VALUES += (
    numpy.int64(3),
    1j,
    torch.tensor(3),
    torch.zeros(2, 3),
    torch.float32,
    Layout(8, 2),
    Layout((4, 4), 1, "contiguous"),
    Layout(0, 1),
)
DTYPES = (torch.int32, torch.int64, torch.float64, torch.float16, torch.bool)
CHANGES: tuple[Callable[[torch.Tensor, random.Random], torch.Tensor], ...] = (
    lambda x, draw: x.to(draw.choice(DTYPES)),
    lambda x, _: x[..., :-1],
    lambda x, _: x[:-1],
    lambda x, _: x[None],
    lambda x, _: x[0],
    lambda x, _: x.transpose(0, -1),
    lambda x, _: x.clone().requires_grad_() if x.is_floating_point() else -x,
    lambda x, _: x * 100,
    lambda x, _: x.to("meta"),
    lambda x, _: x.to_sparse(),
    lambda x, _: x[:0],
)


def changed(draw: random.Random, value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or draw.random() < 0.2:
        return draw.choice(VALUES)
    return draw.choice(CHANGES)(value, draw)


@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_changed_calls_are_refused_or_right(operation, check):
    """One argument of a good call becomes another: a clear error, or what the operation gives without ranks."""
    make, over_ranks, plainly = OPERATIONS[operation]
    draw, accepted = random.Random(operation), 0
    for number in range(150):
        torch.manual_seed(number)
        call = make(draw)
        name = draw.choice(list(call))
        if number:
            call[name] = changed(draw, call[name])
        said = f"{operation} {number}, {name} is {call[name]!r}"
        try:
            got = over_ranks(**call, check=check)
        except CAUGHT as error:
            assert number and ": got " in str(error) and "go together" not in str(error), (said, error)
            continue
        accepted += 1
        first = got[0] if isinstance(got, tuple) else got
        want = plainly(**call) if first.numel() else got  # without rows, the plain call wants cu_seqlens_q
        for one, other in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, want)), strict=True):
            assert one.dtype == other.dtype, said
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True, msg=said)
    assert accepted > 5
