# SPDX-License-Identifier: Apache-2.0
"""Context parallelism on one, two and more GPUs of this machine: checks each way against one GPU, then times prefill, its gradient,
decoding over sharded caches and the merge of results. Writes one JSON file that has the model's times beside those measured.

    torchrun --nproc-per-node 4 bench/context_parallel.py --out results.json

On CPUs (--dry-run) it takes tiny shapes over gloo: every line runs, and the times mean nothing.
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpu import Watch, revision, smi
from torch import Tensor
from torch.distributed import ProcessGroup

import fovea
from fovea import distributed
from fovea.distributed import Layout, PageDeal, cost, shard, unshard

HEADS, KV_HEADS, DIM = 32, 8, 128
LATENT_HEADS, LATENT_DIM, PAGE = 128, 576, 64
Row = dict[str, Any]


class Machine:
    """The ranks, their subgroups, and how things are timed on them."""

    def __init__(self, dry: bool) -> None:
        self.dry = dry
        self.device = torch.device("cpu" if dry else f"cuda:{int(os.environ['LOCAL_RANK'])}")
        if not dry:
            torch.cuda.set_device(self.device)
        options = {} if dry else {"device_id": self.device}
        dist.init_process_group("gloo" if dry else "nccl", timeout=timedelta(seconds=120), **options)
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.sizes = [size for size in (1, 2, 4, 8) if size <= self.ranks]
        self.groups = {size: dist.new_group(list(range(size))) for size in self.sizes}
        self.rows: list[Row] = []

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

    def on_sizes(self) -> Iterator[tuple[int, ProcessGroup]]:
        """The subgroups that this rank is in, one after another; the others wait."""
        for size in self.sizes:
            if self.rank < size:
                yield size, self.groups[size]
            self.synchronize()
            dist.barrier()

    def note(self, row: Row) -> None:
        if self.rank == 0:
            self.rows.append(row)
            print(json.dumps(row), flush=True)


def random(machine: Machine, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device=machine.device)


def error(got: Tensor, want: Tensor) -> float:
    """Of the largest element."""
    return float((got.double() - want.double()).abs().max() / want.double().abs().max())


# ---- dense attention ---------------------------------------------------------------------------------------------------------


def inputs(machine: Machine, tokens: int, layout: Layout) -> list[Tensor]:
    """This rank's q, k, v and dout of what a seed gives every rank."""
    torch.manual_seed(3)
    shapes = ((HEADS, DIM), (KV_HEADS, DIM), (KV_HEADS, DIM), (HEADS, DIM))
    return [shard(random(machine, 1, tokens, heads, dim), layout, machine.rank).contiguous() for heads, dim in shapes]


