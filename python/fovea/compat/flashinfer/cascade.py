# SPDX-License-Identifier: Apache-2.0
"""flashinfer.cascade over Fovea: merging attention over disjoint sets of keys. All log-sum-exps are to base 2."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fovea import _merge
from fovea._calls import adapted
from fovea._library import wants_gradients
from fovea.compat.flashinfer._output import LOG2E
from fovea.compat.flashinfer._terms import ROWS, want, want_apart, want_writable

__all__ = ["merge_state", "merge_state_in_place", "merge_states"]

_LSE = "rows, head"
_LSE_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_PARTS = {"v": "rows, parts, head, head_dim", "s": "rows, parts, head"}


@adapted(
    {"out": "v_a", "outs": "v_b", "lses": "s_b", "outs[0]": "v_a", "outs[1]": "v_b", "lses[0]": "s_a", "lses[1]": "s_b"},
    axes={"v_a": ROWS, "s_a": _LSE, "v_b": ROWS, "s_b": _LSE},
)
def merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
    """Two parts ``[seq, head, dim]`` with lses float32 ``[seq, head]``: out and lse of both together."""
    return _merged([v_a, v_b], [s_a, s_b], ("s_a", "s_b"))


@adapted(
    {"out": "v", "outs": "v_other", "lses": "s_other", "outs[0]": "v", "outs[1]": "v_other", "lses[0]": "s", "lses[1]": "s_other"},
    axes={"v": ROWS, "s": _LSE, "v_other": ROWS, "s_other": _LSE, "mask": "rows"},
)
def merge_state_in_place(v: Tensor, s: Tensor, v_other: Tensor, s_other: Tensor, mask: Tensor | None = None) -> None:
    """Merges a part into another one. mask, bool ``[seq]``: which rows change; None is all."""
    for name, tensor in (("v", v), ("s", s)):
        want_writable(name, tensor)
        if wants_gradients(tensor):
            raise NotImplementedError(f"{name}.requires_grad: got True, want False (or torch.no_grad()): it is written in place")
    want_apart("v", v, "s", s)
    if mask is not None:
        want(mask.shape[0] == v.shape[0], "mask.shape[0]", mask.shape[0], f"{v.shape[0]} (v.shape[0])")
        want(mask.device == v.device, "mask.device", mask.device, f"{v.device} (of v)")
    out, lse = _merged([v, v_other], [s, s_other], ("s", "s_other"))
    if mask is not None:
        chosen = mask.bool()[:, None]
        out, lse = torch.where(chosen[..., None], out, v), torch.where(chosen, lse, s)
    v.copy_(out)
    s.copy_(lse)


@adapted({"out": "v", "outs": "v", "lses": "s"}, axes=_PARTS)
def merge_states(v: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Any number of parts: ``[seq, parts, head, dim]`` and float32 ``[seq, parts, head]``."""
    want(v.shape[1] >= 1, "v.shape[1] (parts)", 0, "1 or more")
    want(v.shape[1] == s.shape[1], "s.shape[1]", s.shape[1], f"{v.shape[1]} (parts of v)")
    return _merged(list(v.unbind(1)), list(s.unbind(1)), ["s"] * s.shape[1])


def _merged(outs: list[Tensor], lses: list[Tensor], names: Sequence[str]) -> tuple[Tensor, Tensor]:
    for name, lse in zip(names, lses, strict=True):
        want(lse.dtype in _LSE_DTYPES, f"{name}.dtype", lse.dtype, "torch.float32")
    out, lse = _merge.merge_states(outs, [lse.float() / LOG2E for lse in lses])
    return out, lse * LOG2E
