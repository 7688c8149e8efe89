# SPDX-License-Identifier: Apache-2.0
"""Masks, biases and dropout of one sequence, as the definitions take them."""

import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import fovea


class Undecided(Exception):
    """The definition leaves the result open."""


def score_terms(a: SimpleNamespace, b: int, at: Any, seq_q: int, seq_k: int, batch: int) -> dict[str, Any]:
    rows = at if isinstance(at, slice) else slice(b * seq_q, (b + 1) * seq_q)
    return terms(a, b, rows, seq_k, batch)


def decide(own: dict[str, Any], *operands: Tensor) -> None:
    """Weights that a bias or dropout makes 0 may still multiply what is no number, and -inf may be added to it."""
    if own["bias"] is None and own["keep"] is None:
        return
    if not all(bool(operand.double().isfinite().all()) for operand in operands):
        raise Undecided("a weight of 0 where there are no numbers")


def terms(a: SimpleNamespace, b: int, rows: slice, seq_k: int, batch: int, anchored: bool = True) -> dict[str, Any]:
    """Options of plain.attention for sequence b, whose queries are ``rows`` of all: visible, bias and keep."""
    seq_q, head = rows.stop - rows.start, a.q.shape[-2]
    seen = [
        *([bits(a, b, rows, seq_q, seq_k)] if _has(a, "packed_mask") else []),
        *([listed(a.block_mask, b, seq_q, seq_k)] if _has(a, "block_mask") else []),
    ]
    visible = None
    for each in seen:
        visible = each if visible is None else visible & each
    return {"visible": visible, "bias": added(a, b, seq_q, seq_k, anchored), "keep": kept(a, b, batch, head, seq_q, seq_k)}


def _has(a: SimpleNamespace, name: str) -> bool:
    return getattr(a, name, None) is not None


def unpacked(packed: Tensor) -> Tensor:
    """Bits of bytes, the lowest first: bool [.., 8 * bytes]."""
    return (packed[..., None] >> torch.arange(8, dtype=torch.uint8) & 1).bool().flatten(-2)


def bits(a: SimpleNamespace, b: int, rows: slice, seq_q: int, seq_k: int) -> Tensor:
    """Visibility by a packed mask, [1, seq_q, seq_k]. Bits of keys before the first count for nothing."""
    tail = seq_k if a.mask_tail is None else int(a.mask_tail)
    if a.packed_mask.dim() == 1:
        begin = 0 if a.mask_indptr is None else int(a.mask_indptr[b])
        end = len(a.packed_mask) if a.mask_indptr is None else int(a.mask_indptr[b + 1])
        assert 0 <= begin <= end <= len(a.packed_mask) and 8 * (end - begin) >= seq_q * tail
        of_rows = unpacked(a.packed_mask[begin:end])[: seq_q * tail].view(seq_q, tail)
    else:
        of_rows = unpacked(a.packed_mask.flatten(0, -2)[rows])[:, :tail]
    visible = torch.ones(seq_q, seq_k, dtype=torch.bool)
    shown = min(tail, seq_k)
    if shown:
        visible[:, seq_k - shown :] = of_rows[:, tail - shown :]
    return visible[None]


