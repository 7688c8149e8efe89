# SPDX-License-Identifier: Apache-2.0
"""How long a call keeps the host, which waits for no device: from Python, and from C++ by the fovea program.

``python bench/host_time.py --json FILE`` measures runs of plans, the plain functions, FlashInfer's run() over Fovea and torch's
scaled_dot_product_attention, by turns."""

import argparse
import gc
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import fovea
from fovea.compat.flashinfer import BatchDecodeWithPagedKVCacheWrapper

CALLS = 50  # in a row, whose host time is measured: too few to fill the device's queue


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def host_python(call: Callable[[], object], count: int) -> float:
    """Microseconds that a call takes the host, planning included: the median of so many samples."""
    call()
    samples = []
    gc.disable()  # as timeit does: what else the process holds is no part of a call
    try:
        for _ in range(count):
            synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            samples.append((time.perf_counter() - start) / CALLS * 1e6)
    finally:
        gc.enable()
    synchronize()
    return statistics.median(samples)


def host_native(program: Path, case: str) -> float:
    """Microseconds that `run` of a plan (schedule and kernels) takes the host from C++."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [program, "bench", "--case", case, "--implementation", "cuda.", "--device-peak", "1e15"]
        subprocess.run([*command, "--seconds", "0.1", "--json", file.name], check=True, stdout=subprocess.DEVNULL)
        return json.loads(Path(file.name).read_text())["rows"][0]["host_s"] * 1e6


def pages(batch: int, kv_len: int, page: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A block table and lengths."""
    table = torch.arange(batch * kv_len // page, dtype=torch.int32, device=device).view(batch, -1)
    return table, torch.full((batch,), kv_len, dtype=torch.int32, device=device)


def paged(device: str, dtype: torch.dtype, batch: int = 16, kv_len: int = 4096) -> dict[str, Callable[[], object]]:
    if device == "cpu":
        batch, kv_len = 1, 16
    table, lengths = pages(batch, kv_len, 16, device)
    q = torch.randn(batch, 32, 128, device=device, dtype=dtype)
    k, v = torch.randn(2, table.numel(), 16, 8, 128, device=device, dtype=dtype)
    out, cu = torch.empty_like(q), torch.arange(batch + 1, dtype=torch.int32, device=device)
    call = (q, k, v, table, lengths)
    plan, new = fovea.plan_paged_attention(*call, out=out), fovea.plan_paged_attention(*call)
    wrapper = BatchDecodeWithPagedKVCacheWrapper(torch.empty(1, device=device))
    ends = torch.arange(batch + 1) * table.shape[1]
    wrapper.plan(ends, table.flatten(), torch.full((batch,), 16), 32, 8, 128, 16, q_data_type=dtype)
    return {
        "paged decode: plan.run, out=": lambda: plan.run(q, k, v, out=out),
        "paged decode: plan.run, new out": lambda: new.run(q, k, v),
        "paged decode: function, out=": lambda: fovea.paged_attention(*call, out=out),
        "paged decode: function, new out": lambda: fovea.paged_attention(*call),
        "paged decode: function, cu_seqlens_q, new out": lambda: fovea.paged_attention(*call, cu),
        "paged decode: FlashInfer's run, out=": lambda: wrapper.run(q, (k, v), out=out),
        "paged decode: FlashInfer's run, new out": lambda: wrapper.run(q, (k, v)),
    }


def latent(device: str, dtype: torch.dtype, batch: int = 16, kv_len: int = 4096) -> dict[str, Callable[[], object]]:
    if device == "cpu":
        batch, kv_len = 1, 64
    table, lengths = pages(batch, kv_len, 64, device)
    q = torch.randn(batch, 1, 16, 576, device=device, dtype=dtype)
    cache = torch.randn(table.numel(), 64, 1, 576, device=device, dtype=dtype)
    out = torch.empty(batch, 1, 16, 512, device=device, dtype=dtype)
    call, schedule = (q, cache, table, lengths), fovea.LatentSchedule()
    plan = fovea.plan_latent_attention(*call, out=out)
    plan.prepare()
    return {
        "latent decode: plan.run, out=": lambda: plan.run(q, cache, out=out),
        "latent decode: plan.run, out=, prepared": lambda: plan.run(q, cache, out=out, prepared=True),
        "latent decode: function, out=": lambda: fovea.latent_attention(*call, out=out),
        "latent decode: function, out=, schedule": lambda: fovea.latent_attention(*call, out=out, schedule=schedule),
    }


def dense(device: str, dtype: torch.dtype, tokens: int = 512) -> dict[str, Callable[[], object]]:
    q, k, v = torch.randn(3, 1, 1 if device == "cpu" else tokens, 16, 128, device=device, dtype=dtype)
    out, heads_first = torch.empty_like(q), [tensor.transpose(1, 2).contiguous() for tensor in (q, k, v)]
    plan = fovea.plan_attention(q, k, v, causal=True, out=out)
    return {
        "dense: plan.run, out=": lambda: plan.run(q, k, v, out=out),
        "dense: function, out=": lambda: fovea.attention(q, k, v, causal=True, out=out),
        "dense: function, new out": lambda: fovea.attention(q, k, v, causal=True),
        "dense: torch's scaled_dot_product_attention": lambda: torch.nn.functional.scaled_dot_product_attention(
            *heads_first, is_causal=True
        ),
        "torch.add, out given": lambda: torch.add(q, k, out=out),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where the result goes")
    parser.add_argument("--rounds", type=int, default=4, help="turns of all calls")
    parser.add_argument("--samples", type=int, default=30, help=f"of {CALLS} calls in a turn")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    calls = paged(device, dtype) | latent(device, dtype) | dense(device, dtype)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(args.rounds):
        for name, call in calls.items():
            times[name].append(host_python(call, args.samples))
    for name, each in times.items():
        print(f"{name:48} {min(each):6.2f} to {max(each):6.2f} us")
    if args.json:
        what = (
            f"Microseconds that a call keeps the host: medians of {args.samples} samples of {CALLS} calls, lowest and highest turn."
        )
        name = torch.cuda.get_device_name() if device == "cuda" else "CPU, tiny problems"
        rows = [{"what": name, "us": [round(min(each), 2), round(max(each), 2)]} for name, each in times.items()]
        head = {"date": time.strftime("%Y-%m-%d"), "device": name, "torch": torch.__version__, "rounds": args.rounds, "what": what}
        args.json.write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
