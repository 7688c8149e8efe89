# SPDX-License-Identifier: Apache-2.0
"""vLLM's attention backend: paged attention, and the cache that it reads.

vLLM calls in this order: the backend's ``supports_*`` methods choose it, the builder makes the metadata of a step, and each layer
appends its keys and values and attends. A call finds its plan by its description, in C; no plan holds a tensor of a step. Bounds of
lengths are rounded up, so that steps with other lengths find the plan of an earlier step.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm import envs
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum

import fovea
from fovea.integrations.vllm._choice import CACHE_DTYPES, CODES, FP8, bound, has_kernels, mixed_dtypes

_PAGE = 16
"""Pages are multiples of it, in tokens."""
_LARGEST_HEAD, _LARGEST_HEAD_OF_MANY = 512, 256
"""Caches of fp8 and GPUs of AMD take the second."""
_SCALE = torch.float32.itemsize
"""Bytes of the scale behind the codes of a row."""
_ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)


class FoveaBackend(AttentionBackend):
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = [*CACHE_DTYPES, *CODES]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        """A member of vLLM's enumeration, which new names have joined since 0.33."""
        return "FOVEA" if "FOVEA" in AttentionBackendEnum.__members__ else "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[FoveaImpl]:
        return FoveaImpl

    @staticmethod
    def get_builder_cls() -> type[FoveaMetadataBuilder]:
        return FoveaMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(*_: Any) -> list[int | MultipleOf]:
        return [MultipleOf(_PAGE)]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """The shape of FLASH_ATTN's cache, which connectors know. Rows with scales have room for them, as in TRITON_ATTN's. vLLM
        asks for it until 0.26; later ones give any layout as one shape."""
        row = head_size + (_SCALE if cache_dtype_str in CODES else 0)
        return _flash_attn().get_kv_cache_shape(num_blocks, block_size, num_kv_heads, row)

    @staticmethod
    def get_kv_cache_stride_order(*args: Any, **kwargs: Any) -> tuple[int, ...]:
        return _flash_attn().get_kv_cache_stride_order(*args, **kwargs)

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and head_size <= _LARGEST_HEAD

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return has_kernels(capability)

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (AttentionType.DECODER, AttentionType.ENCODER_DECODER, *_ENCODERS)

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True

    @classmethod
    def supports_per_head_quant_scales(cls) -> bool:
        return True

    @classmethod
    def supports_combination(
        cls,
        head_size: int,
        dtype: torch.dtype,
        kv_cache_dtype: str | None,
        block_size: int | None = None,
        use_mla: bool = False,
        *_: Any,
        **named: Any,
    ) -> str | None:
        """Why these do not go together; vLLM shows it as the reason. The device's capability comes last."""
        if use_mla:
            return (
                "use_mla: got True, want FOVEA_MLA or FOVEA_MLA_SPARSE; "
                "before vLLM 0.33, CUSTOM with FOVEA_VLLM_CUSTOM=mla or sparse_mla in the environment"
            )
        capability = named.get("device_capability", _[-1] if _ else None)
        if capability is not None and (capability.major, capability.minor) < (8, 0):
            if dtype == torch.bfloat16:
                return "dtype: got torch.bfloat16, want torch.float16 below compute capability 8.0"
            if head_size > 128:
                return f"head_size: got {head_size}, want at most 128 below compute capability 8.0"
        if head_size > _LARGEST_HEAD_OF_MANY and torch.version.hip is not None:
            return f"head_size: got {head_size}, want at most {_LARGEST_HEAD_OF_MANY} on GPUs of AMD"
        if kv_cache_dtype in CODES and torch.version.hip is not None:
            return f"kv_cache_dtype: got {kv_cache_dtype}, want auto, fp8 or the dtype of the model on GPUs of AMD"
        if head_size > _LARGEST_HEAD_OF_MANY and (kv_cache_dtype in CODES or (kv_cache_dtype or "").startswith("fp8")):
            return f"head_size: got {head_size}, want at most {_LARGEST_HEAD_OF_MANY} with kv_cache_dtype {kv_cache_dtype}"
        return mixed_dtypes(dtype, kv_cache_dtype)


def _flash_attn() -> Any:
    from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend

    return FlashAttentionBackend


@dataclass
class FoveaMetadata:
    """A step of a batch: what all layers of one group of caches share."""

    num_actual_tokens: int
    max_query_len: int
    query_start_loc: Tensor
    max_seq_len: int
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    causal: bool
    max_kv_len: int
    """A bound of ``max_seq_len``, which few others share a plan with."""


class FoveaMetadataBuilder(AttentionMetadataBuilder[FoveaMetadata]):
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS
    supports_update_block_table = True

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        window = getattr(getattr(vllm_config, "model_config", None), "rswa_window", None)
        if window is not None:  # vLLM asks a backend about it from 0.33 on
            raise NotImplementedError(f"rswa_window: got {window}, want None; choose another attention backend")

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> FoveaMetadata:
        """Kernels read lengths and block tables on the device, so a step needs no schedule from here."""
        common = common_attn_metadata
        if isinstance(common.causal, Tensor):
            raise NotImplementedError("causal: got a tensor, want one bool for all sequences")
        return FoveaMetadata(
            num_actual_tokens=common.num_actual_tokens,
            max_query_len=common.max_query_len,
            query_start_loc=common.query_start_loc,
            max_seq_len=common.max_seq_len,
            seq_lens=common.seq_lens,
            block_table=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            causal=common.causal,
            max_kv_len=bound(common.max_seq_len),
        )

    def update_block_table(self, metadata: FoveaMetadata, blk_table: Tensor, slot_mapping: Tensor) -> FoveaMetadata:
        new = copy.copy(metadata)
        new.block_table, new.slot_mapping = blk_table, slot_mapping
        return new


