# SPDX-License-Identifier: Apache-2.0
"""The indexer of token-sparse attention: scores of all tokens, and lists of the best."""

from __future__ import annotations

import torch
from torch import Tensor

from fovea._calls import checked
from fovea._dispatch import OPERATORS

_index_logits = OPERATORS["index_logits"]
_topk_rows = OPERATORS["topk_rows"]


@checked
def index_logits(
    q: Tensor,
    k: Tensor,
    k_scale: Tensor,
    weights: Tensor,
    *,
    first: Tensor | None = None,
    last: Tensor | None = None,
    block_table: Tensor | None = None,
    kv_len: Tensor | None = None,
    keep_outside: bool = False,
    dtype: torch.dtype = torch.float32,
    out: Tensor | None = None,
    implementation: str | None = None,
) -> Tensor:
    """Scores of the indexer: ``out[t, j] = k_scale[j] * sum_h weights[t, h] * max(0, q[t, h] . k[j])``.

    Args:
        q: ``[rows, head, head_dim]``, float8_e4m3fn, head_dim 64 or 128; its scales are factors of weights.
        k: ``[tokens, head_dim]``, float8_e4m3fn, or with a block_table ``[blocks, page, head_dim]``. Blocks may lie apart, so that
            k and k_scale are two views of a planar cache.
        k_scale: float32 ``[tokens]``, or ``[blocks, page]``.
        weights: float32 ``[rows, head]``.
        first: int32 ``[rows]``: the first key that a row sees, 0 without. Cut to the tokens there are.
        last: int32 ``[rows]``: the key behind the last one, the number of tokens without. A row whose range is reversed sees none.
        block_table: int32 ``[batch, max_blocks]``; every sequence has ``rows / batch`` queries, the last of its keys.
        kv_len: int32 ``[batch]``, with a block_table: keys of a sequence. Query i of n sees the keys up to ``kv_len - n + i``.
        keep_outside: Whether what lies outside of the ranges stays as it was, rather than -inf. A new tensor holds anything there.
        dtype: The dtype of a new tensor: float32 or bfloat16.
        out: Written and returned instead of a new tensor: ``[rows, tokens]``, or ``[rows, columns]`` for the first columns of a
            paged sequence.
        implementation: Forces one of :func:`fovea.implementations` by name.

    Returns:
        out. A block number outside of the cache gives NaN, and so does a NaN of q or k.

    Raises:
        ValueError: The call contradicts itself: tensor, field, value and expectation are named.
        NotImplementedError: No implementation accepts it, each with its reason; or a gradient is wanted.

    Source: the lightning indexer of DeepSeek-V3.2 (2025).
    """
    if out is None:
        columns = _extent(k, 0) if block_table is None else _extent(block_table, 1) * _extent(k, 1)
        out = q.new_empty((_extent(q, 0), columns), dtype=dtype)
    _index_logits(q, k, k_scale, weights, out, first, last, block_table, kv_len, keep_outside, implementation or "")
    return out


@checked
def topk_rows(
    logits: Tensor,
    k: int,
    *,
    first: Tensor | None = None,
    last: Tensor | None = None,
    offset: Tensor | None = None,
    block_table: Tensor | None = None,
    page: int = 0,
    sorted: bool = False,
    out: Tensor | None = None,
    implementation: str | None = None,
) -> Tensor:
    """The places of the k largest logits of each row, as a list that :func:`fovea.sparse_latent_attention` takes.

    The lower column of equal values comes first, and NaN comes after -inf. So every implementation makes the same list.

    Args:
        logits: ``[rows, columns]``, float32, float16 or bfloat16.
        k: Length of a list.
        first: int32 ``[rows]``: the first column of a row, 0 without. Cut to the columns there are.
        last: int32 ``[rows]``: the column behind the last one, the number of columns without. A reversed range has no column.
        offset: int32 ``[rows]``, added to the places of a row, which otherwise count from ``first``.
        block_table: int32 ``[batch, max_blocks]``: a place is a token of sequence ``row // (rows / batch)`` then, and becomes
            ``block * page + token % page``.
        page: Tokens of a block, with a block_table.
        sorted: Whether values descend along a list. Otherwise places ascend.
        out: Written and returned instead of a new tensor: int32 ``[rows, k]``.
        implementation: Forces one of :func:`fovea.implementations` by name.

    Returns:
        out: int32. -1 follows the last place of a row with fewer columns. It also stands for a place that is negative, beyond int32
        or beyond the table, and where the table has a negative number.

    Raises:
        ValueError: The call contradicts itself: tensor, field, value and expectation are named.
        NotImplementedError: No implementation accepts it, each with its reason; or a gradient is wanted.

    Source: the token selection of DeepSeek-V3.2 (2025).
    """
    if not isinstance(k, torch.SymInt) and not 0 <= k < 2**31:
        raise ValueError(f"k: got {k}, want 0 to 2147483647")
    if out is None:
        out = logits.new_empty((_extent(logits, 0), k), dtype=torch.int32)
    elif out.dim() == 2 and out.shape[1] != k:
        raise ValueError(f"out.shape[1] (k): got {out.shape[1]}, want {k}")
    _topk_rows(logits, out, first, last, offset, block_table, page, sorted, implementation or "")
    return out


def _extent(tensor: Tensor, axis: int) -> int:
    """0 where there is no such axis: the operator refuses the rank."""
    return tensor.shape[axis] if axis < tensor.dim() else 0
