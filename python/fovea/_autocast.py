# SPDX-License-Identifier: Apache-2.0
"""Casts of dense attention under torch.autocast, by the rule of torch's scaled_dot_product_attention."""

import torch
from torch import Tensor

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def autocast(q: Tensor, k: Tensor, v: Tensor, out: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """q, k and v in autocast's dtype, and what takes the results: a copy of out where that has another dtype."""
    q, k, v = map(_cast, (q, k, v))
    return q, k, v, out.to(q.dtype) if out is not None and q.dtype in _DTYPES and out.dtype in _DTYPES else out


def _cast(tensor: Tensor) -> Tensor:
    device = tensor.device.type
    if tensor.dtype not in _DTYPES or not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))
