# SPDX-License-Identifier: Apache-2.0
"""Dense and token-sparse MLA decode of the same queries over longer and longer contexts, on this machine's GPU. Each case is
checked, then timed as bench/latent_decode.py and bench/sparse_latent.py do. Writes a JSON file."""

from dataclasses import dataclass, replace

import latent_decode
import sparse_latent
from gpu import Bench

HEADS, TOPK = 128, 2048
BATCHES = (64, 1, 8)
LENGTHS = [1024 << step for step in range(8)]
DENSE, SPARSE = ("rows", "e4m3", "v32_fp8"), ("rows", "v32_fp8")


@dataclass
class Case:
    """Dense or token-sparse decode. In a context of fewer than ``topk`` tokens, each list holds every token."""

    batch: int
    kv_len: int
    cache: str
    sparse: bool
    heads: int = HEADS
    topk: int = TOPK

    @property
    def name(self) -> str:
        return f"b{self.batch} kv{self.kv_len} {'sparse' if self.sparse else 'dense'} {self.cache}"

    def tiny(self) -> "Case":
        return replace(self, batch=min(self.batch, 2), kv_len=min(self.kv_len, 192), heads=16, topk=64)

    def subject(self) -> latent_decode.Decode | sparse_latent.Sparse:
        if not self.sparse:
            return latent_decode.Decode(latent_decode.equal(self.batch, self.kv_len, self.heads, self.cache))
        listed = min(self.topk, self.kv_len)
        return sparse_latent.Sparse(sparse_latent.Case(self.batch, 1, self.kv_len, self.heads, listed, self.cache))


CASES = [
    Case(batch, kv_len, cache, sparse)
    for batch in BATCHES
    for kv_len in LENGTHS
    for sparse, caches in ((False, DENSE), (True, SPARSE))
    for cache in caches
]


def main() -> None:
    bench = Bench("latent-context", __doc__)
    bench.rows(CASES, lambda case: bench.time(case.subject()), bench.results.setdefault("rows", []))
    bench.finish()


if __name__ == "__main__":
    main()
