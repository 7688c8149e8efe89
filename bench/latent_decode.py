# SPDX-License-Identifier: Apache-2.0
"""Dense MLA decode on this machine's GPU: checks each case on sampled sequences, times it, and measures the ceilings beside it.

Writes a JSON file. Times are medians with L2 flushed between runs; small batches run as a CUDA graph. Where FlashMLA is
installed, it is checked and timed on the same inputs."""

import argparse
import importlib.util
import json
import math
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor
from triton.testing import do_bench

import fovea

ROOT = Path(__file__).resolve().parent.parent
DEVICE = "cuda"
ROW, LATENT, PAGE = 576, 512, 64
WARMUP_MS, MEASURE_MS = 60, 200
GRAPH_BATCH = 8  # batches up to here run as a graph
CHAIN = 32  # calls in one graph, each with tensors of its own, as the layers of a decode step
NATIVE_CASE = "latent_attention/bench/decode-bf16-h16-b8-kv8192"


@dataclass
class Case:
    batch: int
    seq_q: int
    kv_len: int
    heads: int
    causal: bool = False
    spread: bool = True  # lengths normal around kv_len with half of it as deviation; else all equal

    @property
    def name(self) -> str:
        mark = "~" if self.spread else "="
        return f"b{self.batch} sq{self.seq_q} len{mark}{self.kv_len} h{self.heads}{' causal' if self.causal else ''}"


CASES = [
    Case(128, 1, 4096, 128),
    Case(128, 2, 4096, 128, causal=True),
    Case(128, 1, 16384, 128),
    Case(128, 2, 16384, 128, causal=True),
    Case(128, 2, 32768, 128),
    Case(128, 1, 8192, 16),
    Case(128, 1, 8192, 16, spread=False),
    Case(64, 1, 8192, 64),
    Case(1, 1, 131072, 128, spread=False),
    Case(8, 1, 8192, 128, spread=False),
]
# One number of a case varies. Where two sweeps meet, the case is measured once.
SWEEPS = {
    "batch": [Case(batch, 1, 4096, 128, spread=False) for batch in (1, 2, 4, 8, 16, 32, 64, 128)],
    "kv_len": [Case(32, 1, 1024 << step, 128, spread=False) for step in range(8)],
    "heads": [Case(128, 1, 4096, heads, spread=False) for heads in (16, 32, 64, 128)],
}
LATENCY = [Case(1, 1, 4096, 128, spread=False), Case(8, 1, 4096, 128, spread=False)]
SMALL = Case(1, 1, PAGE, 16, spread=False)  # what the host takes longer to call than the device to compute


