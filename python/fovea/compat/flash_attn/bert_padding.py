# SPDX-License-Identifier: Apache-2.0
"""flash-attn's helpers between padded and ragged batches, as its module of this name has them in 2.8."""

import torch
from torch import Tensor

__all__ = ["index_first_axis", "index_put_first_axis", "pad_input", "unpad_input"]


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """``input[indices]``."""
    return input.index_select(0, indices)


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Zeros ``[first_axis_dim, ..]`` with values at these indices."""
    return values.new_zeros((first_axis_dim, *values.shape[1:])).index_put((indices,), values)


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The tokens of a padded batch, one sequence after another.

    Args:
        hidden_states: ``[batch, seq, ..]``.
        attention_mask: bool or int ``[batch, seq]``, 1 for a token.
        unused_mask: Likewise, 1 for a place that is kept without being a token.

    Returns:
        The kept rows ``[total, ..]``; their indices in ``[batch * seq]``; cu_seqlens int32 ``[batch + 1]`` and the largest length
        of what is kept; and the tokens of each sequence, int32 ``[batch]``.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, int(lengths.max()), used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The inverse of :func:`unpad_input`, with zeros between: ``[batch, seqlen, ..]``."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
