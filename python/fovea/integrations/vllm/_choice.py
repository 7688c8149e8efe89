# SPDX-License-Identifier: Apache-2.0
"""Shared by the backends for vLLM: caches by vLLM's names, and bounds of lengths."""

from typing import Any

import torch

FP8 = ("fp8", "fp8_e4m3")
CACHE_DTYPES = {"auto": None, "float16": torch.float16, "bfloat16": torch.bfloat16, **dict.fromkeys(FP8)}
"""The dtype of queries that a cache's name demands; None takes any."""
CODES = {"int8_per_token_head": "int8_token", "fp8_per_token_head": "e4m3_token"}
"""The library's formats by vLLM's names for caches that hold the scale of a row, float32, behind its codes."""
_SHORTEST_BOUND = 256  # tokens


def mixed_dtypes(dtype: torch.dtype, kv_cache_dtype: str | None) -> str | None:
    """Why a cache does not go with a model, if so."""
    if CACHE_DTYPES.get(kv_cache_dtype or "auto") in (None, dtype):
        return None
    return f"kv_cache_dtype: got {kv_cache_dtype}, want auto, fp8 or the dtype of the model, {dtype}"


def has_kernels(capability: Any) -> bool:
    """Whether the library has kernels for a device: NVIDIA's from Turing on, AMD's gfx90a (9.0) and gfx942 (9.4)."""
    version = capability.major, capability.minor
    return version >= (7, 5) if torch.version.hip is None else version in ((9, 0), (9, 4))


def no_latent_kernel(dtype: torch.dtype, kv_cache_dtype: str | None, capability: Any) -> str | None:
    """Why no kernel has latent attention over such a cache, if so. AMD's gfx942 has another e4m3."""
    if torch.version.hip is not None and "fp8" in (kv_cache_dtype or ""):
        return f"kv_cache_dtype: got {kv_cache_dtype}, want auto or the dtype of the model on GPUs of AMD"
    if capability is not None and dtype == torch.bfloat16 and capability.major < 8:
        return "dtype: got torch.bfloat16, want torch.float16 below compute capability 8.0"
    return None


def bound(length: int) -> int:
    """The next power of two. Kernels divide their work by the lengths on the device, so a loose bound costs nothing."""
    return max(_SHORTEST_BOUND, 1 << (length - 1).bit_length()) if length > 0 else _SHORTEST_BOUND
