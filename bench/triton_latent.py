# SPDX-License-Identifier: Apache-2.0
"""A plain Triton kernel of token-sparse decode over rows of 656 bytes, and one that combines its splits.

A program has one query token, some heads and a split. Codes are operands as they are, and scales go to scores and probabilities."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.testing import do_bench

if TYPE_CHECKING:
    from sparse_latent import Sparse

ROW = 656  # bytes: 512 codes, four f32 scales, 64 bf16 values
LOG2E = 1.4426950408889634
GROUPS = {16: (64, 4), 64: (32, 8)}  # heads of a program: keys of a tile, warps
SPLITS = (1, 4, 16)


@triton.jit
def group_scores(q, codes, scales, at, q_at, valid, group: tl.constexpr):
    """Scores by 128 columns; the codes of these columns and their scales."""
    column = tl.arange(0, 128)
    k = tl.load(codes + at[:, None] + group * 128 + column[None, :], mask=valid[:, None], other=0.0).to(tl.bfloat16)
    scale = tl.load(scales + at // 4 + 128 + group, mask=valid, other=0.0)
    part = tl.load(q + q_at + group * 128 + column[None, :])
    return tl.dot(part, tl.trans(k)) * scale[None, :], k, scale


@triton.jit
def partial_attention(
    q, codes, scales, rope, indices, out, lse, topk, tokens, scale, heads: tl.constexpr, group: tl.constexpr, tile: tl.constexpr
):
    token, first, split, splits = tl.program_id(0), tl.program_id(1) * group, tl.program_id(2), tl.num_programs(2)
    head = first + tl.arange(0, group)
    q_at = (token * heads + head)[:, None].to(tl.int64) * 576
    length = tl.cdiv(tl.cdiv(topk, splits), tile) * tile
    begin, end = split * length, min(topk, split * length + length)
    column, last = tl.arange(0, 128), tl.arange(0, 64)
    q_rope = tl.load(q + q_at + 512 + last[None, :])
    largest, total = tl.full([group], float("-inf"), tl.float32), tl.zeros([group], tl.float32)
    out0, out1 = tl.zeros([group, 128], tl.float32), tl.zeros([group, 128], tl.float32)
    out2, out3 = tl.zeros([group, 128], tl.float32), tl.zeros([group, 128], tl.float32)
    for start in range(begin, end, tile):
        key = start + tl.arange(0, tile)
        index = tl.load(indices + token * topk + key, mask=key < end, other=-1)
        valid = (index >= 0) & (index < tokens)
        at = tl.where(valid, index, 0).to(tl.int64) * 656
        s0, k0, scale0 = group_scores(q, codes, scales, at, q_at, valid, 0)
        s1, k1, scale1 = group_scores(q, codes, scales, at, q_at, valid, 1)
        s2, k2, scale2 = group_scores(q, codes, scales, at, q_at, valid, 2)
        s3, k3, scale3 = group_scores(q, codes, scales, at, q_at, valid, 3)
        k_rope = tl.load(rope + at[:, None] // 2 + 264 + last[None, :], mask=valid[:, None], other=0.0)
        s = s0 + s1 + s2 + s3 + tl.dot(q_rope, tl.trans(k_rope))
        s = tl.where(valid[None, :], s * scale, float("-inf"))
        most = tl.maximum(largest, tl.max(s, 1))
        base = tl.where(most == float("-inf"), 0.0, most)
        p, keep = tl.exp2(s - base[:, None]), tl.exp2(largest - base)
        largest, total = most, total * keep + tl.sum(p, 1)
        out0 = out0 * keep[:, None] + tl.dot((p * scale0[None, :]).to(tl.bfloat16), k0)
        out1 = out1 * keep[:, None] + tl.dot((p * scale1[None, :]).to(tl.bfloat16), k1)
        out2 = out2 * keep[:, None] + tl.dot((p * scale2[None, :]).to(tl.bfloat16), k2)
        out3 = out3 * keep[:, None] + tl.dot((p * scale3[None, :]).to(tl.bfloat16), k3)
    factor = tl.where(total == 0, 0.0, 1 / total)[:, None]
    to = ((token * heads + head) * splits + split).to(tl.int64)
    tl.store(lse + to, largest + tl.log2(total))
    to = out + to[:, None] * 512 + column[None, :]
    tl.store(to, out0 * factor)
    tl.store(to + 128, out1 * factor)
    tl.store(to + 256, out2 * factor)
    tl.store(to + 384, out3 * factor)


@triton.jit
def combine(partials, lses, out, lse, splits: tl.constexpr):
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, 512)
    largest, total, done = float("-inf"), 0.0, tl.zeros([512], tl.float32)
    for split in range(splits):
        of = tl.load(lses + row * splits + split)
        most = tl.maximum(largest, of)
        base = tl.where(most == float("-inf"), 0.0, most)
        keep, weight = tl.exp2(largest - base), tl.exp2(of - base)
        done = done * keep + weight * tl.load(partials + (row * splits + split) * 512 + column)
        largest, total = most, total * keep + weight
    tl.store(out + row * 512 + column, tl.where(total == 0, 0.0, done / total))
    tl.store(lse + row, (largest + tl.log2(total)) * 0.6931471805599453)


def attend(subject: "Sparse", group: int, splits: int) -> Tensor:
    batch, seq_q, heads, width = subject.q.shape
    tokens, data = batch * seq_q, subject.cache.data
    partials = torch.empty(tokens * heads, splits, 512, device=data.device)
    lses = torch.empty(tokens * heads, splits, device=data.device)
    out, lse = torch.empty_like(subject.out), torch.empty(batch, seq_q, heads, device=data.device)
    flat = data.view(-1)
    views = (flat.view(dtype) for dtype in (torch.float8_e4m3fn, torch.float32, torch.bfloat16))
    tile, warps = GROUPS[group]
    options = {"heads": heads, "group": group, "tile": tile, "num_warps": warps}
    grid = (tokens, heads // group, splits)
    numbers = (subject.indices.shape[-1], flat.numel() // ROW, width**-0.5 * LOG2E)
    partial_attention[grid](subject.q, *views, subject.indices, partials, lses, *numbers, **options)
    combine[(tokens * heads,)](partials, lses, out, lse, splits, num_warps=4)
    return out


def fastest(subject: "Sparse") -> Callable[[], Tensor]:
    """The fastest of all groups of heads and numbers of splits."""
    heads = subject.q.shape[2]
    calls = [partial(attend, subject, group, splits) for group, splits in product(GROUPS, SPLITS) if heads % group == 0]
    return min(calls, key=lambda call: do_bench(call, warmup=5, rep=20, return_mode="median"))
