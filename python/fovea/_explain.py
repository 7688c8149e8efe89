# SPDX-License-Identifier: Apache-2.0
"""Which implementation a call gets, and why."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fovea._annotations import name_of
from fovea._attention_backward import differentiable_attention, new_outputs
from fovea._dispatch import OPERATORS
from fovea._library import typed
from fovea._merge import differentiable_merge, new_merged

_EXPLAIN = {operator.overload: getattr(torch.ops.fovea, f"explain_{name}").default for name, operator in OPERATORS.items()}

# Operators whose kernels call one of these.
_AROUND = {differentiable_attention: new_outputs, differentiable_merge: new_merged}

_ROWS, _RAGGED = ("batch", "seq"), ("row",)
_AXES = {
    **{("q", len(rows) + 2): (*rows, "head", "head_dim") for rows in (_ROWS, _RAGGED)},
    **{(name, len(rows) + 2): (*rows, "kv_head", "head_dim") for name in "kv" for rows in (_ROWS, _RAGGED)},
    **dict.fromkeys((("k_cache", 4), ("v_cache", 4), ("cache", 4)), ("block", "page", "kv_head", "head_dim")),
    ("block_table", 2): ("batch", "block"),
}
"""Words for the dimensions of a tensor, by its name and how many there are."""


class Described(NamedTuple):
    """A tensor of a call that is explained."""

    name: str
    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]

    def text(self) -> str:
        words = _AXES.get((self.name, len(self.shape)), ("",) * len(self.shape))
        extents = ", ".join(f"{word} {extent}".lstrip() for word, extent in zip(words, self.shape, strict=True))
        return f"{self.name} {str(self.dtype).removeprefix('torch.')} [{extents}]"


def described(arguments: Iterable[tuple[str, Any]]) -> Iterator[Described]:
    """The tensors among named arguments; of a list the first, with their number."""
    for name, value in arguments:
        many = isinstance(value, list | tuple)
        tensor = next(iter(value), None) if many else value
        if isinstance(tensor, Tensor):
            yield Described(f"{len(value)} {name}" if many else name, tensor.dtype, tensor.device, tuple(tensor.shape))


def problem(operation: str, tensors: Iterable[Described]) -> str:
    """The line that repeats what was read, so that dimensions in another order show."""
    inputs = list(tensors)
    return f"problem: {operation} on {inputs[0].device}: {', '.join(each.text() for each in inputs)}\n"


class _Explain(TorchDispatchMode):
    """Explains each of Fovea's operators in the place of running it."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in _AROUND:
            with self:
                return _AROUND[func](*args, **(kwargs or {}))
        if func not in _EXPLAIN:
            return func(*args, **(kwargs or {}))
        words = bytes(_EXPLAIN[func](*args, **(kwargs or {})).tolist()).decode()
        name = func._schema.name.removeprefix("fovea::")
        given = enumerate(zip(OPERATORS[name].names, args, strict=False))
        read = (argument for at, argument in given if at not in OPERATORS[name].written)
        self.texts.append(words + problem(name, described(read)))
        return None


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Which implementation ``function(*args, **kwargs)`` would get, with which tuning, and which ones declined and why. The last
    line repeats the tensors that were read. Raises what the function itself would raise.

    >>> print(fovea.explain(fovea.attention, q, k, v, causal=True))

    Args:
        function: One of Fovea's, or any other that calls them. Their outputs stay as they are.
    """
    if not callable(function):
        raise TypeError(f"function: got {name_of(function)}, want a function")
    with _Explain() as mode:
        try:
            function(*args, **kwargs)
        except RuntimeError as error:
            raise typed(error) from None
    return "".join(mode.texts)