def listed(mask: fovea.BlockMask, b: int, seq_q: int, seq_k: int) -> Tensor:
    """Visibility by the lists of a block mask, [head or 1, seq_q, seq_k]."""
    block_q, block_k = mask.block_size
    head = max(counts.shape[1] for counts in (mask.full_counts, mask.partial_counts) if counts is not None)
    visible = torch.zeros(head, -(-seq_q // block_q) * block_q, -(-seq_k // block_k) * block_k, dtype=torch.bool)
    for counts, indices, words in (
        (mask.full_counts, mask.full_indices, None),
        (mask.partial_counts, mask.partial_indices, mask.partial_bits),
    ):
        if counts is None:
            continue
        of = b if len(counts) > 1 else 0
        for h in range(head):
            its = h if counts.shape[1] > 1 else 0
            for block in range(visible.shape[1] // block_q):
                for slot in range(int(counts[of, its, block])):
                    column = int(indices[of, its, block, slot])
                    if not 0 <= column < visible.shape[2] // block_k:
                        continue
                    tile = torch.ones(block_q, block_k, dtype=torch.bool)
                    if words is not None:
                        own = words[of, its, block].view(-1, block_q * block_k // 32)[slot].contiguous()
                        tile = unpacked(own.view(torch.uint8)).view(block_q, block_k)
                    at = slice(block * block_q, (block + 1) * block_q), slice(column * block_k, (column + 1) * block_k)
                    visible[h][at] |= tile
    return visible[:, :seq_q, :seq_k]


def added(a: SimpleNamespace, b: int, seq_q: int, seq_k: int, anchored: bool) -> Tensor | None:
    """ALiBi and the bias, float64 [head, seq_q, seq_k]."""
    total = None
    if _has(a, "alibi_slopes"):
        slopes = a.alibi_slopes if a.alibi_slopes.dim() == 1 else a.alibi_slopes[b]
        begin = 0 if anchored and a.anchor == "top_left" else seq_k - seq_q
        distance = torch.arange(seq_k) - torch.arange(seq_q)[:, None] - begin
        total = -slopes.double()[:, None, None] * distance.abs()
    if _has(a, "bias"):
        own = a.bias[b if len(a.bias) > 1 else 0].double()
        shape = (a.q.shape[-2], *(each if had == 1 else had for had, each in zip(own.shape[1:], (seq_q, seq_k), strict=True)))
        own = own.expand(shape)[:, :seq_q, :seq_k]
        total = own if total is None else total + own
    return total


def kept(a: SimpleNamespace, b: int, batch: int, head: int, seq_q: int, seq_k: int) -> Tensor | None:
    """The factors of weights, float64 [head, seq_q, seq_k]."""
    if not getattr(a, "dropout_p", 0.0):
        return None
    if a.dropout_state is None:
        raise Undecided("dropout draws its seed")
    return factors(a.dropout_state, float(a.dropout_p), batch, head, seq_q, seq_k)[b]


def factors(state: Tensor, p: float, batch: int, heads: int, seq_q: int, seq_k: int) -> Tensor:
    """The factors of weights under dropout, float64 ``[batch, heads, seq_q, seq_k]``: 16 bits of Philox decide about a key."""
    seed, offset = (int(number) for number in state)
    words = [torch.tensor(each) for each in (offset & 0xFFFFFFFF, offset >> 32 & 0xFFFFFFFF, 0, 0)]
    low, high, *_ = philox(words, (torch.tensor(seed & 0xFFFFFFFF), torch.tensor(seed >> 32 & 0xFFFFFFFF)))
    j, i = torch.arange(seq_k), torch.arange(seq_q)[:, None]
    head = torch.arange(batch * heads).view(batch, heads, 1, 1)
    counter = torch.broadcast_tensors(j // 32 * 4 + j // 2 % 4, i, head, torch.zeros((), dtype=torch.int64))
    words = torch.stack(philox(counter, (low, high)), dim=-1)
    word = words.gather(-1, (j // 8 % 4).expand(words.shape[:-1])[..., None])[..., 0]
    bits = torch.where(j % 2 == 0, word & 0xFFFF, word >> 16)
    return (bits >= math.floor(p * 65536 + 0.5)).double() / (1 - p)


def philox(counter, key):
    """Philox4x32-10 over tensors of int64 that hold 32 bits."""
    x, y, z, w = counter
    low, high = key
    for _ in range(10):
        a, b = [product(c, each) for c, each in ((0xD2511F53, x), (0xCD9E8D57, z))]
        x, y, z, w = b[0] ^ y ^ low, b[1], a[0] ^ w ^ high, a[1]
        low, high = (low + 0x9E3779B9) & 0xFFFFFFFF, (high + 0xBB67AE85) & 0xFFFFFFFF
    return x, y, z, w


def product(constant, x):
    """High and low 32 bits."""
    low = constant * (x & 0xFFFF)
    high = constant * (x >> 16) + (low >> 16)
    return high >> 16, (high & 0xFFFF) << 16 | low & 0xFFFF
