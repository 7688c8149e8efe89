# SPDX-License-Identifier: Apache-2.0
"""The scales of q, k and v: numbers that multiply scores and out, or tensors that belong to values in float8_e4m3fn or NVFP4."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fovea.compat.flashinfer._terms import EIGHT_BITS, FOUR_BITS, refuse_variants, want

_LARGEST = torch.finfo(torch.float32).max
Scale = Tensor | float | None


def is_e4m3(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float8_e4m3fn


def has_scale(tensor: Tensor) -> bool:
    """Whether Fovea takes a tensor of scales beside these keys or values."""
    return tensor.dtype in (torch.float8_e4m3fn, FOUR_BITS)


def product(one: Scale, other: Scale) -> Scale:
    """The product of two scales of the same tensor; None is 1."""
    if one is None or other is None:
        return other if one is None else one
    return one * other


class Scales(NamedTuple):
    """The factors of the values of q, k and v."""

    q: Scale = None
    k: Scale = None
    v: Scale = None

    def times(self, query: Tensor, args: tuple[Any, ...]) -> "Scales":
        """With the three scales that FlashInfer's run() takes by position for 8-bit queries."""
        if not args:
            return self
        if query.dtype not in EIGHT_BITS or len(args) != 3:
            refuse_variants(args=args)
        for index, scale in enumerate(args):
            if scale is not None and not isinstance(scale, Tensor | float | int):
                raise TypeError(f"args[{index}]: got {type(scale).__name__}, want a torch.Tensor, a number or None")
        return Scales(*map(product, self, args))

    def of_scores(self) -> float:
        """The product of the numbers among the first two: they multiply the scores, whatever the dtype."""
        factor = 1.0
        for letter, scale in (("q", self.q), ("k", self.k)):
            if scale is not None and not isinstance(scale, Tensor):
                if scale == 0 or not math.isfinite(scale):
                    want(False, f"{letter}_scale", scale, "a finite number other than 0")
                factor *= scale
        return factor

    def of_values(self, v: Tensor) -> float:
        """The number that multiplies out, where v's dtype has no scale of its own."""
        if self.v is None or isinstance(self.v, Tensor):
            return 1.0
        want(abs(self.v) <= _LARGEST, "v_scale", self.v, f"at most {_LARGEST:.2g} in magnitude")
        return 1.0 if has_scale(v) else self.v

    def over_pages(self, kv_heads: int) -> "Scales":
        """With q's tensor in that of k: one number for each kv head."""
        if not isinstance(self.q, Tensor):
            return self
        for letter, scale in (("q", self.q), ("k", self.k)):
            if isinstance(scale, Tensor) and scale.numel() not in (1, kv_heads):
                raise NotImplementedError(f"{letter}_scale (elements): got {scale.numel()}, want 1 or {kv_heads} (kv_head)")
        k = self.k.reshape(-1) if isinstance(self.k, Tensor) else self.k
        return Scales(None, product(self.q.reshape(-1), k), self.v)

    def options(self, **tensors: Tensor) -> dict[str, Any]:
        """Scales that Fovea takes as tensors: those of float8_e4m3fn or NVFP4 values in q, k or v. Others are refused."""
        options: dict[str, Any] = {}
        if self.q is self.k is self.v is None:
            return options
        for letter, scale in self._asdict().items():
            takes = letter in tensors and has_scale(tensors[letter])
            if isinstance(scale, Tensor) and not takes:
                where = "q, k and v" if "q" in tensors else "the pages"
                raise NotImplementedError(f"{letter}_scale: got a tensor, want a number, or {where} in torch.float8_e4m3fn")
            if isinstance(scale, Tensor):
                options[f"{letter}_scale"] = scale
            elif scale is not None and letter == "v" and takes:
                options["v_scale"] = tensors["v"].new_full((1,), scale, dtype=torch.float32)  # a graph can record it
        return options
