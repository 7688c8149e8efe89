# SPDX-License-Identifier: Apache-2.0
"""Attention over the ranks of a gloo group on this machine. Processes start once for each module of cases and number of ranks."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

import distributed_cases
import distributed_cuda_cases
import distributed_decode_cases
import distributed_ways_cases
import ranks
from fovea import distributed
from fovea.distributed import Layout, cost, shard

MODULES = {
    distributed_cases: (1, 2, 3, 4),
    distributed_decode_cases: (1, 2, 3, 4),
    distributed_ways_cases: (1, 2, 4),
}
_results: dict[tuple[str, int], dict[str, list[str | None]]] = {}


def results(module, count, tmp_path_factory):
    """The results of all cases of a module on so many ranks: run at the first question."""
    if (module, count) not in _results:
        _results[module, count] = ranks.run_all(module, count, tmp_path_factory.mktemp("ranks"))
    return _results[module, count]


@pytest.mark.parametrize(
    ("module", "count", "case"), [(of.__name__, n, case) for of, counts in MODULES.items() for n in counts for case in of.cases(n)]
)
def test_on_ranks(module, count, case, tmp_path_factory):
    for rank, fault in enumerate(results(module, count, tmp_path_factory)[case]):
        assert fault is None, f"rank {rank}: {fault}"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("case", distributed_cuda_cases.cases(2))
def test_two_ranks_on_one_gpu(case, tmp_path_factory):
    for rank, fault in enumerate(results("distributed_cuda_cases", 2, tmp_path_factory)[case]):
        assert fault is None, f"rank {rank}: {fault}"


@pytest.mark.parametrize("count", [2, 4])
def test_a_gpu_for_each_rank(count, tmp_path):
    """Over NCCL: K and V come from memory that the GPUs map."""
    if torch.cuda.device_count() < count:
        pytest.skip(f"needs {count} GPUs")
    for case, faults in ranks.run_all("distributed_cuda_cases", count, tmp_path, "nccl").items():
        assert faults == [None] * count, case


def _lose_a_rank(rank: int, folder: str) -> None:
    """Rank 1 leaves before its call. Rank 0 keeps the errors that it gets."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=timedelta(seconds=20))
    layout = Layout(64, 2)
    q, k, v = (shard(tensor, layout, rank) for tensor in torch.randn(3, 1, 64, 2, 16))
    dist.barrier()
    if rank == 1:
        os._exit(0)
    for check in (False, True):
        try:
            distributed.attention(q, k, v, layout, way="ring", check=check)
        except RuntimeError as error:
            Path(folder, f"{check}.txt").write_text(str(error))
    os._exit(0)


def test_a_rank_that_leaves(tmp_path):
    torch.multiprocessing.start_processes(_lose_a_rank, (str(tmp_path),), nprocs=2, start_method="spawn")
    said = (tmp_path / "False.txt").read_text()
    assert said.startswith("fovea.distributed.attention by ring, K and V of step 1 of 2, rank 0 of 2: ")
    assert (tmp_path / "True.txt").read_text().startswith("fovea.distributed.attention, whether ranks agree, rank 0 of 2: ")


KEEPS_NO_GROUP = """
import sys, weakref
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/meeting", rank=0, world_size=1)
from fovea import distributed
distributed.attention(*torch.randn(3, 1, 8, 2, 16), distributed.Layout(8, 1))
assert "torch._dynamo" not in sys.modules
group = weakref.ref(dist.group.WORLD)
dist.destroy_process_group()
assert group() is None
"""


def test_import_and_call_keep_no_group(tmp_path):
    """Importing torch's compiler after init_process_group would: the group's threads would outlive destroy_process_group."""
    subprocess.run([sys.executable, "-c", KEEPS_NO_GROUP, str(tmp_path)], check=True)


# ---- layouts and the model, without processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["balanced", "contiguous"])
@pytest.mark.parametrize("lengths", [0, 1, 7, 64, (5, 0, 33), ()])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_token_is_on_one_rank(order, lengths, count):
    layout = Layout(lengths, count, order)
    rows = torch.cat([layout.indices(rank) for rank in range(count)])
    assert torch.equal(rows.sort().values, torch.arange(sum(layout.sequences)))
    for rank in range(count):
        assert layout.rows(rank) == len(layout.indices(rank)) == len(layout.position_ids(rank))


def test_balanced_work():
    """Pairs that a causal mask shows, on each rank."""
    for count in (2, 3, 8):
        layout = Layout(16 * count, count)
        work = [int((layout.indices(rank) + 1).sum()) for rank in range(count)]
        assert len(set(work)) == 1
        assert len({int((Layout(16 * count, count, "contiguous").indices(rank) + 1).sum()) for rank in range(count)}) == count


def test_the_model_prefers_what_it_says():
    """More ranks take less time while products are long, and the chosen way is the fastest."""
    times = [cost.estimate("ring", cost.Problem.causal(1 << 20, ranks), cost.HOPPER_NVLINK).total for ranks in (1, 2, 4, 8)]
    assert all(later < 0.6 * earlier for earlier, later in pairwise(times))
    for count, tokens, machine in ((4, 1 << 17, cost.HOPPER_NVLINK), (64, 1 << 20, cost.HOPPER_INFINIBAND), (3, 1 << 14, cost.CPU)):
        problem = cost.Problem.causal(tokens, count)
        chosen = cost.choose(problem, machine)
        allowed = cost.WAYS if problem.heads % count == 0 else ("ring", "gathered")
        totals = {way: cost.estimate(way, problem, machine).total for way in allowed}
        assert totals[chosen] == min(totals.values())


def test_the_model_of_several_nodes():
    """Two levels beat what crosses nodes with everything, and keys of all ranks must fit."""
    one, between = cost.HOPPER_NVLINK, cost.HOPPER_INFINIBAND
    for count in (64, 256, 1024):
        problem = cost.Problem.causal(1 << 20, count)
        flat = min(cost.estimate(way, problem, between).total for way in ("ring", "gathered"))
        both = cost.two_level(problem, 8, one, between)
        assert both.total < flat and cost.choose(problem, one, between, 8) == "two_level"
    ten_millions = cost.Problem.causal(10 << 20, 8)
    assert cost.choose(ten_millions, one) != "gathered"
    assert cost.choose(ten_millions, replace(one, room=math.inf)) == "gathered"
    whole = cost.two_level(problem := cost.Problem.causal(1 << 17, 4), 4, one, between)
    assert whole.total == pytest.approx(cost.estimate("heads", problem, one).total, rel=0.01)
