# SPDX-License-Identifier: Apache-2.0
"""Packed latent caches on this machine's GPU: quantising, dequantising, and appending a decode step's tokens to a large cache.
Checks each case against the CPU, bit for bit, times it, and measures a copy of as many bytes beside it. Writes a JSON file."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from gpu import DEVICE, Bench, copy_rate, recorded
from torch import Tensor

import fovea

PAGE = 64
MANY, STEP = 1 << 20, 128  # tokens of a large call, and of a decode step
CHECKED = 4096  # tokens of each case that the CPU converts too


@dataclass(frozen=True)
class Case:
    does: str  # quantize, dequantize, or append: quantize into scattered slots of a large cache
    cache_format: str
    tokens: int
    exact: bool = False
    slots: int = MANY  # of the cache

    @property
    def name(self) -> str:
        return f"{self.does} {self.cache_format} {self.tokens}{' exact' if self.exact else ''}"

    def tiny(self) -> "Case":
        return replace(self, tokens=min(self.tokens, 256), slots=512)

    @property
    def bytes(self) -> int:
        """Bytes that one call reads and writes."""
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
        self.cache = torch.zeros(case.slots // PAGE, PAGE, form.bytes, dtype=torch.uint8, device=DEVICE)
        scattered = case.does == "append" or case.tokens < case.slots
        order = torch.randperm(case.slots, device=DEVICE) if scattered else torch.arange(case.slots, device=DEVICE)
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
        """Rows of the tokens `kept`, computed by the CPU through a cache of its own, or from the device's cache."""
        form, name = fovea.cache_formats()[self.case.cache_format], self.case.cache_format
        if self.case.does == "dequantize":
            return fovea.dequantize_latent_cache(self.cache.cpu(), self.slots[kept].cpu(), format=name)
        cache, slots = form.empty(len(kept) // PAGE + 1, PAGE), torch.arange(len(kept))
        fovea.quantize_latent_cache(rows[kept].cpu(), cache, slots, format=name, exact_scale=self.case.exact)
        return fovea.dequantize_latent_cache(cache, slots, format=name)

    def check(self) -> None:
        """The CPU reads the device's cache, so that neither direction can hide an error of the other."""
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
            raise ArithmeticError("differs from the CPU")


def main() -> None:
    bench = Bench("cache-conversion", __doc__)

    def median(call: Callable[[], object]) -> float:
        return bench.median(recorded(call))

    def measure(case: Case) -> dict:
        subject = Conversion(case)
        subject.check()
        milliseconds, copied = median(subject.run), copy_rate(case.bytes // 2, median)
        moved = case.bytes / milliseconds * 1e3
        return {"milliseconds": milliseconds, "bytes": moved, "of_copy_rate": moved / copied, "copy_rate": copied}

    bench.rows(CASES, measure, bench.results.setdefault("cases", []))
    bench.finish()


if __name__ == "__main__":
    main()
