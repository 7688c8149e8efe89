# SPDX-License-Identifier: Apache-2.0
"""Which implementation a call gets, and why."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fovea._library import typed

_EXPLAIN = {
    torch.ops.fovea.attention.default: torch.ops.fovea.explain_attention.default,
    torch.ops.fovea.paged_attention.default: torch.ops.fovea.explain_paged_attention.default,
    torch.ops.fovea.paged_cache_append.default: torch.ops.fovea.explain_paged_cache_append.default,
    torch.ops.fovea.merge_states.default: torch.ops.fovea.explain_merge_states.default,
}


class _Explain(TorchDispatchMode):
    """Explains each of Fovea's operators in the place of running it."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func not in _EXPLAIN:
            return func(*args, **(kwargs or {}))
        self.texts.append(_EXPLAIN[func](*args, **(kwargs or {})))
        return None


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """Which implementation ``function(*args, **kwargs)`` would get, with which tuning, and who declined it and why.

    >>> print(fovea.explain(fovea.attention, q, k, v, causal=True))

    Args:
        function: One of Fovea's, or any other that calls them. Their outputs stay as they are.

    Raises:
        What the function itself would raise.
    """
    with _Explain() as mode:
        try:
            function(*args, **kwargs)
        except RuntimeError as error:
            raise typed(error) from None
    return "".join(mode.texts)
