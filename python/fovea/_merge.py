# SPDX-License-Identifier: Apache-2.0
"""Merging partial attention results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor

from fovea._calls import checked
from fovea._dispatch import OPERATORS
from fovea._options import Implementation

if TYPE_CHECKING:
    from typing_extensions import Unpack

_merge_states = OPERATORS["merge_states"]


class MergeOptions(Implementation, total=False):
    out: Tensor | None


# fmt: off
@overload
def merge_states(outs: Sequence[Tensor], lses: Sequence[Tensor], *, lse: None = None, return_lse: Literal[False],
        **options: Unpack[MergeOptions]) -> Tensor: ...
@overload
def merge_states(outs: Sequence[Tensor], lses: Sequence[Tensor], *, lse: Tensor | None = None, return_lse: Literal[True] = True,
        **options: Unpack[MergeOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def merge_states(outs: Sequence[Tensor], lses: Sequence[Tensor], *, lse: Tensor, return_lse: bool = True,
        **options: Unpack[MergeOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def merge_states(outs: Sequence[Tensor], lses: Sequence[Tensor], *, lse: Tensor | None = None, return_lse: bool = True,
        **options: Unpack[MergeOptions]) -> Tensor | tuple[Tensor, Tensor]: ...
# fmt: on
@checked
def merge_states(
    outs: Sequence[Tensor],
    lses: Sequence[Tensor],
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    return_lse: bool = True,
    implementation: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over disjoint sets of keys, merged into attention over all of them.

    ``lse = log(sum_i exp(lses[i]))`` and ``out = sum_i exp(lses[i] - lse) * outs[i]``.

    Args:
        outs: One or more of ``[total_q, head, dv]``, all float32, float16 or bfloat16.
        lses: For each of them its log-sum-exp, float32 ``[total_q, head]``; a ``[head, total_q]`` tensor is passed as
            ``lse.transpose(0, 1)``. +inf, -inf and NaN mark an empty part, whose out never reaches the result.
        out: Written and returned instead of a new tensor; it may be one of outs.
        lse: Written and returned instead of a new tensor; it may be one of lses.
        return_lse: Whether to return the merged log-sum-exp too.
        implementation: Forces one of :func:`fovea.implementations` by name.

    Returns:
        (out, lse), or out alone without ``return_lse`` and ``lse``. Where all parts are empty: 0 and -inf.

    Raises:
        ValueError: The call contradicts itself: tensor, field, value and expectation are named.
        NotImplementedError: No implementation accepts it, each with its reason; or a gradient is wanted.

    Source: online softmax (Milakov and Gimelshein 2018).
    """
    outs, lses = list(outs), list(lses)
    if not outs:
        raise ValueError("outs (parts): got none, want at least one")
    if out is None:
        out = outs[0].new_empty(outs[0].shape)
    if lse is None and return_lse:
        lse = outs[0].new_empty(outs[0].shape[:-1], dtype=torch.float32)
    _merge_states(outs, lses, out, lse, implementation or "")
    return out if lse is None else (out, lse)
