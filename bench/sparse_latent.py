# SPDX-License-Identifier: Apache-2.0
"""Token-sparse MLA on this machine's GPU: decode from caches of every format and prefill from bf16 rows. Checks each case on
sampled queries, times it, and measures the ceilings beside it. Where FlashMLA is installed, the two run by turns. Writes a JSON
file."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from gpu import DEVICE, Bench
from latent import LATENT, Cache, LatentSubject, row_width
from torch import Tensor

import fovea

PAGE, EXTRA_TOKENS = 64, 4096  # tokens of a sequence in the extra cache, whose pages are of 64 always
NATIVE_CASE = "sparse_latent_attention/bench/decode-v32_fp8-h128-b8-topk2048"


@dataclass
class Case:
    batch: int  # 0: prefill, one sequence of seq_q queries over a flat cache
    seq_q: int
    kv_len: int
    heads: int
    topk: int
    cache_format: str = "v32_fp8"
    extra_topk: int = 0
    extra_format: str = ""  # empty: that of the cache

    @property
    def name(self) -> str:
        where = f"b{self.batch} sq{self.seq_q}" if self.batch else f"prefill sq{self.seq_q}"
        topk = f"{self.topk}+{self.extra_topk}" if self.extra_topk else f"{self.topk}"
        extra = f"+{self.extra_format}" if self.extra_format else ""
        return f"{where} kv{self.kv_len} h{self.heads} topk{topk} {self.cache_format}{extra}"

    @property
    def page(self) -> int:
        if not self.batch:
            return self.kv_len
        return 256 if self.cache_format == "v4_fp8" else PAGE

    @property
    def sequences(self) -> int:
        return max(self.batch, 1)

    def tiny(self) -> "Case":
        small = {"batch": 2, "seq_q": 8, "kv_len": 512, "heads": 16, "topk": 96, "extra_topk": 40}
        return replace(self, **{field: min(getattr(self, field), most) for field, most in small.items()})


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
    Case(0, 4096, 32768, 64, 512, "rows512"),
    Case(0, 4096, 32768, 128, 1024, "rows512"),
    Case(1, 1, 32768, 128, 2048),
    Case(2, 1, 32768, 128, 2048),
    Case(1, 1, 32768, 128, 2048, "rows"),
]
# Every format at the sizes of one case above, and every kind of row at those of another.
FORMATS = [
    Case(128, 2, 32768, 64, 128, "v4_fp8", 512),
    Case(128, 2, 32768, 64, 128, "v41_fp8", 512),
    Case(128, 2, 32768, 64, 128, "v41_fp8_planar", 512),
    Case(128, 2, 32768, 64, 128, "v41_fp8", 512, "v41_fp4"),
    Case(128, 2, 32768, 64, 128, "rows512", 512),
    Case(128, 2, 32768, 128, 2048),
    *(Case(128, 2, 32768, 128, 2048, rows) for rows in ("rows", "rows_f16", "rows512", "rows512_f16")),
]
LATENCY = [Case(1, 1, 32768, 128, 2048), Case(2, 1, 32768, 128, 2048), Case(1, 1, 32768, 128, 2048, "rows")]


def random_lists(case: Case, topk: int, tokens: int) -> Tensor:
    """Different tokens of each sequence's own part of the cache, in no order."""
    chosen = torch.rand(case.sequences * case.seq_q, tokens, device=DEVICE).topk(topk).indices.int()
    low = torch.arange(case.sequences, device=DEVICE, dtype=torch.int32)[:, None, None] * tokens
    return low + chosen.view(case.sequences, case.seq_q, topk)


class Sparse(LatentSubject):
    def __init__(self, case: Case) -> None:
        self.case, self.extra, self.extra_indices = case, None, None
        cache = Cache(case.cache_format, case.sequences * case.kv_len // case.page, case.page)
        super().__init__(case.sequences, case.seq_q, case.heads, cache, row_width(case.cache_format))
        self.layers = case.batch > 0
        self.graph = self.graph and self.layers
        self.indices = random_lists(case, case.topk, case.kv_len)
        tokens = case.sequences * case.seq_q
        read = min(tokens * case.topk, cache.slots) * cache.token_bytes
        if case.extra_topk:
            self.extra = Cache(case.extra_format or case.cache_format, case.sequences * EXTRA_TOKENS // PAGE, PAGE)
            self.extra_indices = random_lists(case, case.extra_topk, EXTRA_TOKENS)
            read += min(tokens * case.extra_topk, self.extra.slots) * self.extra.token_bytes
        self.work(tokens * (case.topk + case.extra_topk), read)

    def run(self, schedule: fovea.LatentSchedule | None = None, out: Tensor | None = None) -> Tensor:
        q, indices, data, flat = self.q, self.indices, self.cache.data, not self.case.batch
        if flat:
            q, indices, data = q[0], indices[0], data[0]
        out = out[0] if flat and out is not None else out
        extra = {}
        if self.extra is not None:
            extra = {"extra_cache": self.extra.data, "extra_indices": self.extra_indices, "extra_format": self.extra.format}
        outputs = {"out": out, "return_lse": True, "return_max_logits": flat}
        done = fovea.sparse_latent_attention(q, data, indices, format=self.cache.format, schedule=schedule, **outputs, **extra)[0]
        return done[None] if flat else done

    def flash_mla(self) -> Tensor:
        """FlashMLA's prefill."""
        import flash_mla

        return flash_mla.flash_mla_sparse_fwd(self.q[0], self.cache.data[0], self.indices[0, :, None], self.width**-0.5)[0][None]

    def flash_mla_decode(self, metadata: tuple) -> Tensor:
        import flash_mla

        done = flash_mla.flash_mla_with_kvcache(
            self.q, self.cache.data[:, :, None], None, None, LATENT, *metadata, is_fp8_kvcache=True, indices=self.indices
        )
        return done[0]

    def flash_mla_call(self, shared: bool) -> Callable[[], Tensor] | None:
        if not self.case.batch:
            return self.flash_mla
        if self.case.cache_format != "v32_fp8" or not shared:
            return None
        import flash_mla

        return partial(self.flash_mla_decode, flash_mla.get_mla_metadata())

    def samples(self) -> Iterator[tuple[int, int, Tensor]]:
        """The first query, the last and one in the middle."""
        batch, rows = self.out.shape[:2]
        for at in ((0, 0), (batch - 1, rows - 1), (batch // 2, rows // 2)):
            keys = self.cache.read(self.indices[at])
            if self.extra is not None:
                keys = torch.cat([keys, self.extra.read(self.extra_indices[at])])
            yield *at, keys


def main() -> None:
    bench = Bench("sparse-latent", __doc__)
    bench.rows(CASES, lambda case: bench.row(Sparse(case)), bench.results.setdefault("cases", []))
    bench.rows(FORMATS, lambda case: bench.row(Sparse(case)), bench.results.setdefault("formats", []))
    bench.latency(LATENCY, Sparse)
    bench.host(Case(8, 1, 8192, 128, 2048), Sparse, NATIVE_CASE)
    bench.finish()


if __name__ == "__main__":
    main()
