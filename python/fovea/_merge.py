# SPDX-License-Identifier: Apache-2.0
"""Merging partial attention results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from fovea._calls import checked
from fovea._dispatch import OPERATORS, refuse_tangents
from fovea._functorch import refuse_grad_transforms
from fovea._library import wants_gradients
from fovea._options import Implementation

if TYPE_CHECKING:
    from typing_extensions import Unpack

_merge_states = OPERATORS["merge_states"]
differentiable_merge = torch.ops.fovea.differentiable_merge.default


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
        (out, lse), or out alone without ``return_lse`` and ``lse``. Where all parts are empty: 0 and -inf. Both are differentiable
        with respect to outs and lses; an empty part has gradients of 0.

    Raises:
        ValueError: The call contradicts itself: tensor, field, value and expectation are named.
        NotImplementedError: No implementation accepts it, each with its reason; a gradient is wanted together with ``out`` or
            ``lse``; a tangent is given (forward mode); torch.vmap; torch.func.grad.

    Source: online softmax (Milakov and Gimelshein 2018).
    """
    outs, lses = list(outs), list(lses)
    if not outs:
        raise ValueError("outs (parts): got none, want at least one")
    if wants_gradients(*outs, *lses):
        refuse_tangents(("outs", "lses"), (outs, lses))
        refuse_grad_transforms(*outs, *lses)
        for name, value in (("out", out), ("lse", lse)):
            if value is not None:
                raise NotImplementedError(
                    f"{name}: got a value, want None where a gradient is wanted (use torch.no_grad() or detach())"
                )
        both = differentiable_merge(outs, lses, implementation or "")
        return both if return_lse else both[0]
    if out is None:
        out = outs[0].new_empty(outs[0].shape)
    if lse is None and return_lse:
        lse = outs[0].new_empty(outs[0].shape[:-1], dtype=torch.float32)
    _merge_states(outs, lses, out, lse, implementation or "")
    return out if lse is None else (out, lse)


def new_merged(outs: list[Tensor], lses: list[Tensor], implementation: str) -> tuple[Tensor, Tensor]:
    """The kernel of differentiable_merge, and its fake kernel too, as the operator inside has one."""
    out = outs[0].new_empty(outs[0].shape)
    lse = out.new_empty(out.shape[:-1], dtype=torch.float32)
    _merge_states(outs, lses, out, lse, implementation)
    return out, lse


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    outs, lses, _ = inputs
    ctx.parts = len(outs)
    ctx.save_for_backward(*outs, *lses, *output)


def _backward(ctx: Any, dout: Tensor, dlse: Tensor) -> tuple[list[Tensor], list[Tensor], None]:
    """With weights w = exp(lses[i] - lse): douts[i] = w dout and dlses[i] = w (dout . (outs[i] - out) + dlse)."""
    *saved, out, lse = ctx.saved_tensors  # read once: checkpoints hand them out once
    outs, lses = saved[: ctx.parts], saved[ctx.parts :]
    douts, dlses, dout = [], [], dout.float()
    for part, part_lse in zip(outs, lses, strict=True):
        weight = torch.where(part_lse.isfinite(), (part_lse - lse).exp(), 0.0)
        difference = torch.where(weight[..., None] > 0, part.float() - out.float(), 0.0)  # an empty part holds anything
        douts.append((weight[..., None] * dout).to(part.dtype))
        dlses.append(torch.where(weight > 0, weight * ((dout * difference).sum(dim=-1) + dlse), 0.0))
    return douts, dlses, None


torch.library.impl("fovea::differentiable_merge", "default", new_merged)
torch.library.register_fake("fovea::differentiable_merge", new_merged)
torch.library.register_autograd("fovea::differentiable_merge", _backward, setup_context=_keep)
