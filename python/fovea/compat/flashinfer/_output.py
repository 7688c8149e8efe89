# SPDX-License-Identifier: Apache-2.0
"""Where results go, and what FlashInfer's log-sum-exp looks like: it is to base 2, and has the sinks in it."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fovea._library import wants_gradients
from fovea.compat.flashinfer._scales import is_e4m3
from fovea.compat.flashinfer._terms import Result, values_of, want, want_apart, want_writable

LOG2E = math.log2(math.e)


class Output(NamedTuple):
    """The form of run()'s results, and the tensors that it fills."""

    dtype: torch.dtype
    out: Tensor | None = None
    lse: Tensor | None = None
    return_lse: bool = False
    base: str = "log2"
    layout: str = "NH"

    def of(
        self,
        operation: Callable[..., Any],
        tensors: tuple[Tensor, ...],
        *,
        sink: Tensor | None = None,
        factor: float = 1.0,
        **options: Any,
    ) -> Result:
        """Runs an operation over q, k, v and others, whose lse is ``[total, head]``. factor multiplies out."""
        q, k, v = tensors[:3]
        straight = factor == 1.0 and self.dtype in ((torch.bfloat16, torch.float32) if is_e4m3(q) else (q.dtype,))
        self._check(q, k, v, straight)
        room = self.out if straight else None
        if room is None and is_e4m3(q) and self.dtype != torch.bfloat16:
            room = q.new_zeros((*q.shape[:-1], values_of(v)), dtype=torch.float32)  # zeros: rows of no sequence stay as they are
        sink = sink if sink is None else sink.float()
        with_lse = self.return_lse or self.lse is not None
        result = operation(*tensors, out=room, return_lse=with_lse, sink=sink, **options)
        out, lse = result if with_lse else (result, None)
        if not straight:
            out = self._scaled(out, factor)
        if lse is None:
            return out
        lse = self._in_base(lse, sink)
        return (out, lse) if self.return_lse else out

    def _check(self, q: Tensor, k: Tensor, v: Tensor, straight: bool) -> None:
        """A given out is written by the operation itself where it is straight, and checked by it."""
        if self.base not in ("log2", "ln"):
            want(False, "lse_base", repr(self.base), "'log2' or 'ln'")
        if self.layout not in ("NH", "HN"):
            want(False, "lse_layout", repr(self.layout), "'NH' or 'HN'")
        rows = q.shape[:-1]
        if self.out is not None and not straight:
            _expect("out", self.out, (*rows, values_of(v)), self.dtype, q)
        if self.lse is not None:
            _expect("lse", self.lse, tuple(rows) if self.layout == "NH" else tuple(reversed(rows)), torch.float32, q)
            if self.out is not None:
                want_apart("out", self.out, "lse", self.lse)
        for name, tensor in (("out", self.out), ("lse", self.lse)):
            if tensor is not None and wants_gradients(q, k, v, tensor):
                raise NotImplementedError(f"{name}: got a tensor, want None where a gradient is wanted (or torch.no_grad())")

    def _scaled(self, out: Tensor, factor: float) -> Tensor:
        if self.out is not None:
            return torch.mul(out, factor, out=self.out)
        if factor != 1.0:
            out = out * factor if out.requires_grad else out.mul_(factor)
        return out.to(self.dtype)

    def _in_base(self, lse: Tensor, sink: Tensor | None) -> Tensor:
        in_place = not lse.requires_grad  # the gradient needs it as it is
        if sink is not None:
            lse = torch.logaddexp(lse, sink, out=lse if in_place else None)
        factor = LOG2E if self.base == "log2" else 1.0
        lse = lse if self.layout == "NH" else lse.t()
        if self.lse is not None:
            return torch.mul(lse, factor, out=self.lse)
        if factor != 1.0:
            lse = lse.mul_(factor) if in_place else lse * factor
        return lse.contiguous()


def _expect(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, like: Tensor) -> None:
    want(tuple(tensor.shape) == shape, f"{name}.shape", list(tensor.shape), list(shape))
    want(tensor.dtype == dtype, f"{name}.dtype", tensor.dtype, dtype)
    want(tensor.device == like.device, f"{name}.device", tensor.device, like.device)
    want_writable(name, tensor)
