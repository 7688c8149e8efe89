# SPDX-License-Identifier: Apache-2.0
"""Attention over a block-table cache on this machine's GPU, appending to one, and merging states: checks each case on sampled
sequences and times it beside the ceilings, and beside FlashAttention-3, FlashInfer and PyTorch where they can be imported.

Writes a JSON file. Times are medians with L2 flushed between runs; decodes run as a CUDA graph. Flushing writes, so L2 must first
store what it holds; decodes are timed again after a flush that only reads ("clean_milliseconds")."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from gpu import DEVICE, Bench, Subject
from paged_peers import DECODE_QUERIES, WORST, wanted
from torch import Tensor

import fovea

K_FACTOR = 0.75  # what one step of an e4m3 key is worth
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
    prefill: int = 0  # tokens of a sequence of its own, beside the batch
    implementation: str | None = None

    @property
    def name(self) -> str:
        shape = f"b{self.batch} sq{self.seq_q} len={self.kv_len} h{self.heads}/{self.kv_heads} d{self.head_dim} page {self.page}"
        beside = f" beside a prefill of {self.prefill}" if self.prefill else ""
        return shape + ("" if self.cache == "bf16" else f" {self.cache}") + beside

    def tiny(self) -> "Case":
        kv_len = min(self.kv_len, 100)
        small = replace(self, batch=min(self.batch, 2), kv_len=kv_len, seq_q=kv_len if self.whole_prefill else min(self.seq_q, 5))
        return replace(small, prefill=min(self.prefill, 70))

    @property
    def whole_prefill(self) -> bool:
        return self.seq_q == self.kv_len

    def lengths(self) -> tuple[list[int], list[int]]:
        """Lengths of the queries and of the cache, of each sequence."""
        beside = [self.prefill] if self.prefill else []
        return beside + [self.seq_q] * self.batch, beside + [self.kv_len] * self.batch


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
MIXED = [Case(31, 8192), Case(1, 2048, seq_q=2048), Case(31, 8192, prefill=2048), Case(1, 131072, prefill=2048)]


@dataclass
class AppendCase:
    tokens: int
    cache: str = "bf16"
    page: int = 16
    kv_heads: int = 8
    head_dim: int = 128

    @property
    def name(self) -> str:
        return f"append {self.tokens} tokens h{self.kv_heads} d{self.head_dim} page {self.page} {self.cache}"

    def tiny(self) -> "AppendCase":
        return replace(self, tokens=min(self.tokens, 40))


@dataclass
class MergeCase:
    rows: int
    parts: int = 2
    heads: int = 32
    head_dim: int = 128

    @property
    def name(self) -> str:
        return f"merge {self.parts} states of {self.rows} rows h{self.heads} d{self.head_dim}"

    def tiny(self) -> "MergeCase":
        return replace(self, rows=min(self.rows, 3))


APPEND = [AppendCase(tokens, cache) for cache in ("bf16", "e4m3") for tokens in (64, 8192, 65536)]
MERGE = [MergeCase(64), MergeCase(4096), MergeCase(16384), MergeCase(4096, parts=8)]


def random_rows(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=BF16, device=DEVICE).normal_()


def relative_error(out: Tensor, want: Tensor, of: str, most: float = WORST) -> float:
    error = float((out.double() - want).norm() / want.norm())
    if not error < most:  # NaN must fail too
        raise ArithmeticError(f"{of}: relative error {error:.1e}")
    return error


class Paged:
    flops: int
    bytes: int
    layers = False

    def __init__(self, case: Case) -> None:
        self.case, self.graph = case, case.prefill == 0 and case.seq_q <= DECODE_QUERIES
        self.clean, self.peer_errors = self.graph, {}
        self.query_lens, self.kv_lens = case.lengths()
        self.page_counts = [-(-kv_len // case.page) for kv_len in self.kv_lens]
        blocks, rows = sum(self.page_counts), sum(self.query_lens)
        self.q = random_rows(rows, case.heads, case.head_dim)
        self.out = torch.empty_like(self.q)
        self.k, self.v = (self.random_cache(blocks) for _ in range(2))
        # FlashInfer takes one number for K, and multiplies by V's in another kernel unless it is 1.
        self.k_factor = K_FACTOR if case.cache == "e4m3" else 1.0
        self.scales: dict[str, Tensor] = {}
        if case.cache == "e4m3":
            factors = {"k_scale": self.k_factor, "v_scale": 1.0}
            self.scales = {name: torch.full((case.kv_heads,), factor, device=DEVICE) for name, factor in factors.items()}
        self.pages = torch.randperm(blocks, device=DEVICE).int()  # of one sequence after another
        self.table = torch.nn.utils.rnn.pad_sequence(list(self.pages.split(self.page_counts)), batch_first=True)
        self.kv_len = torch.tensor(self.kv_lens, dtype=torch.int32, device=DEVICE)
        self.cu_seqlens_q = torch.tensor([0, *self.query_lens], device=DEVICE).cumsum(0).int()
        lengths = list(zip(self.query_lens, self.kv_lens, strict=True))
        pairs = sum(seq_q * kv_len - seq_q * (seq_q - 1) // 2 for seq_q, kv_len in lengths)
        self.flops = 4 * pairs * case.heads * case.head_dim
        tokens = sum(self.kv_lens) * case.kv_heads * case.head_dim
        self.bytes = 2 * tokens * self.k.element_size() + 4 * self.q.numel()

    def random_cache(self, blocks: int) -> Tensor:
        case = self.case
        cache = random_rows(blocks, case.page, case.kv_heads, case.head_dim)
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
            max_seqlen_q=max(self.query_lens),
            **self.scales,
            out=out,
            implementation=self.case.implementation,
        )

    def peers(self, shared: bool) -> dict[str, Callable[[], Tensor]]:
        del shared
        found = wanted(self) if DEVICE == "cuda" else {}
        self.peer_errors = {name: self.check(call, most) for name, (call, most) in found.items()}
        return {name: call for name, (call, _) in found.items()}

    @property
    def uniform(self) -> bool:
        """Whether a dense call of 16 bits could be the same."""
        return self.case.prefill == 0 and self.case.cache == "bf16"

    def copied(self, cache: Tensor) -> Tensor:
        """[sequence, token, kv_head, head_dim], of sequences of one length."""
        return cache[self.table.long()].flatten(1, 2)[:, : self.case.kv_len]

    def rows_of(self, cache: Tensor, sequence: int) -> Tensor:
        """[kv_head, token, head_dim], in double precision."""
        return cache[self.table[sequence].long()].double().flatten(0, 1)[: self.kv_lens[sequence]].transpose(0, 1)

    def check(self, call: Callable[[], Tensor] | None = None, most: float = WORST) -> float:
        """The largest relative error of some query rows of four sequences, against double precision."""
        case, worst = self.case, 0.0
        self.out.fill_(math.nan)
        out = (call or partial(self.run, out=self.out))().reshape(-1, case.kv_heads, case.heads // case.kv_heads, case.head_dim)
        q, ends = self.q.view(out.shape), self.cu_seqlens_q.tolist()
        count = len(self.kv_lens)
        for sequence in range(0, count, max(count // 4, 1)):
            k, v = (self.rows_of(cache, sequence) for cache in (self.k, self.v))
            seq_q, kv_len = self.query_lens[sequence], self.kv_lens[sequence]
            for row in range(0, seq_q, max(seq_q // 4, 1)):
                seen, at = kv_len - seq_q + row + 1, ends[sequence] + row
                scores = q[at].double() @ k[:, :seen].transpose(1, 2) * (self.k_factor * case.head_dim**-0.5)
                want = scores.softmax(-1) @ v[:, :seen]
                worst = max(worst, relative_error(out[at], want, f"sequence {sequence}, query {row}", most))
        return worst


class Append:
    """New rows into slots in any order."""

    layers = False

    def __init__(self, case: AppendCase) -> None:
        self.case, self.graph, self.clean = case, case.tokens <= 1024, False
        blocks = -(-case.tokens // case.page) * 2
        self.rows = [random_rows(case.tokens, case.kv_heads, case.head_dim) for _ in range(2)]
        shape = (blocks, case.page, case.kv_heads, case.head_dim)
        self.caches = [torch.zeros(shape, dtype=E4M3 if case.cache == "e4m3" else BF16, device=DEVICE) for _ in range(2)]
        self.slots = torch.randperm(blocks * case.page, device=DEVICE)[: case.tokens]
        self.scale = torch.linspace(0.01, 0.02, case.kv_heads, device=DEVICE) if case.cache == "e4m3" else None
        self.bytes = sum(
            rows.numel() * (rows.element_size() + cache.element_size()) for rows, cache in zip(self.rows, self.caches, strict=True)
        )
        self.flops = 0

    def run(self, schedule: None = None) -> Tensor:
        del schedule
        fovea.paged_cache_append(*self.rows, *self.caches, self.slots, k_scale=self.scale, v_scale=self.scale)
        return self.caches[0]

    def check(self, call: Callable[[], Tensor] | None = None) -> float:
        """Checks that the cache holds each row, rounded to the cache's dtype."""
        (call or self.run)()
        for rows, cache in zip(self.rows, self.caches, strict=True):
            stored = cache.flatten(0, 1)[self.slots]
            # Older releases of torch make NaN of what is too large for e4m3.
            want = rows if self.scale is None else (rows.float() / self.scale[:, None]).clamp(-448.0, 448.0).to(E4M3)
            if not torch.equal(stored.float(), want.float()):
                raise ArithmeticError("a row of the cache is not what was appended")
        return 0.0

    def peers(self, shared: bool) -> dict[str, Callable[[], Tensor]]:
        del shared
        if self.scale is not None:
            return {}
        flat = [cache.flatten(0, 1) for cache in self.caches]

        def copy() -> Tensor:
            for rows, cache in zip(self.rows, flat, strict=True):
                cache.index_copy_(0, self.slots, rows)
            return self.caches[0]

        self.check(copy)
        return {"PyTorch, index_copy_": copy}


