# SPDX-License-Identifier: Apache-2.0
"""Good random calls of what fovea.distributed has without a group of ranks, and what they give. An object counts as part of the
function that takes it."""

from numbers import Integral
from operator import index as integer
from typing import Any

import torch
from torch import Tensor

from definitions import Want, with_defaults
from fovea.distributed import Layout, PageDeal, shard
from fuzz_draw import Draw
from judge import compare

Call = dict[str, Any]


def share(lengths: Any, ranks: int, order: str = "balanced", rank: int = 0) -> Tensor:
    return Layout(lengths, ranks, order).indices(rank)


def share_call(draw: Draw) -> Call:
    ranks = draw.randint(1, 4)
    lengths = draw.one_of(draw.randint(0, 20), tuple(draw.lengths(draw.randint(1, 3))))
    return {"lengths": lengths, "ranks": ranks, "rank": draw.randrange(ranks)} | draw.some(order="contiguous")


def check_share(call: Call, result: Any, before: Call) -> None:
    a = with_defaults(share, before)
    lengths = [a.lengths] if isinstance(a.lengths, Integral) else [*map(integer, a.lengths)]  # tensors of one integer too
    chunks = a.ranks * (2 if a.order == "balanced" else 1)
    assert a.order in ("balanced", "contiguous") and all(isinstance(x, Integral) for x in (a.ranks, a.rank, *lengths))
    assert 0 <= a.rank < a.ranks and min(lengths, default=0) >= 0
    want = []
    for index in (a.rank, chunks - 1 - a.rank)[: chunks // a.ranks]:
        start = 0
        for length in lengths:
            want += range(start + index * length // chunks, start + (index + 1) * length // chunks)
            start += length
    compare("indices", result, Want(torch.tensor(want, dtype=torch.int64)))


def deal(page: int, ranks: int, positions: Tensor, block_table: Tensor, rank: int) -> Tensor:
    return PageDeal(page, ranks).local_slots(positions, block_table, rank)


def deal_call(draw: Draw) -> Call:
    page, ranks, batch = draw.randint(1, 4), draw.randint(1, 3), draw.randint(1, 3)
    table = draw.within(torch.randint(0, 9, (batch, 4), dtype=torch.int32))
    positions = draw.within(torch.randint(-1, 4 * page * ranks, (batch, 5)))
    return {"page": page, "ranks": ranks, "positions": positions, "block_table": table, "rank": draw.randrange(ranks)}


def check_deal(call: Call, result: Any, before: Call) -> None:
    a = with_defaults(deal, before)
    assert a.page >= 1 and 0 <= a.rank < a.ranks and not a.positions.is_floating_point() and len(a.positions) == len(a.block_table)
    want = torch.full(a.positions.shape, -1, dtype=torch.int64)
    for sequence, row in enumerate(a.positions.reshape(len(a.positions), -1)):
        for at, position in enumerate(row.tolist()):
            page = position // a.page
            if position >= 0 and page % a.ranks == a.rank:
                block = int(a.block_table[sequence, page // a.ranks])
                assert block >= 0
                want.view(len(want), -1)[sequence, at] = block * a.page + position % a.page
    compare("slots", result, Want(want))


def shard_of(tensor: Tensor, lengths: Any, ranks: int, rank: int) -> Tensor:
    return shard(tensor, Layout(lengths, ranks), rank)


def shard_call(draw: Draw) -> Call:
    ranks, seq = draw.randint(1, 3), draw.randint(0, 9)
    return {"tensor": draw.rows(2, seq, 3), "lengths": seq, "ranks": ranks, "rank": draw.randrange(ranks)}


def check_shard(call: Call, result: Any, before: Call) -> None:
    a = with_defaults(shard_of, before)
    ragged = not isinstance(a.lengths, Integral)
    assert a.tensor.shape[0 if ragged else 1] == (sum(a.lengths) if ragged else a.lengths) and 0 <= a.rank < a.ranks
    rows = share(a.lengths, a.ranks, rank=a.rank)
    compare("shard", result, Want(a.tensor[rows] if ragged else a.tensor[:, rows]))


REFUSES = (ValueError, NotImplementedError, TypeError)
FUNCTIONS = [
    (share, share_call, check_share, (), REFUSES),
    (deal, deal_call, check_deal, (), REFUSES),
    (shard_of, shard_call, check_shard, (), REFUSES),
]
"""Function, maker, check, what it may write, what it raises."""
