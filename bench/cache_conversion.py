# SPDX-License-Identifier: Apache-2.0
"""Packed latent caches on this machine's GPU: quantising, dequantising, and appending a decode step's tokens to a large cache.
Checks each case against the CPU, bit for bit, times it, and measures a copy of as many bytes beside it. Writes a JSON file."""

import argparse
import json
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from latent_decode import DEVICE, PAGE, ROOT, median_ms, recorded, smi
from torch import Tensor

import fovea

MANY, STEP = 1 << 20, 128  # tokens of a large call, and of a decode step
CHECKED = 4096  # tokens of each case that the CPU converts too


@dataclass
class Case:
    does: str  # quantize, dequantize, or append: quantize into scattered slots of a large cache
    cache_format: str
    tokens: int
    exact: bool = False

    @property
    def name(self) -> str:
        return f"{self.does} {self.cache_format} {self.tokens}{' exact' if self.exact else ''}"

    @property
    def bytes(self) -> int:
        """Read and written by one call."""
        form = fovea.cache_formats()[self.cache_format]
        return self.tokens * (2 * form.row + form.bytes + 8)


CASES = [
    Case(does, name, tokens)
    for name in fovea.cache_formats()
    for does, tokens in (("quantize", MANY), ("dequantize", MANY), ("append", MANY // 2), ("dequantize", STEP), ("append", STEP))
] + [Case("quantize", "v32_fp8", MANY, exact=True)]


class Conversion:
    def __init__(self, case: Case) -> None:
        self.case, form = case, fovea.cache_formats()[case.cache_format]
        self.rows = torch.randn(case.tokens, form.row, dtype=torch.bfloat16, device=DEVICE)
        self.cache = torch.zeros(MANY // PAGE, PAGE, form.bytes, dtype=torch.uint8, device=DEVICE)
        scattered = case.does == "append" or case.tokens < MANY
        order = torch.randperm(MANY, device=DEVICE) if scattered else torch.arange(MANY, device=DEVICE)
        self.slots = order[: case.tokens].contiguous()
        if case.does == "dequantize":
            self.quantize()

    def quantize(self) -> None:
        fovea.quantize_latent_cache(self.rows, self.cache, self.slots, format=self.case.cache_format, exact_scale=self.case.exact)

    def dequantize(self) -> None:
        fovea.dequantize_latent_cache(self.cache, self.slots, format=self.case.cache_format, rows=self.rows)

    def run(self) -> None:
        if self.case.does == "dequantize":
            self.dequantize()
        else:
            self.quantize()

    def on_cpu(self, kept: Tensor, rows: Tensor) -> Tensor:
        """Rows of the tokens `kept`, by the CPU: through a cache of its own, or from the device's."""
        form, name = fovea.cache_formats()[self.case.cache_format], self.case.cache_format
        if self.case.does == "dequantize":
            return fovea.dequantize_latent_cache(self.cache.cpu(), self.slots[kept].cpu(), format=name)
        cache, slots = form.empty(len(kept) // PAGE + 1, PAGE), torch.arange(len(kept))
        fovea.quantize_latent_cache(rows[kept].cpu(), cache, slots, format=name, exact_scale=self.case.exact)
        return fovea.dequantize_latent_cache(cache, slots, format=name)

    def check(self) -> None:
        """The device's cache is read by the CPU, so that neither direction can hide an error of the other."""
        kept = torch.randperm(self.case.tokens, device=DEVICE)[:CHECKED]
        if self.case.does == "dequantize":
            self.rows.fill_(torch.nan)
            self.run()
            got = self.rows[kept].cpu()
        else:
            self.run()
            cache, slots = self.cache.cpu(), self.slots[kept].cpu()
            got = fovea.dequantize_latent_cache(cache, slots, format=self.case.cache_format)
        if not torch.equal(got, self.on_cpu(kept, self.rows)):
            raise SystemExit(f"{self.case.name}: differs from the CPU")


def copy_ms(moved: int) -> float:
    """A copy that reads and writes `moved` bytes together."""
    source = torch.empty(moved // 2, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return median_ms(recorded(lambda: target.copy_(source)))


def measure(case: Case) -> dict:
    subject = Conversion(case)
    subject.check()
    milliseconds, copy = median_ms(recorded(subject.run)), copy_ms(case.bytes)
    row = asdict(case) | {
        "name": case.name,
        "milliseconds": milliseconds,
        "bytes": case.bytes / milliseconds * 1e3,
        "copy_milliseconds": copy,
        "of_copy_rate": copy / milliseconds,
    }
    print(
        f"{case.name:36} {milliseconds * 1e3:9.2f} us {row['bytes'] / 1e9:6.0f} GB/s, "
        f"a copy {copy * 1e3:9.2f} us: {row['of_copy_rate']:5.2f} of its rate",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="file to write (default: bench/results/DEVICE/DATE-cache-conversion.json)")
    parser.add_argument("--commit", required=True, help="revision measured")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    args = parser.parse_args()
    torch.manual_seed(1)
    now = datetime.now(UTC)
    results = {
        "date": now.isoformat(timespec="seconds"),
        "commit": args.commit,
        "device": torch.cuda.get_device_name(),
        "driver": smi("driver_version"),
        "clocks_max": smi("clocks.max.sm,power.limit"),
        "torch": torch.__version__,
        "cases": [measure(case) for case in CASES if args.case in case.name],
        "clocks_after": smi("clocks.sm,power.draw"),
    }
    device = re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")
    out = args.out or ROOT / "bench/results" / device / f"{now.date()}-cache-conversion.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=2) + "\n")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
