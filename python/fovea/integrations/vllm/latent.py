# SPDX-License-Identifier: Apache-2.0
"""vLLM's backends for latent attention (MLA): decode over latent rows, and prefill over keys and values that a layer expands.

vLLM's own classes keep the weights, expand prompts and merge their parts. The layers of a decode step share one schedule.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm import envs
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonDecodeMetadata,
    MLACommonImpl,
    MLACommonMetadata,
    MLACommonMetadataBuilder,
    QueryLenSupport,
)
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType, MultipleOf
from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend
from vllm.v1.attention.backends.registry import AttentionBackendEnum

import fovea
from fovea.integrations.vllm._choice import CACHE_DTYPES, FP8, bound, has_kernels, mixed_dtypes, no_latent_kernel

_PAGE = 16
_FAST_PAGE = 64
_ROW, _VALUES = 576, 512
_DECODE_AT_MOST = 128
"""Longer queries are cheaper over expanded keys and values."""


class FoveaLatentBackend(MLACommonBackend):
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = list(CACHE_DTYPES)

    @staticmethod
    def get_name() -> str:
        return "FOVEA_MLA" if "FOVEA_MLA" in AttentionBackendEnum.__members__ else "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[FoveaLatentImpl]:
        return FoveaLatentImpl

    @staticmethod
    def get_builder_cls() -> type[FoveaLatentBuilder]:
        return FoveaLatentBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(*_: Any) -> list[int | MultipleOf]:
        return [MultipleOf(_PAGE)]

    @classmethod
    def get_preferred_block_size(cls, default_block_size: int) -> int:
        return max(default_block_size, _FAST_PAGE)

    @staticmethod
    def get_kv_cache_stride_order(include_num_layers_dimension: bool = False) -> tuple[int, ...]:
        """Blocks before layers: the stride of blocks is free."""
        return (1, 0, 2, 3) if include_num_layers_dimension else (0, 1, 2)

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [_ROW]

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return has_kernels(capability)

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: str | None, *_: Any, **named: Any
    ) -> str | None:
        capability = named.get("device_capability", _[-1] if _ else None)
        return no_latent_kernel(dtype, kv_cache_dtype, capability) or mixed_dtypes(dtype, kv_cache_dtype)


@dataclass
class FoveaDecodeMetadata(MLACommonDecodeMetadata):
    query_start_loc: Tensor
    max_query_len: int
    max_kv_len: int
    schedules: defaultdict[Any, fovea.LatentSchedule] = field(default_factory=lambda: defaultdict(fovea.LatentSchedule))
    """A schedule for each kind of layers that differ only in numbers; the first layer of a kind computes it."""


class FoveaLatentBuilder(MLACommonMetadataBuilder[MLACommonMetadata[FoveaDecodeMetadata]]):
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH
    query_len_support: ClassVar[QueryLenSupport] = QueryLenSupport.VARLEN
    reorder_batch_threshold: int = _DECODE_AT_MOST

    def _build_decode(
        self,
        *,
        block_table_tensor: Tensor,
        seq_lens_device: Tensor,
        max_seq_len: int,
        query_start_loc_cpu: Tensor,
        query_start_loc_device: Tensor,
        dcp_tot_seq_lens_device: Tensor | None,
        **_: Any,
    ) -> FoveaDecodeMetadata:
        return FoveaDecodeMetadata(
            block_table=block_table_tensor,
            seq_lens=seq_lens_device,
            dcp_tot_seq_lens=dcp_tot_seq_lens_device,
            query_start_loc=query_start_loc_device,
            max_query_len=max(1, int(query_start_loc_cpu.diff().max())),
            max_kv_len=bound(max_seq_len),
        )


class FoveaLatentImpl(MLACommonImpl[MLACommonMetadata[FoveaDecodeMetadata]]):
    can_return_lse_for_decode = True
    lse_base_on_e = True

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **mla: Any,
    ) -> None:
        for name, value in {
            "alibi_slopes": alibi_slopes,
            "sliding_window": sliding_window,
            "logits_soft_cap": logits_soft_cap,
        }.items():
            if value:
                raise NotImplementedError(f"{name}: got {value}, want None in latent attention")
        if attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"attn_type: got {attn_type}, want decoder in latent attention")
        super().__init__(
            num_heads,
            head_size,
            scale,
            num_kv_heads,
            alibi_slopes,
            sliding_window,
            kv_cache_dtype,
            logits_soft_cap,
            attn_type,
            kv_sharing_target_layer_name,
            **mla,
        )
        self.supports_quant_query_input = False
        self._is_fp8 = kv_cache_dtype in FP8
        self._options: dict[str, Any] = {"scale": self.scale}
        """Without what is a default: each argument costs time in every layer of every step."""
        if getattr(envs, "VLLM_BATCH_INVARIANT", False):
            self._options["batch_invariant"] = True

    def forward_mqa(
        self, q: Tensor | tuple[Tensor, Tensor], kv_c_and_k_pe_cache: Tensor, attn_metadata: Any, layer: Any
    ) -> tuple[Tensor, Tensor | None]:
        """[tokens, head, 512] over latent rows, and the natural logarithm of the scores' sums where a split needs it.

        Rows of padding are not written.
        """
        decode, cache, options = attn_metadata.decode, kv_c_and_k_pe_cache, self._options
        if isinstance(q, tuple):
            q = torch.cat(q, dim=-1)
        if self._is_fp8:
            options = {**options, "cache_scale": layer._k_scale}
            if cache.dtype == torch.uint8:
                cache = cache.view(torch.float8_e4m3fn)
        if self.need_to_return_lse_for_decode:
            options = {**options, "return_lse": True}
        result = fovea.latent_attention(
            q,
            cache.unsqueeze(-2),
            decode.block_table,
            decode.seq_lens,
            decode.query_start_loc,
            max_seqlen_q=decode.max_query_len,
            max_kv_len=decode.max_kv_len,
            out=q.new_empty((*q.shape[:-1], _VALUES)),
            schedule=decode.schedules[q.shape, self.scale],
            **options,
        )
        return result if isinstance(result, tuple) else (result, None)


class FoveaPrefillBackend(MLAPrefillBackend):
    """Prompts over keys of 192 and values of 128, or the model's other sizes."""

    @staticmethod
    def get_name() -> str:
        from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum

        return "FOVEA" if "FOVEA" in MLAPrefillBackendEnum.__members__ else "CUSTOM"

    @classmethod
    def supports_compute_capability(cls, device_capability: Any) -> bool:
        return device_capability is not None and device_capability.major >= 8 and has_kernels(device_capability)

    @classmethod
    def supports_mla_dimensions(cls, mla_dimensions: Any) -> bool:
        sizes = mla_dimensions.qk_nope_head_dim + mla_dimensions.qk_rope_head_dim, mla_dimensions.v_head_dim
        return all(size % 8 == 0 and size <= 256 for size in sizes)

    def supports_out(self) -> bool:
        return True

    def run_prefill_new_tokens(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        return_softmax_lse: bool,
        out: Tensor | None = None,
        output_scale: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        if output_scale is not None:
            raise NotImplementedError("output_scale: got a scale, want None (this backend does not quantize its output)")
        rows = self._prefill_metadata.query_start_loc, self._prefill_metadata.max_query_len
        result = self._attend((q, k, v), rows, rows, True, return_softmax_lse, out)
        return result if return_softmax_lse else result[0]

    def run_prefill_context_chunk(
        self, chunk_idx: Any = None, q: Any = None, k: Any = None, v: Any = None, out: Tensor | None = None, chunk: Any = None
    ) -> tuple[Tensor, Tensor]:
        """A chunk is a number until vLLM 0.26, and an object in later ones; all its keys are before the queries."""
        prompt = self._prefill_metadata
        if chunk is not None:
            rows, keys = (chunk.query_start_loc, chunk.max_query_len), (chunk.cu_seq_lens, chunk.max_seq_len)
        else:
            context = prompt.chunked_context
            rows = prompt.query_start_loc, prompt.max_query_len
            keys = context.cu_seq_lens[chunk_idx], context.max_seq_lens[chunk_idx]
        return self._attend((q, k, v), rows, keys, False, True, out)

    def _attend(
        self,
        qkv: tuple[Tensor, Tensor, Tensor],
        rows: tuple[Tensor, int],
        keys: tuple[Tensor, int],
        causal: bool,
        return_lse: bool,
        out: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """(out, lse [head, token], as vLLM merges it)"""
        q, v = qkv[0], qkv[2]
        if out is None:
            out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        lse = q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32) if return_lse else None
        options = {"batch_invariant": True} if getattr(envs, "VLLM_BATCH_INVARIANT", False) else {}
        fovea.attention(
            *qkv,
            causal=causal,
            scale=self.scale,
            cu_seqlens_q=rows[0],
            cu_seqlens_k=keys[0],
            max_seqlen_q=rows[1],
            max_seqlen_k=keys[1],
            out=out,
            lse=None if lse is None else lse.t(),
            **options,
        )
        return out, lse
