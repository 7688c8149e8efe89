# SPDX-License-Identifier: Apache-2.0
"""Attention over a block-table cache, and writing into that cache."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from fovea.jax._ffi import call, mask


def paged_attention(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    block_table: Array,
    kv_len: Array,
    cu_seqlens_q: Array | None = None,
    *,
    max_seqlen_q: int = 0,
    max_kv_len: int = 0,
    causal: bool = True,
    window: tuple[int | None, int | None] | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    sink: Array | None = None,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    return_lse: bool = False,
    implementation: str | None = None,
    batch_invariant: bool = False,
) -> Array | tuple[Array, Array]:
    """Attention over a block-table cache: prefill, decode and any mix of both in one call.

    Token t of sequence b lies in block ``block_table[b, t // page]``, slot ``t % page``. The query rows of a sequence are its last
    tokens: row r sits at position ``kv_len - q_len + r``.

    Args:
        q: ``[total_q, head, dqk]``, the query rows of all sequences one after another. float32 (CPU), float16 or bfloat16.
        k_cache: ``[blocks, page, kv_head, dqk]``, dtype of q or float8_e4m3fn.
        v_cache: ``[blocks, page, kv_head, dv]``, likewise.
        block_table: int32 ``[batch, max_blocks]``.
        kv_len: int32 ``[batch]``, tokens of each sequence in the cache, those of this call's queries included.
        cu_seqlens_q: int32 ``[batch + 1]``: sequence b has rows ``cu[b]`` to ``cu[b + 1] - 1`` of q. None: one row a sequence.
        max_seqlen_q: A bound of the query lengths; 0 is ``total_q``.
        max_kv_len: A bound of ``kv_len``; 0 is what the block table can hold.
        causal, window, scale, softcap, sink, return_lse, implementation, batch_invariant: As in :func:`fovea.jax.attention`.
        k_scale: For a float8_e4m3fn cache: the factor of its values. float32, one element or ``[kv_head]``.
        v_scale: As ``k_scale``, for v.

    Returns:
        out ``[total_q, head, dv]`` in q's dtype, or (out, lse) with lse float32 ``[total_q, head]``. A row that sees no key gives 0
        and -inf, and so does a row of no sequence. There is no gradient.

    Raises:
        jax.errors.JaxRuntimeError: As :func:`fovea.jax.attention`.

    Source: PagedAttention (Kwon et al. 2023).
    """
    if cu_seqlens_q is None:
        cu_seqlens_q, max_seqlen_q = jnp.arange(q.shape[0] + 1, dtype=jnp.int32), max_seqlen_q or 1
    inputs = {"q": q, "k_cache": k_cache, "v_cache": v_cache, "block_table": block_table, "kv_len": kv_len}
    inputs |= {"cu_seqlens_q": cu_seqlens_q, "sink": sink, "k_scale": k_scale, "v_scale": v_scale}
    outputs = {"out": jax.ShapeDtypeStruct((*q.shape[:-1], v_cache.shape[-1]), q.dtype)}
    if return_lse:
        outputs["lse"] = jax.ShapeDtypeStruct(q.shape[:2], jnp.float32)
    options = mask(causal, window) | {"scale": float(scale or 0), "softcap": float(softcap)}
    options |= {"max_seqlen_q": max_seqlen_q, "max_kv_len": max_kv_len}
    options |= {"implementation": implementation, "batch_invariant": batch_invariant}
    results = call("paged_attention", inputs, outputs, **options)
    return (results[0], results[1]) if return_lse else results[0]


def paged_cache_append(
    k: Array,
    v: Array,
    k_cache: Array,
    v_cache: Array,
    slot_mapping: Array,
    *,
    k_scale: Array | None = None,
    v_scale: Array | None = None,
    implementation: str | None = None,
) -> tuple[Array, Array]:
    """Writes new rows into a cache: row t goes to block ``slot // page``, slot ``slot % page``, with ``slot = slot_mapping[t]``.

    Within ``jax.jit``, with the caches donated (``donate_argnums``), the rows are written in place. Without, XLA copies the caches.

    Args:
        k: ``[tokens, kv_head, dqk]``.
        v: ``[tokens, kv_head, dv]``.
        k_cache: ``[blocks, page, kv_head, dqk]``, dtype of k or float8_e4m3fn.
        v_cache: ``[blocks, page, kv_head, dv]``, likewise.
        slot_mapping: int64 ``[tokens]``, or int32 where JAX has no 64-bit integers; -1 skips a row.
        k_scale: For a float8_e4m3fn cache: values are divided by it. float32, one element or ``[kv_head]``.
        v_scale: As ``k_scale``, for v.
        implementation: Forces one of ``fovea.implementations()`` by name.

    Returns:
        (k_cache, v_cache) with the rows written.

    Raises:
        jax.errors.JaxRuntimeError: As :func:`fovea.jax.attention`.
    """
    if slot_mapping.dtype == jnp.int32:  # both halves of 64-bit numbers
        slot_mapping = jnp.stack([slot_mapping, slot_mapping >> 31], axis=-1)
    inputs = {
        "k": k,
        "v": v,
        "old_k": k_cache,
        "old_v": v_cache,
        "slot_mapping": slot_mapping,
        "k_scale": k_scale,
        "v_scale": v_scale,
    }
    outputs = {
        "k_cache": jax.ShapeDtypeStruct(k_cache.shape, k_cache.dtype),
        "v_cache": jax.ShapeDtypeStruct(v_cache.shape, v_cache.dtype),
    }
    aliases = {"k_cache": "old_k", "v_cache": "old_v"}
    new_k, new_v = call("paged_cache_append", inputs, outputs, aliases=aliases, implementation=implementation)
    return new_k, new_v
