# SPDX-License-Identifier: Apache-2.0
"""Results of all ranks, merged: the same bits on each of them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

import fovea
from fovea._calls import adapted
from fovea._dispatch import refuse_tangents
from fovea._library import wants_gradients
from fovea.distributed._checks import one_of, place
from fovea.distributed._cost import machine_of
from fovea.distributed._exchange import gather, to_all

Merge = Literal["auto", "gather", "scatter"]
MERGES = ("auto", "gather", "scatter")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@adapted({"outs": "out", "lses": "lse"}, axes={"out": "rows, head, dv", "lse": "rows, head"})
def merge_over_ranks(
    out: Tensor, lse: Tensor, group: ProcessGroup | None = None, *, merge: Merge | str = "auto", name: str = "merge_over_ranks"
) -> tuple[Tensor, Tensor]:
    """:func:`fovea.merge_states` of what each rank has: out ``[rows, head, dv]``, lse ``[rows, head]``. The same on every rank.

    No gradient. All ranks give equal shapes and dtypes; nothing asks them whether they do.
    """
    one_of("merge", merge, MERGES)
    _check(out, lse)
    (_, ranks), heads = place(group), out.shape[1]
    if ranks == 1 or lse.numel() == 0:
        return out, lse
    if merge == "auto":
        merge = _faster(out, ranks)
    if merge == "gather" or heads % ranks != 0:
        return _unpacked(gather(f"{name}, results", _packed(out, lse), group), out.shape, out.dtype)
    own = heads // ranks
    shape = (out.shape[0], own, out.shape[2])
    parts = [_packed(out[:, r * own : (r + 1) * own], lse[:, r * own : (r + 1) * own]) for r in range(ranks)]
    to_each = [[part] for part in parts]
    received = to_all(f"{name}, results of each rank's heads", to_each, [[parts[0].shape]] * ranks, group)
    some, some_lse = _unpacked(torch.stack([packed for (packed,) in received]), shape, out.dtype)
    gathered = gather(f"{name}, merged heads", _packed(some, some_lse), group)
    pieces = [_split(piece, shape, out.dtype) for piece in gathered]
    return torch.cat([piece for piece, _ in pieces], dim=1), torch.cat([piece for _, piece in pieces], dim=1)


def _check(out: Tensor, lse: Tensor) -> None:
    refuse_tangents(("out", "lse"), (out, lse))
    if wants_gradients(out, lse):
        name = "out" if out.requires_grad else "lse"
        raise NotImplementedError(f"{name}.requires_grad: got True, want False (no backward pass; use torch.no_grad() or detach())")
    if out.dtype not in _DTYPES:
        raise ValueError(f"out.dtype: got {out.dtype}, want {', '.join(map(str, _DTYPES[:-1]))} or {_DTYPES[-1]}")
    if lse.dtype != torch.float32:
        raise ValueError(f"lse.dtype: got {lse.dtype}, want torch.float32")
    if lse.shape != out.shape[:2]:
        raise ValueError(f"lse.shape: got {tuple(lse.shape)}, want {tuple(out.shape[:2])} (rows, head), as out has")
    if lse.device != out.device:
        raise ValueError(f"lse.device: got {lse.device}, want {out.device}, as out")


def _faster(out: Tensor, ranks: int) -> str:
    """By the model: a scatter sends 2 / ranks of what a gather does, in two calls."""
    machine = machine_of(out.device)
    sent = out.nbytes + out.shape[0] * out.shape[1] * 4
    seconds = {"gather": (ranks - 1) * sent / machine.link + machine.collective(ranks)}
    seconds["scatter"] = 2 * (ranks - 1) / ranks * sent / machine.link + 2 * machine.collective(ranks)
    return min(seconds, key=lambda way: seconds[way])


def _packed(out: Tensor, lse: Tensor) -> Tensor:
    """The bytes of both, and a few more, so that those of the next rank are aligned."""
    both = [out.contiguous().view(torch.uint8).flatten(), lse.contiguous().view(torch.uint8).flatten()]
    missing = -sum(part.numel() for part in both) % 16
    return torch.cat([*both, both[0].new_zeros(missing)])


def _split(packed: Tensor, shape: tuple[int, ...] | torch.Size, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    rows, heads, dim = shape
    size = rows * heads * dim * dtype.itemsize
    lse = packed[size : size + rows * heads * 4]
    return packed[:size].view(dtype).view(rows, heads, dim), lse.view(torch.float32).view(rows, heads)


def _unpacked(packed: Tensor, shape: tuple[int, ...] | torch.Size, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """out and lse, merged from the bytes that all ranks sent."""
    outs, lses = zip(*(_split(part, shape, dtype) for part in packed), strict=True)
    return fovea.merge_states(outs, lses)
