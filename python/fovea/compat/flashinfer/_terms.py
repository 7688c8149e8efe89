# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's arguments in Fovea's terms."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fovea.compat._arguments import refuse, traced

NO_ROPE = "Fovea applies no positions; rotate q and k first"
NO_MASK = "Fovea's masks are causal, window_left and custom_mask"
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)
FOUR_BITS = torch.uint8
"""The dtype of NVFP4 pages: two codes in a byte."""
Result = Tensor | tuple[Tensor, Tensor]
Cache = Tensor | tuple[Tensor, Tensor]
ROWS = "rows, head, head_dim"
INDPTR = "batch + 1"
NAMES = {
    "k_cache": "paged_kv_cache",
    "v_cache": "paged_kv_cache",
    "cu_seqlens_q": "qo_indptr",
    "cu_seqlens_k": "kv_indptr",
    "sink": "sinks",
    "softcap": "logits_soft_cap",
    "scale": "sm_scale",
    "window": "window_left",
    "packed_mask": "packed_custom_mask",
}
"""Names of arguments in Fovea's functions, and their names here."""
PLAN_NAMES = NAMES | {
    "q.dtype": "q_data_type",
    "k.dtype": "kv_data_type",
    "k_cache.dtype": "kv_data_type",
    "q.shape (head_dim_qk)": "head_dim_qk",
    "v.shape (head_dim_v)": "head_dim_vo",
    "v_cache.shape (head_dim_v)": "head_dim_vo",
}
"""The same where plan() tries a row."""


def want(ok: bool, subject: str, got: object, wanted: object) -> None:
    """Raises a ValueError unless ok, as the checks that FlashInfer makes in Python."""
    if not ok:
        raise ValueError(f"{subject}: got {got}, want {wanted}")


def want_sizes(most: int, **sizes: int) -> None:
    """Sizes by the names of their arguments: 1 to most each."""
    for name, size in sizes.items():
        want(1 <= size <= most, name, size, f"1 to {most}")


def want_writable(name: str, tensor: Tensor) -> None:
    """Whether each element of a tensor has memory of its own."""
    if tensor.is_contiguous():
        return
    span = 1  # of the dimensions with smaller strides
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1):
        if stride < span and tensor.numel():
            want(False, f"{name}.strides", list(tensor.stride()), "an element of memory for each of the tensor")
        span += stride * (size - 1)


def want_apart(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Whether two outputs, of which the other one is written last, share no memory. Views with gaps may interleave."""
    if traced(tensor, other) or not (tensor.is_contiguous() and other.is_contiguous()):
        return
    begin, other_begin = tensor.data_ptr(), other.data_ptr()
    apart = begin >= other_begin + other.nbytes or other_begin >= begin + tensor.nbytes
    want(apart, other_name, f"memory of {name}", "memory of its own")


def values_of(tensor: Tensor) -> int:
    """The values of a row of keys or values: two lie in a byte of torch.uint8."""
    return tensor.shape[-1] * (2 if tensor.dtype == FOUR_BITS else 1)


def checked_layout(kv_layout: str) -> str:
    if kv_layout not in ("NHD", "HND"):
        want(False, "kv_layout", repr(kv_layout), "'NHD' or 'HND'")
    return kv_layout


def token_major(tensor: Tensor, kv_layout: str) -> Tensor:
    """``[.., tokens, kv_head, dim]`` of a tensor in either layout."""
    return tensor.transpose(-3, -2) if checked_layout(kv_layout) == "HND" else tensor


def pages_of(cache: Cache, kv_layout: str, name: str = "paged_kv_cache") -> tuple[Tensor, Tensor]:
    """Keys and values ``[pages, page, kv_head, dim]`` of a cache: two tensors, or one with both in its second dimension.

    Pages of one token may lack the dimension of tokens. name: what the caller calls the cache.
    """
    if isinstance(cache, Tensor):
        if cache.dim() not in (4, 5) or cache.shape[1] != 2:
            want(False, f"{name}.shape", list(cache.shape), "[pages, 2, ..], or a tuple")
        cache = cache.unbind(1)
    if len(cache) != 2:
        want(False, name, f"{len(cache)} tensors", "2: keys and values")
    k, v = cache
    if k.dim() != 4 or v.dim() != 4:
        k, v = (_with_tokens(f"{name}[{index}]", tensor, kv_layout) for index, tensor in enumerate(cache))
    return token_major(k, kv_layout), token_major(v, kv_layout)


def _with_tokens(name: str, tensor: Tensor, kv_layout: str) -> Tensor:
    want(tensor.dim() in (3, 4), f"{name}.rank", tensor.dim(), "4, or 3 for pages of one token")
    return tensor if tensor.dim() == 4 else tensor.unsqueeze(-3 if kv_layout == "NHD" else -2)


def dtype_of(name: str, dtype: torch.dtype | str) -> torch.dtype:
    """A dtype that may be given by its name."""
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    want(isinstance(found, torch.dtype), name, repr(dtype), "a torch.dtype, or the name of one")
    return found  # type: ignore[return-value]


def no_positions(pos_encoding_mode: str) -> None:
    want(pos_encoding_mode in ("NONE", "ROPE_LLAMA", "ALIBI"), "pos_encoding_mode", repr(pos_encoding_mode), "'NONE'")
    if pos_encoding_mode != "NONE":
        raise NotImplementedError(f"pos_encoding_mode: got {pos_encoding_mode!r}, want 'NONE' ({NO_ROPE})")


def refuse_variants(**arguments: Any) -> None:
    """Kernels and scores of the caller's own."""
    if all(value is None or value == () for value in arguments.values()):
        return
    refuse("Fovea has no such variant of attention", **{name: value for name, value in arguments.items() if value != ()})


def refuse_masks(**arguments: Any) -> None:
    refuse(NO_MASK, **arguments)


class Scores(NamedTuple):
    """The steps between q @ k^T and the softmax, in FlashInfer's words: scale, softcap and mask."""

    causal: bool
    window_left: int
    logits_soft_cap: float | None
    sm_scale: float | None

    def options(self, head_dim: int, factor: float) -> dict[str, Any]:
        """factor: what the scales of q and k multiply the scores by."""
        scale = max(head_dim, 1) ** -0.5 if self.sm_scale is None else self.sm_scale  # Fovea refuses the dim 0 by name
        window = None if self.window_left < 0 else (self.window_left, None)
        return {"causal": self.causal, "window": window, "scale": scale * factor, "softcap": self.logits_soft_cap or 0.0}
