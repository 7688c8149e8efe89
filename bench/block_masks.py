# SPDX-License-Identifier: Apache-2.0
"""Attention under block masks on this machine's GPU, forward and backward: beside the kernels of dense attention, whose rate is the
measure, and beside compiled flex_attention over the same lists, by turns. FLOPs are those of listed blocks. Writes a JSON file."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from gpu import DEVICE, Bench, Subject
from torch import Tensor
from torch.nn.attention import flex_attention as flex

import fovea

WORST = 1.5e-2  # relative error of a result against the other library's


@dataclass
class Case:
    block: int
    share: float
    kind: str = "random"  # lists for each head, or a band for all
    seq: int = 32768
    heads: int = 16
    head_dim: int = 128

    @property
    def name(self) -> str:
        return f"d{self.head_dim} h{self.heads} s{self.seq} blocks of {self.block} {self.kind} {self.share:.0%}"

    def tiny(self) -> "Case":
        return replace(self, seq=512, heads=2)

    def blocks(self) -> Tensor:
        """Bool ``[1, head or 1, block, block]``."""
        count = self.seq // self.block
        if self.kind == "band":
            width = max(round(count * self.share), 1)
            distance = torch.arange(count)[:, None] - torch.arange(count)
            return ((distance >= 0) & (distance < width))[None, None].to(DEVICE)
        torch.manual_seed(3)
        chosen = torch.rand(1, self.heads, count, count, device=DEVICE) < self.share
        return chosen | torch.eye(count, dtype=torch.bool, device=DEVICE)


CASES = [Case(block, share, kind) for block in (128, 64) for kind in ("random", "band") for share in (0.1, 0.25)]


@cache
def compiled_flex() -> Callable[..., Tensor]:
    return torch.compile(flex.flex_attention)


class Blocks(Subject):
    graph, layers = False, False

    def __init__(self, case: Case) -> None:
        shape = (1, case.seq, case.heads, case.head_dim)
        self.case, self.lists = case, case.blocks()
        self.inputs = [torch.randn(shape, dtype=torch.bfloat16, device=DEVICE).requires_grad_() for _ in range(3)]
        self.dout = torch.randn_like(self.inputs[0])
        self.mask = fovea.BlockMask.from_blocks(self.lists, (case.block, case.block))
        pairs = int(self.lists.sum()) * (case.heads // self.lists.shape[1]) * case.block**2
        self.flops, self.bytes = 4 * pairs * case.head_dim, 4 * self.dout.nbytes
        self.dense_flops = 4 * case.seq**2 * case.heads * case.head_dim

    @torch.no_grad()
    def run(self, schedule: None = None, out: Tensor | None = None) -> Tensor:
        return fovea.attention(*self.inputs, block_mask=self.mask, return_lse=True)[0]

    @torch.no_grad()
    def dense(self) -> Tensor:
        return fovea.attention(*self.inputs, return_lse=True)[0]

    def by_flex(self) -> Tensor:
        counts, indices = self.mask.full_counts, self.mask.full_indices
        none = torch.zeros_like(counts)
        mask = flex.BlockMask.from_kv_blocks(none, indices, counts, indices, BLOCK_SIZE=self.case.block)
        q, k, v = (x.transpose(1, 2) for x in self.inputs)
        return compiled_flex()(q, k, v, block_mask=mask).transpose(1, 2)

    def flex(self) -> Tensor:
        with torch.no_grad():
            return self.by_flex()

    def check(self, call: Callable[[], Tensor] | None = None) -> float:
        """One row of each of some blocks, against double precision."""
        out, worst = (call or self.run)(), 0.0
        for row in (0, self.case.seq // 3, self.case.seq - 1):
            head = row % self.case.heads
            seen = self.lists[0, head % self.lists.shape[1], row // self.case.block].repeat_interleave(self.case.block)
            q, keys, values = self.inputs[0][0, row, head], *(x[0, :, head][seen].double() for x in self.inputs[1:])
            want = (keys @ q.double() * self.case.head_dim**-0.5).softmax(0) @ values
            error = float((out[0, row, head].double() - want).norm() / want.norm())
            if not error < WORST:  # NaN must fail too
                raise ArithmeticError(f"query {row}, head {head}: relative error {error:.1e}")
            worst = max(worst, error)
        return worst

    def peers(self, shared: bool) -> dict[str, Callable[[], object]]:
        calls = {"dense": self.dense}
        if DEVICE == "cuda" and self.case.block >= 128:  # PyTorch refuses smaller blocks
            self.check(self.flex)
            calls["flex_attention"] = self.flex
        return calls


class Gradients(Blocks):
    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.flops, self.dense_flops = self.flops * 5 // 2, self.dense_flops * 5 // 2
        self.made: dict[str, Tensor] = {}

    def gradients(self, name: str, forward: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        if name not in self.made:
            self.made[name] = forward()
        return torch.autograd.grad(self.made[name], self.inputs, self.dout, retain_graph=True)

    def run(self, schedule: None = None, out: Tensor | None = None) -> tuple[Tensor, ...]:
        return self.gradients("", lambda: fovea.attention(*self.inputs, block_mask=self.mask))

    def dense(self) -> tuple[Tensor, ...]:
        return self.gradients("dense", lambda: fovea.attention(*self.inputs))

    def flex(self) -> tuple[Tensor, ...]:
        return self.gradients("flex", self.by_flex)

    def check(self, call: Callable[[], tuple[Tensor, ...]] | None = None) -> float:
        """Keys and values of one block, and one row of queries, against double precision."""
        case, head, chosen = self.case, 1, self.case.seq // self.case.block // 2
        dq, dk, dv = (x[0, :, head].double() for x in (call or self.run)())
        q, k, v, dout = (x.detach()[0, :, head].double() for x in (*self.inputs, self.dout))
        lists = self.lists[0, head % self.lists.shape[1]]
        columns = slice(chosen * case.block, (chosen + 1) * case.block)
        want_k, want_v = torch.zeros_like(k[columns]), torch.zeros_like(v[columns])
        for block in lists[:, chosen].nonzero()[:, 0].tolist():
            rows = slice(block * case.block, (block + 1) * case.block)
            seen = lists[block].repeat_interleave(case.block)
            p = (q[rows] @ k[seen].T * case.head_dim**-0.5).softmax(-1)
            ds = p * (dout[rows] @ v[seen].T - (p @ v[seen] * dout[rows]).sum(-1, keepdim=True)) * case.head_dim**-0.5
            own = torch.arange(case.seq, device=DEVICE)[seen] // case.block == chosen
            want_v += p[:, own].T @ dout[rows]
            want_k += ds[:, own].T @ q[rows]
        pairs = ((dk[columns], want_k), (dv[columns], want_v))
        worst = max(float((got - want).norm() / want.norm()) for got, want in pairs)
        if not worst < WORST or not bool(dq.isfinite().all()):
            raise ArithmeticError(f"relative error of dk, dv: {worst:.1e}")
        return worst


class PortableGradients(Gradients):
    """The portable kernels, beside themselves without lists: with the order of sums that lists have, and with none."""

    def backward(self, mask: fovea.BlockMask | None, deterministic: bool = True) -> tuple[Tensor, ...]:
        q, k, v = (each.detach() for each in self.inputs)
        name = "lists" if mask else "dense"
        if name not in self.made:
            self.made[name] = fovea.attention(q, k, v, block_mask=mask, return_lse=True)
        kernel = "cuda.portable.attention_backward" if DEVICE == "cuda" else None
        options = {"block_mask": mask, "implementation": kernel, "deterministic": deterministic}
        return fovea.attention_backward(self.dout, q, k, v, *self.made[name], **options)

    def run(self, schedule: None = None, out: Tensor | None = None) -> tuple[Tensor, ...]:
        return self.backward(self.mask)

    def dense(self) -> tuple[Tensor, ...]:
        return self.backward(None)

    def peers(self, shared: bool) -> dict[str, Callable[[], object]]:
        return {"dense": self.dense, "dense in any order": partial(self.backward, None, deterministic=False)}


def main() -> None:
    bench = Bench("block-masks", __doc__)

    def measure(case: Case, subject: type[Blocks]) -> dict:
        made = subject(case)
        row = bench.row(made)
        share = made.flops / made.dense_flops
        rates = {"dense": "of_dense_rate", "dense in any order": "of_dense_rate_in_any_order"}
        return row | {"share": share} | {rates[peer]: ratio * share for peer, ratio in row["by_turns"].items() if peer in rates}

    for name, subject in (("forward", Blocks), ("backward", Gradients), ("portable backward", PortableGradients)):
        bench.rows(CASES, partial(measure, subject=subject), bench.results.setdefault(name, []), f"{name} ")
    bench.finish()


if __name__ == "__main__":
    main()
