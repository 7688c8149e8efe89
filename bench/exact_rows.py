# SPDX-License-Identifier: Apache-2.0
"""Promises and cost of fovea.set_exact_rows(True) on this machine's CPU, with one thread.

``python bench/exact_rows.py --json FILE`` counts rows whose bits differ between ways to compute them
(tests/python/exact_rows.py), without the option and with it. Then it times calls by turns: the processor time of the fastest
of many."""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

import fovea

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "python"))
import exact_rows

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Name, heads, kv heads, sequences, tokens of each.
SHAPES = [
    ("prefill", 8, 8, 1, 1024),
    ("prefill", 32, 8, 1, 512),
    ("decode", 8, 8, 4, 1024),
    ("decode", 32, 8, 4, 1024),
    ("decode", 32, 8, 1, 8192),
    ("decode", 32, 8, 8, 4096),
]
HEAD_DIM, PAGE = 128, 16


def call_of(name: str, heads: int, kv_heads: int, batch: int, tokens: int, dtype: torch.dtype) -> Callable[[], object]:
    if name == "prefill":
        q, k, v = (torch.randn(batch, tokens, count, HEAD_DIM).to(dtype) for count in (heads, kv_heads, kv_heads))
        return lambda: fovea.attention(q, k, v, causal=True)
    pages = batch * tokens // PAGE
    k, v = (torch.randn(pages, PAGE, kv_heads, HEAD_DIM).to(dtype) for _ in range(2))
    table, q = torch.randperm(pages).int().view(batch, -1), torch.randn(batch, heads, HEAD_DIM).to(dtype)
    lengths = torch.full((batch,), tokens, dtype=torch.int32)
    return lambda: fovea.paged_attention(q, k, v, table, lengths)


def milliseconds(call: Callable[[], object], rounds: int) -> list[float]:
    """Without the option and with it."""
    least = [float("inf")] * 2
    for _ in range(rounds):
        for exact in (False, True):
            fovea.set_exact_rows(exact)
            call()
            start = time.process_time()
            call()
            least[exact] = min(least[exact], (time.process_time() - start) * 1e3)
    return least


def costs(rounds: int) -> list[dict]:
    rows = []
    for dtype in DTYPES:
        for name, heads, kv_heads, batch, tokens in SHAPES:
            plain, exact = milliseconds(call_of(name, heads, kv_heads, batch, tokens, DTYPES[dtype]), rounds)
            row = {"name": name, "dtype": dtype, "heads": heads, "kv_heads": kv_heads, "head_dim": HEAD_DIM, "batch": batch}
            row |= {"tokens": tokens, "ms": round(plain, 3), "exact_ms": round(exact, 3), "ratio": round(exact / plain, 2)}
            print(" ".join(str(value) for value in row.values()), flush=True)
            rows.append(row)
    return rows


def agreement(sequences: int) -> list[dict]:
    rows = []
    for dtype in DTYPES:
        for exact in (False, True):
            random.seed(0)
            fovea.set_exact_rows(exact)
            sums: dict[str, list[int]] = {}
            for _ in range(sequences):
                s = exact_rows.draw(DTYPES[dtype], random.choice([64, 513, 1100, 5000]), {})
                for way, (unlike, count) in exact_rows.compare(s, random.choice([16, 64, 256])).items():
                    sums[way] = [a + b for a, b in zip(sums.get(way, [0, 0]), (unlike, count), strict=True)]
            for way, (unlike, count) in sums.items():
                row = {"dtype": dtype, "exact_rows": exact, "against dense": way, "rows": count, "differ": unlike}
                print(" ".join(str(value) for value in row.values()), flush=True)
                rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, required=True, help="the file to write")
    parser.add_argument("--rounds", type=int, default=15, help="calls of each way (default: 15)")
    parser.add_argument("--sequences", type=int, default=12, help="random sequences whose rows are compared (default: 12)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    result = {"agree": agreement(given.sequences), "cost": costs(given.rounds)}
    given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