def check_dense(machine: Machine) -> None:
    """Forward and backward by each way on all ranks, against one GPU; and the same bits again."""
    tokens = 96 if machine.dry else 8192
    layout = Layout(tokens, machine.ranks)
    torch.manual_seed(3)
    q, k, v, dout = (random(machine, 1, tokens, heads, DIM) for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
    whole = [tensor.requires_grad_() for tensor in (q, k, v)]
    want = fovea.attention(*whole, causal=True)
    wants = [want, *torch.autograd.grad(want, whole, dout)]
    for way in ways(machine.ranks):
        own = [shard(tensor.detach(), layout, machine.rank).requires_grad_() for tensor in whole]
        own_dout = shard(dout, layout, machine.rank)

        def run(own=own, own_dout=own_dout, way=way) -> list[Tensor]:
            out = distributed.attention(*own, layout, way=way, causal=True)
            return [out, *torch.autograd.grad(out, own, own_dout)]

        first, second = run(), run()
        errors = [error(unshard(got.detach(), layout), want.detach()) for got, want in zip(first, wants, strict=True)]
        same = all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
        good = max(errors) < 2**-6 and same
        machine.note({"name": "check dense", "ranks": machine.ranks, "way": way, "errors": errors, "same_bits": same, "good": good})


def ways(ranks: int) -> list[cost.Way]:
    return [way for way in cost.WAYS if ranks > 1 and (way != "heads" or HEADS % ranks == 0)]


def model_ms(way: cost.Way, tokens: int, ranks: int, backward: bool) -> float:
    problem = cost.Problem.causal(tokens, ranks, heads=HEADS, kv_heads=KV_HEADS, dim=DIM, backward=backward)
    return 1e3 * cost.estimate(way, problem, cost.HOPPER_NVLINK).total


def time_dense(machine: Machine, tokens: int, backward: bool) -> None:
    """One GPU by the plain call and through the layer, then more of them by each way."""
    one = 0.0
    for size, group in machine.on_sizes():
        layout = Layout(tokens, size)
        q, k, v, dout = inputs(machine, tokens, layout)
        for way in ["plain", "ring"] if size == 1 else ways(size):
            call = dense_calls(way, [q, k, v, dout], layout, group)[1 if backward else 0]
            with distributed.count_traffic() as traffic:
                call()
            with Watch() as watch:
                times = machine.milliseconds(call, group, 5)
            one = times if way == "plain" else one
            row = {
                "name": "backward" if backward else "forward",
                "tokens": tokens,
                "ranks": size,
                "way": way,
                "milliseconds": times,
            }
            row |= {"speedup": one / times, "model_ms": model_ms("ring" if way == "plain" else way, tokens, size, backward)}
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


class Decode:
    """One sequence whose pages are dealt to a group's ranks: a table in order, and a cache that a seed fills."""

    def __init__(self, machine: Machine, kind: str, tokens: int, group: ProcessGroup) -> None:
        self.kind, self.group = kind, group
        ranks = dist.get_world_size(group)
        deal = PageDeal(PAGE, ranks)
        pages = deal.local_bound(tokens) // PAGE
        self.kv_len = torch.tensor([tokens], dtype=torch.int32, device=machine.device)
        self.table = torch.arange(pages, dtype=torch.int32, device=machine.device)[None]
        torch.manual_seed(4)
        self.q = random(machine, 1, HEADS, DIM) if kind == "gqa" else random(machine, 1, 1, LATENT_HEADS, LATENT_DIM)
        shapes = [(KV_HEADS, DIM)] * 2 if kind == "gqa" else [(1, LATENT_DIM)]
        all_pages = -(-tokens // PAGE)
        self.caches = []
        for shape in shapes:  # page p of the sequence is the same on any number of ranks
            whole = torch.randn(64, PAGE, *shape, dtype=torch.bfloat16, device=machine.device)
            own = torch.arange(dist.get_rank(group), all_pages, ranks, device=machine.device)
            cache = torch.zeros(pages, PAGE, *shape, dtype=torch.bfloat16, device=machine.device)
            cache[: len(own)] = whole[own % 64]
            self.caches.append(cache)

    def run(self, merge: str) -> Tensor:
        options: dict[str, Any] = {"group": self.group, "merge": merge, "check": False}
        if self.kind == "gqa":
            return distributed.paged_attention(self.q, *self.caches, self.table, self.kv_len, **options)
        return distributed.latent_attention(self.q, *self.caches, self.table, self.kv_len, scale=192**-0.5, **options)

    def plan(self) -> None:
        """Raises on every rank where no implementation takes the call, before any of them waits for another."""
        options = {"max_kv_len": PAGE}
        if self.kind == "gqa":
            fovea.paged_attention(self.q, *self.caches, self.table, self.kv_len, **options)
        else:
            fovea.latent_attention(self.q, *self.caches, self.table, self.kv_len, **options)

    def cache_bytes(self, tokens: int) -> int:
        return tokens * (2 * KV_HEADS * DIM * 2 if self.kind == "gqa" else LATENT_DIM * 2)


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
    Decode(machine, kind, PAGE, dist.group.WORLD).plan()
    one, want = 0.0, None
    for size, group in machine.on_sizes():
        decode = Decode(machine, kind, tokens, group)
        count = 1 if machine.dry else 20
        for merge in ("gather",) if size == 1 else ("gather", "scatter"):
            replay, result = recorded(machine, lambda decode=decode, merge=merge: decode.run(merge), count)
            with Watch() as watch:
                times = machine.milliseconds(replay, group, 5) / count
            if size == 1:
                one, want = times, result.clone()
            row = {"name": f"decode {kind}", "tokens": tokens, "ranks": size, "merge": merge, "milliseconds": times}
            heads, dim_qk, dim = (HEADS, DIM, DIM) if kind == "gqa" else (LATENT_HEADS, LATENT_DIM, 512)
            flops, result_bytes = 2.0 * tokens * heads * (dim_qk + dim), heads * (dim * 2 + 4)
            seconds = cost.decode_seconds(decode.cache_bytes(tokens), result_bytes, size, cost.HOPPER_NVLINK, flops)
            row |= {"model_ms": 1e3 * seconds} | watch.row()
            if machine.rank == 0:
                row |= {"speedup": one / times, "error": error(result, want)}
            machine.note(row)


def time_merges(machine: Machine) -> None:
    """out and lse of some rows of 128 heads of 512, and of one row of 32 of 128."""
    for size, group in machine.on_sizes():
        for rows, heads, dim in ((1, 32, 128), (64, 32, 128), (1, 128, 512), (64, 128, 512)):
            out, lse = random(machine, rows, heads, dim), torch.randn(rows, heads, device=machine.device)
            for merge in ("gather", "scatter") if size > 1 else ():

                def call(out=out, lse=lse, merge=merge, group=group) -> Tensor:
                    return distributed.merge_over_ranks(out, lse, group, merge=merge)[0]

                replay, _ = recorded(machine, call, 20)
                microseconds = 1e3 * machine.milliseconds(replay, group, 5) / (1 if machine.dry else 20)
                row = {"name": "merge", "rows": rows, "heads": heads, "dim": dim, "ranks": size, "merge": merge}
                machine.note(row | {"microseconds": microseconds})


def time_links(machine: Machine) -> None:
    """Bytes a second that a rank sends to the next one while it receives as many, and in an all-gather."""
    for size, group in machine.on_sizes():
        if size == 1:
            continue
        sent = torch.zeros(1 << (10 if machine.dry else 28), dtype=torch.uint8, device=machine.device)
        received, gathered = torch.empty_like(sent), sent.new_empty(size * sent.numel())
        rank = dist.get_rank(group)

        def around(sent=sent, received=received, group=group, rank=rank, size=size) -> None:
            send = dist.P2POp(dist.isend, sent, group=group, group_peer=(rank + 1) % size)
            receive = dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % size)
            for request in dist.batch_isend_irecv([send, receive]):
                request.wait()

        def gather(sent=sent, gathered=gathered, group=group, size=size) -> None:
            dist.all_gather(list(gathered.chunk(size)), sent, group=group)

        for name, call, moved in (("link", around, sent.numel()), ("all-gather", gather, (size - 1) * sent.numel())):
            times = machine.milliseconds(call, group, 10)
            machine.note({"name": name, "ranks": size, "bytes_per_second": moved / times * 1e3, "stated": cost.HOPPER_NVLINK.link})


def said_by(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on CPUs over gloo")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    parser.add_argument("--commit", help="revision measured (default: git's)")
    args = parser.parse_args()
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast
    machine = Machine(args.dry_run)
    tiny = args.dry_run
    device = "CPU" if tiny else torch.cuda.get_device_name()
    results = {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": args.commit or revision(), "device": device}
    results |= {"torch": torch.__version__, "ranks": machine.ranks, "dry_run": tiny}
    results["topology"] = said_by("nvidia-smi", "topo", "-m").splitlines()
    results |= {name: smi(query) for name, query in (("driver", "driver_version"), ("clocks_max", "clocks.max.sm,power.limit"))}
    parts = [
        partial(check_dense, machine),
        partial(time_links, machine),
        partial(time_dense, machine, 256 if tiny else 131072, backward=False),
        partial(time_dense, machine, 128 if tiny else 65536, backward=True),
        partial(time_decode, machine, "mla", 1024 if tiny else 1 << 20),
        partial(time_merges, machine),
        partial(time_decode, machine, "gqa", 1024 if tiny else 1 << 20),
    ]
    for part in parts:
        try:
            part()
        except NotImplementedError as declined:  # on all ranks
            machine.note({"name": part.func.__name__, "declined": str(declined)})
        if machine.rank == 0:
            args.out.write_text(json.dumps(results | {"rows": machine.rows}, indent=1) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
