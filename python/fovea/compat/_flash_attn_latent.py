# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's ``qv``: scores are ``scale * (q @ k^T + qv @ v^T)``. This is latent attention with ``[v, k]`` as rows."""

from typing import Any

import torch
from torch import Tensor

from fovea._calls import adapted, from_gate
from fovea._latent import latent_attention
from fovea._library import wants_gradients
from fovea.compat._arguments import bound, check, integer, readable, refuse, traced
from fovea.compat._flash_attn import Ragged, Scales
from fovea.compat._flash_attn_cache import Cache, in_16_bits
from fovea.compat._flash_attn_chunks import check_ends

DIM_V, DIM_K = 512, 64
_NO_GRADIENT = "no backward pass with qv; use torch.no_grad() or detach()"


def check_qv(qv: Tensor, q: Tensor, cache: Cache, softcap: float, scales: Scales) -> None:
    """Refuses what latent attention does not compute, and a qv that does not belong to q."""
    refuse("with qv", softcap=softcap, **scales._asdict())
    for name, tensor in (("q", q), ("qv", qv), ("k_cache", cache.k), ("v_cache", cache.v)):
        if wants_gradients(tensor):
            raise from_gate(NotImplementedError(f"{name}.requires_grad: got True, want False ({_NO_GRADIENT})"))
    for name, tensor, want in (("q", q, DIM_K), ("k_cache", cache.k, DIM_K), ("v_cache", cache.v, DIM_V)):
        if tensor.shape[-1] != want:
            raise from_gate(NotImplementedError(f"{name}.head_dim (with qv): got {tensor.shape[-1]}, want {want}"))
    want_shape = [*q.shape[:-1], DIM_V]
    check(list(qv.shape) == want_shape, "qv.shape", list(qv.shape), f"{want_shape}, as q")
    check(qv.dtype == q.dtype, "qv.dtype", qv.dtype, f"{q.dtype}, as q")
    check(qv.device == q.device, "qv.device", qv.device, f"{q.device}, as q")


def latent_cache(cache: Cache) -> Cache:
    """The cache with latent rows ``[v, k]`` in the place of k: without a copy where k lies behind v in memory."""
    rows = _in_place(cache.k, cache.v)
    if rows is None:
        check(cache.v.dtype == cache.k.dtype, "v_cache.dtype", cache.v.dtype, f"{cache.k.dtype}, as k_cache")
        want = [*cache.k.shape[:3], DIM_V]
        check(list(cache.v.shape) == want, "v_cache.shape", list(cache.v.shape), f"{want}, as k_cache")
        rows = torch.cat([cache.v, cache.k], dim=-1)
        if not rows.shape[1]:  # which are no pages
            rows = rows.new_zeros(rows.shape[0], 1, *rows.shape[2:])
    return cache._replace(k=rows, v=rows[..., :DIM_V])


def _in_place(k: Tensor, v: Tensor) -> Tensor | None:
    """Rows ``[v, k]`` of one tensor, of which k and v are views."""
    if traced(k, v) or k.dtype != v.dtype or k.shape[:3] != v.shape[:3] or not k.shape[1]:
        return None
    strides = zip(k.shape[:3], k.stride(), v.stride(), strict=False)
    same = all(size == 1 or one == other for size, one, other in strides) and k.stride(-1) == v.stride(-1) == 1
    behind = k.storage_offset() == v.storage_offset() + DIM_V
    if not same or not behind or k.untyped_storage().data_ptr() != v.untyped_storage().data_ptr():
        return None
    return v.as_strided((*v.shape[:3], DIM_V + DIM_K), v.stride(), v.storage_offset())


@adapted({"cache": "k_cache"})
def over_latent_rows(q: Tensor, qv: Tensor, cache: Tensor, table: Any, lengths: Any, cu: Any, options: Any) -> Any:
    """:func:`fovea.latent_attention` of q behind qv."""
    joined = torch.cat([in_16_bits(qv), in_16_bits(q)], dim=-1)
    return latent_attention(joined, cache, table, lengths, cu, **options)


def flat_cache(k: Tensor, v: Tensor, lengths: Ragged, max_seqlen_k: Tensor | int) -> Cache:
    """Keys of a ragged batch, ``[total_k, kv_head, dim]``, as a cache with one row a page."""
    longest, cu_k = integer("max_seqlen_k", max_seqlen_k), lengths.cu_seqlens_k
    check(cu_k.device == k.device, "cu_seqlens_k.device", cu_k.device, f"{k.device}, as k")
    check_ends("cu_seqlens_k", cu_k, bound(lengths.max_seqlen_k))
    ends = len(lengths.cu_seqlens_q)
    check(ends > 0, "cu_seqlens_q.shape", [0], "[batch + 1]")
    check(len(cu_k) == ends, "cu_seqlens_k.shape", list(cu_k.shape), f"[{ends}]")
    if readable(cu_k):
        first, last = int(cu_k[0]), int(cu_k[-1])
        check(first >= 0, "cu_seqlens_k[0]", first, "0 or more")
        check(last <= k.shape[0], f"cu_seqlens_k[{ends - 1}]", last, f"at most {k.shape[0]} (rows of the tensor)")
    numbers = torch.arange(min(max(longest, 0), k.shape[0]), dtype=torch.int32, device=cu_k.device)
    counts = cu_k.diff().clamp(max=len(numbers))  # keys that are not used may be more
    return Cache(k[:, None], v[:, None], counts, None, cu_k[:-1, None] + numbers)
