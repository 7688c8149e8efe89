# SPDX-License-Identifier: Apache-2.0
"""flash-attn's helpers between padded and ragged batches, as its module of this name has them in 2.8."""

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea.compat._arguments import check, readable

__all__ = ["index_first_axis", "index_put_first_axis", "pad_input", "unpad_input"]

_CALL = adapted(axes={"indices": "total"}, error=RuntimeError)


@_CALL
def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """``input[indices]``. On a GPU an index of no row gives zeros."""
    inside, outside = _within(indices, input.shape[0])
    found = input.index_select(0, inside)
    return found if outside is None else found.masked_fill(outside.view(-1, *[1] * (input.dim() - 1)), 0)


@_CALL
def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Zeros ``[first_axis_dim, ..]`` with values at these indices. On a GPU an index of no row is skipped."""
    check(values.shape[:1] == indices.shape, "indices.shape", list(indices.shape), f"{list(values.shape[:1])}, the rows of values")
    inside, outside = _within(indices, first_axis_dim)
    if outside is not None:  # they have a row of their own
        inside = inside.masked_fill(outside, first_axis_dim)
    made = values.new_zeros((first_axis_dim + (outside is not None), *values.shape[1:])).index_put((inside,), values)
    return made[:first_axis_dim]


def _within(indices: Tensor, count: int) -> tuple[Tensor, Tensor | None]:
    """Indices that torch's kernels may use, and which of them were others, None if that is known to be none."""
    check(indices.dtype in (torch.int32, torch.int64), "indices.dtype", indices.dtype, torch.int64)
    if readable(indices) and indices.numel():
        smallest, largest = map(int, indices.aminmax())
        check(smallest >= 0 and largest < count, "indices", f"{smallest} to {largest}", f"0 to {count - 1}")
    if readable(indices):
        return indices, None
    check(count > 0, "indices", f"{indices.numel()} rows of none", "0 rows")
    inside = indices.clamp(0, count - 1)
    return inside, inside != indices


@adapted(axes={"attention_mask": "batch, seq", "unused_mask": "batch, seq"}, error=RuntimeError)
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
    want = hidden_states.shape[:2]
    for name, mask in (("attention_mask", attention_mask), ("unused_mask", unused_mask)):
        check(
            mask is None or mask.shape == want, f"{name}.shape", mask is not None and list(mask.shape), f"{list(want)} (batch, seq)"
        )
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    longest = int(lengths.max()) if len(lengths) else 0
    return hidden_states.flatten(0, 1).index_select(0, indices), indices, cu_seqlens, longest, used


@adapted({"values": "hidden_states"}, axes={"indices": "total"}, error=RuntimeError)
def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """The inverse of :func:`unpad_input`, with zeros between: ``[batch, seqlen, ..]``."""
    check(batch >= 0, "batch", batch, "0 or more")
    check(seqlen >= 0, "seqlen", seqlen, "0 or more")
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
