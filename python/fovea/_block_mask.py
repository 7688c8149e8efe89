# SPDX-License-Identifier: Apache-2.0
"""Block masks: lists of the key blocks that each query block sees."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fovea._calls import adapted

_WORD = 32
_BITS_AT_ONCE = 1 << 26
"""Pairs of a row and a key whose visibility is computed at once."""

Operands = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None, int, int]
NO_BLOCKS: Operands = (None, None, None, None, None, 0, 0)
"""The operator's arguments in a call without a block mask."""

Pairs = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Whether queries see keys: of (batch, head, query, key), integers that broadcast, a bool tensor of their shape."""


@adapted()
@dataclass(frozen=True)
class BlockMask:
    """The blocks of keys that each block of queries sees: lists on the device, which kernels read there.

    A ``full`` block is seen whole. A ``partial`` block has a bit for each query and key.
    ``fovea.attention(.., block_mask=mask)`` attends the listed blocks alone, so its time follows their number. The band of the
    call (``causal``, ``window``) hides keys in them too. Lists may be in any order, and name a block at most once. A number of
    no block is ignored.

    ``counts`` are int32 ``[batch or 1, head or 1, q_block]``, ``indices`` int32 ``[.., q_block, slot]``. Slots from the count on
    may hold anything. ``partial_bits`` are int32 ``[.., q_block, slot * block_q * block_k / 32]``: rows of ``block_k / 32`` words
    in each slot, the first key in the lowest bit. Both members of an absent list are None.
    """

    full_counts: Tensor | None
    full_indices: Tensor | None
    partial_counts: Tensor | None = None
    partial_indices: Tensor | None = None
    partial_bits: Tensor | None = None
    block_size: tuple[int, int] = (128, 128)

    @classmethod
    def from_blocks(cls, blocks: Tensor, block_size: tuple[int, int] = (128, 128)) -> BlockMask:
        """Makes a mask from a bool tensor ``[batch or 1, head or 1, q_block, k_block]``. A block is seen whole or not at all."""
        return cls(*_lists(_of_rank_4(blocks)), block_size=block_size)

    @classmethod
    def from_pairs(
        cls, partial: Tensor, full: Tensor, pairs: Pairs, seq_k: int, block_size: tuple[int, int] = (128, 128)
    ) -> BlockMask:
        """Makes a mask from two bool tensors ``[batch or 1, head or 1, q_block, k_block]``, which say the kind of each block.

        ``pairs`` says which queries of partial blocks see which keys. It gets numbers in partial blocks alone; queries may lie
        past the end. The host waits for the longest list.
        """
        partial_counts, partial_indices = _lists(_of_rank_4(partial))
        slots = max(int(partial_counts.max()), 1) if partial_counts.numel() else 1
        partial_indices = partial_indices[..., :slots].contiguous()
        bits = _bits(partial_indices, pairs, seq_k, block_size)
        return cls(*_lists(_of_rank_4(full)), partial_counts, partial_indices, bits, block_size)

    @classmethod
    def from_mask(cls, mask: Tensor, block_size: tuple[int, int] = (128, 128)) -> BlockMask:
        """Makes a mask from a bool tensor ``[batch or 1, head or 1, seq_q, seq_k]``, or one without the first dimensions."""
        mask = _of_rank_4(mask)
        whole = torch.nn.functional.pad(mask, (0, -mask.shape[3] % block_size[1], 0, -mask.shape[2] % block_size[0]))
        by_block = whole.unflatten(3, (-1, block_size[1])).unflatten(2, (-1, block_size[0]))
        # A block is full without its pairs past the ends.
        inside = torch.ones(mask.shape[2:], dtype=torch.bool, device=mask.device)
        ends = torch.nn.functional.pad(inside, (0, -mask.shape[3] % block_size[1], 0, -mask.shape[2] % block_size[0]))
        ends = ends.unflatten(1, (-1, block_size[1])).unflatten(0, (-1, block_size[0]))
        some, every = by_block.any(5).any(3), (by_block | ~ends).all(5).all(3)

        def pairs(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return whole[batch, head, query, key]

        return cls.from_pairs(some & ~every, some & every, pairs, mask.shape[3], block_size)

    @classmethod
    def from_flex(cls, mask: Any) -> BlockMask:
        """Converts a ``torch.nn.attention.flex_attention.BlockMask``. Its ``mask_mod`` is evaluated once, for the partial blocks.
        The result is kept as long as the mask is."""
        known = _of_flex.get(id(mask))
        if known is not None and known[0]() is mask:
            return known[1]
        made = _from_flex(mask)
        if not torch.compiler.is_compiling():
            of = id(mask)
            _of_flex[of] = (weakref.ref(mask, lambda _: _of_flex.pop(of, None)), made)
        return made

    def operands(self) -> Operands:
        """The operator's arguments."""
        return (
            self.full_counts,
            self.full_indices,
            self.partial_counts,
            self.partial_indices,
            self.partial_bits,
            *self.block_size,
        )


_of_flex: dict[int, tuple[Any, BlockMask]] = {}
"""By the address of a mask of torch's, as these do not hash by identity: the mask, and what was made of it."""


