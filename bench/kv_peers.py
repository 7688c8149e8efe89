# SPDX-License-Identifier: Apache-2.0
"""Calls of other libraries for a row of bench/kv_formats.py, over the same memory: vLLM's Triton kernels, and FlashInfer's.

vLLM rotates queries and results of 4-bit caches outside of its kernel, and rows before storing. Only its kernels run here."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import paged_peers
import torch
from gpu import DEVICE
from peers import importable
from torch import Tensor

if TYPE_CHECKING:
    from kv_formats import FormatAppended, Formatted

Call = Callable[[], Tensor]
SEGMENTS, LEAST_GRID = 16, 128  # vLLM 0.26 cuts sequences into so many parts where its grid would be smaller
MODES = {"int8_token": "INT8_PER_TOKEN_HEAD", "e4m3_token": "FP8_PER_TOKEN_HEAD", "int4_token": "INT4_PER_TOKEN_HEAD"}
PACKED = 2  # int4 codes in a byte
WORST_INT4 = 0.15  # relative error of vLLM's 4-bit kernel: weights in bf16 times codes lose what zero points then subtract


def vllm_splits(batch: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
    """The memory of partial results, as the metadata builder of vLLM's Triton backend makes it."""
    most = LEAST_GRID // kv_heads
    sizes = {"softmax_segm_output": (head_dim,), "softmax_segm_max": (), "softmax_segm_expsum": ()}
    memory = {name: torch.empty(most, heads, SEGMENTS, *size, device=DEVICE) for name, size in sizes.items()}
    return {"seq_threshold_3D": most, "num_par_softmax_segments": SEGMENTS, **memory}


def vllm(paged: "Formatted") -> Call | None:
    from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    from vllm.v1.kv_cache_interface import KVQuantMode

    case = paged.case
    if paged.is_formatted and (case.formats[0] != case.formats[1] or case.format not in MODES):
        return None
    one = torch.ones(1, device=DEVICE)
    scales = {f"{letter}_scale_cache": of for letter, of in zip("kv", paged.row_scales, strict=True)}
    options = {
        "cu_seqlens_q": paged.cu_seqlens_q,
        "max_seqlen_q": 1,
        "seqused_k": paged.kv_len,
        "softmax_scale": case.head_dim**-0.5,
        "window_size": (-1, -1),
        "block_table": paged.table,
        "softcap": 0.0,
        **scales,
        **vllm_splits(case.batch, case.heads, case.kv_heads, case.head_dim),
    }
    if case.format == "int4_token":
        return vllm_int4(paged, options)
    mode = MODES.get(case.format, "FP8_PER_TENSOR" if case.cache == "e4m3" else "NONE")
    options |= {"max_seqlen_k": case.kv_len, "causal": True, "kv_quant_mode": KVQuantMode[mode]}
    options |= {"q_descale": one, "k_descale": one * paged.k_factor, "v_descale": one}

    def call() -> Tensor:
        unified_attention(paged.q, paged.k, paged.v, paged.out, **options)
        return paged.out

    return call


def vllm_int4(paged: "Formatted", options: dict[str, Any]) -> Call:
    from vllm.v1.attention.ops import int4_per_token_head as int4

    absent = ("sinks", "alibi_slopes", "qq_bias", "output_scale", "mm_prefix_range")
    options |= dict.fromkeys(absent) | {"use_alibi_sqrt": False, "packing_factor": PACKED}

    def call() -> Tensor:
        int4._launch_packed_attn(q=paged.q, k_cache=paged.k, v_cache=paged.v, out=paged.out, **options)
        return paged.out

    return call


def flashinfer(paged: "Formatted") -> Call | None:
    return None if paged.is_formatted else paged_peers.flashinfer(paged)


def vllm_append(subject: "FormatAppended") -> Call | None:
    from vllm.v1.attention.ops import int4_per_token_head as int4
    from vllm.v1.attention.ops import triton_reshape_and_cache_flash as append
    from vllm.v1.kv_cache_interface import KVQuantMode

    if subject.case.cache not in MODES:
        return None
    mode = KVQuantMode[MODES[subject.case.cache]]
    names = ("key", "value", "key_cache", "value_cache", "k_scale_cache", "v_scale_cache")
    tensors = dict(zip(names, [*subject.rows, *subject.caches, *subject.row_scales], strict=True))
    tensors["slot_mapping"] = subject.slots
    if mode == KVQuantMode.INT4_PER_TOKEN_HEAD:
        run = partial(int4._run_reshape_kernel, int4._reshape_cache_int4_kernel, packing_factor=PACKED, **tensors)
    else:
        run = partial(append.triton_reshape_and_cache_flash_per_token_head_quant, kv_quant_mode=mode, **tensors)

    def call() -> Tensor:
        run()
        return subject.caches[0]

    return call


def loses(name: str, subject: Any) -> bool:
    return name == "vLLM" and getattr(subject.case, "format", "") == "int4_token"


def made(makers: dict[str, Callable[[Any], Call | None]], subject: Any) -> tuple[dict[str, Call], dict[str, float]]:
    """The calls of those that can be imported and compute this row, and their relative errors."""
    calls, errors = {}, {}
    for name, maker in makers.items():
        try:
            if importable(name.lower()) and (call := maker(subject)):
                errors[name] = subject.check(call, *([WORST_INT4] if loses(name, subject) else []))
                calls[name] = call
        except Exception as error:  # such as what it compiles on first use
            print(f"{subject.case.name}: {name} skipped: {type(error).__name__}: {error}", flush=True)
    return calls, errors


def wanted(paged: "Formatted") -> tuple[dict[str, Call], dict[str, float]]:
    return made({"vLLM": vllm, "FlashInfer": flashinfer}, paged)


def appending(subject: "FormatAppended") -> tuple[dict[str, Call], dict[str, float]]:
    return made({"vLLM": vllm_append}, subject)
