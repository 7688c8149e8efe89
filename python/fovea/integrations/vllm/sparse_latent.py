# SPDX-License-Identifier: Apache-2.0
"""vLLM's backend for latent attention over listed tokens (DeepSeek's sparse attention), decode and prefill alike.

vLLM's indexer lists the tokens of each query, and its builder says which sequence a query belongs to.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm import envs
from vllm.model_executor.layers.attention import sparse_mla_attention
from vllm.model_executor.layers.attention.sparse_mla_attention import SparseMLACommonImpl, SparseMLACommonMetadataBuilder
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport, AttentionMetadata
from vllm.v1.attention.backends.mla import sparse_utils
from vllm.v1.attention.backends.registry import AttentionBackendEnum

import fovea
from fovea.integrations.vllm._choice import has_kernels, mixed_dtypes, no_latent_kernel

_PAGE = 64
_ROW = 576
_PACKED = "fp8_ds_mla"
_PACKED_FORMAT = "v32_fp8"
_PACKED_BYTES = 656
_DECODE_AT_MOST = 128


class FoveaSparseLatentBackend(AttentionBackend):
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16", _PACKED]

    @staticmethod
    def get_name() -> str:
        return "FOVEA_MLA_SPARSE" if "FOVEA_MLA_SPARSE" in AttentionBackendEnum.__members__ else "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[FoveaSparseLatentImpl]:
        return FoveaSparseLatentImpl

    @staticmethod
    def get_builder_cls() -> type[FoveaSparseLatentBuilder]:
        return FoveaSparseLatentBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(*_: Any) -> list[Any]:
        """The page of vLLM's indexer."""
        return [_PAGE]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        return num_blocks, block_size, _PACKED_BYTES if cache_dtype_str == _PACKED else head_size

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [_ROW]

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True

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
        if torch.version.hip is not None:
            return "device: got one of AMD, want NVIDIA: token-sparse latent attention has no kernel for AMD"
        reason = no_latent_kernel(dtype, kv_cache_dtype, named.get("device_capability", _[-1] if _ else None))
        if reason is not None:
            return reason
        if kv_cache_dtype == _PACKED:
            return None if dtype == torch.bfloat16 else f"dtype: got {dtype}, want torch.bfloat16 over {_PACKED}"
        return mixed_dtypes(dtype, kv_cache_dtype)


if hasattr(sparse_mla_attention, "SparseMLACommonMetadata"):  # since vLLM 0.33 at the latest

    @dataclass(kw_only=True)
    class FoveaSparseMetadata(sparse_mla_attention.SparseMLACommonMetadata):
        schedules: Any = field(default_factory=lambda: defaultdict(fovea.LatentSchedule))

else:

    @dataclass(kw_only=True)
    class FoveaSparseMetadata(AttentionMetadata):  # type: ignore[no-redef]
        """The fields that vLLM's builder fills in."""

        num_reqs: int
        max_query_len: int
        max_seq_len: int
        num_actual_tokens: int
        query_start_loc: Tensor
        slot_mapping: Tensor
        block_table: Tensor
        req_id_per_token: Tensor
        seq_lens: Tensor
        block_size: int
        topk_tokens: int
        num_decodes: int
        num_prefills: int
        num_decode_tokens: int
        prefill_max_seq_len: int
        prefill: Any
        cp_kv_cache_interleave_size: int
        schedules: Any = field(default_factory=lambda: defaultdict(fovea.LatentSchedule))


class FoveaSparseLatentBuilder(SparseMLACommonMetadataBuilder[FoveaSparseMetadata]):
    metadata_cls = FoveaSparseMetadata
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(_DECODE_AT_MOST, supports_spec_as_decode=True)


class FoveaSparseLatentImpl(SparseMLACommonImpl[FoveaSparseMetadata]):
    supports_dcp = False
    group_conversion_decode_only = True

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
        *rest: Any,
        **mla: Any,
    ) -> None:
        for name, value in {
            "alibi_slopes": alibi_slopes,
            "sliding_window": sliding_window,
            "logits_soft_cap": logits_soft_cap,
        }.items():
            if value:
                raise NotImplementedError(f"{name}: got {value}, want None in latent attention")
        super().__init__(
            num_heads,
            head_size,
            scale,
            num_kv_heads,
            alibi_slopes,
            sliding_window,
            kv_cache_dtype,
            logits_soft_cap,
            *rest,
            **mla,
        )
        self.supports_quant_query_input = False
        self._format = _PACKED_FORMAT if kv_cache_dtype == _PACKED else "rows"
        self._batch_invariant = bool(getattr(envs, "VLLM_BATCH_INVARIANT", False))

    if not hasattr(SparseMLACommonImpl, "_forward_mqa_kernel"):  # later ones number the tokens themselves

        def forward_mqa(self, q: Any, kv_c_and_k_pe_cache: Tensor, attn_metadata: Any, layer: Any) -> tuple[Tensor, Tensor | None]:
            tokens = len(q[0] if isinstance(q, tuple) else q)
            listed = self.topk_indices_buffer[:tokens]
            listed = sparse_utils.triton_convert_req_index_to_global_index(
                attn_metadata.req_id_per_token[:tokens],
                attn_metadata.block_table,
                listed,
                BLOCK_SIZE=attn_metadata.block_size,
                NUM_TOPK_TOKENS=listed.shape[1],
            )
            return self._attend(q, kv_c_and_k_pe_cache, listed, attn_metadata.schedules)

    def _forward_mqa_kernel(
        self, q: Any, kv_cache: Tensor, topk_indices: Tensor, valid_counts: Tensor, *, block_size: int, **_: Any
    ) -> tuple[Tensor, Tensor | None]:
        rows, step = sparse_utils.flat_kv_row_view(kv_cache, block_size)
        if step != block_size:  # vLLM numbers the rows between blocks too
            kv_cache = rows.unsqueeze(0)
        return self._attend(q, kv_cache, topk_indices, None)

    def _attend(self, q: Any, cache: Tensor, listed: Tensor, schedules: Any) -> tuple[Tensor, None]:
        """Lists hold ``block * page + slot``, and -1 where they are short."""
        if isinstance(q, tuple):
            q = torch.cat(q, dim=-1)
        out = fovea.sparse_latent_attention(
            q,
            cache if self._format == _PACKED_FORMAT else cache.unsqueeze(-2),
            listed,
            format=self._format,
            scale=self.scale,
            batch_invariant=self._batch_invariant,
            schedule=None if schedules is None else schedules[q.shape, self.scale],
        )
        return out, None
