# SPDX-License-Identifier: Apache-2.0
"""Calls of the operators on blocks, and the sink, which joins after all of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fovea._block_mask import NO_BLOCKS
from fovea._dispatch import OPERATORS
from fovea._library import NO_SCALES, NO_TERMS, deterministic_order
from fovea.distributed._blocks import Block, on_device

_attention = OPERATORS["attention"]
_attention_backward = OPERATORS["attention_backward"]


@dataclass(frozen=True)
class Scores:
    """Scale and softcap of the scores, as the operators take them."""

    scale: float
    softcap: float


def rows_of(tensor: Tensor, at: tuple[int, int]) -> Tensor:
    """Tokens [begin, end) of ``[batch, seq, head, dim]`` or ``[total, head, dim]``."""
    return tensor[:, at[0] : at[1]] if tensor.dim() == 4 else tensor[at[0] : at[1]]


def numbers_of(lse: Tensor, at: tuple[int, int]) -> Tensor:
    """The same of ``[batch, head, seq]`` or ``[total, head]``."""
    return lse[..., at[0] : at[1]] if lse.dim() == 3 else lse[at[0] : at[1]]


def new_lse(q: Tensor) -> Tensor:
    shape = (q.shape[0], q.shape[2], q.shape[1]) if q.dim() == 4 else q.shape[:2]
    return q.new_full(shape, -torch.inf, dtype=torch.float32)


def attend(
    block: Block, q: Tensor, keys: tuple[Tensor, Tensor], scores: Scores, sink: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """out and lse of the block's queries. q is the whole shard, K and V are those of some rank."""
    k, v = (rows_of(tensor, block.k) for tensor in keys)
    q = rows_of(q, block.q)
    out, lse = q.new_empty((*q.shape[:-1], v.shape[-1])), new_lse(q)
    lengths = _lengths(block, q)
    terms = (scores.scale, scores.softcap, sink, *NO_BLOCKS, *NO_TERMS)
    _attention(q, k, v, out, lse, *lengths, *block.band, True, *terms, *NO_SCALES, "", False)
    return out, lse


def _lengths(block: Block, q: Tensor) -> tuple[Tensor | int | None, ...]:
    if not block.cu_q:
        return None, None, None, None
    most = (max(end - begin for begin, end in pairwise(cu)) for cu in (block.cu_q, block.cu_k))
    return on_device(block.cu_q, q.device), on_device(block.cu_k, q.device), *most


@dataclass(frozen=True)
class Forward:
    """The shard's part of a forward pass that is over, and the gradients of its results."""

    q: Tensor
    out: Tensor
    lse: Tensor
    dout: Tensor
    dlse: Tensor | None
    sink: Tensor | None

    def heads(self, first: int, last: int) -> Forward:
        """Some of its heads."""
        dlse = None if self.dlse is None else self.dlse[:, first:last]
        sink = None if self.sink is None else self.sink[first:last]
        q, out, dout = (tensor[..., first:last, :] for tensor in (self.q, self.out, self.dout))
        return Forward(q, out, self.lse[:, first:last], dout, dlse, sink)


def differentiate(
    block: Block, forward: Forward, keys: tuple[Tensor, Tensor], scores: Scores
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """dq, dk and dv of the block, and dsink of its queries. out and lse are over all keys, so these are parts of the whole."""
    q, out, dout = (rows_of(tensor, block.q) for tensor in (forward.q, forward.out, forward.dout))
    lse = numbers_of(forward.lse, block.q)
    dlse = None if forward.dlse is None else numbers_of(forward.dlse, block.q)
    k, v = (rows_of(tensor, block.k) for tensor in keys)
    gradients = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (q, k, v)]
    dsink = None if forward.sink is None else torch.empty_like(forward.sink)
    terms = (scores.scale, scores.softcap, forward.sink, *NO_BLOCKS, *NO_TERMS)
    call = (q, k, v, out, lse, *_lengths(block, q), *block.band, True, *terms)
    _attention_backward(*call, dout, dlse, *gradients, dsink, None, "", deterministic_order(False))
    return gradients[0], gradients[1], gradients[2], dsink


def check_sink(sink: Tensor | None, q: Tensor) -> None:
    """As the operators would, which are not given it: it joins after the merge."""
    if sink is None:
        return
    if sink.dtype != torch.float32:
        raise ValueError(f"sink.dtype: got {sink.dtype}, want torch.float32")
    if sink.shape != q.shape[-2:-1]:
        raise ValueError(f"sink.shape[0] (head): got {sink.shape[0]}, want {q.shape[-2]} (head of q)")
    if sink.device != q.device:
        raise ValueError(f"sink.device: got {sink.device}, want {q.device}, as q")


def sink_share(lse: Tensor, sink: Tensor) -> Tensor:
    """``exp(lse) / (exp(lse) + exp(sink))``, to multiply out with: ``[..., seq, head, 1]``. 0 for a row without keys."""
    lse = lse.transpose(1, 2) if lse.dim() == 3 else lse
    return torch.where(lse == -torch.inf, 0.0, torch.sigmoid(lse - sink))[..., None]


def sink_gradient(forward: Forward) -> Tensor | None:
    """The gradient of the sink over this shard's rows; None without a sink."""
    if forward.sink is None:
        return None
    delta = (forward.dout.float() * forward.out.float()).sum(dim=-1)
    lse = forward.lse.transpose(1, 2) if forward.lse.dim() == 3 else forward.lse
    share = torch.where((lse == -torch.inf) | forward.sink.isinf(), 0.0, torch.sigmoid(forward.sink - lse) * delta)
    return -share.flatten(0, -2).sum(dim=0)
