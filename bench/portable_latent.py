# SPDX-License-Identifier: Apache-2.0
"""The portable kernels of latent attention on this machine's GPU, also where others are faster there. Checks each case, and times
it by turns with Hopper's kernels, and with a plain Triton kernel where rows have 656 bytes. Writes a JSON file."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gpu import DEVICE, Bench
from latent_decode import Case, Decode, equal
from sparse_latent import Case as SparseCase
from sparse_latent import Sparse
from torch import Tensor

import fovea

HOPPER = "Hopper's kernel"
IS_HOPPER = DEVICE == "cuda" and torch.cuda.get_device_capability() == (9, 0)  # elsewhere it would be the portable kernel
DENSE = [
    equal(8, 8192, 128),
    equal(16, 4096, 128),
    Case(128, 1, 4096, 128),
    equal(1, 131072, 128),
    Case(64, 1, 8192, 64),
    equal(128, 8192, 16),
    *(equal(64, 8192, heads, cache) for cache in ("v32_fp8", "e4m3") for heads in (64, 128)),
    equal(64, 8192, 128, "v41_fp8"),
]
SPARSE = [
    SparseCase(2, 2, 32768, 128, 2048),
    SparseCase(64, 2, 32768, 64, 2048),
    SparseCase(128, 2, 32768, 128, 2048),
    SparseCase(128, 1, 32768, 16, 2048),
    SparseCase(64, 1, 32768, 32, 2048),
]


def forced(operation: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function by the portable kernel. A dry run on a processor takes what there is."""
    return partial(function, implementation=f"cuda.portable.{operation}") if DEVICE == "cuda" else function


class Portable(Decode):
    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.layers = False

    def run(self, schedule: None = None, out: Tensor | None = None) -> Tensor:
        return self.call(forced("latent_attention", fovea.latent_attention), out)

    def call(self, function: Callable[..., Any], out: Tensor | None = None) -> Tensor:
        options = {"format": self.cache.format, "causal": self.case.causal, "cache_scale": self.cache.scale}
        return function(self.q, self.cache.data, self.table, self.kv_len, out=out, return_lse=True, **options)[0]

    def peers(self, shared: bool) -> dict[str, Callable[[], Tensor]]:
        return {HOPPER: partial(self.call, fovea.latent_attention)} if IS_HOPPER else {}


class PortableSparse(Sparse):
    def __init__(self, case: SparseCase) -> None:
        super().__init__(case)
        self.layers = False

    def run(self, schedule: None = None, out: Tensor | None = None) -> Tensor:
        return self.call(forced("sparse_latent_attention", fovea.sparse_latent_attention), out)

    def call(self, function: Callable[..., Any], out: Tensor | None = None) -> Tensor:
        return function(self.q, self.cache.data, self.indices, format=self.cache.format, out=out, return_lse=True)[0]

    def peers(self, shared: bool) -> dict[str, Callable[[], Tensor]]:
        found = {HOPPER: partial(self.call, fovea.sparse_latent_attention)} if IS_HOPPER else {}
        if DEVICE == "cuda" and self.cache.format == "v32_fp8":
            import triton_latent

            found["Triton"] = triton_latent.fastest(self)
            self.check(found["Triton"])
        return found


def main() -> None:
    torch.set_grad_enabled(False)
    bench = Bench("latent-portable-codes", __doc__)
    bench.rows(DENSE, lambda case: bench.row(Portable(case)), bench.results.setdefault("dense", []))
    bench.rows(SPARSE, lambda case: bench.row(PortableSparse(case)), bench.results.setdefault("sparse", []))
    bench.finish()


if __name__ == "__main__":
    main()
