# SPDX-License-Identifier: Apache-2.0
"""Where attention of 16 bits takes less time than 8 bits with values of 16, and is exact besides: on Hopper."""

import torch
from torch import Tensor

from fovea._calls import checked
from fovea._library import wants_gradients

_allowed = True


@checked
def set_exact_fallback(enabled: bool) -> None:
    """Whether ``sageattn`` and ``sageattn_varlen`` may attend in 16 bits where that is faster than in 8. It is True at first."""
    global _allowed
    _allowed = enabled


def is_faster(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """False where 8-bit attention would refuse the call, as it shall do so. docs/sageattention.md has the measurements."""
    return _allowed and _on_hopper(q.device) and _is_plain(q, k, v)


def _on_hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) == (9, 0)


def _is_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether both ways take the call, and attention changes no dtype."""
    if q.dtype not in (torch.float16, torch.bfloat16) or any(x.dtype != q.dtype or x.device != q.device for x in (k, v)):
        return False
    if k.shape != v.shape or q.dim() != k.dim() or q.shape[-1] != k.shape[-1] or wants_gradients(q, k, v):
        return False
    kind = q.device.type
    cast = torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) != q.dtype
    return not cast and (torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active())
