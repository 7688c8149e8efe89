# SPDX-License-Identifier: Apache-2.0
"""The gradient of dense attention on this machine's GPU. Checks each case on one head, times it through autograd by turns
with those beside whom the forward pass is timed, and measures the ceilings beside it. Writes a JSON file."""

from collections.abc import Callable
from functools import partial

import torch
from dense_attention import Case, Dense, both
from gpu import Bench
from torch import Tensor

import fovea

WORST = 1.2e-2  # relative error of a gradient whose P and dS are rounded to bf16
CASES = [
    *(case for seq in (1024, 4096, 16384) for case in both(seq)),
    Case(8192, True, heads=32, kv_heads=8),
    *(case for seq in (4096, 16384) for case in both(seq, 192, 128)),
    *(case for seq in (1024, 4096, 16384) for case in both(seq, 64, 64, 32, 32)),
    *both(4096, 256, 256, 8, 8),
    *both(4096, 96, 96),
    *both(4096, dtype="float16"),
    *(case for seq in (4096, 16384) for case in both(seq, deterministic=True)),
]

Gradients = tuple[Tensor, Tensor, Tensor]


class Backward(Dense):
    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.flops = self.flops * (3 * case.head_dim + 2 * case.head_dim_v) // (case.head_dim + case.head_dim_v)
        self.bytes *= 2
        self.inputs = [x.requires_grad_() for x in (self.q, self.k, self.v)]
        self.dout = torch.randn_like(self.out)
        self.results: dict[str, Tensor] = {}

    def gradients(self, name: str, forward: Callable[[], Tensor]) -> Gradients:
        """The forward pass runs once, and is not timed."""
        if name not in self.results:
            self.results[name] = forward()
        return torch.autograd.grad(self.results[name], self.inputs, self.dout, retain_graph=True)

    def own(self) -> Tensor:
        options = {"causal": self.case.causal, "deterministic": self.case.deterministic}
        return fovea.attention(self.q, self.k, self.v, **options)

    def run(self, schedule: None = None, out: Tensor | None = None) -> Gradients:
        return self.gradients("Fovea", self.own)

    def check(self, call: Callable[[], Gradients] | None = None) -> float:
        """The largest relative error of the last kv head's gradients in the last sequence, against double precision."""
        group, head = self.case.heads // self.case.kv_heads, self.case.kv_heads - 1
        q = self.q.detach()[-1, :, head * group :].double().transpose(0, 1).requires_grad_()
        k, v = (x.detach()[-1, :, head].double().requires_grad_() for x in (self.k, self.v))
        want = [torch.zeros_like(x) for x in (q, k, v)]
        for h in range(group):
            scores = q[h] @ k.T * self.case.head_dim**-0.5
            if self.case.causal:
                scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
            grads = torch.autograd.grad(scores.softmax(-1) @ v, (q, k, v), self.dout[-1, :, head * group + h].double())
            for total, part in zip(want, grads, strict=True):
                total += part
        got_q, got_k, got_v = (call or self.run)()
        got = (got_q[-1, :, head * group :].transpose(0, 1), got_k[-1, :, head], got_v[-1, :, head])
        errors = [float((x.double() - y).norm() / y.norm()) for x, y in zip(got, want, strict=True)]
        if not max(errors) < WORST:  # NaN must fail too
            raise ArithmeticError("relative errors of dq, dk, dv: " + ", ".join(f"{x:.1e}" for x in errors))
        return max(errors)

    def peers(self, shared: bool) -> dict[str, Callable[[], Gradients]]:
        calls = {name: partial(self.gradients, name, forward) for name, forward in self.others().items()}
        return {name: call for name, call in calls.items() if self.can(call)}

    def can(self, call: Callable[[], Gradients]) -> bool:
        try:
            call()
        except RuntimeError:
            return False
        self.check(call)
        return True


def main() -> None:
    bench = Bench("dense-backward", __doc__)
    bench.rows(CASES, lambda case: bench.row(Backward(case)), bench.results.setdefault("cases", []))
    bench.finish()


if __name__ == "__main__":
    main()