def recorded(*calls: Callable[[], object]) -> Callable[[], None]:
    """One after another as a CUDA graph."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph.replay


def median_ms(call: Callable[[], object]) -> float:
    return do_bench(call, warmup=WARMUP_MS, rep=MEASURE_MS, return_mode="median")


class Decode:
    def __init__(self, case: Case) -> None:
        generator = torch.Generator().manual_seed(3)
        lengths = torch.full((case.batch,), float(case.kv_len))
        if case.spread:
            lengths = (lengths + torch.randn(case.batch, generator=generator) * case.kv_len / 2).clamp(1, 3 * case.kv_len)
        self.case, self.kv_len = case, lengths.int().to(DEVICE)
        blocks = (self.kv_len + PAGE - 1) // PAGE
        total = int(blocks.sum())
        self.table = torch.full((case.batch, int(blocks.max())), 2147480000, dtype=torch.int32, device=DEVICE)
        order, at = torch.randperm(total, device=DEVICE).int(), 0
        for sequence, count in enumerate(blocks.tolist()):
            self.table[sequence, :count] = order[at : at + count]
            at += count
        self.cache = torch.randn(total, PAGE, 1, ROW, dtype=torch.bfloat16, device=DEVICE)
        self.q = torch.randn(case.batch, case.seq_q, case.heads, ROW, dtype=torch.bfloat16, device=DEVICE)
        self.out = torch.empty(*self.q.shape[:-1], LATENT, dtype=torch.bfloat16, device=DEVICE)

    def fovea(self) -> Tensor:
        return fovea.latent_attention(self.q, self.cache, self.table, self.kv_len, causal=self.case.causal, out=self.out)

    def flash_mla(self) -> Tensor:
        """Scheduling included, as in Fovea's call."""
        import flash_mla

        metadata = flash_mla.get_mla_metadata(self.kv_len, self.case.seq_q * self.case.heads, 1)
        arguments = (self.q, self.cache, self.table, self.kv_len, LATENT, *metadata)
        return flash_mla.flash_mla_with_kvcache(*arguments, causal=self.case.causal)[0]

    def check(self, who: str, call: Callable[[], Tensor]) -> float:
        """Relative error of four sequences against double precision."""
        self.out.fill_(math.nan)
        out, worst = call(), 0.0
        for sequence in range(0, self.case.batch, max(self.case.batch // 4, 1)):
            length = int(self.kv_len[sequence])
            rows = self.cache[self.table[sequence, : (length + PAGE - 1) // PAGE].long()].reshape(-1, ROW)[:length].double()
            scores = torch.einsum("qhd,kd->hqk", self.q[sequence].double(), rows) * ROW**-0.5
            if self.case.causal:
                last = torch.arange(self.case.seq_q, device=DEVICE)[:, None] + length - self.case.seq_q
                scores.masked_fill_(torch.arange(length, device=DEVICE)[None] > last, -math.inf)
            want = torch.einsum("hqk,kd->qhd", scores.softmax(-1), rows[:, :LATENT])
            error = float((out[sequence].double() - want).norm() / want.norm())
            if not error < 6e-3:  # NaN must fail too
                raise SystemExit(f"{self.case.name}: {who}: relative error {error:.1e}")
            worst = max(worst, error)
        return worst

    def milliseconds(self, call: Callable[[], Tensor]) -> float:
        return median_ms(recorded(call) if self.case.batch <= GRAPH_BATCH else call)


class Bench:
    """Cases with the ceilings of the moment: the rates of a copy, once, and of a matrix product, beside each case."""

    def __init__(self) -> None:
        self.matrices = [torch.randn(8192, 8192, dtype=torch.bfloat16, device=DEVICE) for _ in range(2)]
        self.copy = copy_rate()
        self.measured: dict[str, dict] = {}

    def matrix_rate(self) -> float:
        a, b = self.matrices
        return 2 * a.shape[0] ** 3 / median_ms(lambda: a @ b) * 1e3

    def row(self, case: Case) -> dict:
        if case.name not in self.measured:
            self.measured[case.name] = self.measure(case)
        return self.measured[case.name]

    def measure(self, case: Case) -> dict:
        decode, ceiling = Decode(case), self.matrix_rate()
        error = decode.check("fovea", decode.fovea)
        milliseconds, tokens = decode.milliseconds(decode.fovea), int(decode.kv_len.sum())
        flops = 2 * case.seq_q * case.heads * (ROW + LATENT) * tokens / milliseconds * 1e3
        moved = 2 * (tokens * ROW + decode.q.numel() + decode.out.numel()) / milliseconds * 1e3
        row = asdict(case) | {
            "name": case.name,
            "milliseconds": milliseconds,
            "error": error,
            "flops": flops,
            "bytes": moved,
            "of_matrix_rate": flops / ceiling,
            "of_copy_rate": moved / self.copy,
            "matrix_rate": ceiling,
        }
        if importlib.util.find_spec("flash_mla"):
            decode.check("FlashMLA", decode.flash_mla)
            row["peers"] = {"FlashMLA": decode.milliseconds(decode.flash_mla)}
        print(
            f"{case.name:32} {milliseconds:8.4f} ms {flops / 1e12:6.0f} TFLOP/s {moved / 1e9:6.0f} GB/s "
            f"{row['of_matrix_rate']:5.2f} of the matrix rate {row['of_copy_rate']:5.2f} of the copy rate"
            + "".join(f"  {peer} {ms:.4f} ms" for peer, ms in row.get("peers", {}).items()),
            flush=True,
        )
        return row


def copy_rate() -> float:
    source = torch.empty(1 << 32, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.numel() / do_bench(lambda: target.copy_(source), warmup=30, rep=100, return_mode="median") * 1e3


def latency(case: Case) -> dict:
    """Microseconds of a graph of one call, and of each call in a graph of many."""
    layers = [Decode(case) for _ in range(CHAIN)]
    for layer in layers:
        layer.check("fovea", layer.fovea)
    calls = [layer.fovea for layer in layers]
    alone, chained = median_ms(recorded(calls[0])), median_ms(recorded(*calls)) / CHAIN
    row = {"batch": case.batch, "kv_len": case.kv_len, "heads": case.heads, "alone_us": alone * 1e3, "chained_us": chained * 1e3}
    print(f"graph: {case.name}: alone {row['alone_us']:.1f} us, one of {CHAIN} {row['chained_us']:.1f} us", flush=True)
    return row | {"chain": CHAIN}


def host_python() -> float:
    """Microseconds that a call takes the host, planning included: many in a row, too few to fill the device's queue."""
    decode, calls, samples = Decode(SMALL), 100, []
    decode.check("fovea", decode.fovea)
    for _ in range(30):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            decode.fovea()
        samples.append((time.perf_counter() - start) / calls * 1e6)
    torch.cuda.synchronize()
    return statistics.median(samples)


def host_native(program: Path, matrix_rate: float) -> float:
    """Microseconds that `run` of a plan (schedule and kernel) takes the host from C++."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [program, "bench", "--case", NATIVE_CASE, "--implementation", "cuda.", "--device-peak", str(matrix_rate)]
        subprocess.run([*command, "--seconds", "0.1", "--json", file.name], check=True, stdout=subprocess.DEVNULL)
        return json.loads(Path(file.name).read_text())["rows"][0]["host_s"] * 1e6


def host(program: Path | None, matrix_rate: float) -> dict:
    row = {"python_us": host_python()} | ({"native_us": host_native(program, matrix_rate)} if program else {})
    print("host time of a call: " + ", ".join(f"{name.removesuffix('_us')} {us:.1f} us" for name, us in row.items()), flush=True)
    return row


def smi(query: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file to write (default: bench/results/DEVICE/DATE-latent-decode.json)")
    parser.add_argument("--commit", required=True, help="revision measured")
    parser.add_argument("--program", type=Path, help="the fovea program, to measure the host time of a call from C++ too")
    args = parser.parse_args()
    torch.manual_seed(1)
    bench, now = Bench(), datetime.now(UTC)
    results = {
        "date": now.isoformat(timespec="seconds"),
        "commit": args.commit,
        "device": torch.cuda.get_device_name(),
        "driver": smi("driver_version"),
        "clocks_max": smi("clocks.max.sm,power.limit"),
        "torch": torch.__version__,
        "copy_rate": bench.copy,
        "cases": [bench.row(case) for case in CASES],
        "sweeps": {axis: [bench.row(case) for case in cases] for axis, cases in SWEEPS.items()},
        "latency": [latency(case) for case in LATENCY],
        "host": host(args.program, bench.matrix_rate()),
        "clocks_after": smi("clocks.sm,power.draw"),
    }
    device = re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")
    out = args.out or ROOT / "bench/results" / device / f"{now.date()}-latent-decode.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"copy {bench.copy / 1e9:.0f} GB/s; wrote {out}")


if __name__ == "__main__":
    main()
