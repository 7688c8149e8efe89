# SPDX-License-Identifier: Apache-2.0
"""What the drop-in modules share: arguments of other packages in Fovea's terms, and refusals by name."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fovea._calls import from_gate


def run(operation: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Fovea's ValueError is the RuntimeError that the other packages throw from C++: of functions without ``adapted``."""
    try:
        return operation(*args, **kwargs)
    except ValueError as error:
        raise from_gate(RuntimeError(str(error))) from None


def check(ok: bool, subject: str, got: object, want: object) -> None:
    """What the other packages check in C++, and throw as a RuntimeError."""
    if not ok:
        raise RuntimeError(f"{subject}: got {got}, want {want}")


def check_axes(name: str, tensor: Tensor, axes: str) -> None:
    rank = axes.count(",") + 1
    if tensor.dim() != rank:
        check(False, f"{name}.rank", tensor.dim(), f"{rank} ([{axes}])")


def checked_scale(name: str, scale: Tensor | float | None) -> float | None:
    """Fovea takes 0 for the default, and a number where other packages also take a tensor of one."""
    check(scale is None or bool(scale != 0), name, scale, "another number")
    return scale.item() if isinstance(scale, Tensor) else scale


def bound(length: Tensor | int | None) -> int | None:
    """A bound of lengths, which other packages take as a tensor of one number too."""
    return int(length) if isinstance(length, Tensor) else length


def window(size: tuple[int, int], name: str = "window_size") -> tuple[int | None, int | None]:
    """``(left, right)`` where any negative number is no bound."""
    check(len(size) == 2, name, size, "(left, right), -1 for no bound")
    left, right = size
    return (None if left < 0 else left), (None if right < 0 else right)


def refuse(why: str, **arguments: Any) -> None:
    """Raises for the first argument that is given and asks for what Fovea does not compute."""
    for name, value in arguments.items():
        if value is None or (isinstance(value, int | float) and value == 0):
            continue
        got = value if isinstance(value, int | float) else type(value).__name__
        raise NotImplementedError(f"{name}: got {got}, want {0 if isinstance(value, int | float) else None} ({why})")


def rows(tensor: Tensor) -> Tensor:
    """The tensor with contiguous rows, as other packages make them."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def whole_eights(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Rows whose length is a multiple of 8: other packages pad them with zeros, which changes no score."""
    lengths = [-tensor.shape[-1] % 8 for tensor in tensors]
    return tuple(
        torch.nn.functional.pad(tensor, (0, more)) if more else tensor for tensor, more in zip(tensors, lengths, strict=True)
    )
