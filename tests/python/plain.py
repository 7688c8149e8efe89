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


def visible_keys(seq_q, seq_k, left=None, right=None, offset=None) -> Tensor:
    """Which keys each query sees, bool [seq_q, seq_k]; offset None is bottom-right."""
    distance = torch.arange(seq_k)[None, :] - torch.arange(seq_q)[:, None] - (seq_k - seq_q if offset is None else offset)
    visible = torch.ones(seq_q, seq_k, dtype=torch.bool)
    if left is not None:
        visible &= distance >= -left
    if right is not None:
        visible &= distance <= right
    return visible


def attention(
    q, k, v, *, left=None, right=None, offset=None, scale=None, softcap=0.0, sink=None, visible=None, bias=None, keep=None
) -> Expected:
    """One sequence: q [seq_q, head, dqk], k [seq_k, kv_head, dqk], v [seq_k, kv_head, dv]. Autograd can follow it.

    ``visible`` [head or 1, seq_q, seq_k] hides more keys than the band, ``bias`` is added after softcap (its -inf hides keys too),
    and weights are multiplied by ``keep``.
    """
    band, group = visible_keys(q.shape[0], k.shape[0], left, right, offset)[None], q.shape[1] // k.shape[1]
    visible = band if visible is None else band & visible
    if bias is not None:
        visible, bias = visible & ~bias.isneginf(), bias.masked_fill(bias.isneginf(), 0.0)
    seen = visible.any(dim=1).any(dim=0)[:, None, None]  # what nobody sees may be NaN
    q, k, v = q.double(), torch.where(seen, k.double(), 0.0), torch.where(seen, v.double(), 0.0)
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("ihd,jhd->hij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    blind = ~visible.any(dim=2, keepdim=True)
    lse = torch.logsumexp(torch.where(blind, 0.0, scores.masked_fill(~visible, -torch.inf)), dim=-1)
    total = lse if sink is None else torch.logaddexp(lse, sink.double()[:, None])
    p = torch.exp((scores - total[..., None]).masked_fill(~visible, -torch.inf))  # before exp, whose gradient may overflow
    lse = torch.where(blind[..., 0], -torch.inf, lse)
    # A NaN that a row sees, and no other row.
    read = torch.einsum("hij,jhd->ihd", visible.double().expand(q.shape[1], -1, -1), v.isnan().double()) > 0
    p = p if keep is None else p * keep
    v = v.nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)
    out = torch.where(read, torch.nan, torch.einsum("hij,jhd->ihd", p, v))
    return Expected(out, lse.T, torch.einsum("hij,jhd->ihd", p, v.abs()))


def in_chunks(q, k, v, chunk, **mask) -> Expected:
    """One sequence where query position p sees the keys of its own chunk, ``j // chunk == p // chunk``; bottom-right."""
    parts, before = [attention(q[:0], k, v, **mask)], len(k) - len(q)
    for row in range(len(q)):
        position = before + row
        begin = max(position // chunk * chunk, 0)
        keys = slice(begin, max(min((position // chunk + 1) * chunk, len(k)), 0))
        parts.append(attention(q[row : row + 1], k[keys], v[keys], offset=position - begin, **mask))
    return join(parts)


def gradients(dout, q, k, v, out, lse, *, dlse=None, left=None, right=None, offset=None, scale=None, softcap=0.0, sink=None):
    """dq, dk, dv and dsink of one sequence by the usual formula in f32, with P and dS rounded as a matrix unit takes them."""
    dtype, group = q.dtype, q.shape[1] // k.shape[1]
    visible, scale = visible_keys(q.shape[0], k.shape[0], left, right, offset), q.shape[-1] ** -0.5 if scale is None else scale
    dout, q, k, v, out = (tensor.float() for tensor in (dout, q, k, v, out))
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores, slope = torch.einsum("ihd,jhd->hij", q, k) * scale, 1.0
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
        slope = 1 - (scores / softcap) ** 2
    sink = torch.full((q.shape[1],), -torch.inf) if sink is None else sink
    total = torch.logaddexp(lse.T, sink[:, None])
    p = torch.where(visible, torch.exp(scores - total[..., None]), 0.0)
    delta = (dout * out).sum(dim=-1).T
    ds = p * (torch.einsum("ihd,jhd->hij", dout, v) - delta[..., None])
    if dlse is not None:
        ds = ds + torch.where(visible, torch.exp(scores - lse.T[..., None]), 0.0) * dlse.T[..., None]
    ds = (ds * slope).to(dtype).float() * scale
    p = p.to(dtype).float()
    products = (
        torch.einsum("hij,jhd->ihd", ds, k),
        torch.einsum("hij,ihd->jhd", ds, q).unflatten(1, (-1, group)).sum(dim=2),
        torch.einsum("hij,ihd->jhd", p, dout).unflatten(1, (-1, group)).sum(dim=2),
    )
    dsink = torch.where(lse.T.isneginf(), 0.0, -torch.exp(sink[:, None] - total) * delta).cumsum(dim=1)[:, -1]
    return *(product.to(dtype) for product in products), dsink


def latent(q, rows, **options) -> Expected:
    """Attention of q [seq_q, head, d] over latent rows [seq_k, d]: K is the row, V its first 512 values."""
    return attention(q, rows[:, None], rows[:, None, :512], **options)


def sparse(q, caches, *, scale=None, sink=None) -> tuple[Expected, Tensor]:
    """Each query row over the tokens it lists, and the largest score of each row and head.

    caches: for each, its tokens one after another [tokens, d], indices [seq_q, topk], and how many of each list count, or None.
    """
    parts, largest = [], []
    for row in range(q.shape[0]):
        chosen = []
        for tokens, indices, lengths in caches:
            entries = indices[row, : max(0, int(lengths[row]))] if lengths is not None else indices[row]
            chosen.append(tokens[entries[(entries >= 0) & (entries < len(tokens))].long()])
        rows = torch.cat(chosen)
        parts.append(latent(q[row : row + 1], rows, scale=scale, sink=sink))
        scores = torch.einsum("hd,jd->hj", q[row].double(), rows.double()) * (q.shape[-1] ** -0.5 if scale is None else scale)
        scores = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)  # a NaN does not count
        largest.append(torch.cat([scores, torch.full((q.shape[1], 1), -torch.inf)], dim=1).amax(dim=1))
    return join(parts), torch.stack(largest)


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
