# SPDX-License-Identifier: Apache-2.0
"""Token-sparse MLA on this machine's GPU: decode from packed caches and prefill from bf16 rows. Checks each case on sampled
queries, times it, and measures the ceilings beside it. Writes a JSON file."""

import argparse
import json
import math
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from latent_decode import DEVICE, GRAPH_BATCH, LATENT, PAGE, ROOT, copy_rate, median_ms, recorded, smi
from torch import Tensor

import fovea


@dataclass
class Case:
    batch: int  # 0: prefill, one sequence of seq_q queries over a flat cache
    seq_q: int
    kv_len: int
    heads: int
    topk: int
    cache_format: str = "v32_fp8"
    extra_topk: int = 0

    @property
    def name(self) -> str:
        where = f"b{self.batch} sq{self.seq_q}" if self.batch else f"prefill sq{self.seq_q}"
        extra = f"+{self.extra_topk}" if self.extra_topk else ""
        return f"{where} kv{self.kv_len} h{self.heads} topk{self.topk}{extra} {self.cache_format}"

    @property
    def row(self) -> int:
        return 512 if self.cache_format.startswith("v4") else 576

    @property
    def tokens(self) -> int:
        return max(self.batch, 1) * self.seq_q


CASES = [
    Case(2, 2, 32768, 128, 2048),
    Case(64, 2, 32768, 128, 2048),
    Case(128, 1, 32768, 128, 2048),
    Case(128, 2, 32768, 128, 2048),
    Case(128, 2, 32768, 64, 2048),
    Case(66, 2, 32768, 128, 16384),
    Case(128, 2, 32768, 64, 128, "v4_fp8", 512),
    Case(128, 2, 32768, 128, 2048, "rows"),
    Case(0, 4096, 4096, 128, 2048, "rows"),
    Case(0, 4096, 8192, 128, 2048, "rows"),
    Case(0, 4096, 32768, 128, 2048, "rows"),
    Case(0, 4096, 131072, 128, 2048, "rows"),
    Case(0, 4096, 8192, 64, 2048, "rows"),
]


class Cache:
    """Random tokens, and their values by an independent reading of the bytes."""

    def __init__(self, kind: str, blocks: int, page: int) -> None:
        self.kind, self.page, self.slots = kind, page, blocks * page
        if kind == "rows":
            self.data = torch.randn(blocks, page, 1, 576, dtype=torch.bfloat16, device=DEVICE)
            return
        codes, size = {"v32_fp8": (512, 656), "v4_fp8": (448, 584)}[kind]
        self.data = torch.empty(blocks, page, size, dtype=torch.uint8, device=DEVICE)
        flat = self.data.view(blocks, -1)
        record = size if kind == "v32_fp8" else 576
        tokens = flat[:, : page * record].view(blocks, page, record)
        values = torch.randn(blocks, page, codes, device=DEVICE, dtype=torch.bfloat16)
        tokens[..., :codes] = values.to(torch.float8_e4m3fn).view(torch.uint8)
        rope = torch.randn(blocks, page, 64, dtype=torch.bfloat16, device=DEVICE).view(torch.uint8)
        if kind == "v32_fp8":
            tokens[..., 512:528] = torch.full((blocks, page, 4), 0.75, device=DEVICE).view(torch.uint8)
            tokens[..., 528:] = rope
        else:
            tokens[..., 448:] = rope
            flat[:, page * record :] = 127  # 2^0

    def read(self, slots: Tensor) -> Tensor:
        block, offset = slots.long() // self.page, slots.long() % self.page
        if self.kind == "rows":
            return self.data[block, offset, 0].double()
        if self.kind == "v32_fp8":
            token = self.data[block, offset]
            codes = token[:, :512].contiguous().view(torch.float8_e4m3fn).float() * 0.75
            return torch.cat([codes.bfloat16().double(), token[:, 528:].contiguous().view(torch.bfloat16).double()], 1)
        flat = self.data.view(self.data.shape[0], -1)
        token = torch.stack([flat[b, o * 576 : o * 576 + 576] for b, o in zip(block, offset, strict=True)])
        codes = token[:, :448].contiguous().view(torch.float8_e4m3fn).double()
        return torch.cat([codes, token[:, 448:].contiguous().view(torch.bfloat16).double()], 1)


def random_lists(case: Case, topk: int, slots_each: int) -> Tensor:
    """Distinct enough tokens of each sequence's own part of the cache."""
    low = torch.arange(max(case.batch, 1), device=DEVICE, dtype=torch.int32)[:, None, None] * slots_each
    return low + torch.randint(slots_each, (max(case.batch, 1), case.seq_q, topk), device=DEVICE, dtype=torch.int32)


