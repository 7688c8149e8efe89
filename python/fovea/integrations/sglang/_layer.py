# SPDX-License-Identifier: Apache-2.0
"""A layer's place in the cache, and its calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fovea
from fovea._plan import layers_planner
from fovea.integrations.sglang._limits import check_call, check_layer, check_rows
from fovea.integrations.sglang._step import Step

# A pass's plans stay until another shape comes, so that they keep no queries, keys or values.
_plan_dense, _plan_paged, _plan_latent, _plan_append = (
    layers_planner(function)
    for function in (fovea.attention, fovea.paged_attention, fovea.latent_attention, fovea.paged_cache_append)
)


class Layer:
    """An attention layer of SGLang, a ``RadixAttention``, as calls of Fovea. Values that all passes share are computed once."""

    def __init__(self, module: Any, pool: Any, page: int, batch_invariant: bool) -> None:
        rank = getattr(pool, "kv_lora_rank", getattr(getattr(pool, "full_kv_pool", None), "kv_lora_rank", None))
        self._latent = rank is not None and module.v_head_dim == rank and module.tp_k_head_num == 1
        self._cached = rank is None or self._latent
        """Whether the pool's rows are the layer's keys and values: those of a latent model's prompts are not."""
        check_layer(module, self._latent)
        self.windowed = bool(getattr(pool, "swa_layer_nums", 0)) and pool.layers_mapping[module.layer_id][1]
        self._module, self._pool, self._page, self._rank = module, pool, page, rank
        self._q_shape = (-1, module.tp_q_head_num, module.qk_head_dim)
        self._k_shape = (-1, module.tp_k_head_num, module.qk_head_dim)
        self._v_shape = (-1, module.tp_v_head_num, module.v_head_dim)
        self._out_shape = (-1, module.tp_q_head_num * module.v_head_dim)
        kind = getattr(module.attn_type, "value", "decoder")
        causal, left = kind == "decoder", module.sliding_window_size
        window = None if left is None or left < 0 else (left, None if causal else left)
        self._options = {"causal": causal, "window": window, "scale": module.scaling, "batch_invariant": batch_invariant}
        self._softcap = module.logit_cap or 0.0
        kind = (*self._options.values(), self._softcap, self.windowed, self._latent, self._q_shape, self._k_shape, self._v_shape)
        self._append, self._dense, self._paged = (f"{name} {kind}" for name in ("append", "dense", "paged"))
        self._addresses = (0, 0)
        self._pages: tuple[Tensor, Tensor] | None = None

    def attend(
        self, step: Step, qkv: tuple[Tensor, Tensor | None, Tensor | None], slots: Tensor | None, sinks: Tensor | None
    ) -> Tensor:
        """Writes the new tokens to their slots, and attends.

        Args:
            qkv: Rows of all heads. A layer that reads another one's cache has no k and v.
            slots: None where the model has written the cache itself.
        """
        q, k, v = qkv
        q = q.view(self._q_shape)
        named = {} if sinks is None else {"sink": sinks.float()}
        if k is None or v is None:
            return self._attend_pages(step, q, self._cache(), named).view(self._out_shape)
        k, v = k.view(self._k_shape), v.view(self._v_shape)
        dense = step.shape.dense and not self._latent
        pages = None if dense and slots is None else self._cache()
        if slots is not None:
            self._write(step, k, v, pages, slots)
        if dense:
            return step.run(self._dense, self._plan_dense, (q, k, v), named).view(self._out_shape)
        return self._attend_pages(step, q, pages, named).view(self._out_shape)

    def _write(self, step: Step, k: Tensor, v: Tensor, pages: tuple[Tensor, Tensor], slots: Tensor) -> None:
        """A latent row goes into the cache as its values and its rotary part."""
        k_pages, v_pages = pages
        if self._latent:
            k, v = k[..., : self._rank], k[..., self._rank :]
            k_pages, v_pages = k_pages[..., : self._rank], k_pages[..., self._rank :]
        step.run(self._append, _plan_write, (k, v, k_pages, v_pages, slots), self._scales(k_pages))

    def _attend_pages(self, step: Step, q: Tensor, pages: tuple[Tensor, Tensor], named: dict[str, Tensor]) -> Tensor:
        scales = self._scales(pages[0])
        if not self._latent:
            return step.run(self._paged, self._plan_paged, (q, *pages), named | scales if scales else named)
        check_call(self._latent, named)
        scales = {"cache_scale": scales["k_scale"]} if scales else {}
        return step.run(self._paged, self._plan_latent, (q, pages[0]), scales, prepared=True)

    def _plan_dense(self, step: Step, tensors: tuple[Tensor, ...], named: dict[str, Tensor]) -> fovea.Plan:
        """Attention over the pass's own rows: its sequences have no others."""
        lengths, most = step.cu_seqlens_q, step.shape.most_rows
        of_rows = {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths, "max_seqlen_q": most, "max_seqlen_k": most}
        return _plan_dense(*tensors, **of_rows, **named, **self._options, softcap=self._softcap)

    def _plan_paged(self, step: Step, tensors: tuple[Tensor, ...], named: dict[str, Tensor]) -> fovea.Plan:
        check_call(self._cached, {})
        return _plan_paged(*tensors, **self._of_rows(step), **named, **self._options, softcap=self._softcap)

    def _plan_latent(self, step: Step, tensors: tuple[Tensor, ...], named: dict[str, Tensor]) -> fovea.Plan:
        planner = fovea.plan_latent_attention if step.captured else _plan_latent
        return planner(*tensors, **self._of_rows(step), **named, **self._options)

    def _of_rows(self, step: Step) -> dict[str, Any]:
        tables = step.tables
        blocks = tables.window_blocks if self.windowed else tables.blocks
        lengths = {"kv_len": tables.kv_len, "cu_seqlens_q": step.cu_seqlens_q, "max_seqlen_q": step.shape.most_rows}
        return {"block_table": blocks} | lengths

    def _cache(self) -> tuple[Tensor, Tensor]:
        """The layer's rows of the pool, in pages. The pool may wait here until they are loaded."""
        k, v = self._pool.get_kv_buffer(self._module.layer_id)
        addresses = k.data_ptr(), v.data_ptr()
        if addresses != self._addresses:
            self._pages = _in_pages(k, self._page), _in_pages(v, self._page)
            self._addresses = addresses
        return self._pages

    def _scales(self, pages: Tensor) -> dict[str, Tensor]:
        module = self._module
        if module.k_scale is None or pages.dtype != torch.float8_e4m3fn:
            return {}
        return {"k_scale": module.k_scale, "v_scale": module.k_scale if self._latent else module.v_scale}


def _plan_write(step: Step, tensors: tuple[Tensor, ...], named: dict[str, Tensor]) -> fovea.Plan:
    return _plan_append(*tensors, **named)


def _in_pages(buffer: Tensor, page: int) -> Tensor:
    """``[blocks, page, head, dim]``, of a pool's rows or of its blocks with heads first."""
    if buffer.dim() == 4:
        return buffer.transpose(1, 2)
    check_rows(buffer)
    tokens, row = buffer.shape[0], buffer.stride(0)
    return buffer.as_strided((tokens // page, page, *buffer.shape[1:]), (page * row, row, *buffer.stride()[1:]))
