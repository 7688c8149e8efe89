# SPDX-License-Identifier: Apache-2.0
"""Decoding over caches that lie on several ranks: each attends to its own pages, then results are merged over the ranks.

Queries are the last tokens of their sequence. A query sees the first tokens of the sequence, up to its own position. A rank's
share of those are the first tokens of its own pages. So each query row is a sequence of its own, with the rank's table of pages,
and the number of these tokens as its length. That number follows on the device from the length of the whole sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

import fovea
from fovea._calls import adapted, checked
from fovea.distributed._agree import agree
from fovea.distributed._compute import sink_share
from fovea.distributed._cost import machine_of
from fovea.distributed._exchange import gather, to_all
from fovea.distributed._pages import PageDeal

if TYPE_CHECKING:
    from typing_extensions import Unpack

Merge = Literal["auto", "gather", "scatter"]


class Ranks(TypedDict, total=False):
    group: ProcessGroup | None
    scale: float | None
    merge: Merge
    check: bool


class PagedOptions(Ranks, total=False):
    causal: bool
    max_kv_len: int
    softcap: float
    sink: Tensor | None
    k_scale: Tensor | float | None
    v_scale: Tensor | float | None


class LatentOptions(Ranks, total=False):
    page: int | None
    format: str
    causal: bool
    max_kv_len: int
    cache_scale: Tensor | float | None


class SparseOptions(Ranks, total=False):
    format: str
    sink: Tensor | None


# fmt: off
@overload
def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, kv_len: Tensor,
        cu_seqlens_q: Tensor | None = None, *, return_lse: Literal[False] = False,
        **options: Unpack[PagedOptions]) -> Tensor: ...
@overload
def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, kv_len: Tensor,
        cu_seqlens_q: Tensor | None = None, *, return_lse: Literal[True],
        **options: Unpack[PagedOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def paged_attention(q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, kv_len: Tensor,
        cu_seqlens_q: Tensor | None = None, *, return_lse: bool = False,
        **options: Unpack[PagedOptions]) -> Tensor | tuple[Tensor, Tensor]: ...
# fmt: on
@checked
def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    kv_len: Tensor,
    cu_seqlens_q: Tensor | None = None,
    *,
    group: ProcessGroup | None = None,
    causal: bool = True,
    max_kv_len: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    sink: Tensor | None = None,
    k_scale: Tensor | float | None = None,
    v_scale: Tensor | float | None = None,
    return_lse: bool = False,
    merge: Merge = "auto",
    check: bool = True,
) -> Tensor | tuple[Tensor, Tensor]:
    """:func:`fovea.paged_attention` over a cache whose pages are dealt to the ranks of a group (:class:`PageDeal`).

    Args:
        q: ``[total_q, head, dqk]``, the same on every rank.
        k_cache, v_cache, block_table: This rank's own.
        kv_len: int32 ``[batch]``, tokens of each whole sequence, those of this call's queries included: the same on every rank.
        cu_seqlens_q: As in :func:`fovea.paged_attention`. None: one row a sequence.
        group: The ranks; None is the default group.
        max_kv_len: A bound of ``kv_len``; 0 is what the block tables can hold.
        causal, scale, softcap, sink, k_scale, v_scale: As there. A window is not taken: its keys fit on one rank.
        return_lse: Whether to return the log-sum-exp of the scores over all ranks too.
        merge: How results meet. ``"gather"``: each rank gets those of all. ``"scatter"``: each rank merges some heads, and gets the
            merged others. ``"auto"``: the one that the cost model takes for the faster.
        check: Whether ranks first make sure that they make the same call. Switch it off where a graph records, and under
            torch.compile.

    Returns:
        out, or (out, lse): float32 ``[total_q, head]``, the same bits on every rank. No gradient.
    """
    deal = PageDeal(k_cache.shape[1], dist.get_world_size(group))
    if check:
        fields: dict[str, Any] = {
            "softcap": softcap,
            "sink": sink is not None,
            "k_cache.shape[3]": k_cache.shape[-1],
            "dv": v_cache.shape[-1],
        }
        fields |= {"page": deal.page, "batch": kv_len.shape[0], "causal": causal, "scale": scale}
        _agree("paged_attention", fields, merge, q, group)
    table, lengths = _rows(q.shape[0], block_table, kv_len, cu_seqlens_q, causal)
    options: dict[str, Any] = {"causal": False, "scale": scale, "softcap": softcap, "k_scale": k_scale, "v_scale": v_scale}
    options["max_kv_len"] = deal.local_bound(max_kv_len) if max_kv_len else 0
    own = deal.local_length(lengths, dist.get_rank(group))
    out, lse = fovea.paged_attention(q, k_cache, v_cache, table, own, return_lse=True, **options)
    out, lse = _merged("paged_attention", (out, lse), sink, merge, group)
    return (out, lse) if return_lse else out


# fmt: off
@overload
def latent_attention(q: Tensor, cache: Tensor, block_table: Tensor, kv_len: Tensor, cu_seqlens_q: Tensor | None = None, *,
        return_lse: Literal[False] = False, **options: Unpack[LatentOptions]) -> Tensor: ...
@overload
def latent_attention(q: Tensor, cache: Tensor, block_table: Tensor, kv_len: Tensor, cu_seqlens_q: Tensor | None = None, *,
        return_lse: Literal[True], **options: Unpack[LatentOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def latent_attention(q: Tensor, cache: Tensor, block_table: Tensor, kv_len: Tensor, cu_seqlens_q: Tensor | None = None, *,
        return_lse: bool = False, **options: Unpack[LatentOptions]) -> Tensor | tuple[Tensor, Tensor]: ...
# fmt: on
@checked
def latent_attention(
    q: Tensor,
    cache: Tensor,
    block_table: Tensor,
    kv_len: Tensor,
    cu_seqlens_q: Tensor | None = None,
    *,
    group: ProcessGroup | None = None,
    page: int | None = None,
    format: str = "rows",
    causal: bool = True,
    max_kv_len: int = 0,
    scale: float | None = None,
    cache_scale: Tensor | float | None = None,
    return_lse: bool = False,
    merge: Merge = "auto",
    check: bool = True,
) -> Tensor | tuple[Tensor, Tensor]:
    """:func:`fovea.latent_attention` over a latent cache whose pages are dealt to the ranks of a group.

    Args:
        q: ``[batch, seq_q, head, d]``, or ``[total_q, head, d]`` with ``cu_seqlens_q``: the same on every rank.
        cache, block_table: This rank's own.
        page: Tokens of a page; None is the cache's second extent.
        kv_len, cu_seqlens_q, group, causal, max_kv_len, return_lse, merge, check: As in :func:`paged_attention`.
        format, scale, cache_scale: As in :func:`fovea.latent_attention`.

    Returns:
        out, or (out, lse): float32 ``[batch, head, seq_q]`` or ``[total_q, head]``, the same bits on every rank. No gradient.
    """
    deal = PageDeal(cache.shape[1] if page is None else page, dist.get_world_size(group))
    if check:
        fields = {"format": format, "page": deal.page, "batch": kv_len.shape[0], "causal": causal, "scale": scale}
        _agree("latent_attention", fields, merge, q, group)
    rows = q.flatten(0, 1) if q.dim() == 4 else q
    table, lengths = _rows(rows.shape[0], block_table, kv_len, cu_seqlens_q, causal)
    own = deal.local_length(lengths, dist.get_rank(group))
    bound = deal.local_bound(max_kv_len) if max_kv_len else 0
    options: dict[str, Any] = {"format": format, "causal": False, "scale": scale, "cache_scale": cache_scale, "max_kv_len": bound}
    out, lse = fovea.latent_attention(rows, cache, table, own, return_lse=True, **options)
    out, lse = _in_shape_of(q, *_merged("latent_attention", (out, lse), None, merge, group))
    return (out, lse) if return_lse else out


# fmt: off
@overload
def sparse_latent_attention(q: Tensor, cache: Tensor, indices: Tensor, topk_length: Tensor | None = None, *,
        return_lse: Literal[False] = False, **options: Unpack[SparseOptions]) -> Tensor: ...
@overload
def sparse_latent_attention(q: Tensor, cache: Tensor, indices: Tensor, topk_length: Tensor | None = None, *,
        return_lse: Literal[True], **options: Unpack[SparseOptions]) -> tuple[Tensor, Tensor]: ...
@overload
def sparse_latent_attention(q: Tensor, cache: Tensor, indices: Tensor, topk_length: Tensor | None = None, *,
        return_lse: bool = False, **options: Unpack[SparseOptions]) -> Tensor | tuple[Tensor, Tensor]: ...
# fmt: on
@checked
def sparse_latent_attention(
    q: Tensor,
    cache: Tensor,
    indices: Tensor,
    topk_length: Tensor | None = None,
    *,
    group: ProcessGroup | None = None,
    format: str = "rows",
    scale: float | None = None,
    sink: Tensor | None = None,
    return_lse: bool = False,
    merge: Merge = "auto",
    check: bool = True,
) -> Tensor | tuple[Tensor, Tensor]:
    """:func:`fovea.sparse_latent_attention` over a latent cache whose pages are dealt to the ranks of a group.

    Args:
        q: ``[batch, seq_q, head, d]`` or flat ``[seq_q, head, d]``: the same on every rank.
        cache: This rank's own.
        indices: This rank's own: :meth:`PageDeal.local_slots` of the listed tokens, as int32. Tokens of other ranks are -1.
        topk_length, group, format, scale, sink: As in :func:`fovea.sparse_latent_attention`.
        return_lse, merge, check: As in :func:`paged_attention`.
    """
    if check:
        fields = {"format": format, "indices.shape": tuple(indices.shape), "scale": scale, "sink": sink is not None}
        _agree("sparse_latent_attention", fields, merge, q, group)
    out, lse = fovea.sparse_latent_attention(q, cache, indices, topk_length, format=format, scale=scale, return_lse=True)
    if q.dim() == 4:
        out, lse = out.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1)
    out, lse = _in_shape_of(q, *_merged("sparse_latent_attention", (out, lse), sink, merge, group))
    return (out, lse) if return_lse else out


def _agree(name: str, fields: dict[str, Any], merge: str, q: Tensor, group: ProcessGroup | None) -> None:
    fault = None
    if merge not in ("auto", "gather", "scatter"):
        fault = ValueError(f"merge: got {merge!r}, want 'auto', 'gather' or 'scatter'")
    fields = {"q.dtype": str(q.dtype), "q.shape": tuple(q.shape), "merge": merge} | fields
    agree(f"fovea.distributed.{name}", fields, fault, q.device, group)


def _rows(total_q: int, block_table: Tensor, kv_len: Tensor, cu_seqlens_q: Tensor | None, causal: bool) -> tuple[Tensor, Tensor]:
    """The block table of each query row, and how many tokens of its whole sequence it sees. Nothing waits for a device."""
    batch = kv_len.shape[0]
    if cu_seqlens_q is None:
        if total_q == batch:
            return block_table, kv_len
        per_sequence = total_q // max(batch, 1)  # as many rows of each
        back = torch.arange(per_sequence - 1, -1, -1, dtype=kv_len.dtype, device=kv_len.device)
        seen = kv_len[:, None] - (back if causal else torch.zeros_like(back))
        return block_table.repeat_interleave(per_sequence, dim=0, output_size=total_q), seen.clamp(min=0).flatten()
    row = torch.arange(total_q, dtype=torch.int32, device=kv_len.device)
    sequence = torch.searchsorted(cu_seqlens_q[1:].contiguous(), row, right=True).clamp(max=max(batch - 1, 0))
    back = cu_seqlens_q[1:][sequence] - 1 - row
    seen = kv_len[sequence] - (back if causal else torch.zeros_like(back))
    return block_table[sequence], torch.where(back >= 0, seen, 0).clamp(min=0).to(torch.int32)


def _merged(
    name: str, own: tuple[Tensor, Tensor], sink: Tensor | None, merge: str, group: ProcessGroup | None
) -> tuple[Tensor, Tensor]:
    """out and lse over all ranks, from this rank's own. The sink joins once."""
    out, lse = merge_over_ranks(*own, group, merge=merge, name=f"fovea.distributed.{name}")
    return out if sink is None else (out * sink_share(lse, sink)).to(out.dtype), lse


