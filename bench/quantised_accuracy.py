# SPDX-License-Identifier: Apache-2.0
"""The error of 8-bit attention by the data, the groups and the smoothing, against attention in f32 on the same tensors.
Prints the table of docs/numerics.md, and writes a JSON file."""

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from gpu import DEVICE, device_name, result_file, revision, write
from torch import Tensor

import fovea

Tensors = tuple[Tensor, Tensor, Tensor]
SHAPE = (1, 512, 2, 128)  # one batch, tokens, heads, head dim
GATES = {"f16": (0.9998, 0.02), "e4m3": (0.9985, 0.055)}  # cosine at least, relative L1 error at most
PROMISED = ("normal", "K biased")  # where the gates hold, with smoothing


def normal() -> Tensors:
    q, k, v = (torch.randn(SHAPE) for _ in range(3))
    return q, k, v


def biased_k() -> Tensors:
    """A mean for each channel of K, 8 times as large as what varies."""
    q, k, v = normal()
    return q, k + 8 * torch.randn(1, 1, *SHAPE[2:]), v


def outliers(times: int) -> Callable[[], Tensors]:
    """One channel in 64 of K and of V varies by so much more than the others, the same ones in every token."""

    def tensors() -> Tensors:
        q, k, v = normal()
        k[..., 5::64] *= times
        v[..., 9::64] *= times
        return q, k, v

    return tensors


DATA = {"normal": normal, "K biased": biased_k, "outliers, 4 x": outliers(4), "outliers, 8 x": outliers(8)}
GROUPS = {"block": ("block", 32), "warp": ("warp", 32), "thread": ("thread", 32)}


@dataclass
class Row:
    data: str
    groups: str
    values: str
    smooth_k: bool
    cosine: float
    relative_l1: float


def measured(data: str, groups: str, values: str, smooth_k: bool) -> Row:
    torch.manual_seed(1)
    q, k, v = (x.to(torch.bfloat16) for x in DATA[data]())
    want = fovea.attention(q.float(), k.float(), v.float()).double()
    granularity, warp_rows = GROUPS[groups]
    dtype = torch.float16 if values == "f16" else torch.float8_e4m3fn
    options = {"v_dtype": dtype, "smooth_k": smooth_k, "granularity": granularity, "warp_rows": warp_rows}
    got = fovea.quantize_and_attend(*(x.to(DEVICE) for x in (q, k, v)), **options).cpu().double()
    cosine = float((got * want).sum() / (got.norm() * want.norm()))
    return Row(data, groups, values, smooth_k, cosine, float((got - want).abs().sum() / want.abs().sum()))


def passes(row: Row) -> bool:
    cosine, relative_l1 = GATES[row.values]
    return row.cosine >= cosine and row.relative_l1 <= relative_l1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file to write (default: bench/results/DEVICE/DATE-quantised-accuracy.json)")
    parser.add_argument("--commit", help="revision measured (default: git's)")
    options = parser.parse_args()
    rows, now = [], datetime.now(UTC)
    print("| data | groups | f16 V: cosine, relative L1 | e4m3 V: cosine, relative L1 | f16 V, K not smoothed |")
    print("|---|---|---|---|---|")
    for data in DATA:
        for groups in GROUPS:
            some = [measured(data, groups, *of) for of in (("f16", True), ("e4m3", True), ("f16", False))]
            print(f"| {data} | {groups} | " + " | ".join(f"{row.cosine:.6f}, {row.relative_l1:.4f}" for row in some) + " |")
            rows += some
    about = {"date": now.isoformat(timespec="seconds"), "commit": options.commit or revision(), "device": device_name()}
    write(about | {"rows": [asdict(row) for row in rows]}, options.out or result_file("quantised-accuracy", now))
    if broken := [row for row in rows if row.smooth_k and row.data in PROMISED and not passes(row)]:
        raise SystemExit(f"less accurate than promised: {broken}")


if __name__ == "__main__":
    main()
