# SPDX-License-Identifier: Apache-2.0
"""Random masks, biases and dropout for good calls of the fuzzer."""

from typing import Any

import torch

import fovea
from fuzz_draw import Draw

Call = dict[str, Any]


def packed_bits(draw: Draw, q: torch.Tensor, lengths: list[tuple[int, int]], most: int) -> Call:
    """A packed mask for sequences of so many rows and keys, at most ``most``: rows of bits, or whole bytes for each row of q."""
    tail = draw.one_of(None, draw.randint(1, 9))
    masks = [torch.rand(rows, keys if tail is None else tail) < 0.6 for rows, keys in lengths]
    call = {} if tail is None else {"mask_tail": tail}
    if draw.random() < 0.5:
        garbage = torch.full((draw.randint(0, 1),), 255, dtype=torch.uint8)
        parts = [torch.cat([fovea.pack_mask(mask.flatten()), garbage]) for mask in masks]
        if len(parts) != 1 or draw.random() < 0.5:
            call["mask_indptr"] = draw.ends([len(part) for part in parts])
        return call | {"packed_mask": torch.cat(parts)}
    wide = -(-(most if tail is None else tail) // 8) + draw.randint(0, 1)
    packed = torch.full((*q.shape[:-2], wide), 255, dtype=torch.uint8)
    rows = packed.flatten(0, -2)
    for row, seen in enumerate(row for mask in masks for row in mask):
        own = fovea.pack_mask(seen)
        rows[row, : len(own)] = own
    return call | {"packed_mask": packed}


def block_lists(draw: Draw, batch: int, head: int, seq_q: int, seq_k: int) -> fovea.BlockMask:
    """Lists of a random mask. Slots behind the counts are garbage, and a list may name a block past the last."""
    size = draw.one_of((32, 64), (64, 32), (64, 64))
    shape = draw.one_of(1, batch), draw.one_of(1, head), seq_q, seq_k
    kind = draw.randrange(3)
    if kind == 0:
        blocks = torch.rand(*shape[:2], -(-seq_q // size[0]), -(-seq_k // size[1])) < 0.6
        mask = fovea.BlockMask.from_blocks(blocks, size)
    else:
        visible = torch.rand(shape) < draw.one_of(0.02, 0.6)
        visible[:, :, : seq_q // 2] = draw.one_of(True, False)
        mask = fovea.BlockMask.from_mask(visible, size)
    for counts, indices in ((mask.full_counts, mask.full_indices), (mask.partial_counts, mask.partial_indices)):
        if counts is not None and indices is not None:
            behind = torch.arange(indices.shape[-1]) >= counts[..., None]
            indices[behind] = draw.one_of(-7, 0, 2147480000)
            if kind == 0 and draw.random() < 0.3:
                indices[(~behind) & (torch.rand(indices.shape) < 0.2)] = draw.one_of(-1, 1000)
    return mask


def score_terms(draw: Draw, call: Call, dtype: torch.dtype) -> Call:
    """Masks, biases and dropout of dense attention, some of them."""
    q, k, lengths = call["q"], call["k"], pairs_of(call)
    head, batch = q.shape[-2], len(lengths)
    most = [
        tensor.shape[1] if tensor.dim() == 4 else call.get(f"max_seqlen_{side}", len(tensor))
        for side, tensor in (("q", q), ("k", k))
    ]
    kind = draw.choice(("none", "none", "packed", "blocks", "terms"))
    if kind == "packed":
        return packed_bits(draw, q, lengths, most[1])
    if kind == "blocks" and q.dim() == 4:
        return {"block_mask": block_lists(draw, batch, head, *most)}
    if kind != "terms":
        return {}
    shape = draw.one_of(1, batch), draw.one_of(1, head), *(draw.one_of(1, each, each) for each in most)
    bias = draw.rows(*shape, dtype=dtype)
    if bias.numel() and draw.random() < 0.2:
        bias[0, 0, 0, 0] = -torch.inf
    terms = draw.some(alibi_slopes=draw.rows(*draw.one_of((head,), (batch, head))).abs(), bias=bias)
    if draw.random() < 0.4:
        state = torch.tensor([draw.randint(0, 1 << 40), draw.randint(0, 1 << 33)])
        terms |= {"dropout_p": draw.uniform(0.05, 0.9), "dropout_state": state}
    return terms


def pairs_of(call: Call) -> list[tuple[int, int]]:
    """Rows and keys of each sequence."""
    if "cu_seqlens_q" not in call:
        return [(call["q"].shape[1], call["k"].shape[1])] * len(call["q"])
    return list(zip(*(call[f"cu_seqlens_{side}"].diff().tolist() for side in "qk"), strict=True))
