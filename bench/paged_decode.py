# SPDX-License-Identifier: Apache-2.0
"""Attention over a block-table cache on this machine's GPU: checks each case on sampled sequences and times it beside the ceilings.

Writes a JSON file. Times are medians with L2 flushed between runs; small batches run as a CUDA graph."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from gpu import DEVICE, Bench
from torch import Tensor

import fovea

GRAPH_BATCH = 8  # batches up to here run as a graph
WORST = 6e-3  # relative error of an output whose operands and result are rounded to bf16
NATIVE_CASE = "paged_attention/bench/decode-bf16-d128-h32x8-page16-b16-kv4096"
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn


@dataclass
class Case:
    batch: int
    kv_len: int
    page: int = 16
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    seq_q: int = 1
    cache: str = "bf16"
    implementation: str | None = None

    @property
    def name(self) -> str:
        shape = f"b{self.batch} sq{self.seq_q} len={self.kv_len} h{self.heads}/{self.kv_heads} d{self.head_dim} page {self.page}"
        return shape + ("" if self.cache == "bf16" else f" {self.cache}")

    def tiny(self) -> "Case":
        kv_len = min(self.kv_len, 100)
        return replace(self, batch=min(self.batch, 2), kv_len=kv_len, seq_q=kv_len if self.whole_prefill else min(self.seq_q, 5))

    @property
    def whole_prefill(self) -> bool:
        return self.seq_q == self.kv_len


def e4m3(batch: int, kv_len: int, page: int) -> Case:
    return Case(batch, kv_len, page, cache="e4m3")


DECODE = [
    Case(1, 8192),
    Case(1, 32768, 64),
    Case(16, 8192),
    Case(64, 8192),
    Case(128, 8192, 64),
    Case(128, 8192, 128, heads=64),
    Case(256, 1024),
    Case(64, 8192, 64, seq_q=4),
    e4m3(1, 8192, 64),
    e4m3(16, 8192, 16),
    e4m3(64, 8192, 16),
    e4m3(128, 8192, 64),
    e4m3(256, 1024, 16),
]
PAGES = [Case(64, 8192, page) for page in (1, 4, 64)]
DIMS = [Case(64, 8192, head_dim=64), Case(64, 8192, head_dim=256, kv_heads=4)]
PREFILL = [*(Case(4, 4096, page, seq_q=4096) for page in (16, 64, 128)), Case(1, 4096, seq_q=4096), Case(8, 4096, seq_q=512)]


class Paged:
    flops: int
    bytes: int
    layers = False

    def __init__(self, case: Case) -> None:
        self.case, self.graph = case, case.batch <= GRAPH_BATCH and case.seq_q <= GRAPH_BATCH
        pages = (case.kv_len + case.page - 1) // case.page
        blocks, rows = case.batch * pages, case.batch * case.seq_q
        self.q = torch.randn(rows, case.heads, case.head_dim, dtype=BF16, device=DEVICE)
        self.out = torch.empty_like(self.q)
        self.k, self.v = (self.random_cache(blocks) for _ in range(2))
        self.scale = torch.linspace(0.5, 1.5, case.kv_heads, device=DEVICE) if case.cache == "e4m3" else None
        self.table = torch.randperm(blocks, device=DEVICE).int().view(case.batch, pages)
        self.kv_len = torch.full((case.batch,), case.kv_len, dtype=torch.int32, device=DEVICE)
        self.cu_seqlens_q = torch.arange(0, rows + 1, case.seq_q, dtype=torch.int32, device=DEVICE)
        pairs = sum(case.kv_len - hidden for hidden in range(case.seq_q)) * case.batch
        self.flops = 4 * pairs * case.heads * case.head_dim
        tokens = case.batch * case.kv_len * case.kv_heads * case.head_dim
        self.bytes = 2 * tokens * self.k.element_size() + 4 * self.q.numel()

    def random_cache(self, blocks: int) -> Tensor:
        case = self.case
        cache = torch.empty(blocks, case.page, case.kv_heads, case.head_dim, dtype=BF16, device=DEVICE).normal_()
        return cache.to(E4M3) if case.cache == "e4m3" else cache

    def run(self, schedule: None = None, out: Tensor | None = None) -> Tensor:
        del schedule
        return fovea.paged_attention(
            self.q,
            self.k,
            self.v,
            self.table,
            self.kv_len,
            self.cu_seqlens_q,
            max_seqlen_q=self.case.seq_q,
            k_scale=self.scale,
            v_scale=self.scale,
            out=out,
            implementation=self.case.implementation,
        )

    def peers(self, shared: bool) -> dict[str, Callable[[], Tensor]]:
        """Of a whole prefill: dense attention over the same keys, gathered before."""
        del shared
        case = self.case
        if not case.whole_prefill:
            return {}
        k, v = (x[self.table.long()].flatten(1, 2)[:, : case.kv_len].contiguous() for x in (self.k, self.v))
        q = self.q.view(case.batch, case.seq_q, case.heads, case.head_dim)
        return {"dense": partial(fovea.attention, q, k, v, causal=True, out=torch.empty_like(q))}

    def rows_of(self, cache: Tensor, sequence: int) -> Tensor:
        """[kv_head, token, head_dim], in double precision."""
        rows = cache[self.table[sequence].long()].double().flatten(0, 1)[: self.case.kv_len].transpose(0, 1)
        return rows if self.scale is None else rows * self.scale.double()[:, None, None]

    def check(self, call: Callable[[], Tensor] | None = None) -> float:
        """The largest relative error of some query rows of four sequences, against double precision."""
        case, worst = self.case, 0.0
        self.out.fill_(math.nan)
        out = (call or partial(self.run, out=self.out))().view(case.batch, case.seq_q, case.kv_heads, -1, case.head_dim)
        q = self.q.view(out.shape)
        for sequence in range(0, case.batch, max(case.batch // 4, 1)):
            k, v = (self.rows_of(cache, sequence) for cache in (self.k, self.v))
            for row in range(0, case.seq_q, max(case.seq_q // 4, 1)):
                seen = case.kv_len - case.seq_q + row + 1
                scores = q[sequence, row].double() @ k[:, :seen].transpose(1, 2) * case.head_dim**-0.5
                want = scores.softmax(-1) @ v[:, :seen]
                error = float((out[sequence, row].double() - want).norm() / want.norm())
                if not error < WORST:  # NaN must fail too
                    raise ArithmeticError(f"sequence {sequence}, query {row}: relative error {error:.1e}")
                worst = max(worst, error)
        return worst


def main() -> None:
    bench = Bench("paged-attention", __doc__)

    def measure(case: Case) -> dict:
        return bench.row(Paged(case))

    for kind, cases in {"decode": DECODE, "pages": PAGES, "head_dims": DIMS, "prefill": PREFILL}.items():
        bench.rows(cases, measure, bench.results.setdefault(kind, []))
    bench.host(Case(16, 4096), Paged, NATIVE_CASE)
    bench.finish()


if __name__ == "__main__":
    main()
