# SPDX-License-Identifier: Apache-2.0
"""Good calls of every public function that computes, on any device. judge.py says what each gives."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import fovea
import small_calls
from conftest import available
from small_calls import int32

ROWS = (64, 512, 576)
NO_FLOAT32 = ("attention", "attention_backward", "paged_attention", "latent_attention", "scaled_dot_product_attention")
"""Operators, on a GPU."""
NO_FLOAT32_ROWS = (*NO_FLOAT32, "sparse_latent_attention", "quantize_and_attend", "quantize_qk_int8", "quantize_v")
"""Functions there; their arguments hold rows and nothing else of such a width."""


class PublicCall(NamedTuple):
    function: Callable[..., Any]
    make: Callable[[], dict[str, Any]]

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def operation(self) -> str:
        return "attention" if self.function is fovea.scaled_dot_product_attention else self.name

    def on(self, device: str, outputs: bool = False) -> dict[str, Any]:
        """Arguments there, with outputs to write or without."""
        call = self.make()
        if not outputs and self.name != "attention_backward":
            call = {name: value for name, value in call.items() if name not in ("out", "lse", "rows") or self.name == QUANTIZE}
        if device == "cpu":
            return call
        call = moved(call, device, self.name in NO_FLOAT32_ROWS)
        return call | forward_of(call) if self.name == "attention_backward" else call


QUANTIZE = "quantize_latent_cache"  # whose rows are read


def forward_of(call: dict[str, Any]) -> dict[str, Tensor]:
    """out and lse of rows that were rounded on their way."""
    out, lse = fovea.attention(call["q"], call["k"], call["v"], return_lse=True)
    return {"out": out, "lse": lse}


def moved(value: Any, device: str, to_bfloat16: bool) -> Any:
    """A call's arguments on another device, rows in bfloat16 where kernels there want that."""
    if isinstance(value, dict):
        return {name: moved(item, device, to_bfloat16) for name, item in value.items()}
    if hasattr(value, "_fields"):
        return type(value)(*(moved(item, device, to_bfloat16) for item in value))
    if isinstance(value, list):
        return [moved(item, device, to_bfloat16) for item in value]
    if not isinstance(value, Tensor):
        return value
    is_row = value.dtype == torch.float32 and value.shape[-1] in ROWS
    return value.to(device, torch.bfloat16 if is_row and to_bfloat16 else value.dtype)


def packed_cache(format: str, blocks: int = 6) -> Tensor:
    cache = fovea.cache_formats()[format].empty(blocks, 8)
    row = fovea.cache_formats()[format].row
    fovea.quantize_latent_cache(torch.randn(8 * blocks, row), cache, torch.arange(8 * blocks), format=format)
    return cache


def two_caches() -> dict[str, Any]:
    indices = torch.randint(-2, 50, (2, 3, 5), dtype=torch.int32)
    extra = {"extra_cache": packed_cache("v4_fp8", 3), "extra_format": "v4_fp8", "extra_topk_length": int32(1, 2)}
    extra["extra_indices"] = torch.randint(-2, 26, (2, 3, 2), dtype=torch.int32)
    call = {"q": torch.randn(2, 3, 4, 512).bfloat16(), "cache": packed_cache("v4_fp8"), "format": "v4_fp8", "indices": indices}
    return call | extra | {"topk_length": int32(4, 5), "sink": torch.randn(4), "return_lse": True, "return_max_logits": True}


def flat_rows() -> dict[str, Any]:
    call = {"q": torch.randn(3, 4, 576), "cache": torch.randn(20, 1, 576), "topk_length": int32(3, 0, 5)}
    return call | {"indices": torch.randint(-2, 22, (3, 5), dtype=torch.int32), "return_lse": True}


def ragged_8bit() -> dict[str, Any]:
    call = small_calls.ragged()
    return {name: call[name] for name in ("q", "k", "cu_seqlens_q", "cu_seqlens_k")}


def sdpa(**changes: Any) -> dict[str, Any]:
    call = {"query": torch.randn(2, 4, 5, 64), "key": torch.randn(2, 2, 7, 64), "value": torch.randn(2, 2, 7, 64)}
    return call | {"is_causal": True, "enable_gqa": True} | changes


CALLS = {
    "attention": PublicCall(fovea.attention, lambda: small_calls.dense(causal=True, sink=torch.randn(4))),
    "attention, ragged": PublicCall(fovea.attention, lambda: small_calls.ragged(causal=True, return_lse=True)),
    "attention_backward": PublicCall(fovea.attention_backward, small_calls.backward),
    "scaled_dot_product_attention": PublicCall(fovea.scaled_dot_product_attention, sdpa),
    "paged_attention": PublicCall(fovea.paged_attention, lambda: small_calls.paged(return_lse=True)),
    "paged_attention, one row each": PublicCall(
        fovea.paged_attention,
        lambda: small_calls.paged(q=torch.randn(2, 4, 64), out=torch.full((2, 4, 64), torch.nan), cu_seqlens_q=None),
    ),
    "paged_cache_append": PublicCall(fovea.paged_cache_append, small_calls.append),
    "merge_states": PublicCall(fovea.merge_states, small_calls.merge),
    "latent_attention": PublicCall(fovea.latent_attention, small_calls.latent),
    "latent_attention, packed": PublicCall(
        fovea.latent_attention, lambda: small_calls.packed_latent(cache=packed_cache("v32_fp8"), return_lse=True)
    ),
    "sparse_latent_attention": PublicCall(fovea.sparse_latent_attention, small_calls.sparse),
    "sparse_latent_attention, flat": PublicCall(fovea.sparse_latent_attention, flat_rows),
    "sparse_latent_attention, two caches": PublicCall(fovea.sparse_latent_attention, two_caches),
    QUANTIZE: PublicCall(fovea.quantize_latent_cache, small_calls.quantize),
    "dequantize_latent_cache": PublicCall(
        fovea.dequantize_latent_cache, lambda: small_calls.dequantize(cache=packed_cache("v32_fp8", 2))
    ),
    "index_logits": PublicCall(fovea.index_logits, small_calls.index),
    "topk_rows": PublicCall(fovea.topk_rows, small_calls.topk),
    "quantize_qk_int8": PublicCall(fovea.quantize_qk_int8, small_calls.quantize_qk),
    "quantize_qk_int8, ragged": PublicCall(fovea.quantize_qk_int8, ragged_8bit),
    "quantize_v": PublicCall(fovea.quantize_v, lambda: {"v": torch.randn(2, 7, 2, 64), "dtype": torch.float8_e4m3fn}),
    "quantized_attention": PublicCall(fovea.quantized_attention, lambda: small_calls.codes(return_lse=True, dtype=torch.float32)),
    "quantize_and_attend": PublicCall(fovea.quantize_and_attend, lambda: small_calls.dense(causal=True)),
    "quantize_and_attend, ragged": PublicCall(fovea.quantize_and_attend, small_calls.ragged),
}

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"))]


def call_on(label: str, device: str, outputs: bool = False) -> tuple[PublicCall, dict[str, Any]]:
    """A call and its arguments there; the test is skipped where nothing takes it."""
    call = CALLS[label]
    if not available(call.operation, device):
        pytest.skip(f"no implementation of {call.operation} on {device}")
    return call, call.on(device, outputs)


def copied(value: Any) -> Any:
    """Arguments as they are now."""
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    if hasattr(value, "_fields"):
        return type(value)(*map(copied, value))
    if isinstance(value, list):
        return list(map(copied, value))
    return value.detach().clone() if isinstance(value, Tensor) else value
