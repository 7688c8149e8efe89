# SPDX-License-Identifier: Apache-2.0
"""Attention in plain float64 torch, straight from the definition, and how far a kernel may be from it."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Expected:
    """One attention result in float64: out [seq_q, head, dv] and lse [seq_q, head]."""

    out: Tensor
    lse: Tensor
    weight: Tensor  # sum_j p_j |v_j|, what rounding errors of out are proportional to


def attention(q, k, v, *, left=None, right=None, offset=None, scale=None, softcap=0.0, sink=None) -> Expected:
    """One sequence: q [seq_q, head, dqk], k [seq_k, kv_head, dqk], v [seq_k, kv_head, dv]; offset None is bottom-right."""
    q, k, v = q.double(), k.double(), v.double()
    seq_q, seq_k, group = q.shape[0], k.shape[0], q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("ihd,jhd->hij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    distance = torch.arange(seq_k)[None, :] - torch.arange(seq_q)[:, None] - (seq_k - seq_q if offset is None else offset)
    visible = torch.ones(seq_q, seq_k, dtype=torch.bool)
    if left is not None:
        visible &= distance >= -left
    if right is not None:
        visible &= distance <= right
    scores = scores.masked_fill(~visible, -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    total = lse if sink is None else torch.logaddexp(lse, sink.double()[:, None])
    p = torch.exp(scores - torch.where(lse == -torch.inf, torch.zeros_like(lse), total)[..., None])
    visible_v = torch.where(visible.any(dim=0)[:, None, None], v, 0.0)  # what nobody sees may be NaN
    out = torch.einsum("hij,jhd->ihd", p, visible_v)
    return Expected(out, lse.T, torch.einsum("hij,jhd->ihd", p, visible_v.abs()))


def join(parts: list[Expected]) -> Expected:
    """Sequences one after another, as a ragged batch."""
    return Expected(*(torch.cat([getattr(part, name) for part in parts]) for name in ("out", "lse", "weight")))


def check(out: Tensor, lse: Tensor | None, expected: Expected) -> None:
    """Asserts out [rows, head, dv] and lse [rows, head] element by element; NaN and infinities must sit where they should."""
    roundoff = torch.finfo(out.dtype).eps / 2
    # f32 scores of size s are off by s * 2^-24 times a small factor, which out and lse inherit.
    factor = 64 if out.dtype == torch.float32 else 6
    bound = factor * roundoff * expected.weight + 1e-7
    error = (out.double() - expected.out).abs()
    assert out.shape == expected.out.shape
    assert bool((error <= bound).all()), f"out is off by up to {error.max():.2e}, {(error / bound).max():.2f} of the bound"
    if lse is None:
        return
    assert lse.shape == expected.lse.shape
    finite = expected.lse.isfinite()
    assert torch.equal(lse[~finite].double(), expected.lse[~finite])
    error = (lse.double() - expected.lse)[finite].abs()
    assert bool((error <= 1e-5 + expected.lse[finite].abs() * 8 / 65536).all()), f"lse is off by up to {error.max():.2e}"
