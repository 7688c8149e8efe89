# SPDX-License-Identifier: Apache-2.0
"""ALiBi, a bias and dropout on this machine's GPU, forward and backward: each case beside the same call without the option, by the
portable kernels and by the fastest ones, by turns. ALiBi has the fastest kernels, the others portable ones. Checks each case, and
writes a JSON file."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dense_attention
import torch
from dense_attention import Dense
from gpu import DEVICE, Bench
from torch import Tensor

import fovea

FORWARD, BACKWARD = (name if DEVICE == "cuda" else None for name in ("cuda.portable.attention", "cuda.portable.attention_backward"))
DROPOUT = 0.1
KEPT = (DROPOUT / (1 - DROPOUT)) ** 0.5  # relative change of a sum of many equal terms


@dataclass
class Case(dense_attention.Case):
    option: str = "alibi"

    @property
    def name(self) -> str:
        return f"{super().name} {self.option}"

    def tiny(self) -> "Case":
        return replace(self, seq=min(self.seq, 96), batch=2, heads=4, kv_heads=4)


OPTIONS = ("alibi", "bias", "bias of heads", "dropout")
CASES = [
    Case(seq, causal, dim, dim, 32 if dim == 64 else 16, 32 if dim == 64 else 16, option=option)
    for dim, seq in ((128, 4096), (64, 4096), (128, 1024), (64, 1024))
    for option in OPTIONS
    for causal in (False, True)
]


class Biased(Dense):
    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.options: dict[str, Any] = {"causal": case.causal}
        alone = case.option == "alibi"
        self.by, self.gradient_by = (None, None) if alone else (FORWARD, BACKWARD)
        extents = (1, case.heads, case.seq, case.seq) if case.option == "bias of heads" else (1, 1, case.seq, case.seq)
        match case.option:
            case "alibi":
                self.options["alibi_slopes"] = torch.rand(case.heads, device=DEVICE) / 64
            case "dropout":
                state = torch.tensor([7, 0], dtype=torch.int64, device=DEVICE)
                self.options |= {"dropout_p": DROPOUT, "dropout_state": state}
            case _:
                self.options["bias"] = torch.randn(extents, dtype=torch.bfloat16, device=DEVICE)

    def run(self, schedule: None = None, out: Tensor | None = None) -> Tensor:
        return fovea.attention(self.q, self.k, self.v, out=out, return_lse=True, implementation=self.by, **self.options)[0]

    def plain(self, implementation: str | None) -> Tensor:
        options = {"causal": self.case.causal, "implementation": implementation}
        return fovea.attention(self.q, self.k, self.v, return_lse=True, **options)[0]

    def added(self, row: int, head: int, seen: int) -> Tensor | float:
        """The terms that are added to a query's scores: ALiBi, bias or 0."""
        if "alibi_slopes" in self.options:
            distance = torch.arange(seen, device=DEVICE) - (row + self.case.seq - self.q.shape[1])
            return -self.options["alibi_slopes"][head].double() * distance.abs()
        if "bias" in self.options:
            return self.options["bias"][0, head % self.options["bias"].shape[1], row, :seen].double()
        return 0.0

    def check(self, call: Callable[[], Tensor] | None = None) -> float:
        """The largest relative error of some rows, against double precision. Dropout changes a row by what it drops."""
        out, worst = (call or self.run)(), 0.0
        for row, head in ((0, 0), (self.case.seq - 1, self.case.heads - 1), (self.case.seq // 3, 1)):
            seen = row + 1 if self.case.causal else self.case.seq
            keys, values = (x[-1, :seen, head].double() for x in (self.k, self.v))
            scores = keys @ self.q[-1, row, head].double() * self.case.head_dim**-0.5 + self.added(row, head, seen)
            want = scores.softmax(0) @ values
            error = float((out[-1, row, head].double() - want).norm() / want.norm())
            if self.case.option == "dropout":
                if seen >= 1000 and not 0.5 * KEPT < error < 2 * KEPT:
                    raise ArithmeticError(
                        f"query {row}, head {head}: dropout changes the row by {error:.2f}, want about {KEPT:.2f}"
                    )
                continue
            if not error < self.worst:  # NaN must fail too
                raise ArithmeticError(f"query {row}, head {head}: relative error {error:.1e}")
            worst = max(worst, error)
        return worst

    def peers(self, shared: bool) -> dict[str, Callable[[], object]]:
        return {"plain, portable": partial(self.plain, FORWARD), "plain": partial(self.plain, None)}


class BiasedGradient(Biased):
    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.flops, self.bytes = self.flops * 5 // 2, self.bytes * 2
        self.dout = torch.randn_like(self.out)
        self.forward = fovea.attention(self.q, self.k, self.v, return_lse=True, implementation=self.by, **self.options)

    def run(self, schedule: None = None, out: Tensor | None = None) -> tuple[Tensor, ...]:
        options = self.options | {"bias_gradient": "bias" in self.options, "implementation": self.gradient_by}
        return fovea.attention_backward(self.dout, self.q, self.k, self.v, *self.forward, **options)

    def plain(self, implementation: str | None) -> tuple[Tensor, ...]:
        backward = implementation and BACKWARD
        options = {"causal": self.case.causal, "implementation": backward}
        return fovea.attention_backward(self.dout, self.q, self.k, self.v, *self.forward, **options)

    def check(self, call: Callable[[], tuple[Tensor, ...]] | None = None) -> float:
        """Sums over all keys of dv: with dropout those of the weights that are left, else those of dout."""
        total = self.run()[2].double().sum(1)
        want = self.dout.double().sum(1)
        error = float((total - want).norm() / want.norm())
        if not error < (0.2 if self.case.option == "dropout" else 2e-2):
            raise ArithmeticError(f"dv: the relative error of its sum is {error:.1e}")
        return error


def main() -> None:
    bench = Bench("score-bias", __doc__)
    for name, subject in (("forward", Biased), ("backward", BiasedGradient)):
        measure = partial(lambda case, subject: bench.row(subject(case)), subject=subject)
        bench.rows(CASES, measure, bench.results.setdefault(name, []), f"{name} ")
    bench.finish()


if __name__ == "__main__":
    main()
