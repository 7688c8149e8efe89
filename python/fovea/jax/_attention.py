# SPDX-License-Identifier: Apache-2.0
"""Dense attention and its gradient."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import Array

from fovea.jax._ffi import call, mask

Options = tuple[tuple[str, bool | float | str | None], ...]


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = False,
    window: tuple[int | None, int | None] | None = None,
    anchor: str = "bottom_right",
    scale: float | None = None,
    softcap: float = 0.0,
    sink: Array | None = None,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    batch_invariant: bool = False,
) -> Array | tuple[Array, Array]:
    """Attention, ``softmax(mask(softcap(scale * q @ k^T))) @ v`` for each head.

    Args:
        q: ``[batch, seq_q, head, dqk]``, or ``[total_q, head, dqk]`` of a ragged batch. float32 (CPU), float16 or bfloat16.
        k: ``[batch, seq_k, kv_head, dqk]`` or ``[total_k, kv_head, dqk]``, dtype of q. ``head`` is a multiple of ``kv_head`` (GQA).
        v: ``[batch, seq_k, kv_head, dv]`` or ``[total_k, kv_head, dv]``, dtype of q. dqk and dv are multiples of 8 up to 512.
        causal: A query sees the keys up to its own position.
        window: ``(left, right)``: at most this many keys before and after a query's own position; None is no bound.
        anchor: ``bottom_right`` or ``top_left``: whether positions are counted from the last query and last key or from the first.
        scale: Multiplies the scores; None is ``dqk ** -0.5``.
        softcap: c > 0 bounds the scores, ``c * tanh(s / c)``, before the mask; 0 is none.
        sink: float32 ``[head]``, a logit that joins the softmax's denominator only.
        cu_seqlens_q: int32 ``[batch + 1]``, the rows of a ragged batch: sequence b has rows ``cu[b]`` to ``cu[b + 1] - 1`` of q.
        cu_seqlens_k: int32 ``[batch + 1]``, likewise for k and v.
        max_seqlen_q: A bound of the query lengths of a ragged batch; None is ``total_q``.
        max_seqlen_k: A bound of the key lengths of a ragged batch; None is ``total_k``.
        return_lse: Whether to return the log-sum-exp of the scores too (natural logarithm, without the sink).
        implementation: Forces one of ``fovea.implementations()`` by name, for the forward pass.
        batch_invariant: Makes a row's result independent of the rest of the batch, bit for bit.

    Returns:
        out, q's shape with dv; or (out, lse), lse float32 ``[batch, head, seq_q]`` or ``[total_q, head]``. A row that sees no key
        gives 0 and -inf. Both have a gradient (``jax.grad``, reverse mode, once) with respect to q, k, v and sink.

    Raises:
        ValueError: An argument has no meaning, which shows when the program is traced.
        jax.errors.JaxRuntimeError: The call contradicts itself, or no implementation accepts it; the message says which and why.

    Source: FlashAttention (Dao et al. 2022); sinks as in Xiao et al. 2023.
    """
    if anchor not in {"bottom_right", "top_left"}:
        raise ValueError(f"anchor: got {anchor!r}, want 'bottom_right' or 'top_left'")
    options = mask(causal, window) | {"top_left": anchor == "top_left", "scale": float(scale or 0), "softcap": float(softcap)}
    options |= {"max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
    chosen = {"implementation": implementation, "batch_invariant": batch_invariant}
    tensors = {"q": q, "k": k, "v": v, "sink": sink, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    out, lse = _attention(tensors, tuple(options.items()), tuple(chosen.items()))
    return (out, lse) if return_lse else out


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _attention(tensors: dict[str, Array | None], options: Options, chosen: Options) -> tuple[Array, Array]:
    q, v = tensors["q"], tensors["v"]
    fixed = tensors["cu_seqlens_q"] is None
    outputs = {
        "out": jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype),
        "lse": jax.ShapeDtypeStruct((q.shape[0], q.shape[2], q.shape[1]) if fixed else q.shape[:2], jnp.float32),
    }
    out, lse = call("attention", tensors, outputs, **dict(options + chosen))
    return out, lse


def _forward(tensors: dict[str, Array | None], options: Options, chosen: Options) -> tuple[tuple[Array, Array], tuple]:
    out, lse = _attention(tensors, options, chosen)
    return (out, lse), (tensors, out, lse)


def _backward(options: Options, _chosen: Options, kept: tuple, gradients: tuple[Array, Array]) -> tuple[dict[str, Array | None]]:
    tensors, out, lse = kept
    inputs = {**tensors, "out": out, "lse": lse, "dout": gradients[0], "dlse": gradients[1]}
    wanted = [name for name in ("q", "k", "v", "sink") if tensors[name] is not None]
    outputs = {f"d{name}": jax.ShapeDtypeStruct(tensors[name].shape, tensors[name].dtype) for name in wanted}
    results = dict(zip(wanted, call("attention_backward", inputs, outputs, **dict(options)), strict=True))
    for name, bounds in (("q", "cu_seqlens_q"), ("k", "cu_seqlens_k"), ("v", "cu_seqlens_k")):
        if tensors[bounds] is not None:
            results[name] = _zero_unowned(results[name], tensors[bounds])
    return (dict.fromkeys(tensors) | results,)


def _zero_unowned(gradient: Array, cu_seqlens: Array) -> Array:
    """The gradient with 0 in rows that no sequence has: the library leaves them unwritten."""
    row = jnp.arange(gradient.shape[0])[:, None, None]
    return jnp.where((row >= cu_seqlens[0]) & (row < cu_seqlens[-1]), gradient, 0)


_attention.defvjp(_forward, _backward)
