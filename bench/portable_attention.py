# SPDX-License-Identifier: Apache-2.0
"""The portable kernels of dense attention and its gradient on this machine's GPU, also where others are faster there. Checks each
case, times it by turns with PyTorch's FlashAttention-2, and measures the ceilings beside it. Writes a JSON file."""

from functools import partial

import torch
from dense_attention import Case, Dense, both
from dense_backward import Backward, Gradients
from gpu import DEVICE, Bench
from torch import Tensor

import fovea

# A dry run on a processor takes what there is.
FORWARD, BACKWARD = (name if DEVICE == "cuda" else None for name in ("cuda.portable.attention", "cuda.portable.attention_backward"))
CASES = [
    *(case for seq in (1024, 4096, 16384) for case in both(seq)),
    *(case for seq in (1024, 4096, 16384) for case in both(seq, 64, 64, 32, 32)),
    Case(8192, True, heads=32, kv_heads=8),
]


def of_same_instructions(others: dict) -> dict:
    """cuDNN's kernels have Hopper's own instructions."""
    return {name: call for name, call in others.items() if name == "FlashAttention-2"}


class Portable(Dense):
    def run(self, schedule: None = None, out: Tensor | None = None) -> Tensor:
        options = {"causal": self.case.causal, "implementation": FORWARD}
        return fovea.attention(self.q, self.k, self.v, out=out, return_lse=True, **options)[0]

    def others(self) -> dict:
        return of_same_instructions(super().others())


class PortableBackward(Backward):
    """The kernel itself: autograd would choose another one."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        with torch.no_grad():
            options = {"causal": case.causal, "implementation": FORWARD}
            self.forward = fovea.attention(self.q, self.k, self.v, return_lse=True, **options)

    def run(self, schedule: None = None, out: Tensor | None = None) -> Gradients:
        q, k, v = (x.detach() for x in self.inputs)
        options = {"causal": self.case.causal, "implementation": BACKWARD}
        return fovea.attention_backward(self.dout, q, k, v, *self.forward, **options)

    def others(self) -> dict:
        return of_same_instructions(super().others())


def main() -> None:
    bench = Bench("portable-attention-by-turns", __doc__)
    for name, subject in (("forward", Portable), ("backward", PortableBackward)):
        measure = partial(lambda case, subject: bench.row(subject(case)), subject=subject)
        bench.rows(CASES, measure, bench.results.setdefault(name, []), f"{name} ")
    bench.finish()


if __name__ == "__main__":
    main()
