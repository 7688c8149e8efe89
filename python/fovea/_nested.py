# SPDX-License-Identifier: Apache-2.0
"""Dense attention of torch's nested tensors, whose values are a ragged batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fovea._attention import attention

Nested = Any
"""A Tensor. torch's annotations lack the methods that nested ones have."""


def check_nested(query: Nested, key: Nested, value: Nested) -> None:
    """Refuses what is no ragged batch, or not the same one."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        _check(name, tensor)
    for name, tensor in (("key", key), ("value", value)):
        if tensor.shape[0] != query.shape[0]:
            raise ValueError(f"{name}.shape[0] (batch): got {tensor.shape[0]}, want {query.shape[0]} (batch of query)")
    one, other = key.offsets(), value.offsets()
    if one is not other and not torch.equal(one, other):
        raise ValueError("value.offsets(): got other lengths than key has, want those of key")


def nested_attention(query: Nested, key: Nested, value: Nested, **options: Any) -> Tensor:
    """:func:`fovea.attention` of nested tensors ``[batch, head, seq, head_dim]`` that were checked; the result is one too."""
    out = attention(
        *(_rows(tensor) for tensor in (query, key, value)),
        cu_seqlens_q=query.offsets().to(torch.int32),
        cu_seqlens_k=key.offsets().to(torch.int32),
        max_seqlen_q=_known(query, "max"),
        max_seqlen_k=_known(key, "max"),
        **options,
    )
    shortest, longest = _known(query, "min"), _known(query, "max")
    return torch.nested.nested_tensor_from_jagged(out, query.offsets(), min_seqlen=shortest, max_seqlen=longest).transpose(1, 2)


def _check(name: str, tensor: Nested) -> None:
    if not tensor.is_nested:
        raise ValueError(f"{name}.is_nested: got False, want True (query, key and value are nested, or none is)")
    if tensor.layout != torch.jagged:
        raise NotImplementedError(f"{name}.layout: got {tensor.layout}, want torch.jagged")
    ragged = [axis for axis, extent in enumerate(tensor.shape) if axis > 0 and isinstance(extent, torch.SymInt)]
    if ragged != [2]:
        raise ValueError(
            f"{name}.shape (the axis of lengths): got {', '.join(map(str, ragged))}, want 2 ([batch, head, seq, head_dim])"
        )
    if tensor.lengths() is not None:
        raise NotImplementedError(
            f"{name}.lengths(): got a tensor, want None (sequences without gaps between; contiguous() copies them)"
        )


def _rows(tensor: Nested) -> Tensor:
    """``[total, head, head_dim]``"""
    rows: Tensor = tensor.transpose(1, 2).values()
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _known(tensor: Nested, which: str) -> int | None:
    """A bound of the lengths that the host has already; asking for another one would wait for the device."""
    return getattr(tensor, f"_maybe_{which}_seqlen", None)
