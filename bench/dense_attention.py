# SPDX-License-Identifier: Apache-2.0
"""Dense attention on this machine's GPU, forward. Checks each case on sampled query rows, times it by turns with PyTorch's
cuDNN and FlashAttention-2 paths, and with flash-attn, FlashAttention-3 (also the wheel fa3-fwd) and FlashAttention-4 where they
can be imported, and measures the ceilings beside it. Writes a JSON file."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from gpu import DEVICE, Bench
from peers import importable
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import fovea

TOKENS = 16384  # of a call, over all sequences
WORST = {1: 6e-2, 2: 6e-3}  # relative error of an output whose operands are rounded to so many bytes, and its result to bf16


@dataclass
class Case:
    seq: int
    causal: bool
    head_dim: int = 128
    head_dim_v: int = 128
    heads: int = 16
    kv_heads: int = 16
    dtype: str = "bfloat16"
    batch: int = 0  # 0: as many sequences as make TOKENS
    seq_q: int = 0  # 0: as many as keys
    deterministic: bool = False  # of gradients

    @property
    def name(self) -> str:
        dims = f"d{self.head_dim}" if self.head_dim == self.head_dim_v else f"d{self.head_dim}/{self.head_dim_v}"
        heads = f"h{self.heads}" if self.heads == self.kv_heads else f"h{self.heads}/{self.kv_heads}"
        kind = "" if self.dtype == "bfloat16" else f" {self.dtype}"
        queries = f" q{self.seq_q}" if self.seq_q else ""
        order = " deterministic" if self.deterministic else ""
        return f"{dims} {heads} b{self.sequences}{queries} s{self.seq} {'causal' if self.causal else 'full'}{kind}{order}"

    @property
    def sequences(self) -> int:
        return self.batch or max(TOKENS // self.seq, 1)

    def tiny(self) -> "Case":
        return replace(self, seq=min(self.seq, 96), batch=2, heads=4, kv_heads=4 * self.kv_heads // self.heads)


def both(*args: int, **kwargs: int | str) -> list[Case]:
    return [Case(args[0], causal, *args[1:], **kwargs) for causal in (False, True)]


CASES = [
    *(case for seq in (1024, 4096, 16384) for case in both(seq)),
    Case(8192, True, heads=32, kv_heads=8),
    *(case for seq in (4096, 16384) for case in both(seq, 192, 128)),
    *(case for seq in (1024, 4096, 16384) for case in both(seq, 64, 64, 32, 32)),
    *both(4096, 256, 256, 8, 8),
    *both(4096, 96, 96),
    *both(4096, dtype="float16"),
    *(case for seq in (1024, 4096, 16384) for case in both(seq, dtype="float8_e4m3fn")),
    Case(16384, True, heads=32, kv_heads=8, batch=1, seq_q=16),
    Case(131072, True, heads=32, kv_heads=8, batch=1, seq_q=1),
]


class Dense:
    graph, layers = False, False

    def __init__(self, case: Case) -> None:
        self.case, dtype = case, getattr(torch, case.dtype)
        rows = case.seq_q or case.seq

        def random(seq: int, heads: int, dim: int) -> Tensor:
            return torch.randn(case.sequences, seq, heads, dim, dtype=torch.bfloat16, device=DEVICE).to(dtype)

        self.q = random(rows, case.heads, case.head_dim)
        self.k, self.v = (random(case.seq, case.kv_heads, dim) for dim in (case.head_dim, case.head_dim_v))
        out_dtype = torch.bfloat16 if dtype.itemsize == 1 else dtype
        self.out = torch.empty(*self.q.shape[:-1], case.head_dim_v, dtype=out_dtype, device=DEVICE)
        pairs = case.sequences * rows * (case.seq - rows / 2 if case.causal else case.seq)
        self.flops = int(2 * pairs * case.heads * (case.head_dim + case.head_dim_v))
        self.bytes = sum(x.nbytes for x in (self.q, self.k, self.v, self.out))
        self.graph, self.worst = rows <= 64, WORST[dtype.itemsize]

    def run(self, schedule: None = None, out: Tensor | None = None) -> Tensor:
        """With lse, as FlashAttention-3's call has it. PyTorch's calls may leave it out: they keep no gradient."""
        return fovea.attention(self.q, self.k, self.v, causal=self.case.causal, out=out, return_lse=True)[0]

    def check(self, call: Callable[[], Tensor] | None = None) -> float:
        """The largest relative error of some rows, against double precision."""
        self.out.fill_(math.nan)
        out, worst, rows = (call or partial(self.run, out=self.out))(), 0.0, self.q.shape[1]
        for batch, row, head in ((0, 0, 0), (-1, rows - 1, -1), (-1, rows // 2, 0), (0, rows // 3, -1)):
            seen = self.case.seq - rows + row % rows + 1 if self.case.causal else self.case.seq
            kv_head = head if head <= 0 else head * self.case.kv_heads // self.case.heads
            keys, values = (x[batch, :seen, kv_head].double() for x in (self.k, self.v))
            want = (keys @ self.q[batch, row, head].double() * self.case.head_dim**-0.5).softmax(0) @ values
            error = float((out[batch, row, head].double() - want).norm() / want.norm())
            if not error < self.worst:  # NaN must fail too
                raise ArithmeticError(f"sequence {batch}, query {row}, head {head}: relative error {error:.1e}")
            worst = max(worst, error)
        return worst

    def sdpa(self, backend: SDPBackend) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (self.q, self.k, self.v))
        with sdpa_kernel(backend):
            done = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=self.case.causal, enable_gqa=self.case.heads != self.case.kv_heads
            )
        return done.transpose(1, 2)

    def of_tokens(self, function: Callable[..., Tensor | tuple[Tensor, ...]]) -> Tensor:
        """The output of flash-attn's function or of a successor of that name."""
        done = function(self.q, self.k, self.v, causal=self.case.causal)
        return done[0] if isinstance(done, tuple) else done

    def flash_attn(self) -> Tensor:
        from flash_attn import flash_attn_func

        return self.of_tokens(flash_attn_func)

    def flash_attention_3(self) -> Tensor:
        from flash_attn_interface import flash_attn_func

        return self.of_tokens(flash_attn_func)

    def fa3_fwd(self) -> Tensor:
        """FlashAttention-3 again, as PyPI has it."""
        from fa3_fwd_interface import flash_attn_func

        return self.of_tokens(flash_attn_func)

    def flash_attention_4(self) -> Tensor:
        from flash_attn.cute import flash_attn_func

        return self.of_tokens(flash_attn_func)

    def others(self) -> dict[str, Callable[[], Tensor]]:
        """All that could be asked here."""
        if DEVICE == "cpu":
            return {}
        calls = {}
        if not self.case.seq_q:  # PyTorch's causal mask begins at the first query and the first key
            calls["cuDNN"] = partial(self.sdpa, SDPBackend.CUDNN_ATTENTION)
            if self.case.head_dim == self.case.head_dim_v:
                calls["FlashAttention-2"] = partial(self.sdpa, SDPBackend.FLASH_ATTENTION)
        libraries = {
            "flash_attn": ("flash-attn", self.flash_attn),
            "flash_attn_interface": ("FlashAttention-3", self.flash_attention_3),
            "fa3_fwd_interface": ("FlashAttention-3 (fa3-fwd)", self.fa3_fwd),
            "flash_attn.cute": ("FlashAttention-4", self.flash_attention_4),
        }
        return calls | dict(call for module, call in libraries.items() if importable(module))

    def peers(self, shared: bool) -> dict[str, Callable[[], Tensor]]:
        return {name: call for name, call in self.others().items() if self.can(call)}

    def can(self, call: Callable[[], Tensor]) -> bool:
        """Peers are built for some head dims and dtypes. A result that is wrong is an error all the same."""
        try:
            call()
        except RuntimeError:
            return False
        self.check(call)
        return True


def main() -> None:
    bench = Bench("dense-attention", __doc__)
    bench.rows(CASES, lambda case: bench.row(Dense(case)), bench.results.setdefault("cases", []))
    bench.finish()


if __name__ == "__main__":
    main()
