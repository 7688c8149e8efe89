# SPDX-License-Identifier: Apache-2.0
"""Floating-point operations of the attention operators, for torch.utils.flop_counter.FlopCounterMode.

Counted as torch counts scaled_dot_product_attention: every query with every key of its sequence, whatever the mask hides. The
lengths of sequences are read, which waits for the device; fake tensors count at their bounds.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils.flop_counter import register_flop_formula

from fovea import _library  # noqa: F401 (loads the operators)

_Call = dict[str, Any]


def _formula(*names: str) -> Callable[[Callable[[_Call], int]], Callable[[_Call], int]]:
    """Registers the count of operators, which gets their arguments by name."""

    def register(count: Callable[[_Call], int]) -> Callable[[_Call], int]:
        for name in names:
            packet = getattr(torch.ops.fovea, name)
            arguments = [argument.name for argument in packet.default._schema.arguments]

            def flops(*args: Any, out_val: Any = None, _names: list[str] = arguments, **kwargs: Any) -> int:
                return count(dict(zip(_names, args, strict=False)) | kwargs)

            register_flop_formula(packet, get_raw=True)(flops)
        return count

    return register


@_formula("attention", "differentiable_attention", "quantized_attention", "quantize_and_attend")
def _forward(call: _Call) -> int:
    return 2 * _pairs(call) * call["q"].shape[-2] * (call["q"].shape[-1] + call["v"].shape[-1])


@_formula("attention_backward")
def _backward(call: _Call) -> int:
    """Recomputed scores, dq and dk count with the head dim of q; dp and dv count with that of v."""
    return 2 * _pairs(call) * call["q"].shape[-2] * (3 * call["q"].shape[-1] + 2 * call["v"].shape[-1])


@_formula("paged_attention", "latent_attention")
def _cached(call: _Call) -> int:
    q, table = call["q"], call["block_table"]
    cache, values = (call["cache"], 512) if "cache" in call else (call["k_cache"], call["out"].shape[-1])
    keys = _values(call["kv_len"], call["max_kv_len"] or table.shape[1] * cache.shape[1])
    cu = call["cu_seqlens_q"]
    if cu is not None:
        queries = _lengths(cu, call["max_seqlen_q"] or q.shape[0])
    else:
        queries = [q.shape[1] if q.dim() == 4 else 1] * len(keys)
    pairs = sum(rows * length for rows, length in zip(queries, keys, strict=True))
    return 2 * pairs * q.shape[-2] * (q.shape[-1] + values)


@_formula("sparse_latent_attention")
def _sparse(call: _Call) -> int:
    """Counts all tokens that the lists have room for."""
    q, listed = call["q"], call["indices"].shape[-1]
    if call["extra_indices"] is not None:
        listed += call["extra_indices"].shape[-1]
    return 2 * q[..., 0].numel() * listed * (q.shape[-1] + 512)


def _pairs(call: _Call) -> int:
    """Queries times keys, over the sequences of a batch."""
    q, k = call["q"], call["k"]
    if call["cu_seqlens_q"] is None:
        return q.shape[0] * q.shape[1] * k.shape[1]
    queries = _lengths(call["cu_seqlens_q"], call["max_seqlen_q"] or q.shape[0])
    keys = _lengths(call["cu_seqlens_k"], call["max_seqlen_k"] or k.shape[0])
    return sum(rows * length for rows, length in zip(queries, keys, strict=True))


def _lengths(cu_seqlens: Tensor, bound: int) -> list[int]:
    return _values(cu_seqlens.diff(), bound)


def _values(lengths: Tensor, bound: int) -> list[int]:
    """The numbers of a tensor, or their bound where nobody knows them."""
    if isinstance(lengths, FakeTensor | FunctionalTensor) or lengths.device.type == "meta":
        return [bound] * lengths.shape[0]
    return lengths.tolist()
