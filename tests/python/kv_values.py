# SPDX-License-Identifier: Apache-2.0
"""Values of paged caches of codes and scales, by the formulas of the formats, and how far they may be from what was stored."""

import torch
from torch import Tensor

import fovea

FORMATS = fovea.kv_formats()
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nibbles(codes: Tensor) -> Tensor:
    """The two codes of each byte: the even one is in the low four bits."""
    codes = codes.view(torch.uint8).int()
    return torch.stack([codes & 15, codes >> 4], -1).flatten(-2)


def decoded(name: str, codes: Tensor, scales: Tensor | None, factor: float | Tensor = 1.0) -> Tensor:
    """The values of a cache in float64. ``factor``: of formats that have one for all values."""
    if name == "int8_token":
        return codes.view(torch.int8).double() * scales.double()[..., None]
    if name == "e4m3_token":
        return codes.view(torch.float8_e4m3fn).double() * scales.double()[..., None]
    if name == "int4_token":
        bits = scales.view(torch.int32)
        scale, zero = (bits & -16).view(torch.float32).double(), (bits & 15).double()
        return (nibbles(codes).double() - zero[..., None]) * scale[..., None]
    if name == "e5m2":
        return codes.view(torch.float8_e5m2).double() * factor
    group = FORMATS[name].group
    values = codes.view(torch.float8_e4m3fn).double() if name == "mxfp8" else E2M1[nibbles(codes)].double()
    if name == "nvfp4":
        scale = scales.view(torch.float8_e4m3fn).double() * factor
    else:
        bits = scales.view(torch.uint8).double()
        scale = torch.where(bits == 255, torch.nan, 2.0 ** (bits - 127))
    return values * scale.repeat_interleave(group, -1)


def step(name: str, rows: Tensor) -> Tensor:
    """A bound of a stored value's error, for finite rows [.., head_dim] in float64. Scales may have 11 bits."""
    if name == "e5m2":
        bound = rows.abs().clamp(min=2.0**-14) * 2.0**-3
        return bound.masked_fill(rows.abs() > 57344, torch.inf)
    size = FORMATS[name].group or rows.shape[-1]
    groups = rows.unflatten(-1, (-1, size))
    largest = groups.abs().amax(-1, keepdim=True)
    if name == "int4_token":
        largest = groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True) + largest  # zero may lie outside of the values
        bound = largest / 15
    elif name == "int8_token":
        bound = largest / 127
    elif name in ("e4m3_token", "mxfp8"):
        bound = groups.abs() * 2.0**-3 + largest * 2.0**-10
    else:  # e2m1: steps of 2 below 6
        bound = largest / 4 + (2.0**-8 if name == "nvfp4" else 2.0**-120)
        bound = bound.masked_fill((largest > 6 * 448) & (name == "nvfp4"), torch.inf)  # beyond the largest scale
    return bound.expand_as(groups).flatten(-2) + 1e-6
