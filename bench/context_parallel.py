# SPDX-License-Identifier: Apache-2.0
"""Context parallelism on one, two and more GPUs of this machine: checks each way against one GPU, then times prefill, its gradient,
decoding over sharded caches and the merge of results. Writes one JSON file that has the model's times beside those measured.

    torchrun --nproc-per-node 4 bench/context_parallel.py --out results.json

On CPUs (--dry-run) it takes tiny shapes over gloo: every line runs, and the times mean nothing.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpu import Watch, revision, smi
from sharded_decode import DIM, HEADS, KV_HEADS, LATENT_DIM, LATENT_HEADS, PAGE, Decode, random
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import init_device_mesh

import fovea
from fovea import distributed
from fovea.distributed import Layout, cost, shard, unshard
from fovea.distributed._peers import peer_memory

TIMEOUT = timedelta(seconds=120)
Row = dict[str, Any]


class Machine:
    """The ranks, their subgroups, how things are timed on them, and the file that grows with each result."""

    def __init__(self, dry: bool, out: Path) -> None:
        self.dry, self.out = dry, out
        self.device = torch.device("cpu" if dry else f"cuda:{int(os.environ['LOCAL_RANK'])}")
        if not dry:
            torch.cuda.set_device(self.device)
        options = {} if dry else {"device_id": self.device}
        dist.init_process_group("gloo" if dry else "nccl", timeout=TIMEOUT, **options)
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.sizes = [size for size in (1, 2, 4, 8) if size <= self.ranks]
        # As if two GPUs were a node. It comes first: torch names a mesh's groups by how many a rank is in.
        self.mesh = init_device_mesh(self.device.type, (self.ranks // 2, 2)) if self.ranks % 2 == 0 else None
        # Every rank takes part in making every group. A rank that is not in a group never asks for its rank there.
        self.groups = {size: dist.new_group(list(range(size)), timeout=TIMEOUT) for size in sorted({*self.sizes, self.ranks})}
        self.about: Row = {}
        self.rows: list[Row] = []
        self.failed: list[Row] = []

    def synchronize(self) -> None:
        if not self.dry:
            torch.cuda.synchronize()

    def milliseconds(self, call: Callable[[], object], group: ProcessGroup, repeats: int) -> float:
        """The median of calls that begin together, on the slowest rank."""
        repeats = 1 if self.dry else repeats
        times = []
        for repeat in range(repeats + 1):
            dist.barrier(group)
            self.synchronize()
            start = time.perf_counter()
            call()
            self.synchronize()
            times.append(1e3 * (time.perf_counter() - start))
            if repeat == 0 and repeats > 1:
                times.clear()
        slowest = torch.tensor([statistics.median(times)], dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=group)
        return float(slowest)

    def attempt(self, what: Row, size: int, work: Callable[[ProcessGroup], None]) -> None:
        """Work of the first ``size`` ranks, while the others wait. A failure is noted, and all ranks continue with the next."""
        fault = None
        if self.rank < size:
            try:
                work(self.groups[size])
            except Exception as error:  # no reference to it stays: it holds the memory of the work
                fault = f"{type(error).__name__}: {error}"
        self.synchronize()
        faults: list[str | None] = [None] * self.ranks
        dist.all_gather_object(faults, fault)
        if any(faults):
            self.failed.append(what | {"ranks": size, "faults": faults})
            if self.rank == 0:
                print(json.dumps(self.failed[-1]), file=sys.stderr, flush=True)
            gc.collect()
        if not self.dry:
            torch.cuda.empty_cache()
        self.write()

    def note(self, row: Row) -> None:
        if self.rank == 0:
            self.rows.append(row)
            print(json.dumps(row), flush=True)

    def write(self) -> None:
        if self.rank == 0:
            self.out.write_text(json.dumps(self.about | {"rows": self.rows, "failed": self.failed}, indent=1) + "\n")


def error(got: Tensor, want: Tensor) -> float:
    """The largest difference, relative to the largest element of ``want``."""
    return float((got.double() - want.double()).abs().max() / want.double().abs().max())


def checked(machine: Machine, row: Row, good: bool) -> None:
    """Notes a check. One that fails on any rank is a fault."""
    machine.note(row | {"good": good})
    if not good:
        raise ArithmeticError(f"results differ from one GPU's, or from each other: {row}")


# ---- dense attention ---------------------------------------------------------------------------------------------------------


def inputs(machine: Machine, tokens: int, layout: Layout) -> list[Tensor]:
    """This rank's q, k, v and dout of what a seed gives every rank."""
    torch.manual_seed(3)
    shapes = ((HEADS, DIM), (KV_HEADS, DIM), (KV_HEADS, DIM), (HEADS, DIM))
    return [shard(random(machine.device, 1, tokens, heads, dim), layout, machine.rank).contiguous() for heads, dim in shapes]


