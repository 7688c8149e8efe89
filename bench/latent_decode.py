# SPDX-License-Identifier: Apache-2.0
"""Dense MLA decode on this machine's GPU: checks each case on sampled sequences, times it, and measures the ceilings beside it.

Writes a JSON file. Times are medians with L2 flushed between runs; small batches run as a CUDA graph. Where FlashMLA is
installed, it is checked and timed on the same inputs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from gpu import DEVICE, Bench
from latent import LATENT, Cache, LatentSubject, row_width
from torch import Tensor

import fovea

NATIVE_CASE = "latent_attention/bench/decode-bf16-h16-b8-kv8192"


@dataclass
class Case:
    batch: int
    seq_q: int
    kv_len: int
    heads: int
    causal: bool = False
    spread: bool = True  # lengths normal around kv_len with half of it as deviation; else all equal
    cache: str = "rows"
    page: int = 64

    @property
    def name(self) -> str:
        mark, causal = "~" if self.spread else "=", " causal" if self.causal else ""
        cache = "" if self.cache == "rows" else f" {self.cache}"
        page = "" if self.page == 64 else f" page {self.page}"
        return f"b{self.batch} sq{self.seq_q} len{mark}{self.kv_len} h{self.heads}{causal}{cache}{page}"

    def tiny(self) -> "Case":
        return replace(self, batch=min(self.batch, 2), kv_len=min(self.kv_len, 192), heads=min(self.heads, 16))


def equal(batch: int, kv_len: int, heads: int, cache: str = "rows", page: int = 64) -> Case:
    return Case(batch, 1, kv_len, heads, spread=False, cache=cache, page=page)


CASES = [
    Case(128, 1, 4096, 128),
    Case(128, 2, 4096, 128, causal=True),
    Case(128, 1, 16384, 128),
    Case(128, 2, 16384, 128, causal=True),
    Case(128, 2, 32768, 128),
    Case(128, 1, 8192, 16),
    Case(128, 1, 8192, 16, spread=False),
    Case(64, 1, 8192, 64),
    equal(1, 131072, 128),
    equal(8, 8192, 128),
]
# One number of a case varies. Where two sweeps meet, the case is measured once.
SWEEPS = {
    "batch": [equal(batch, 4096, 128) for batch in (1, 2, 4, 8, 16, 32, 64, 128)],
    "kv_len": [equal(32, 1024 << step, 128) for step in range(8)],
    "heads": [equal(128, 4096, heads) for heads in (16, 32, 64, 128)],
}
PLAIN = ["rows", "rows_f16", "rows512", "rows512_f16"]
CODES = ["e4m3", "e4m3_f16", "e4m3_512", "e4m3_512_f16", "v32_fp8", "v4_fp8", "v41_fp8"]
# Every way to load keys: whole tiles for one or two query tiles, gathered rows, and quantised values.
FORMATS = [equal(128, 4096, heads, cache) for heads in (128, 64) for cache in PLAIN]
FORMATS += [equal(128, 4096, 128, cache, 1) for cache in PLAIN] + [equal(128, 4096, 128, cache) for cache in CODES]
LATENCY = [equal(1, 4096, 128), equal(8, 4096, 128)]


class Decode(LatentSubject):
    def __init__(self, case: Case) -> None:
        generator = torch.Generator().manual_seed(3)
        lengths = torch.full((case.batch,), float(case.kv_len))
        if case.spread:
            lengths = (lengths + torch.randn(case.batch, generator=generator) * case.kv_len / 2).clamp(1, 3 * case.kv_len)
        self.case, self.kv_len = case, lengths.int().to(DEVICE)
        blocks = (self.kv_len + case.page - 1) // case.page
        total = int(blocks.sum())
        self.table = torch.full((case.batch, int(blocks.max())), 2147480000, dtype=torch.int32, device=DEVICE)
        order, at = torch.randperm(total, device=DEVICE).int(), 0
        for sequence, count in enumerate(blocks.tolist()):
            self.table[sequence, :count] = order[at : at + count]
            at += count
        super().__init__(case.batch, case.seq_q, case.heads, Cache(case.cache, total, case.page), row_width(case.cache))
        tokens = int(self.kv_len.sum())
        self.work(case.seq_q * tokens, tokens * self.cache.token_bytes)

    def run(self, schedule: fovea.LatentSchedule | None = None, out: Tensor | None = None) -> Tensor:
        return fovea.latent_attention(
            self.q,
            self.cache.data,
            self.table,
            self.kv_len,
            format=self.cache.format,
            causal=self.case.causal,
            cache_scale=self.cache.scale,
            out=out,
            return_lse=True,
            schedule=schedule,
        )[0]

    def flash_mla_metadata(self) -> tuple:
        import flash_mla

        return flash_mla.get_mla_metadata(self.kv_len, self.case.seq_q * self.case.heads, 1)

    def flash_mla(self, metadata: tuple | None = None) -> Tensor:
        """Scheduling included, as in Fovea's call, unless an earlier call made the metadata."""
        import flash_mla

        arguments = (self.q, self.cache.data, self.table, self.kv_len, LATENT, *(metadata or self.flash_mla_metadata()))
        return flash_mla.flash_mla_with_kvcache(*arguments, causal=self.case.causal)[0]

    def flash_mla_call(self, shared: bool) -> Callable[[], Tensor] | None:
        if (self.case.cache, self.case.page) != ("rows", 64):
            return None
        return partial(self.flash_mla, self.flash_mla_metadata()) if shared else self.flash_mla

    def samples(self) -> Iterator[tuple[int, int, Tensor]]:
        """All queries of four sequences."""
        for sequence in range(0, self.case.batch, max(self.case.batch // 4, 1)):
            length, page = int(self.kv_len[sequence]), self.case.page
            token = torch.arange(length, device=DEVICE)
            keys = self.cache.read(self.table[sequence].long()[token // page] * page + token % page)
            for row in range(self.case.seq_q):
                hidden = self.case.seq_q - 1 - row if self.case.causal else 0
                if hidden < length:
                    yield sequence, row, keys[: length - hidden]


def main() -> None:
    bench = Bench("latent-decode", __doc__)

    def measure(case: Case) -> dict:
        return bench.row(Decode(case))

    bench.rows(CASES, measure, bench.results.setdefault("cases", []))
    sweeps = bench.results["sweeps"] = {axis: [] for axis in SWEEPS}
    for axis, cases in SWEEPS.items():
        bench.rows(cases, measure, sweeps[axis])
    bench.latency(LATENCY, Decode)
    bench.host(equal(8, 8192, 16), Decode, NATIVE_CASE)
    bench.rows(FORMATS, measure, bench.results.setdefault("formats", []))
    bench.finish()


if __name__ == "__main__":
    main()