class Merge:
    """Results over disjoint keys become one, as cascades merge them."""

    layers = False

    def __init__(self, case: MergeCase) -> None:
        self.case, self.graph, self.clean = case, case.rows <= 1024, False
        self.outs = [random_rows(case.rows, case.heads, case.head_dim) for _ in range(case.parts)]
        self.lses = [torch.randn(case.rows, case.heads, device=DEVICE) for _ in range(case.parts)]
        self.bytes = (case.parts + 1) * (self.outs[0].numel() * 2 + self.lses[0].numel() * 4)
        self.flops = 2 * case.parts * self.outs[0].numel()

    def run(self, schedule: None = None) -> Tensor:
        del schedule
        return fovea.merge_states(self.outs, self.lses)[0]

    def check(self, call: Callable[[], Tensor] | None = None) -> float:
        weights = torch.stack(self.lses).double().softmax(0)[..., None]
        want = (torch.stack(self.outs).double() * weights).sum(0)
        return relative_error((call or self.run)(), want, "merged")

    def peers(self, shared: bool) -> dict[str, Callable[[], Tensor]]:
        del shared
        return {}


SUBJECTS: dict[type, type[Subject]] = {Case: Paged, AppendCase: Append, MergeCase: Merge}
PARTS = {
    "decode": DECODE,
    "pages": PAGES,
    "head_dims": DIMS,
    "prefill": PREFILL,
    "mixed": MIXED,
    "append": APPEND,
    "merge": MERGE,
}


def main() -> None:
    bench = Bench("paged-decode", __doc__)  # the kind that bench/plot_dense.py looks for

    def measure(case: Case | AppendCase | MergeCase) -> dict:
        return bench.row(SUBJECTS[type(case)](case))

    for kind, cases in PARTS.items():
        bench.rows(cases, measure, bench.results.setdefault(kind, []))
    bench.host(Case(16, 4096), Paged, NATIVE_CASE)
    bench.finish()


if __name__ == "__main__":
    main()
