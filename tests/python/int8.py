# SPDX-License-Identifier: Apache-2.0
"""The quantisers of 8-bit attention once more, in plain torch: which tokens share a scale, and what becomes of them."""

import torch
from torch import Tensor

import fovea
import plain

KINDS = [("block", 32), ("warp", 32), ("warp", 16), ("thread", 32), ("thread", 16)]


def query_groups(seq: int, granularity: str, warp_rows: int) -> list[list[int]]:
    """The rows of each group of a sequence, in the order of the scales."""
    groups = []
    for block in range(0, seq, 128):
        for warp in range(block, block + 128, 128 if granularity == "block" else warp_rows):
            if granularity == "thread":
                groups += [list(range(warp + lane, warp + warp_rows, 8)) for lane in range(8)]
            else:
                groups.append(list(range(warp, warp + (128 if granularity == "block" else warp_rows))))
    return [[row for row in group if row < seq] for group in groups]


def key_groups(seq: int, granularity: str, _warp_rows: int) -> list[list[int]]:
    groups = []
    for block in range(0, seq, 64):
        keys = range(block, min(block + 64, seq))
        if granularity == "thread":
            groups += [[key for key in keys if key % 8 in (2 * lane, 2 * lane + 1)] for lane in range(4)]
        else:
            groups.append(list(keys))
    return groups


def quantise(values: Tensor, groups: list[list[int]], largest_code: int) -> tuple[Tensor, Tensor]:
    """Numbers before they are rounded to int8, and scales [head, group], of float32 values [token, head, d]."""
    unrounded, scales = torch.zeros_like(values), []
    largest = torch.full(
        values.shape[1:2], float(largest_code)
    )  # torch takes a number over a tensor for a product with the inverse
    for group in groups:
        members = values[group]
        amax = members.abs().amax(dim=(0, 2)) if group else torch.zeros(values.shape[1])
        amax = torch.where(amax.isfinite(), amax.clamp(min=1e-7), torch.nan)  # amax of a NaN is NaN
        unrounded[group] = torch.where(amax.isnan()[:, None], 0.0, members * (largest / amax)[:, None])
        scales.append(amax / largest)
    return unrounded, torch.stack(scales, dim=1) if scales else torch.zeros(values.shape[1], 0)


def to_int8(values: Tensor, groups: list[list[int]]) -> tuple[Tensor, Tensor]:
    unrounded, scales = quantise(values, groups, 127)
    return unrounded.round().to(torch.int8), scales  # round() is half to even


def to_e4m3(values: Tensor) -> tuple[Tensor, Tensor]:
    """Quantised values, and one scale a channel [head, d]: each channel is one group."""
    channels = values.flatten(1)[:, :, None]
    unrounded, scales = quantise(channels, [list(range(len(values)))], 448)
    return unrounded.view(values.shape).to(torch.float8_e4m3fn), scales.view(values.shape[1:])


def restore(codes: Tensor, scales: Tensor, groups: list[list[int]]) -> Tensor:
    """float64 products of quantised values [token, head, d] and scales [head, group]."""
    values = codes.double()
    for index, group in enumerate(groups):
        values[group] *= scales[:, index].double()[:, None]
    return values


def attention(qk: fovea.QuantizedQk, v: fovea.QuantizedV, scale: float | None = None, **mask) -> plain.Expected:
    """The result of one sequence, without axes for the batch."""
    kind = (qk.granularity, qk.warp_rows)
    q = restore(qk.q, qk.q_scale, query_groups(len(qk.q), *kind))
    k = restore(qk.k, qk.k_scale, key_groups(len(qk.k), *kind))
    values = v.v.double() * (1.0 if v.scale is None else v.scale.double())
    expected = plain.attention(q, k, values, scale=scale, **mask)
    if v.mean is not None:
        mean = v.mean.double().repeat_interleave(q.shape[1] // k.shape[1], dim=0)
        expected.out += torch.where(expected.lse.isneginf()[..., None], 0.0, mean)
        expected.weight += mean.abs()
    if qk.lse_shift is not None:
        shift = (q.shape[-1] ** -0.5 if scale is None else scale) * qk.lse_shift.double().T
        expected.lse = torch.where(
            expected.lse.isneginf(), expected.lse, expected.lse + shift
        )  # of a row that sees no key, NaN or not
    return expected


def sequence(qk: fovea.QuantizedQk, v: fovea.QuantizedV, b: int) -> tuple[fovea.QuantizedQk, fovea.QuantizedV]:
    """Sequence b of a fixed batch."""
    parts = [None if part is None else part[b] for part in qk[:6]]
    return fovea.QuantizedQk(*parts, *qk[6:]), fovea.QuantizedV(*(None if part is None else part[b] for part in v))
