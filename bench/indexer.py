# SPDX-License-Identifier: Apache-2.0
"""The indexer of token-sparse attention on this machine's GPU: logits over flat and paged keys, and lists of the best. Checks each
case on sampled rows, times it, and measures the ceilings beside it: matrix products of bf16 and of e4m3, and a copy. Where
DeepGEMM can be imported, as deep_gemm, the two run by turns over the same tensors; lists run by turns with torch.topk. Writes a
JSON file."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from gpu import DEVICE, Bench
from peers import importable
from torch import Tensor

import fovea
from fovea.compat import deep_gemm as drop_in

HEAD_DIM, PAGE, SCALE_BYTES = 128, 64, 4
GRAPH_ROWS = 1024  # calls of fewer queries are timed as a graph


@dataclass
class Flat:
    rows: int
    keys: int
    heads: int = 64
    causal: bool = False

    @property
    def name(self) -> str:
        return f"flat sq{self.rows} kv{self.keys} h{self.heads}{' causal' if self.causal else ''}"

    def tiny(self) -> "Flat":
        return replace(self, rows=min(self.rows, 40), keys=min(self.keys, 150), heads=8)


@dataclass
class Paged:
    batch: int
    queries: int
    kv_len: int
    heads: int = 64
    least_len: int = 0  # other than 0: lengths spread evenly from here to kv_len
    columns: int = 0  # other than 0: of the result
    common: int = 0  # tokens of a prefix whose blocks all sequences share

    @property
    def name(self) -> str:
        lengths = f"kv{self.least_len}..{self.kv_len}" if self.least_len else f"kv{self.kv_len}"
        of_columns = f" of {self.columns}" if self.columns else ""
        suffix = f", {self.common} in common" if self.common else ""
        return f"paged b{self.batch} sq{self.queries} {lengths}{of_columns} h{self.heads}{suffix}"

    def tiny(self) -> "Paged":
        small = {"batch": 3, "kv_len": 200, "least_len": 70, "columns": 300, "common": 64}
        return replace(self, heads=8, **{field: min(getattr(self, field), most) for field, most in small.items()})


@dataclass
class Lists:
    rows: int
    columns: int
    k: int = 2048

    @property
    def name(self) -> str:
        return f"topk {self.k} of {self.columns}, {self.rows} rows"

    def tiny(self) -> "Lists":
        return replace(self, rows=4, columns=300, k=min(self.k, 50))


LOGITS = [
    Flat(1024, 32768),
    Flat(4096, 8192),
    Flat(4096, 8192, causal=True),
    Flat(8192, 8192, causal=True),
    Flat(1024, 32768, 32),
    Flat(4096, 8192, 32, causal=True),
    Flat(64, 65536),
    Flat(8, 65536),
    Flat(1024, 131072),
    Paged(64, 1, 32768),
    Paged(64, 2, 32768),
    Paged(128, 1, 8192),
    Paged(8, 1, 131072),
    Paged(64, 1, 32768, 32),
    Paged(1, 1, 131072),
    Paged(64, 1, 16000, least_len=1000, columns=131072),
    Paged(64, 1, 32768, common=16384),
]
LISTS = [Lists(1024, 131072), Lists(64, 131072), Lists(2048, 8192), Lists(1, 131072), Lists(1024, 131072, 512)]


def codes(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE).to(torch.float8_e4m3fn)


def ints(numbers: Tensor) -> Tensor:
    return numbers.to(torch.int32).to(DEVICE)


class Logits:
    """Calls of DeepGEMM's names, which Fovea's module of the same names takes as they are."""

    layers, worst = False, 2e-3  # matrix units of e4m3 keep some 14 bits of a product

    def __init__(self, rows: int, heads: int, tokens: int, pairs: int) -> None:
        self.q, self.weights = codes(rows, heads, HEAD_DIM), torch.randn(rows, heads, device=DEVICE)
        self.flops = 2 * pairs * heads * HEAD_DIM
        self.bytes = self.q.nbytes + self.weights.nbytes + tokens * (HEAD_DIM + SCALE_BYTES) + 4 * pairs
        self.graph = rows < GRAPH_ROWS

    def call(self, library) -> Callable[[], Tensor]:
        raise NotImplementedError

    def keys(self, row: int) -> tuple[int, Tensor, Tensor]:
        """The first key that a row sees, and codes and scales of all that it sees."""
        raise NotImplementedError

    def run(self, schedule: None = None) -> Tensor:
        return self.call(drop_in)()

    def check(self, call: Callable[[], Tensor] | None = None) -> float:
        """The largest relative error of some rows' visible logits, against double precision."""
        logits, worst = (call or self.run)(), 0.0
        for row in {0, len(self.q) // 2, len(self.q) - 1}:
            first, k, scale = self.keys(row)
            products = k.double() @ self.q[row].double().T
            want = products.relu() @ self.weights[row].double() * scale.double()
            got = logits[row, first : first + len(k)].double()
            error = float((got - want).norm() / want.norm())
            if not error < self.worst:  # NaN must fail too
                raise ArithmeticError(f"query {row}: relative error {error:.1e}")
            worst = max(worst, error)
        return worst

    def peers(self, shared: bool) -> dict[str, Callable[[], Tensor]]:
        if not importable("deep_gemm"):
            return {}
        import deep_gemm

        call = self.call(deep_gemm)
        self.check(call)
        return {"DeepGEMM": call}


class FlatLogits(Logits):
    def __init__(self, case: Flat) -> None:
        rows, keys = case.rows, case.keys
        self.k, self.k_scale = codes(keys, HEAD_DIM), torch.rand(keys, device=DEVICE) + 0.5
        self.first = ints(torch.zeros(rows))
        self.last = ints((torch.arange(rows) + 1) * keys // rows if case.causal else torch.full((rows,), keys))
        super().__init__(rows, case.heads, keys, int(self.last.sum()))

    def call(self, library) -> Callable[[], Tensor]:
        return lambda: library.fp8_mqa_logits(self.q, (self.k, self.k_scale), self.weights, self.first, self.last)

    def keys(self, row: int) -> tuple[int, Tensor, Tensor]:
        last = int(self.last[row])
        return 0, self.k[:last], self.k_scale[:last]


class PagedLogits(Logits):
    """Logits that no query sees stay unwritten. The schedule that DeepGEMM wants is made before its call."""

    clean = True  # timed after a flush that ends with reads, too

    def __init__(self, case: Paged) -> None:
        self.case, batch = case, case.batch
        lengths = torch.linspace(case.least_len or case.kv_len, case.kv_len, batch).int()
        self.columns = case.columns or case.kv_len
        self.lengths, blocks = ints(lengths), -(-case.kv_len // PAGE)
        table = torch.randperm(batch * blocks).view(batch, blocks)
        table[:, : case.common // PAGE] = table[0, : case.common // PAGE]
        self.table = ints(table)
        self.cache = torch.empty(batch * blocks, PAGE, 1, HEAD_DIM + SCALE_BYTES, dtype=torch.uint8, device=DEVICE)
        flat = self.cache.view(len(self.cache), -1)
        self.k, self.k_scale = flat[:, : PAGE * HEAD_DIM].view(torch.float8_e4m3fn), flat[:, PAGE * HEAD_DIM :].view(torch.float32)
        for block in range(len(self.cache)):  # one at a time: random numbers take four times the memory of codes
            self.k[block] = codes(PAGE * HEAD_DIM)
        self.k_scale.uniform_(0.5, 1.5)
        seen = int(lengths.sum())
        super().__init__(batch * case.queries, case.heads, seen - (batch - 1) * case.common, seen * case.queries)

    def call(self, library) -> Callable[[], Tensor]:
        queries = self.case.queries
        q = self.q.view(self.case.batch, queries, *self.q.shape[1:])
        multiprocessors = torch.cuda.get_device_properties().multi_processor_count if DEVICE == "cuda" else 1
        lengths = self.lengths if library is drop_in else self.seen_by_each()
        schedule = library.get_paged_mqa_logits_metadata(lengths, PAGE, multiprocessors)
        arguments = (q, self.cache, self.weights, lengths, self.table, schedule, self.columns)
        return lambda: library.fp8_paged_mqa_logits(*arguments, clean_logits=False)

    def seen_by_each(self) -> Tensor:
        """Keys that each query sees, [batch, queries]: newer versions of DeepGEMM want them."""
        queries = self.case.queries
        return self.lengths[:, None] - queries + 1 + torch.arange(queries, dtype=torch.int32, device=DEVICE)

    def keys(self, row: int) -> tuple[int, Tensor, Tensor]:
        sequence = row // self.case.queries
        seen = int(self.seen_by_each().flatten()[row])
        blocks = self.table[sequence].long()
        return 0, self.k[blocks].view(-1, HEAD_DIM)[:seen], self.k_scale[blocks].flatten()[:seen]


class BestOfRows:
    layers, flops = False, 0

    def __init__(self, case: Lists) -> None:
        self.k, self.logits = case.k, torch.randn(case.rows, case.columns, device=DEVICE)
        self.bytes, self.graph = self.logits.nbytes + 4 * case.rows * case.k, case.rows < GRAPH_ROWS

    def run(self, schedule: None = None) -> Tensor:
        return fovea.topk_rows(self.logits, self.k)

    def check(self, call: Callable[[], Tensor] | None = None) -> float:
        """Any of equal logits may end a list."""
        values = self.logits.gather(1, (call or self.run)().long()).sort(descending=True).values
        if not torch.equal(values, self.logits.topk(self.k).values):
            raise ArithmeticError("a list has other logits than torch.topk's")
        return 0.0

    def peers(self, shared: bool) -> dict[str, Callable[[], Tensor]]:
        return {"torch.topk": lambda: torch.topk(self.logits, self.k, sorted=False).indices}


def e4m3_rate(size: int, median: Callable[[Callable[[], object]], float]) -> float:
    """FLOP/s of an e4m3 product of two square matrices, as cuBLAS has it."""
    a, b = codes(size, size), codes(size, size).T
    one = torch.ones((), device=DEVICE)
    return 2 * size**3 / median(lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)) * 1e3


def subject_of(case: Flat | Paged) -> Logits:
    return FlatLogits(case) if isinstance(case, Flat) else PagedLogits(case)


def main() -> None:
    bench = Bench("indexer", __doc__)

    def logits(case: Flat | Paged) -> dict:
        rate = e4m3_rate(256 if bench.args.dry_run else 8192, bench.median)
        row = bench.row(subject_of(case))
        return row | {"e4m3_rate": rate, "of_e4m3_rate": row["flops"] / rate}

    bench.rows(LOGITS, logits, bench.results.setdefault("logits", []))
    bench.rows(LISTS, lambda case: bench.row(BestOfRows(case)), bench.results.setdefault("lists", []))
    bench.finish()


if __name__ == "__main__":
    main()
