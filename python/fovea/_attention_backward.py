# SPDX-License-Identifier: Apache-2.0
"""The gradient of dense attention, by itself and as autograd's formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch import Tensor

from fovea._block_mask import operands_of
from fovea._calls import checked
from fovea._dispatch import OPERATORS
from fovea._library import NO_SCALES, band, deterministic_order, empty_lse, empty_out, fills, score_scale, top_left
from fovea._options import DenseMask, Implementation, Lengths, PackedMask

if TYPE_CHECKING:
    from typing_extensions import Unpack

_attention = OPERATORS["attention"]
_attention_backward = OPERATORS["attention_backward"]
differentiable_attention = torch.ops.fovea.differentiable_attention.default


class BackwardOptions(Implementation, DenseMask, Lengths, PackedMask, total=False):
    softcap: float
    dlse: Tensor | None
    deterministic: bool
    block_mask: Any
    alibi_slopes: Tensor | None
    bias: Tensor | None
    dropout_p: float
    dropout_state: Tensor | None


# fmt: off
@overload
def attention_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, sink: None = None,
        bias_gradient: Literal[False] = False, **options: Unpack[BackwardOptions]) -> tuple[Tensor, Tensor, Tensor]: ...
@overload
def attention_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, sink: Tensor,
        bias_gradient: Literal[False] = False, **options: Unpack[BackwardOptions]) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def attention_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, sink: Tensor | None = None,
        bias_gradient: Literal[False] = False, **options: Unpack[BackwardOptions],
        ) -> tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]: ...
@overload
def attention_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, sink: Tensor | None = None,
        bias_gradient: bool, **options: Unpack[BackwardOptions]) -> tuple[Tensor, ...]: ...
# fmt: on
@checked
def attention_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    dlse: Tensor | None = None,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    anchor: Literal["bottom_right", "top_left"] = "bottom_right",
    scale: float | None = None,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    packed_mask: Tensor | None = None,
    mask_indptr: Tensor | None = None,
    mask_tail: int | None = None,
    implementation: str | None = None,
    deterministic: bool = False,
    block_mask: Any = None,
    alibi_slopes: Tensor | None = None,
    bias: Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_state: Tensor | None = None,
    bias_gradient: bool = False,
) -> tuple[Tensor, ...]:
    """Gradients of :func:`fovea.attention` with respect to q, k, v, the sink and the bias. Autograd calls it by itself.

    Args:
        dout: The gradient of ``out``, in its shape and dtype, with any strides whose last is 1.
        q, k, v: As in the forward pass: float32, float16, bfloat16 or (by the reference) float64.
        out, lse: The results of the forward pass.
        dlse: The gradient of ``lse``, float32 in its shape, with any strides; None is zeros.
        causal, window, anchor, scale, softcap, sink: As in the forward pass.
        cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k: As in the forward pass.
        packed_mask, mask_indptr, mask_tail: As in the forward pass; on CPUs alone.
        implementation: Forces one of :func:`fovea.implementations` by name.
        deterministic: Whether the results have the same bits from run to run, at the price of some speed. Without, dq may differ
            in its last bits. ``torch.use_deterministic_algorithms(True)`` asks for it too.
        block_mask: As in the forward pass.
        alibi_slopes, bias, dropout_p, dropout_state: As in the forward pass. With dropout the state must be given.
        bias_gradient: Whether to return the gradient of the bias too: of its shape, the sum over what it is broadcast to.

    Returns:
        (dq, dk, dv), then dsink with a sink, then dbias with ``bias_gradient``: new tensors like q, k, v, sink and bias. dk and dv
        are summed over the query heads of a group. Rows of no sequence of a ragged batch are 0.

    Raises:
        ValueError: The call contradicts itself: tensor, field, value and expectation are named.
        NotImplementedError: No implementation accepts it, each with its reason; or a gradient is wanted of the gradient.

    Source: FlashAttention-2 (Dao 2023), algorithm 2.
    """
    mask = (*band(causal, window), top_left(anchor))
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    if dropout_p != 0 and dropout_state is None:
        raise ValueError("dropout_state: got None, want the tensor of the forward pass")
    terms, bits = (alibi_slopes, bias, dropout_p, dropout_state), (packed_mask, mask_tail, mask_indptr)
    forward = (q, k, v, out, lse, *lengths, *mask, score_scale(scale), softcap, sink, *operands_of(block_mask), *terms, *bits)
    gradients = _gradients(forward, dout, dlse, bias_gradient, (implementation or "", deterministic))
    return tuple(gradient for gradient in gradients if gradient is not None)


_SINK, _BIAS = (OPERATORS["attention_backward"].names.index(name) for name in ("sink", "bias"))


def _gradients(
    forward: tuple[Any, ...], dout: Tensor, dlse: Tensor | None, of_bias: bool, options: tuple[str, bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """dq, dk, dv, dsink and dbias. ``forward``: the first arguments of the operator, those of the forward pass."""
    q, k, v, cu_seqlens_q, sink, bias = *forward[:3], forward[5], forward[_SINK], forward[_BIAS]
    if of_bias and bias is None:
        raise ValueError("bias_gradient: got True, want False (there is no bias)")
    new = torch.empty_like if cu_seqlens_q is None else torch.zeros_like  # rows of no sequence are not written
    dq, dk, dv = (new(tensor, memory_format=torch.contiguous_format) for tensor in (q, k, v))
    dsink = None if sink is None else torch.empty_like(sink, memory_format=torch.contiguous_format)
    dbias = torch.empty_like(bias, memory_format=torch.contiguous_format) if of_bias else None
    implementation, deterministic = options
    order = deterministic_order(deterministic)
    _attention_backward(*forward, dout, dlse, dq, dk, dv, dsink, dbias, implementation, order)
    return dq, dk, dv, dsink, dbias


def new_outputs(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    """The kernel of differentiable_attention, and its fake kernel too, as the operator inside has one."""
    *forward, implementation, batch_invariant, _deterministic = options
    out, lse = empty_out(q, v), empty_lse(q)
    new = fills(forward[0], None, None)
    _attention(q, k, v, out, lse, *forward, *NO_SCALES, implementation, batch_invariant, *new)
    return out, lse


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *forward, _implementation, _invariant, ctx.deterministic = inputs
    tensors = [*forward[:3], *output, *forward[3:]]  # as the operator of the gradient has them
    ctx.others = [None if isinstance(each, Tensor) else each for each in tensors]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*(each if isinstance(each, Tensor) else None for each in tensors))
    ctx.of_bias = ctx.needs_input_grad[_BIAS - 2]  # out and lse are no inputs


def _backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():  # the graph would be cut silently
        raise NotImplementedError("create_graph: got True, want False (attention is differentiable once)")
    forward = [saved if saved is not None else other for saved, other in zip(ctx.saved_tensors, ctx.others, strict=True)]
    if dout is None:
        dout = torch.zeros_like(forward[3])
    if dout.stride(-1) != 1:
        dout = dout.contiguous()
    dq, dk, dv, dsink, dbias = _gradients(tuple(forward), dout, dlse, ctx.of_bias, ("", ctx.deterministic))
    after = len(forward) - 1 - _BIAS + 3  # arguments behind the bias: dropout, bits, and who computes
    return (dq, dk, dv, *(None,) * (_SINK - 5), dsink, *(None,) * (_BIAS - _SINK - 1), dbias, *(None,) * after)


torch.library.impl("fovea::differentiable_attention", "default", new_outputs)
torch.library.register_fake("fovea::differentiable_attention", new_outputs)
torch.library.register_autograd("fovea::differentiable_attention", _backward, setup_context=_keep)
