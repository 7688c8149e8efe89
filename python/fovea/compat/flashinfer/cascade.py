# SPDX-License-Identifier: Apache-2.0
"""flashinfer.cascade over Fovea: merging attention over disjoint sets of keys. All log-sum-exps are to base 2."""

import torch
from torch import Tensor

from fovea import _merge
from fovea.compat.flashinfer._terms import LOG2E

__all__ = ["merge_state", "merge_state_in_place", "merge_states"]


def merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
    """Two parts ``[seq, head, dim]`` with lses float32 ``[seq, head]``: out and lse of both together."""
    return _merged([v_a, v_b], [s_a, s_b])


def merge_state_in_place(v: Tensor, s: Tensor, v_other: Tensor, s_other: Tensor, mask: Tensor | None = None) -> None:
    """Merges a part into another one. mask, bool ``[seq]``: which rows change; None is all."""
    out, lse = _merged([v, v_other], [s, s_other])
    if mask is None:
        v.copy_(out)
        s.copy_(lse)
    else:
        chosen = mask.bool()[:, None]
        torch.where(chosen[..., None], out, v, out=v)
        torch.where(chosen, lse, s, out=s)


def merge_states(v: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Any number of parts: ``[seq, parts, head, dim]`` and float32 ``[seq, parts, head]``."""
    return _merged(list(v.unbind(1)), list(s.unbind(1)))


def _merged(outs: list[Tensor], lses: list[Tensor]) -> tuple[Tensor, Tensor]:
    out, lse = _merge.merge_states(outs, [lse / LOG2E for lse in lses])
    return out, lse.mul_(LOG2E)
