# SPDX-License-Identifier: Apache-2.0
"""FlashAttention-3's ``attention_chunk``: sequences are cut where chunks end, and attention takes the parts as sequences.

A query at position p, counted so that the last query is the last key, sees the keys of its own chunk: ``j // chunk == p // chunk``.
Queries and keys of a part end at the same position. Causal masks and windows therefore stay what they are.
"""

from typing import Any

import torch
from torch import Tensor

from fovea._library import rows_each
from fovea.compat._arguments import bound, check, integer, readable
from fovea.compat._flash_attn import UNSCALED, Ragged, Scales, Scores, dense


def chunk_of(attention_chunk: Tensor | int) -> int:
    """The size of chunks; 0 is none. Lengths are int32: larger chunks than those can be are all alike."""
    chunk = integer("attention_chunk", attention_chunk)
    check(chunk >= 0, "attention_chunk", chunk, "0 (no chunks) or more")
    return min(chunk, 1 << 31)


def chunks_of(rows: int, chunk: int) -> int:
    """How many chunks so many consecutive queries meet at most."""
    return (max(rows, 1) + chunk - 2) // chunk + 1


def cuts(rows: Tensor | int, keys: Tensor, chunk: int, parts: int) -> tuple[Tensor, Tensor]:
    """Where parts begin, and where the last one ends: query rows and keys of each sequence, int64 ``[batch, parts + 1]``.

    Keys before the first query's chunk belong to no part. Queries before the first key are in parts without keys.
    """
    keys = keys.long()[:, None]
    before = keys - (rows.long()[:, None] if isinstance(rows, Tensor) else rows)
    numbers = torch.arange(parts + 1, device=keys.device)
    ends = torch.minimum((before.div(chunk, rounding_mode="floor") + numbers) * chunk, keys)
    return (ends - before).clamp(min=0), ends.clamp(min=0)


def check_ends(name: str, cu_seqlens: Tensor, most: int | None) -> None:
    """Refuses lengths that the parts of their sequences would hide."""
    check(cu_seqlens.dtype == torch.int32, f"{name}.dtype", cu_seqlens.dtype, torch.int32)
    check(len(cu_seqlens) > 0, f"{name}.shape", list(cu_seqlens.shape), "[batch + 1]")
    if not readable(cu_seqlens):
        return
    for index, length in enumerate(cu_seqlens.diff().tolist()):
        if length < 0 or (most is not None and length > most):
            want = "0 or more" if most is None else f"0 to {most}"
            check(False, f"{name}[{index + 1}] (length of the sequence)", length, want)


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scores: Scores,
    chunk: int,
    *,
    lengths: Ragged | None = None,
    parts: int = 1,
    scales: Scales = UNSCALED,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """:func:`dense` within chunks. ``parts``: in how many sequences of ``lengths`` each one of ``scales`` is split already."""
    if not chunk:
        return dense(q, k, v, scores, lengths=lengths, others=scales.options(parts), **options)
    if lengths is not None:
        lengths, more = _split(lengths, chunk, q.shape[0])
        return dense(q, k, v, scores, lengths=lengths, others=scales.options(parts * more), **options)
    batch, seq_q = q.shape[:2]
    check(k.shape[0] == batch, "k.shape[0] (batch)", k.shape[0], f"{batch} (batch of q)")
    check(v.shape[:2] == k.shape[:2], "v.shape[:2] (batch, seq_k)", list(v.shape[:2]), f"{list(k.shape[:2])}, as k")
    ends = Ragged(rows_each(q, batch, seq_q), rows_each(k, batch, k.shape[1]), seq_q, k.shape[1])
    flat = (tensor.flatten(0, 1) for tensor in (q, k, v))
    out, lse = chunked(*flat, scores, chunk, lengths=ends, scales=scales, **options)
    lse = lse if lse is None else lse.view(lse.shape[0], batch, seq_q).transpose(0, 1).contiguous()
    return out.view(batch, seq_q, *out.shape[1:]), lse


def _split(lengths: Ragged, chunk: int, total_q: int) -> tuple[Ragged, int]:
    """Lengths of all parts, and how many sequences one becomes: the keys that no query sees, and a part for each chunk."""
    most_q, most_k = bound(lengths.max_seqlen_q, "max_seqlen_q"), bound(lengths.max_seqlen_k, "max_seqlen_k")
    cu_q, cu_k = lengths.cu_seqlens_q, lengths.cu_seqlens_k
    check(cu_k.device == cu_q.device, "cu_seqlens_k.device", cu_k.device, f"{cu_q.device}, as cu_seqlens_q")
    check(cu_k.shape == cu_q.shape, "cu_seqlens_k.shape", list(cu_k.shape), f"{list(cu_q.shape)}, as cu_seqlens_q")
    check_ends("cu_seqlens_q", cu_q, most_q)
    check_ends("cu_seqlens_k", cu_k, most_k)
    parts = chunks_of(total_q if most_q is None else min(most_q, total_q), chunk)
    ends = []
    for cu, cut in zip((cu_q, cu_k), cuts(cu_q.diff(), cu_k.diff(), chunk, parts), strict=True):
        begin = cu[:-1, None].long()
        ends.append(torch.cat([torch.cat([begin, begin + cut[:, :-1]], dim=1).flatten(), cu[-1:]]).int())
    return Ragged(*ends, None if most_q is None else min(most_q, chunk), most_k), parts + 1