class Sparse:
    def __init__(self, case: Case) -> None:
        self.case = case
        page = {"rows": PAGE, "v32_fp8": PAGE, "v4_fp8": 256}[case.cache_format] if case.batch else case.kv_len
        self.main = Cache(case.cache_format, max(case.batch, 1) * case.kv_len // page, page)
        self.indices = random_lists(case, case.topk, case.kv_len)
        self.extra = self.extra_indices = None
        if case.extra_topk:
            self.extra = Cache(case.cache_format, case.batch * 4096 // 64, 64)
            self.extra_indices = random_lists(case, case.extra_topk, 4096)
        self.q = torch.randn(max(case.batch, 1), case.seq_q, case.heads, case.row, dtype=torch.bfloat16, device=DEVICE)
        self.out = torch.empty(*self.q.shape[:-1], LATENT, dtype=torch.bfloat16, device=DEVICE)

    def run(self) -> Tensor:
        q, indices, cache, out = self.q, self.indices, self.main.data, self.out
        if not self.case.batch:
            q, indices, out, cache = q[0], indices[0], out[0], cache[0]
        extra = (
            {}
            if self.extra is None
            else {
                "extra_cache": self.extra.data,
                "extra_indices": self.extra_indices,
                "extra_format": self.case.cache_format,
            }
        )
        fovea.sparse_latent_attention(q, cache, indices, format=self.case.cache_format, out=out, **extra)
        return self.out

    def check(self) -> float:
        self.out.fill_(math.nan)
        out, worst = self.run(), 0.0
        for batch, row in ((0, 0), (self.out.shape[0] - 1, self.case.seq_q - 1), (self.out.shape[0] // 2, self.case.seq_q // 2)):
            keys = self.main.read(self.indices[batch, row])
            if self.extra is not None:
                keys = torch.cat([keys, self.extra.read(self.extra_indices[batch, row])])
            scores = self.q[batch, row].double() @ keys.T * self.case.row**-0.5
            want = scores.softmax(-1) @ keys[:, :LATENT]
            error = float((out[batch, row].double() - want).norm() / want.norm())
            if not error < 6e-3:  # NaN must fail too
                raise SystemExit(f"{self.case.name}: relative error {error:.1e}")
            worst = max(worst, error)
        return worst


def measure(case: Case, copy: float) -> dict:
    subject = Sparse(case)
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    ceiling = 2 * a.shape[0] ** 3 / median_ms(lambda: a @ b) * 1e3
    error = subject.check()
    milliseconds = median_ms(recorded(subject.run) if 0 < case.batch <= GRAPH_BATCH else subject.run)
    keys = case.tokens * (case.topk + case.extra_topk)
    cache_bytes = min(keys, subject.main.slots) * {"rows": 1152, "v32_fp8": 656, "v4_fp8": 584}[case.cache_format]
    flops = 2 * keys * case.heads * (case.row + LATENT) / milliseconds * 1e3
    moved = (cache_bytes + 2 * (subject.q.numel() + subject.out.numel())) / milliseconds * 1e3
    share = flops / ceiling
    print(f"{case.name:48} {milliseconds:8.4f} ms {flops / 1e12:5.0f} TFLOP/s {share:5.2f} of the matrix rate", flush=True)
    return asdict(case) | {
        "name": case.name,
        "milliseconds": milliseconds,
        "error": error,
        "flops": flops,
        "bytes": moved,
        "of_matrix_rate": share,
        "of_copy_rate": moved / copy,
        "matrix_rate": ceiling,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file to write (default: bench/results/DEVICE/DATE-sparse-latent.json)")
    parser.add_argument("--commit", required=True, help="revision measured")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    args = parser.parse_args()
    torch.manual_seed(1)
    now, copy = datetime.now(UTC), copy_rate()
    results = {
        "date": now.isoformat(timespec="seconds"),
        "commit": args.commit,
        "device": torch.cuda.get_device_name(),
        "driver": smi("driver_version"),
        "clocks_max": smi("clocks.max.sm,power.limit"),
        "torch": torch.__version__,
        "copy_rate": copy,
        "cases": [measure(case, copy) for case in CASES if args.case in case.name],
        "clocks_after": smi("clocks.sm,power.draw"),
    }
    device = re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")
    out = args.out or ROOT / "bench/results" / device / f"{now.date()}-sparse-latent.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"copy {copy / 1e9:.0f} GB/s; wrote {out}")


if __name__ == "__main__":
    main()
