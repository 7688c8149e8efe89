# SPDX-License-Identifier: Apache-2.0
"""8-bit attention and its quantisers on this machine's GPU: the kernel on quantised tensors ("attend"), and with quantising
("whole"). Checks each case on sampled query rows, times it by turns with dense attention of 16 bits by products of a warp, and with
SageAttention where it is installed. Writes a JSON file."""

from collections.abc import Callable
from dataclasses import dataclass

import dense_attention
import torch
from gpu import DEVICE, Bench
from peers import importable
from torch import Tensor

import fovea

WORST = {"float16": 3e-2, "float8_e4m3fn": 8e-2}  # relative error of a row, by the dtype of v
ON_GPU = DEVICE == "cuda"


@dataclass
class Case(dense_attention.Case):
    dtype: str = "float16"
    v_dtype: str = "float16"
    step: str = "attend"  # quantised tensors; "whole": quantise and attend

    @property
    def name(self) -> str:
        return f"{self.step} {super().name} v {self.v_dtype}"


@dataclass
class QuantiserCase:
    of: str  # qk, qk smoothed, v float16, v float8_e4m3fn
    seq: int = 4096
    head_dim: int = 128
    heads: int = 16

    @property
    def name(self) -> str:
        return f"quantise {self.of} d{self.head_dim} h{self.heads} s{self.seq}"

    def tiny(self) -> "QuantiserCase":
        return QuantiserCase(self.of, min(self.seq, 96), self.head_dim, 2)


def shapes(step: str, v_dtype: str) -> list[Case]:
    options = {"step": step, "v_dtype": v_dtype}
    return [
        *(Case(seq, causal, **options) for seq in (1024, 4096, 16384) for causal in (False, True)),
        Case(8192, True, heads=32, kv_heads=8, **options),
        *(Case(4096, causal, 64, 64, 32, 32, **options) for causal in (False, True)),
        Case(4096, False, 96, 96, **options),
        Case(4096, False, 256, 256, 8, 8, **options),
    ]


CASES = [
    case
    for v_dtype in reversed(WORST)
    for pair in zip(*(shapes(s, v_dtype) for s in ("whole", "attend")), strict=True)
    for case in pair
]
QUANTISERS = [QuantiserCase(of, 4096, dim) for dim in (128, 64) for of in ("qk", "qk smoothed", "v float16", "v float8_e4m3fn")]


class Attention(dense_attention.Dense):
    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.worst, self.v_dtype = WORST[case.v_dtype], getattr(torch, case.v_dtype)
        self.qk = fovea.quantize_qk_int8(self.q, self.k)
        self.values = fovea.quantize_v(self.v, dtype=self.v_dtype)
        if case.step == "attend":
            self.bytes = sum(x.nbytes for x in (self.qk.q, self.qk.k, self.values.v, self.out))

    def run(self, schedule: None = None, out: Tensor | None = None) -> Tensor:
        options = {"causal": self.case.causal, "out": self.out if out is None else out}
        if self.case.step == "attend":
            return fovea.quantized_attention(self.qk, self.values, **options)
        return fovea.quantize_and_attend(self.q, self.k, self.v, v_dtype=self.v_dtype, **options)

    def dense(self) -> Tensor:
        name = "cuda.portable.attention" if ON_GPU else None
        return fovea.attention(self.q, self.k, self.v, causal=self.case.causal, out=self.out, implementation=name)

    def sage(self) -> Tensor:
        import sageattention

        return sageattention.sageattn(self.q, self.k, self.v, tensor_layout="NHD", is_causal=self.case.causal)

    def sage_kernel(self) -> Callable[[], Tensor]:
        """Its kernel for Hopper alone, on tensors that its own functions have quantised."""
        from sageattention import core

        key_mean, out = self.k.mean(dim=1, keepdim=True), torch.empty_like(self.q)
        tiles = {"BLKQ": 64, "WARPQ": 16, "BLKK": 128, "WARPK": 128}
        q, q_scale, k, k_scale = core.per_thread_int8_triton(self.q, self.k, key_mean, tensor_layout="NHD", **tiles)
        v, v_scale, _ = core.per_channel_fp8(self.v, tensor_layout="NHD", smooth_v=False)
        kernel = core.sm90_compile.qk_int8_sv_f8_accum_f32_fuse_v_scale_attn_inst_buf
        numbers = (0, int(self.case.causal), 3, self.case.head_dim**-0.5, 0)  # NHD, the mask, scales by thread, the scale, no lse

        def call() -> Tensor:
            kernel(q, k, v, out, q_scale, k_scale, v_scale, *numbers)
            return out

        return call

    def peers(self, shared: bool) -> dict[str, Callable[[], Tensor]]:
        calls = {"16 bits": self.dense}
        # Its values have 8 bits, so its error is that of e4m3 values.
        if not ON_GPU or not importable("sageattention") or self.v_dtype.itemsize > 1 or self.case.head_dim > 128:
            return calls
        if self.case.step == "whole":
            calls["SageAttention"] = self.sage
        elif self.case.head_dim in (64, 128) and torch.cuda.get_device_capability() == (9, 0):
            calls["SageAttention"] = self.sage_kernel()
        return {name: call for name, call in calls.items() if self.can(call)}


class Quantiser:
    graph, layers, flops = False, False, 0

    def __init__(self, case: QuantiserCase) -> None:
        shape = (max(dense_attention.TOKENS // case.seq, 1) if ON_GPU else 1, case.seq, case.heads, case.head_dim)
        self.case, self.x, self.y = case, *(torch.randn(shape, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
        self.outs = self.quantised(None)
        written = sum(x.nbytes for x in self.outs if isinstance(x, Tensor))
        self.bytes = self.x.nbytes * (2 if case.of.startswith("qk") else 1) + written  # each once

    def quantised(self, out: fovea.QuantizedQk | fovea.QuantizedV | None) -> fovea.QuantizedQk | fovea.QuantizedV:
        if self.case.of.startswith("qk"):
            return fovea.quantize_qk_int8(self.x, self.y, smooth_k="smoothed" in self.case.of, out=out)
        return fovea.quantize_v(self.x, dtype=getattr(torch, self.case.of.split()[1]), out=out)

    def run(self, schedule: None = None) -> Tensor:
        return self.quantised(self.outs)[0]

    def check(self, call: Callable[[], Tensor] | None = None) -> float:
        """The largest relative error of quantised rows; those of int8 are off by half a step of 1/127."""
        codes = (call or self.run)().float()
        scale = self.outs.scale if isinstance(self.outs, fovea.QuantizedV) else None
        if isinstance(self.outs, fovea.QuantizedQk):
            want = self.x.float()
            factor = (want * codes).sum(-1, keepdim=True) / (codes * codes).sum(-1, keepdim=True)  # each row's own
            codes *= factor
        elif scale is not None:
            codes *= scale[:, None]
        error = float((codes - self.x.float()).norm() / self.x.float().norm())
        if not error < 0.04:
            raise ArithmeticError(f"relative error {error:.1e}")
        return error

    def peers(self, shared: bool) -> dict[str, Callable[[], Tensor]]:
        return {}


def main() -> None:
    bench = Bench("quantized-attention", __doc__)
    bench.rows(QUANTISERS, lambda case: bench.row(Quantiser(case)), bench.results.setdefault("quantisers", []))
    bench.rows(CASES, lambda case: bench.row(Attention(case)), bench.results.setdefault("cases", []))
    bench.finish()


if __name__ == "__main__":
    main()
