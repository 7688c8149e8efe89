# SPDX-License-Identifier: Apache-2.0
"""Packed masks: bits of the keys that a query row sees, made where they are used."""

from __future__ import annotations

import torch
from torch import Tensor

from fovea._calls import checked

_INTEGERS = (torch.int32, torch.int64)


@checked
def pack_mask(visible: Tensor) -> Tensor:
    """The ``packed_mask`` of :func:`fovea.attention` and :func:`fovea.paged_attention`, from one bool a key.

    Args:
        visible: bool ``[.., keys]``, the last keys of a sequence: whether the row sees each.

    Returns:
        uint8 ``[.., bytes]``: eight keys a byte, the first in the lowest bit; the bits past the last key are 0. ``mask_tail`` is
        ``keys``.
    """
    if visible.dtype != torch.bool:
        raise ValueError(f"visible.dtype: got {visible.dtype}, want torch.bool")
    if visible.dim() == 0:
        raise ValueError("visible.rank: got 0, want 1 or more (the last dimension counts keys)")
    keys = visible.shape[-1]
    bits = torch.nn.functional.pad(visible, (0, -keys % 8)).unflatten(-1, (-1, 8))
    places = torch.arange(8, device=visible.device, dtype=torch.uint8)
    return (bits.to(torch.uint8) << places).sum(-1, dtype=torch.uint8)


@checked
def tree_mask(parents: Tensor) -> Tensor:
    """The ``packed_mask`` of draft trees, whose tokens are the last of their sequences: a token sees its ancestors and itself.

    It is computed on the device of ``parents``, without waiting for it. All tokens before the tree stay visible, so
    ``mask_tail`` is the number of tokens of a tree.

    Args:
        parents: int32 or int64 ``[.., tokens]``: for each token of a tree the token that it follows, counted in the tree. -1 is the
            last token before the tree. A token comes after its parent.

    Returns:
        uint8 ``[.., tokens, bytes]``: a row of bytes for each token. ``[batch, tokens, bytes]`` fits queries of a fixed batch, and
        ``flatten(0, 1)`` those of :func:`fovea.paged_attention`.

    Raises:
        ValueError: On the CPU: a parent that does not come before its token. On a GPU such a token follows what -1 says.
    """
    if parents.dtype not in _INTEGERS:
        raise ValueError(f"parents.dtype: got {parents.dtype}, want torch.int32 or torch.int64")
    if parents.dim() == 0:
        raise ValueError("parents.rank: got 0, want 1 or more (the last dimension counts tokens)")
    tokens = parents.shape[-1]
    index = torch.arange(tokens, device=parents.device)
    if parents.is_cpu and not torch.compiler.is_compiling():
        _check_parents(parents, index)
    known = torch.where((parents >= 0) & (parents < index), parents.long(), tokens)
    # `seen` doubles how far it looks: after k rounds a token sees its next 2^k - 1 ancestors. The last row sees nothing.
    jump = torch.nn.functional.pad(known, (0, 1), value=tokens)
    seen = torch.eye(tokens + 1, tokens, dtype=torch.bool, device=parents.device).expand(*parents.shape[:-1], -1, -1)
    for _ in range(max(tokens - 1, 0).bit_length()):
        seen = seen | seen.gather(-2, jump[..., None].expand_as(seen))
        jump = jump.gather(-1, jump)
    return pack_mask(seen[..., :tokens, :])


def _check_parents(parents: Tensor, index: Tensor) -> None:
    wrong = (parents < -1) | (parents >= index)
    if not bool(wrong.any()):
        return
    at = [int(place) for place in wrong.nonzero()[0]]
    subject = "parents[" + ", ".join(map(str, at)) + "]"
    raise ValueError(f"{subject}: got {int(parents[tuple(at)])}, want -1 (before the tree) to {at[-1] - 1} (an earlier token)")
