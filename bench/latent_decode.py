# SPDX-License-Identifier: Apache-2.0
"""Dense MLA decode on this machine's GPU: checks each case on sampled sequences, times it, and measures the ceilings beside it.

Writes a JSON file. Times are medians with L2 flushed between runs; small batches run as a CUDA graph."""

import argparse
import json
import math
import re
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from triton.testing import do_bench

import fovea

ROOT = Path(__file__).resolve().parent.parent
ROW, LATENT, PAGE = 576, 512, 64
WARMUP_MS, MEASURE_MS = 60, 200


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


class Decode:
    def __init__(self, case: Case) -> None:
        generator = torch.Generator().manual_seed(3)
        lengths = torch.full((case.batch,), float(case.kv_len))
        if case.spread:
            lengths = (lengths + torch.randn(case.batch, generator=generator) * case.kv_len / 2).clamp(1, 3 * case.kv_len)
        self.case, self.kv_len = case, lengths.int().cuda()
        blocks = (self.kv_len + PAGE - 1) // PAGE
        total = int(blocks.sum())
        self.table = torch.full((case.batch, int(blocks.max())), 2147480000, dtype=torch.int32, device="cuda")
        order, at = torch.randperm(total, device="cuda").int(), 0
        for sequence, count in enumerate(blocks.tolist()):
            self.table[sequence, :count] = order[at : at + count]
            at += count
        self.cache = torch.randn(total, PAGE, 1, ROW, dtype=torch.bfloat16, device="cuda")
        self.q = torch.randn(case.batch, case.seq_q, case.heads, ROW, dtype=torch.bfloat16, device="cuda")
        self.out = torch.empty(*self.q.shape[:-1], LATENT, dtype=torch.bfloat16, device="cuda")

    def run(self) -> None:
        fovea.latent_attention(self.q, self.cache, self.table, self.kv_len, causal=self.case.causal, out=self.out)

    def error(self) -> float:
        """Relative error of four sequences against double precision."""
        self.out.fill_(math.nan)
        self.run()
        worst = 0.0
        for sequence in range(0, self.case.batch, max(self.case.batch // 4, 1)):
            length = int(self.kv_len[sequence])
            rows = self.cache[self.table[sequence, : (length + PAGE - 1) // PAGE].long()].reshape(-1, ROW)[:length].double()
            scores = torch.einsum("qhd,kd->hqk", self.q[sequence].double(), rows) * ROW**-0.5
            if self.case.causal:
                last = torch.arange(self.case.seq_q, device="cuda")[:, None] + length - self.case.seq_q
                scores.masked_fill_(torch.arange(length, device="cuda")[None] > last, -math.inf)
            want = torch.einsum("hqk,kd->qhd", scores.softmax(-1), rows[:, :LATENT])
            worst = max(worst, float((self.out[sequence].double() - want).norm() / want.norm()))
        return worst

    def milliseconds(self) -> float:
        call = self.run
        call()
        if self.case.batch <= 8:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                call()
            call = graph.replay
        return do_bench(call, warmup=WARMUP_MS, rep=MEASURE_MS, return_mode="median")


def matrix_rate(a: torch.Tensor, b: torch.Tensor) -> float:
    return 2 * a.shape[0] ** 3 / do_bench(lambda: a @ b, warmup=WARMUP_MS, rep=MEASURE_MS, return_mode="median") * 1e3


def copy_rate() -> float:
    source = torch.empty(1 << 32, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / do_bench(lambda: target.copy_(source), warmup=30, rep=100, return_mode="median") * 1e3


def measure(case: Case, matrix: tuple[torch.Tensor, torch.Tensor], copy: float) -> dict:
    decode, ceiling = Decode(case), matrix_rate(*matrix)
    error = decode.error()
    if not error < 6e-3:  # NaN must fail too
        raise SystemExit(f"{case.name}: relative error {error:.1e}")
    time, tokens = decode.milliseconds(), int(decode.kv_len.sum())
    flops = 2 * case.seq_q * case.heads * (ROW + LATENT) * tokens
    moved = 2 * (tokens * ROW + decode.q.numel() + decode.out.numel())
    row = asdict(case) | {
        "name": case.name,
        "milliseconds": time,
        "error": error,
        "flops": flops / time * 1e3,
        "bytes": moved / time * 1e3,
        "of_matrix_rate": flops / time * 1e3 / ceiling,
        "of_copy_rate": moved / time * 1e3 / copy,
        "matrix_rate": ceiling,
    }
    print(
        f"{case.name:32} {time:8.4f} ms {row['flops'] / 1e12:6.0f} TFLOP/s {row['bytes'] / 1e9:6.0f} GB/s "
        f"{row['of_matrix_rate']:5.2f} of the matrix rate {row['of_copy_rate']:5.2f} of the copy rate",
        flush=True,
    )
    return row


def smi(query: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file to write (default: bench/results/DEVICE/DATE-latent-decode.json)")
    parser.add_argument("--commit", required=True, help="revision measured")
    args = parser.parse_args()
    torch.manual_seed(1)
    copy = copy_rate()
    matrix = tuple(torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    now = datetime.now(UTC)
    results = {
        "date": now.isoformat(timespec="seconds"),
        "commit": args.commit,
        "device": torch.cuda.get_device_name(),
        "driver": smi("driver_version"),
        "clocks_max": smi("clocks.max.sm,power.limit"),
        "torch": torch.__version__,
        "copy_rate": copy,
        "cases": [measure(case, matrix, copy) for case in CASES],
        "clocks_after": smi("clocks.sm,power.draw"),
    }
    device = re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")
    out = args.out or ROOT / "bench/results" / device / f"{now.date()}-latent-decode.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"copy {copy / 1e9:.0f} GB/s; wrote {out}")


if __name__ == "__main__":
    main()
