# SPDX-License-Identifier: Apache-2.0
"""Attention written out with a mask of booleans, and masks in the layouts of packed ones."""

import torch

import fovea


def written_out(q, k, v, visible, scale=None):
    """q [rows, head, d], k and v [keys, kv_head, d], visible [rows, keys]; float64."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = torch.einsum("rhd,khd->hrk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores.masked_fill(~visible, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    weights = torch.exp(scores - torch.where(lse == -torch.inf, 0, lse)[..., None])
    return torch.einsum("hrk,khd->rhd", weights, v), lse.t()


def causal_band(rows, keys):
    return torch.arange(keys) <= torch.arange(rows)[:, None] + keys - rows


def flat(masks):
    """FlashInfer's layout: each sequence's bits without gaps, from a byte of its own on."""
    packed = [fovea.pack_mask(mask.flatten()) for mask in masks]
    ends = torch.tensor([0] + [len(one) for one in packed]).cumsum(0)
    return torch.cat(packed), ends.to(torch.int32)


def ends_of(parts):
    return torch.tensor([0] + [len(part) for part in parts]).cumsum(0).to(torch.int32)
