# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's arguments in Fovea's terms, and results in FlashInfer's."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fovea.compat._arguments import refuse

LOG2E = math.log2(math.e)
NO_ROPE = "Fovea applies no positions; rotate q and k first"
NO_MASK = "Fovea's masks are bands: causal and window_left"
Result = Tensor | tuple[Tensor, Tensor]


def want(ok: bool, subject: str, got: object, wanted: object) -> None:
    """What FlashInfer checks in Python, and raises as a ValueError."""
    if not ok:
        raise ValueError(f"{subject}: got {got}, want {wanted}")


def checked_layout(kv_layout: str) -> str:
    if kv_layout not in ("NHD", "HND"):
        want(False, "kv_layout", repr(kv_layout), "'NHD' or 'HND'")
    return kv_layout


def token_major(name: str, tensor: Tensor, kv_layout: str) -> Tensor:
    """``[.., tokens, kv_head, dim]`` of a tensor in either layout."""
    return tensor.transpose(-3, -2) if checked_layout(kv_layout) == "HND" else tensor


def pages_of(cache: Tensor | tuple[Tensor, Tensor], kv_layout: str) -> tuple[Tensor, Tensor]:
    """Keys and values ``[pages, page, kv_head, dim]`` of a cache: two tensors, or one with both in its second dimension."""
    if isinstance(cache, Tensor):
        want(cache.dim() == 5 and cache.shape[1] == 2, "paged_kv_cache.shape", list(cache.shape), "[pages, 2, ..], or a tuple")
        cache = cache[:, 0], cache[:, 1]
    k, v = cache
    for index, tensor in enumerate((k, v)):
        if tensor.dim() != 4:
            want(False, f"paged_kv_cache[{index}].rank", tensor.dim(), 4)
    return token_major("paged_kv_cache", k, kv_layout), token_major("paged_kv_cache", v, kv_layout)


def dtype_of(name: str, dtype: torch.dtype | str) -> torch.dtype:
    """A dtype that may be given by its name."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    want(isinstance(found, torch.dtype), name, repr(dtype), "a torch.dtype, or the name of one")
    return found  # type: ignore[return-value]


def no_positions(pos_encoding_mode: str) -> None:
    want(pos_encoding_mode in ("NONE", "ROPE_LLAMA", "ALIBI"), "pos_encoding_mode", repr(pos_encoding_mode), "'NONE'")
    if pos_encoding_mode != "NONE":
        raise NotImplementedError(f"pos_encoding_mode: got {pos_encoding_mode!r}, want 'NONE' ({NO_ROPE})")


class Scores(NamedTuple):
    """What happens between q @ k^T and the softmax, in FlashInfer's words."""

    causal: bool
    window_left: int
    logits_soft_cap: float | None
    sm_scale: float | None

    def options(self, head_dim: int, factor: float) -> dict[str, Any]:
        """factor: what the scales of q and k multiply the scores by."""
        scale = head_dim**-0.5 if self.sm_scale is None else self.sm_scale
        window = None if self.window_left < 0 else (self.window_left, None)
        return {"causal": self.causal, "window": window, "scale": scale * factor, "softcap": self.logits_soft_cap or 0.0}


class Scales(NamedTuple):
    """The factors of the values of q, k and v."""

    q: Tensor | float | None = None
    k: Tensor | float | None = None
    v: Tensor | float | None = None

    def of_scores(self) -> float:
        """The product of the numbers among the first two: they multiply the scores, whatever the dtype."""
        factor = 1.0
        for scale in (self.q, self.k):
            factor *= scale if isinstance(scale, float | int) else 1.0
        return factor

    def of_values(self, v: Tensor) -> float:
        """The number that multiplies out, where v's dtype has no scale of its own."""
        return 1.0 if self.v is None or is_float8(v) else self.v  # type: ignore[return-value]

    def options(self, **tensors: Tensor) -> dict[str, Any]:
        """What Fovea takes as a tensor: scales of float8 tensors, by the letter of each. Others are refused."""
        options: dict[str, Any] = {}
        if self.q is self.k is self.v is None:
            return options
        for letter, scale in self._asdict().items():
            float8 = letter in tensors and is_float8(tensors[letter])
            if isinstance(scale, Tensor) and not float8:
                raise NotImplementedError(f"{letter}_scale: got a tensor, want a number, or {letter} in float8_e4m3fn")
            if isinstance(scale, Tensor):
                options[f"{letter}_scale"] = scale
            elif scale is not None and letter == "v" and float8:
                options["v_scale"] = tensors["v"].new_full((1,), scale, dtype=torch.float32)  # a graph can record it
        return options


def is_float8(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float8_e4m3fn


class Output(NamedTuple):
    """Where results go, and what the log-sum-exp looks like: FlashInfer's is to base 2."""

    out: Tensor | None = None
    lse: Tensor | None = None
    return_lse: bool = False
    base: str = "log2"
    layout: str = "NH"

    def of(
        self, operation: Callable[..., Any], *tensors: Tensor | None, sink: Tensor | None, factor: float, **options: Any
    ) -> Result:
        """Runs an operation whose lse is ``[total, head]``.

        The lse has the sink in it, as FlashInfer's has; Fovea's has not. factor multiplies out.
        """
        if self.base not in ("log2", "ln"):
            want(False, "lse_base", repr(self.base), "'log2' or 'ln'")
        if self.layout not in ("NH", "HN"):
            want(False, "lse_layout", repr(self.layout), "'NH' or 'HN'")
        sink = sink if sink is None else sink.float()
        transposed = self.layout == "HN"
        given = self.lse if self.lse is None or not transposed else self.lse.t()
        result = operation(
            *tensors, out=self.out, lse=given if self.return_lse else None, return_lse=self.return_lse, sink=sink, **options
        )
        out, lse = result if self.return_lse else (result, None)
        in_place = not out.requires_grad  # the gradient needs both as they are
        if factor != 1.0:
            out = out.mul_(factor) if in_place else out * factor
        if lse is None:
            return out
        if sink is not None:
            lse = torch.logaddexp(lse, sink, out=lse if in_place else None)
        if self.base == "log2":
            lse = lse.mul_(LOG2E) if in_place else lse * LOG2E
        return out, (lse if not transposed else lse.t() if self.lse is not None else lse.t().contiguous())


def refuse_variants(**arguments: Any) -> None:
    """Kernels and scores of the caller's own."""
    if all(value is None or value == () for value in arguments.values()):
        return
    refuse("Fovea has no such variant of attention", **{name: value for name, value in arguments.items() if value != ()})