def operands_of(mask: Any) -> Operands:
    """The operator's arguments from the argument ``block_mask`` of a function."""
    if mask is None:
        return NO_BLOCKS
    if isinstance(mask, BlockMask):
        return mask.operands()
    if hasattr(mask, "kv_num_blocks") and hasattr(mask, "mask_mod"):
        return BlockMask.from_flex(mask).operands()
    kind = type(mask).__name__
    raise TypeError(f"block_mask: got {kind}, want a fovea.BlockMask, or torch's BlockMask of flex_attention")


def _of_rank_4(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool or not 2 <= mask.dim() <= 4:
        raise ValueError(f"mask: got {mask.dtype} {list(mask.shape)}, want bool [batch or 1, head or 1, q, k], or [q, k]")
    return mask[(None,) * (4 - mask.dim())]


def _lists(listed: Tensor) -> tuple[Tensor, Tensor]:
    """Counts and indices of the last dimension's set elements, in their order."""
    order = listed.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return listed.sum(-1, dtype=torch.int32), order.to(torch.int32).contiguous()


def _bits(indices: Tensor, pairs: Pairs, seq_k: int, block_size: tuple[int, int]) -> Tensor:
    """The bits of every slot. Slots that no count reaches get those of the block that they name."""
    (batch, head, q_blocks, slots), (block_q, block_k) = indices.shape, block_size
    device = indices.device
    bits = torch.empty((batch, head, q_blocks, slots * block_q * block_k // _WORD), dtype=torch.int32, device=device)
    weights = torch.ones(_WORD, dtype=torch.int64, device=device) << torch.arange(_WORD, device=device)
    sequences, heads = (torch.arange(n, device=device).view(-1, *(1,) * left) for n, left in ((batch, 5), (head, 4)))
    at_once = max(_BITS_AT_ONCE // max(batch * head * slots * block_q * block_k, 1), 1)
    rows, columns = torch.arange(block_q, device=device)[:, None], torch.arange(block_k, device=device)
    for first in range(0, q_blocks, at_once):
        some = indices[:, :, first : first + at_once, :, None, None].long()
        query = torch.arange(first, first + some.shape[2], device=device).view(-1, 1, 1, 1) * block_q + rows
        seen = pairs(sequences, heads, query, (some * block_k + columns).clamp(0, max(seq_k - 1, 0)))
        seen = seen.expand(*some.shape[:4], block_q, block_k)
        words = (seen.unflatten(-1, (-1, _WORD)) * weights).sum(-1)  # the highest bit is a negative int32
        bits[:, :, first : first + at_once] = words.flatten(3).to(torch.int32)
    return bits


def _from_flex(mask: Any) -> BlockMask:
    from torch.nn.attention.flex_attention import noop_mask

    block_q, block_k = mask.BLOCK_SIZE
    block_size = (int(block_q), int(block_k))
    counts, indices = _of_list(mask.kv_num_blocks, 3), _of_list(mask.kv_indices, 4)
    full: tuple[Tensor, Tensor] | None = None
    if mask.full_kv_num_blocks is not None:
        full = _of_list(mask.full_kv_num_blocks, 3), _of_list(mask.full_kv_indices, 4)
    if mask.mask_mod is noop_mask:
        counts, indices = (counts, indices) if full is None else _joined(full, (counts, indices))
        return BlockMask(counts, indices, block_size=block_size)
    seq_q, seq_k = mask.seq_lengths
    slots = max(int(counts.max()), 1) if counts.numel() else 1
    indices = indices[..., :slots].contiguous()

    def pairs(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return _mapped(mask.mask_mod, *torch.broadcast_tensors(batch, head, query.clamp(max=max(seq_q - 1, 0)), key))

    bits = _bits(indices, pairs, seq_k, block_size)
    full_counts, full_indices = full or (None, None)
    return BlockMask(full_counts, full_indices, counts, indices, bits, block_size)


def _mapped(mask_mod: Any, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """A mask_mod of torch's takes numbers one by one: it may index tensors with them, which vmap makes a gather."""
    flat = torch.vmap(mask_mod)(*(each.flatten().to(torch.int32) for each in (batch, head, query, key)))
    return flat.view(batch.shape)


def _of_list(tensor: Tensor, rank: int) -> Tensor:
    """One tensor of a list with its leading dimensions, the last one contiguous."""
    tensor = tensor[(None,) * (rank - tensor.dim())].to(torch.int32)
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _joined(one: Any, other: Any) -> tuple[Tensor, Tensor]:
    """Two lists as one."""
    counts, indices = torch.broadcast_tensors(one[0], other[0]), [each[1] for each in (one, other)]
    slots = indices[0].shape[-1] + indices[1].shape[-1]
    shape = (*counts[0].shape, slots)
    at = torch.arange(slots, device=indices[0].device).expand(shape)
    first = counts[0][..., None]
    from_one = indices[0].expand(*shape[:-1], -1).gather(-1, at.clamp(max=indices[0].shape[-1] - 1))
    from_other = indices[1].expand(*shape[:-1], -1).gather(-1, (at - first).clamp(0, indices[1].shape[-1] - 1))
    return counts[0] + counts[1], torch.where(at < first, from_one, from_other).to(torch.int32).contiguous()