def check_way(machine: Machine, way: str, group: ProcessGroup) -> None:
    """Forward and backward on all ranks, against one GPU; and the same bits again."""
    tokens = 96 if machine.dry else 8192
    layout = Layout(tokens, machine.ranks)
    torch.manual_seed(3)
    q, k, v, dout = (random(machine.device, 1, tokens, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
    whole = [tensor.requires_grad_() for tensor in (q, k, v)]
    want = fovea.attention(*whole, causal=True)
    wants = [want, *torch.autograd.grad(want, whole, dout)]
    own = [shard(tensor.detach(), layout, machine.rank).requires_grad_() for tensor in whole]
    own_dout = shard(dout, layout, machine.rank)
    mesh = machine.mesh if way == "two_level" else None

    def run() -> list[Tensor]:
        out = distributed.attention(*own, layout, group=group, way=way, mesh=mesh, causal=True)
        return [out, *torch.autograd.grad(out, own, own_dout)]

    first, second = run(), run()
    errors = [error(unshard(got.detach(), layout, group), want.detach()) for got, want in zip(first, wants, strict=True)]
    same = all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    row = {"name": "check dense", "ranks": machine.ranks, "way": way, "errors": errors, "same_bits": same}
    checked(machine, row, max(errors) < 2**-6 and same)


def check_dense(machine: Machine) -> None:
    for way in (*ways(machine.ranks), *(["two_level"] if machine.mesh is not None else [])):
        machine.attempt({"name": "check dense", "way": way}, machine.ranks, partial(check_way, machine, way))


def ways(ranks: int) -> list[cost.Way]:
    return [way for way in cost.WAYS if ranks > 1 and (way != "heads" or HEADS % ranks == 0)]


def model_ms(machine: Machine, way: str, tokens: int, ranks: int, backward: bool) -> float:
    problem = cost.Problem.causal(tokens, ranks, heads=HEADS, kv_heads=KV_HEADS, dim=DIM, backward=backward)
    rates = cost.machine_of(machine.device)
    chosen = cost.choose(replace(problem, backward=False), rates) if way == "auto" else "ring" if way == "plain" else way
    return 1e3 * cost.estimate(chosen, problem, rates).total


def time_dense(machine: Machine, tokens: int, backward: bool) -> None:
    """One GPU by the plain call and through the layer, then more of them by each way."""
    alone: list[float] = []  # the time of the plain call
    for size in machine.sizes:
        for way in ["plain", "ring"] if size == 1 else ["auto", *ways(size)]:
            row = {"name": "backward" if backward else "forward", "tokens": tokens, "ranks": size, "way": way}
            machine.attempt(row, size, partial(time_way, machine, row, alone))


def time_way(machine: Machine, row: Row, alone: list[float], group: ProcessGroup) -> None:
    tokens, size, way, backward = row["tokens"], row["ranks"], row["way"], row["name"] == "backward"
    layout = Layout(tokens, size)
    call = dense_calls(way, inputs(machine, tokens, layout), layout, group)[1 if backward else 0]
    with distributed.count_traffic() as traffic:
        call()
    with Watch() as watch:
        times = machine.milliseconds(call, group, 5)
    if way == "plain":
        alone.append(times)
    row = row | {"milliseconds": times} | ({"speedup": alone[0] / times} if alone else {})
    row |= {"model_ms": model_ms(machine, way, tokens, size, backward)}
    machine.note(row | {"sent_bytes": traffic.total} | watch.row())


def dense_calls(
    way: str, tensors: list[Tensor], layout: Layout, group: ProcessGroup
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A forward pass, and the backward pass of one that ran before."""
    *qkv, dout = tensors

    def attend(inputs: list[Tensor]) -> Tensor:
        if way == "plain":
            return fovea.attention(*inputs, causal=True)
        return distributed.attention(*inputs, layout, group=group, way=way, causal=True)

    leaves = [tensor.detach().requires_grad_() for tensor in qkv]
    kept = attend(leaves)

    def backward() -> object:
        return torch.autograd.grad(kept, leaves, dout, retain_graph=True)

    return partial(attend, qkv), backward


# ---- decoding ----------------------------------------------------------------------------------------------------------------


def merges(ranks: int) -> tuple[str, ...]:
    return ("gather",) if ranks == 1 else ("gather", "scatter")


def check_decode(machine: Machine) -> None:
    """On all ranks, against one GPU: of fewer pages than ranks, too."""
    for kind in ("mla", "gqa"):
        for merge in merges(machine.ranks):
            row = {"name": f"check decode {kind}", "ranks": machine.ranks, "merge": merge}
            machine.attempt(row, machine.ranks, partial(check_merge, machine, row, kind))


def check_merge(machine: Machine, row: Row, kind: str, group: ProcessGroup) -> None:
    errors = []
    for tokens in (1, PAGE, 5 * PAGE + 3):
        got, want = (Decode(machine.device, kind, tokens, of).run(row["merge"]) for of in (group, None))
        errors.append(error(got, want))
    checked(machine, row | {"errors": errors}, max(errors) < 2**-6)


def recorded(machine: Machine, call: Callable[[], Tensor], count: int) -> tuple[Callable[[], object], Tensor]:
    """So many calls as one CUDA graph, collectives inside, and where the last one leaves its result."""
    call()
    if machine.dry:
        return call, call()
    machine.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # NCCL's watchdog asks for events meanwhile
        for _ in range(count):
            result = call()
    return graph.replay, result


def time_decode(machine: Machine, kind: str, tokens: int) -> None:
    alone: list[tuple[float, Tensor]] = []  # time and result of one GPU
    for size in machine.sizes:
        for merge in merges(size):
            row = {"name": f"decode {kind}", "tokens": tokens, "ranks": size, "merge": merge}
            machine.attempt(row, size, partial(time_merge, machine, row, alone))


def time_merge(machine: Machine, row: Row, alone: list[tuple[float, Tensor]], group: ProcessGroup) -> None:
    tokens, size, kind = row["tokens"], row["ranks"], row["name"].removeprefix("decode ")
    decode = Decode(machine.device, kind, tokens, group if size > 1 else None)
    count = 1 if machine.dry else 20
    replay, result = recorded(machine, lambda: decode.run(row["merge"]), count)
    with Watch() as watch:
        times = machine.milliseconds(replay, group, 5) / count
    if size == 1:
        alone.append((times, result.clone()))
    heads, dim_qk, dim = (HEADS, DIM, DIM) if kind == "gqa" else (LATENT_HEADS, LATENT_DIM, 512)
    flops, result_bytes = 2.0 * tokens * heads * (dim_qk + dim), heads * (dim * 2 + 4)
    seconds = cost.decode_seconds(decode.cache_bytes(tokens), result_bytes, size, cost.machine_of(machine.device), flops)
    row = row | {"milliseconds": times, "model_ms": 1e3 * seconds} | watch.row()
    if alone:
        row |= {"speedup": alone[0][0] / times, "error": error(result, alone[0][1])}
    machine.note(row)


def time_merges(machine: Machine) -> None:
    """out and lse of some rows of 128 heads of 512, and of one row of 32 of 128."""
    for size in machine.sizes[1:]:
        for rows, heads, dim in ((1, 32, 128), (64, 32, 128), (1, 128, 512), (64, 128, 512)):
            for merge in merges(size):
                row = {"name": "merge", "rows": rows, "heads": heads, "dim": dim, "ranks": size, "merge": merge}
                machine.attempt(row, size, partial(time_results, machine, row))


def time_results(machine: Machine, row: Row, group: ProcessGroup) -> None:
    out = random(machine.device, row["rows"], row["heads"], row["dim"])
    lse = torch.randn(row["rows"], row["heads"], device=machine.device)
    replay, _ = recorded(machine, lambda: distributed.merge_over_ranks(out, lse, group, merge=row["merge"])[0], 20)
    microseconds = 1e3 * machine.milliseconds(replay, group, 5) / (1 if machine.dry else 20)
    machine.note(row | {"microseconds": microseconds})


def time_links(machine: Machine) -> None:
    for size in machine.sizes[1:]:
        machine.attempt({"name": "link"}, size, partial(time_link, machine))


def time_link(machine: Machine, group: ProcessGroup) -> None:
    """Bytes a second that a rank sends while it receives as many: to the next one, in an all-gather, by copies of mapped memory."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    sent = torch.zeros(1 << (10 if machine.dry else 28), dtype=torch.uint8, device=machine.device)
    received, gathered = torch.empty_like(sent), sent.new_empty(size * sent.numel())

    def around() -> None:
        send = dist.P2POp(dist.isend, sent, group=group, group_peer=(rank + 1) % size)
        receive = dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % size)
        for request in dist.batch_isend_irecv([send, receive]):
            request.wait()

    def gather() -> None:
        dist.all_gather(list(gathered.chunk(size)), sent, group=group)

    calls: list[tuple[str, Callable[[], object], int]] = [("link", around, sent.numel())]
    calls.append(("all-gather", gather, (size - 1) * sent.numel()))
    memory = peer_memory(group, sent.numel(), machine.device)
    if memory is not None:
        theirs = memory.view((rank + 1) % size, 0, sent.shape, sent.dtype)
        calls.append(("copy", partial(received.copy_, theirs), sent.numel()))
    for name, call, moved in calls:
        times = machine.milliseconds(call, group, 10)
        machine.note({"name": name, "ranks": size, "bytes_per_second": moved / times * 1e3, "stated": 450e9})


def said_by(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def parts(machine: Machine) -> dict[str, Callable[[], None]]:
    dry = machine.dry
    return {
        "check-dense": partial(check_dense, machine),
        "check-decode": partial(check_decode, machine),
        "links": partial(time_links, machine),
        "forward": partial(time_dense, machine, 256 if dry else 131072, backward=False),
        "backward": partial(time_dense, machine, 128 if dry else 65536, backward=True),
        "decode-mla": partial(time_decode, machine, "mla", 1024 if dry else 1 << 20),
        "merges": partial(time_merges, machine),
        "decode-gqa": partial(time_decode, machine, "gqa", 1024 if dry else 1 << 20),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on CPUs over gloo")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    parser.add_argument("--commit", help="revision measured (default: git's)")
    parser.add_argument("--only", nargs="+", metavar="PART", help="check-dense, decode-mla, ... (default: all parts)")
    args = parser.parse_args()
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast
    machine = Machine(args.dry_run, args.out)
    device = "CPU" if machine.dry else torch.cuda.get_device_name()
    about = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": args.commit or revision(), "device": device}
    about |= {"torch": torch.__version__, "ranks": machine.ranks, "dry_run": machine.dry}
    about["topology"] = said_by("nvidia-smi", "topo", "-m").splitlines()
    about |= {name: smi(query) for name, query in (("driver", "driver_version"), ("clocks_max", "clocks.max.sm,power.limit"))}
    machine.about = about
    runs = parts(machine)
    for part in args.only or runs:
        runs[part]()
    gc.collect()  # a graph that recorded a group's collectives ends before the group does
    machine.synchronize()
    dist.barrier()
    dist.destroy_process_group()
    return int(bool(machine.failed))


if __name__ == "__main__":
    sys.exit(main())