class FoveaImpl(AttentionImpl[FoveaMetadata]):
    """A layer. ``sinks`` are the model's parameter: they are read after its weights are loaded."""

    supports_dcp = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: Tensor | None = None,
    ) -> None:
        if alibi_slopes is not None:
            raise NotImplementedError("alibi_slopes: got slopes, want None; choose another attention backend")
        if sinks is not None and sinks.shape != (num_heads,):
            raise ValueError(f"sinks.shape: got {list(sinks.shape)}, want [{num_heads}], one of each head")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype, self.attn_type, self.sinks = kv_cache_dtype, attn_type, sinks
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        shared: dict[str, Any] = {"scale": self.scale}
        if logits_soft_cap:
            shared["softcap"] = float(logits_soft_cap)
        if getattr(envs, "VLLM_BATCH_INVARIANT", False):
            shared["batch_invariant"] = True
        reach = None if sliding_window is None else sliding_window - 1
        windows = {True: None, False: None} if reach is None else {True: (reach, None), False: (reach, reach)}
        self._options = {causal: {"causal": causal, "window": window, **shared} for causal, window in windows.items()}
        """Options of causal calls and of others, without defaults: each argument costs time in every layer of every step."""
        self._is_fp8 = kv_cache_dtype in FP8
        self._codes = CODES.get(kv_cache_dtype)
        self._sink: Tensor | None = None

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Captured graphs read the sinks at their place, so reloaded ones go there."""
        if self.sinks is None:
            return
        if self._sink is None:
            self._sink = self.sinks.detach().float()
            for options in self._options.values():
                options["sink"] = self._sink
        else:
            self._sink.copy_(self.sinks.detach())

    def do_kv_cache_update(self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
        if self.attn_type in _ENCODERS:
            return  # nothing is cached
        k_cache, v_cache, scales = self._rows(kv_cache)
        tokens = slot_mapping.shape[0]
        if key.shape[0] != tokens:  # padded
            key, value = key[:tokens], value[:tokens]
        if self._is_fp8:
            fovea.paged_cache_append(key, value, k_cache, v_cache, slot_mapping, k_scale=layer._k_scale, v_scale=layer._v_scale)
        else:
            fovea.paged_cache_append(key, value, k_cache, v_cache, slot_mapping, **scales)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: FoveaMetadata,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        """Rows of query and output beyond the step's tokens are padding: neither read nor written."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("output_scale: got a scale, want None (this backend does not quantize its output)")
        if attn_metadata is None:  # vLLM measures its memory
            return output.fill_(0)
        if self._sink is None and self.sinks is not None:
            self.process_weights_after_loading(query.dtype)
        if self.attn_type in _ENCODERS:
            return self._attend(query, key, value, attn_metadata, output)
        k_cache, v_cache, scales = self._rows(kv_cache)
        options = self._options[attn_metadata.causal]
        if self._is_fp8:
            options = {**options, "k_scale": layer._k_scale, "v_scale": layer._v_scale}
        elif scales:
            options = {**options, **scales}
        fovea.paged_attention(
            query,
            k_cache,
            v_cache,
            attn_metadata.block_table,
            attn_metadata.seq_lens,
            attn_metadata.query_start_loc,
            max_seqlen_q=attn_metadata.max_query_len,
            max_kv_len=attn_metadata.max_kv_len,
            out=output,
            **options,
        )
        return output

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, metadata: FoveaMetadata, output: Tensor) -> Tensor:
        """Attention over the step's own keys: that of encoders."""
        tokens = metadata.num_actual_tokens
        fovea.attention(
            query[:tokens],
            key[:tokens],
            value[:tokens],
            cu_seqlens_q=metadata.query_start_loc,
            cu_seqlens_k=metadata.query_start_loc,
            max_seqlen_q=metadata.max_query_len,
            max_seqlen_k=metadata.max_query_len,
            out=output[:tokens],
            **self._options[False],
        )
        return output

    def _rows(self, kv_cache: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """K and V of a layer's cache: [blocks, head, token, K then V], or, until vLLM 0.22, [2, blocks, token, head, D]. Where rows
        have scales, each lies behind the codes of its row; the options that say so come third.

        The cache keeps these views, so its memory goes with it. vLLM measures graphs with a small cache first.
        """
        kept = kv_cache.__dict__.get("fovea_rows")
        if kept is None:
            rows = kv_cache.data  # a view of the cache itself would keep it
            if self._is_fp8:
                rows = rows.view(torch.float8_e4m3fn)
            size = self.head_size + (_SCALE if self._codes else 0)
            k, v = rows.transpose(1, 2).split(size, dim=-1) if rows.dim() == 4 else rows.unbind(0)
            kept = k, v, {}
            if self._codes:
                (k, k_scales), (v, v_scales) = (self._split_scales(half) for half in (k, v))
                formats = {"k_format": self._codes, "v_format": self._codes}
                kept = k, v, {**formats, "k_scale_cache": k_scales, "v_scale_cache": v_scales}
            kv_cache.__dict__["fovea_rows"] = kept
        return kept

    @staticmethod
    def _split_scales(rows: Tensor) -> tuple[Tensor, Tensor]:
        """Codes of rows, and the scales behind them. Unused slots may hold anything."""
        return rows[..., :-_SCALE], rows[..., -_SCALE:].view(torch.float32)[..., 0]
