# SPDX-License-Identifier: Apache-2.0
"""Shared by the drop-in modules: arguments of other packages in Fovea's terms, and refusals by name."""

import operator
from typing import Any

import torch
from torch import Tensor

from fovea._calls import from_gate


def check(ok: bool, subject: str, got: object, want: object) -> None:
    """Refuses what does not fit. The gate of the public function gives the error its class and the caller's names."""
    if not ok:
        raise from_gate(ValueError(f"{subject}: got {got}, want {want}"))


def checked_scale(name: str, scale: Tensor | float | None) -> float | None:
    """Fovea takes 0 for the default, and a number where other packages also take a tensor of one."""
    if isinstance(scale, Tensor):
        check(scale.numel() == 1, f"{name}.shape", list(scale.shape), "[] (a number)")
        scale = scale.item()
    check(scale is None or bool(scale != 0), name, scale, "another number")
    return scale


def integer(name: str, value: Tensor | int) -> int:
    """A whole number, which other packages take as a tensor of one too."""
    if isinstance(value, int | torch.SymInt):
        return value  # type: ignore[return-value]
    if isinstance(value, Tensor) and (value.numel() != 1 or value.is_floating_point() or value.is_complex()):
        check(False, name, f"{value.dtype}{list(value.shape)}", "a whole number")
    return operator.index(value)


def bound(length: Tensor | int | None, name: str = "max_seqlen") -> int | None:
    """A bound of lengths."""
    return None if length is None else integer(name, length)


def window(size: tuple[Tensor | int, Tensor | int], name: str = "window_size") -> tuple[int | None, int | None]:
    """``(left, right)`` where any negative number is no bound."""
    check(len(size) == 2, name, size, "(left, right), -1 for no bound")
    left, right = integer(f"{name}[0]", size[0]), integer(f"{name}[1]", size[1])
    return (None if left < 0 else left), (None if right < 0 else right)


def refuse(why: str, **arguments: Any) -> None:
    """Raises for the first argument that is given and asks for what Fovea does not compute."""
    for name, value in arguments.items():
        if value is None or (isinstance(value, int | float) and value == 0):
            continue
        got = value if isinstance(value, int | float) else type(value).__name__
        raise NotImplementedError(f"{name}: got {got}, want {0 if isinstance(value, int | float) else None} ({why})")


def traced(*tensors: Tensor) -> bool:
    """Whether tensors stand for those of a later run: they have no numbers and no address."""
    if torch.compiler.is_compiling():
        return True
    return any(tensor.is_meta or type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__ for tensor in tensors)


def readable(*tensors: Tensor) -> bool:
    """Whether a check may look at the numbers: without a wait for a device, and without a tracer's graph that ends there."""
    return all(tensor.is_cpu for tensor in tensors) and not traced(*tensors)


def has_own_places(tensor: Tensor) -> bool:
    """Whether no two elements share memory, as far as strides say it simply."""
    end = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < end:
            return False
        end += stride * (size - 1)
    return True


def rows(tensor: Tensor) -> Tensor:
    """The tensor with contiguous rows, as other packages make them."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def whole_eights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows whose length is a multiple of 8: other packages pad them with zeros, which changes no score."""
    head_dim = q.shape[-1]
    if not (head_dim | v.shape[-1] | k.shape[-1]) % 8:
        return q, k, v
    if k.shape[-1] != head_dim:
        axis = k.dim() - 1
        check(False, f"k.shape[{axis}] (head_dim_qk)", k.shape[-1], f"{head_dim} (head_dim_qk of q)")
    padded = (torch.nn.functional.pad(tensor, (0, -tensor.shape[-1] % 8)) for tensor in (q, k, v))
    return tuple(padded)  # type: ignore[return-value]