@adapted({"outs": "out", "lses": "lse"}, axes={"out": "rows, head, dv", "lse": "rows, head"})
def merge_over_ranks(
    out: Tensor, lse: Tensor, group: ProcessGroup | None = None, *, merge: Merge | str = "auto", name: str = "merge_over_ranks"
) -> tuple[Tensor, Tensor]:
    """:func:`fovea.merge_states` of what each rank has: out ``[rows, head, dv]``, lse ``[rows, head]``. The same on every rank."""
    ranks, heads = dist.get_world_size(group), out.shape[1]
    if ranks == 1:
        return out, lse
    if merge == "auto":
        merge = _faster(out, ranks)
    if merge == "gather" or heads % ranks != 0:
        return _unpacked(gather(f"{name}, results", _packed(out, lse), group), out.shape, out.dtype)
    own = heads // ranks
    shape = (out.shape[0], own, out.shape[2])
    parts = [_packed(out[:, r * own : (r + 1) * own], lse[:, r * own : (r + 1) * own]) for r in range(ranks)]
    received = to_all(f"{name}, results of each rank's heads", parts, [parts[0].shape] * ranks, group)
    some, some_lse = _unpacked(torch.stack(received), shape, out.dtype)
    gathered = gather(f"{name}, merged heads", _packed(some, some_lse), group)
    pieces = [_split(piece, shape, out.dtype) for piece in gathered]
    return torch.cat([piece for piece, _ in pieces], dim=1), torch.cat([piece for _, piece in pieces], dim=1)


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
    """What all ranks sent, merged."""
    outs, lses = zip(*(_split(part, shape, dtype) for part in packed), strict=True)
    return fovea.merge_states(outs, lses)


def _in_shape_of(q: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Results of rows as those of a batch, where q has one."""
    if q.dim() == 3:
        return out, lse
    batch, seq = q.shape[:2]
    return out.unflatten(0, (batch, seq)), lse.unflatten(0, (batch, seq)).transpose(1, 2)
