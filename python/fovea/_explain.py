# SPDX-License-Identifier: Apache-2.0
"""Which implementation a call gets, and why."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fovea._annotations import name_of
from fovea._attention_backward import differentiable_attention, new_outputs
from fovea._dispatch import OPERATORS
from fovea._library import typed
from fovea._merge import differentiable_merge, new_merged

_EXPLAIN = {operator.overload: getattr(torch.ops.fovea, f"explain_{name}").default for name, operator in OPERATORS.items()}

# Operators whose kernels call one of these.
_AROUND = {differentiable_attention: new_outputs, differentiable_merge: new_merged}


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
        self.texts.append(bytes(_EXPLAIN[func](*args, **(kwargs or {})).tolist()).decode())
        return None


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Which implementation ``function(*args, **kwargs)`` would get, with which tuning, and which ones declined and why. Raises what
    the function itself would raise.

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
