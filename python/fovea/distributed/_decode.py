# SPDX-License-Identifier: Apache-2.0
"""Decoding over caches that lie on several ranks: each attends to its own pages, then results are merged over the ranks.

Queries are the last tokens of their sequence. A query sees the first tokens of the sequence, up to its own position. A rank's
share of those are the first tokens of its own pages. So each query row is a sequence of its own, with the rank's table of pages,
and the number of these tokens as its length. The number follows on the device from the length of the whole sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, overload

from torch import Tensor
from torch.distributed import ProcessGroup

import fovea
from fovea._calls import adapted
from fovea._library import wants_gradients
from fovea.distributed._agree import agree
from fovea.distributed._checks import one_of, place, within
from fovea.distributed._compute import check_sink, sink_share
from fovea.distributed._merge import MERGES, Merge, merge_over_ranks
from fovea.distributed._pages import PageDeal
from fovea.distributed._rows import Batch, page_of
from fovea.distributed._step import Step, rows_of_step, schedule_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

_BATCH: dict[str, str | tuple[str, ...]] = {"block_table": "batch, max_blocks", "kv_len": "batch", "cu_seqlens_q": "batch + 1"}
_ROWS = "total_q, head, head_dim"
_CACHE = "blocks, page, kv_head, head_dim"
_IN_BATCHES = ("batch, seq_q, head, head_dim", _ROWS)


class Ranks(TypedDict, total=False):
    group: ProcessGroup | None
    scale: float | None
    merge: Merge
    step: Step | None
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
@adapted(axes={"q": _ROWS, "k_cache": _CACHE, "v_cache": _CACHE, "sink": "head"} | _BATCH)
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
    step: Step | None = None,
    check: bool = True,
) -> Tensor | tuple[Tensor, Tensor]:
    """:func:`fovea.paged_attention` over a cache whose pages are dealt to the ranks of a group (:class:`PageDeal`).

    Args:
        q: ``[total_q, head, dqk]``, the same on every rank.
        k_cache, v_cache, block_table: This rank's own.
        kv_len: int32 ``[batch]``, tokens of each whole sequence, those of this call's queries included: the same on every rank.
        cu_seqlens_q: As in :func:`fovea.paged_attention`. None: as many rows of each sequence.
        group: The ranks; None is the default group.
        max_kv_len: A bound of ``kv_len``; 0 is what the block tables can hold.
        causal, scale, softcap, sink, k_scale, v_scale: As there. A window is not taken: its keys fit on one rank.
        return_lse: Whether to return the log-sum-exp of the scores over all ranks too.
        merge: How results meet. ``"gather"``: each rank gets those of all. ``"scatter"``: each rank merges some heads, and gets the
            merged others. ``"auto"``: the one that the cost model takes for the faster.
        step: The state that the layers of a decode step share (:class:`Step`).
        check: Whether ranks first make sure that they make the same call. Switch it off where a graph records, and under
            torch.compile.

    Returns:
        out, or (out, lse): float32 ``[total_q, head]``, the same bits on every rank. No gradient.
    """
    rank, ranks = place(group)
    page = k_cache.shape[1]
    fields: dict[str, Any] = {
        "softcap": softcap,
        "sink": sink is not None,
        "k_cache.shape[3]": k_cache.shape[-1],
        "dv": v_cache.shape[-1],
    }
    fields |= {"page": page, "batch": kv_len.shape[0], "causal": causal, "scale": scale}
    options: dict[str, Any] = {"causal": False, "scale": scale, "softcap": softcap, "k_scale": k_scale, "v_scale": v_scale}

    def attend() -> tuple[Tensor, Tensor]:
        within("k_cache.shape[1] (page)", page, 1)
        batch = Batch(q, block_table, kv_len, cu_seqlens_q, max_kv_len, causal)
        table, own, bound = rows_of_step(step, batch, PageDeal(page, ranks), rank)
        return fovea.paged_attention(q, k_cache, v_cache, table, own, max_kv_len=bound, return_lse=True, **options)

    out, lse = _over_ranks(_Step("paged_attention", q, sink, merge, group, check), fields, attend)
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
@adapted(axes={"q": _IN_BATCHES} | _BATCH)
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
    step: Step | None = None,
    check: bool = True,
) -> Tensor | tuple[Tensor, Tensor]:
    """:func:`fovea.latent_attention` over a latent cache whose pages are dealt to the ranks of a group.

    Args:
        q: ``[batch, seq_q, head, d]``, or ``[total_q, head, d]`` with ``cu_seqlens_q``: the same on every rank.
        cache, block_table: This rank's own.
        page: Tokens of a page; None is the cache's second extent.
        kv_len, cu_seqlens_q, group, causal, max_kv_len, return_lse, merge, step, check: As in :func:`paged_attention`.
        format, scale, cache_scale: As in :func:`fovea.latent_attention`.

    Returns:
        out, or (out, lse): float32 ``[batch, head, seq_q]`` or ``[total_q, head]``, the same bits on every rank. No gradient.
    """
    rank, ranks = place(group)
    page = page_of(cache, page)
    fields = {"format": format, "page": page, "batch": kv_len.shape[0], "causal": causal, "scale": scale}
    options: dict[str, Any] = {"format": format, "causal": False, "scale": scale, "cache_scale": cache_scale}
    options["schedule"] = schedule_of(step)

    def attend() -> tuple[Tensor, Tensor]:
        within("page", page, 1)
        batch = Batch(q, block_table, kv_len, cu_seqlens_q, max_kv_len, causal)
        table, own, bound = rows_of_step(step, batch, PageDeal(page, ranks), rank)
        return fovea.latent_attention(q.flatten(0, -3), cache, table, own, max_kv_len=bound, return_lse=True, **options)

    out, lse = _over_ranks(_Step("latent_attention", q, None, merge, group, check), fields, attend)
    out, lse = _in_shape_of(q, out, lse)
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
@adapted(axes={"q": _IN_BATCHES, "sink": "head"})
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
    step: Step | None = None,
    check: bool = True,
) -> Tensor | tuple[Tensor, Tensor]:
    """:func:`fovea.sparse_latent_attention` over a latent cache whose pages are dealt to the ranks of a group.

    Args:
        q: ``[batch, seq_q, head, d]`` or flat ``[seq_q, head, d]``: the same on every rank.
        cache: This rank's own.
        indices: This rank's own: :meth:`PageDeal.local_slots` of the listed tokens, as int32. Tokens of other ranks are -1.
        topk_length, group, format, scale, sink: As in :func:`fovea.sparse_latent_attention`.
        return_lse, merge, step, check: As in :func:`paged_attention`.
    """
    place(group)
    schedule = schedule_of(step)
    fields = {"format": format, "indices.shape": tuple(indices.shape), "scale": scale, "sink": sink is not None}

    def attend() -> tuple[Tensor, Tensor]:
        out, lse = fovea.sparse_latent_attention(
            q, cache, indices, topk_length, format=format, scale=scale, return_lse=True, schedule=schedule
        )
        return (out.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1)) if q.dim() == 4 else (out, lse)

    out, lse = _over_ranks(_Step("sparse_latent_attention", q, sink, merge, group, check), fields, attend)
    out, lse = _in_shape_of(q, out, lse)
    return (out, lse) if return_lse else out


class _Step(NamedTuple):
    """The arguments that all operations have."""

    name: str
    q: Tensor
    sink: Tensor | None
    merge: str
    group: ProcessGroup | None
    check: bool


def _over_ranks(step: _Step, fields: dict[str, Any], attend: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """out and lse of this rank's pages, merged with those of the others. A fault of one rank reaches all before they meet."""
    name = f"fovea.distributed.{step.name}"
    own, fault = None, None
    if step.check:
        try:
            own = _attend(step, attend)
        except (ValueError, NotImplementedError) as error:
            fault = error
        shared = {"q.dtype": str(step.q.dtype), "q.shape": tuple(step.q.shape), "merge": step.merge}
        agree(name, shared | fields, fault, step.q.device, step.group)
    out, lse = _attend(step, attend) if own is None else own
    out, lse = merge_over_ranks(out, lse, step.group, merge=step.merge, name=name)
    return out if step.sink is None else (out * sink_share(lse, step.sink)).to(out.dtype), lse


def _attend(step: _Step, attend: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    one_of("merge", step.merge, MERGES)
    check_sink(step.sink, step.q)
    if wants_gradients(step.sink):
        raise NotImplementedError("sink.requires_grad: got True, want False (no backward pass; use torch.no_grad() or detach())")
    return attend()


def _in_shape_of(q: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Results of rows as those of a batch, where q has one."""
    if q.dim() == 3:
        return out, lse
    batch, seq = q.shape[:2]
    return out.unflatten(0, (batch, seq)), lse.unflatten(0, (batch, seq)).transpose(1, 2)
