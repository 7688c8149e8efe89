# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's custom masks: a bit for each query and each key of its sequence, which replaces ``causal``."""

from typing import Any

import torch
from torch import Tensor

from fovea._masks import pack_mask
from fovea.compat.flashinfer._terms import want

Bits = dict[str, Tensor]
"""A mask's arguments of Fovea's functions, by name; empty without a mask."""
MASK_BUFFERS = ("custom_mask_buf", "mask_indptr_buf")


def masked(
    custom_mask: Tensor | None, packed_custom_mask: Tensor | None, q_ends: Tensor, k_lengths: Tensor, device: torch.device
) -> Bits:
    """q_ends: a checked indptr. k_lengths: int64 ``[batch]`` on the host. The packed mask counts where both are given."""
    if custom_mask is None and packed_custom_mask is None:
        return {}
    sizes = q_ends.diff() * k_lengths
    given = packed_custom_mask is not None
    ends = torch.nn.functional.pad(((sizes + 7) // 8).cumsum(0), (1, 0))
    if packed_custom_mask is None:
        assert custom_mask is not None
        want(custom_mask.dtype == torch.bool, "custom_mask.dtype", custom_mask.dtype, torch.bool)
        _want_elements("custom_mask", custom_mask, int(sizes.sum()), "query rows times keys of each sequence")
        packed_custom_mask = _segments(custom_mask.to(device, non_blocking=True).flatten(), sizes, ends)
    want(packed_custom_mask.dtype == torch.uint8, "packed_custom_mask.dtype", packed_custom_mask.dtype, torch.uint8)
    _want_elements("packed_custom_mask", packed_custom_mask, int(ends[-1]), "each sequence begins with a byte of its own")
    packed = packed_custom_mask.flatten().to(device, non_blocking=True, copy=given)  # run() reads no tensor of plan()
    return {"packed_mask": packed, "mask_indptr": ends.to(device, torch.int32, non_blocking=True)}


def _want_elements(name: str, mask: Tensor, wanted: int, reason: str) -> None:
    want(mask.numel() == wanted, f"{name} (elements)", mask.numel(), f"{wanted} ({reason})")


def _segments(mask: Tensor, sizes: Tensor, ends: Tensor) -> Tensor:
    """The packed mask. Segments of no whole bytes move apart first."""
    if not bool((sizes % 8).any()):
        return pack_mask(mask)
    shift = (8 * ends[:-1] - torch.nn.functional.pad(sizes.cumsum(0), (1, 0))[:-1]).to(mask.device)
    places = torch.arange(len(mask), device=mask.device) + shift.repeat_interleave(sizes.to(mask.device), output_size=len(mask))
    apart = torch.zeros(8 * int(ends[-1]), dtype=torch.bool, device=mask.device)
    apart[places] = mask
    return pack_mask(apart)


def check_buffers(bits: Bits, buffers: dict[str, Tensor | None]) -> None:
    """Whether a mask fits the buffers that a CUDA graph reads."""
    for name, tensor in zip(MASK_BUFFERS, bits.values(), strict=False):
        buffer = buffers[name]
        want(buffer is not None, name, None, "a tensor (use_cuda_graph=True, and a mask)")
        assert buffer is not None
        want(buffer.dtype == tensor.dtype, f"{name}.dtype", buffer.dtype, tensor.dtype)
        want(buffer.device == tensor.device, f"{name}.device", buffer.device, tensor.device)
        want(buffer.is_contiguous() and buffer.dim() == 1, f"{name}.strides", list(buffer.stride()), [1])
        want(len(buffer) >= len(tensor), f"{name}.shape[0]", len(buffer), f"{len(tensor)} or more")


def kept(bits: Bits, buffers: dict[str, Tensor | None] | None) -> Bits:
    """The mask, in the caller's buffers where a CUDA graph reads those. Bytes past the mask are not read."""
    if not bits or buffers is None:
        return bits
    held = {}
    for key, name in zip(("packed_mask", "mask_indptr"), MASK_BUFFERS, strict=True):
        buffer = buffers[name]
        assert buffer is not None
        buffer[: len(bits[key])].copy_(bits[key], non_blocking=True)
        held[key] = buffer if key == "packed_mask" else buffer[: len(bits[key])]
    return held


def one_sequence(custom_mask: Tensor | None, packed_custom_mask: Tensor | None, q: Tensor, k: Tensor) -> dict[str, Any]:
    """The same of a single sequence, whose mask may have the shape ``[seq_q, seq_k]``."""
    ends = torch.tensor([0, q.shape[0]])
    bits = masked(custom_mask, packed_custom_mask, ends, torch.tensor([k.shape[0]]), q.device)
    return {name: tensor for name, tensor in bits.items() if name == "packed_mask"}
