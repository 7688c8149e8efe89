# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's prefill of a batch over pages."""

from typing import Any

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea.compat.flashinfer._masks import Bits, check_buffers, kept, masked
from fovea.compat.flashinfer._output import Output
from fovea.compat.flashinfer._plan import PageList, Shape, checked_indptr
from fovea.compat.flashinfer._scales import Scales
from fovea.compat.flashinfer._terms import (
    INDPTR,
    NAMES,
    PLAN_NAMES,
    ROWS,
    Cache,
    Result,
    Scores,
    no_positions,
    refuse_masks,
    refuse_variants,
    want,
    want_sizes,
)
from fovea.compat.flashinfer._wrapper import PagedWrapper, want_rows

_PAGES = ("paged_kv_indptr_buf", "paged_kv_indices_buf", "paged_kv_last_page_len_buf")
_BUFFERS = ("qo_indptr_buf", *_PAGES)
_PLAN_AXES = {"qo_indptr": INDPTR, "paged_kv_indptr": INDPTR, "paged_kv_indices": "pages", "paged_kv_last_page_len": "batch"}
_RUN_NAMES = NAMES | {"block_table": "paged_kv_indices"}


class BatchPrefillWithPagedKVCacheWrapper(PagedWrapper):
    """Prefill, append or both, of a batch over pages: plan() once for the layers of a step, run() for each."""

    @adapted()
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        paged_kv_indptr_buf: Tensor | None = None,
        paged_kv_indices_buf: Tensor | None = None,
        paged_kv_last_page_len_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None,
        mask_indptr_buf: Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
        variant_owns_mask: bool = False,
    ) -> None:
        """
        Args:
            float_workspace_buffer: Says which device; its memory is not used.
            kv_layout: "NHD": pages are ``[page, kv_head, dim]``. "HND": ``[kv_head, page, dim]``.
            use_cuda_graph: Whether run() is replayed over later plans: their tensors then keep their addresses. The batch is fixed.
            qo_indptr_buf: ``[batch + 1]``, with use_cuda_graph; the next three likewise: ``[batch + 1]``, ``[n]`` and ``[batch]``.
            custom_mask_buf: uint8, room for the packed mask of any plan; with use_cuda_graph and masks, as mask_indptr_buf
                int32 ``[batch + 1]``. backend: Fovea chooses.
            jit_args: None, as jit_kwargs. variant_owns_mask: False.
        """
        refuse_variants(jit_args=jit_args, jit_kwargs=jit_kwargs, variant_owns_mask=variant_owns_mask)
        given = (qo_indptr_buf, paged_kv_indptr_buf, paged_kv_indices_buf, paged_kv_last_page_len_buf)
        buffers = dict(zip(_BUFFERS, given, strict=True)) if use_cuda_graph else None
        super().__init__(float_workspace_buffer, kv_layout, _PAGES, "paged_kv_", buffers, backend)
        self._mask_buffers = {"custom_mask_buf": custom_mask_buf, "mask_indptr_buf": mask_indptr_buf} if use_cuda_graph else None
        self._bits: Bits = {}

    @adapted(PLAN_NAMES, axes=_PLAN_AXES)
    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: torch.dtype | str = "float16",
        kv_data_type: torch.dtype | str | None = None,
        o_data_type: torch.dtype | str | None = None,
        non_blocking: bool = True,
        prefix_len_ptr: Tensor | None = None,
        token_pos_in_items_ptr: Tensor | None = None,
        token_pos_in_items_len: int = 0,
        max_item_len_ptr: Tensor | None = None,
        seq_lens: Tensor | None = None,
        seq_lens_q: Tensor | None = None,
        block_tables: Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        uniform_q_len: int | None = None,
    ) -> None:
        """Plans run() for a batch. Waits for the device where an indptr is on it: give them on the CPU, as engines have them.

        Args:
            qo_indptr: ``[batch + 1]``: rows ``qo_indptr[b]`` to ``qo_indptr[b + 1] - 1`` of q are the last tokens of sequence b.
            paged_kv_indptr: ``[batch + 1]``; with paged_kv_indices and paged_kv_last_page_len the pages of each sequence.
            causal: Whether a query sees the keys up to its own position only.
            custom_mask: bool, query rows times keys of each sequence one after another: whether a row sees a key. causal does not
                count then; window_left does.
            packed_custom_mask: uint8, the same packed, each sequence from a byte on: it counts where both are given.
            prefix_len_ptr: None, as token_pos_in_items_ptr and max_item_len_ptr.
            use_fp16_qk_reduction: Taken, as non_blocking, the rope_.., uniform_q_len, and all from seq_lens to max_sequence_kv.
            The others are those of :class:`BatchDecodeWithPagedKVCacheWrapper`.
        """
        no_positions(pos_encoding_mode)
        refuse_masks(prefix_len_ptr=prefix_len_ptr, token_pos_in_items_ptr=token_pos_in_items_ptr)
        refuse_masks(token_pos_in_items_len=token_pos_in_items_len, max_item_len_ptr=max_item_len_ptr)
        head_dim_vo = head_dim_qk if head_dim_vo is None else head_dim_vo
        want_sizes(65535, head_dim_qk=head_dim_qk, head_dim_vo=head_dim_vo)
        heads, dims = (num_qo_heads, num_kv_heads), (head_dim_qk, head_dim_vo)
        shape = Shape.of(heads, dims, q_data_type, kv_data_type, o_data_type)
        ends = checked_indptr("qo_indptr", qo_indptr)
        pages = PageList.of("paged_kv_", paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size)
        batch = len(pages.lengths)
        want(len(ends) == batch + 1, "qo_indptr.shape[0]", len(ends), f"{batch + 1} (that of paged_kv_indptr)")
        bits = masked(custom_mask, packed_custom_mask, ends, pages.lengths, self.device)
        scores = Scores(causal and not bits, window_left, logits_soft_cap, sm_scale)
        invariant = disable_split_kv or fixed_split_size is not None
        self._check_buffer("qo_indptr_buf", ends)
        if self._mask_buffers is not None:
            check_buffers(bits, self._mask_buffers)
        self._check_backend(shape)
        self._checked_pages(pages, shape, page_size, scores, invariant, bool(bits))
        self._keep_pages(pages, shape, page_size)
        self._cu_seqlens_q, self._max_seqlen_q, self._rows = self._kept("qo_indptr_buf", ends)
        self._batch_invariant, self._scores, self._bits = invariant, scores, kept(bits, self._mask_buffers)

    begin_forward = plan

    @adapted(_RUN_NAMES, axes={"q": ROWS})
    def run(
        self,
        q: Tensor,
        paged_kv_cache: Cache,
        *args: Any,
        q_scale: Tensor | float | None = None,
        k_scale: Tensor | float | None = None,
        v_scale: Tensor | float | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        lse_base: str = "log2",
        lse_layout: str = "NH",
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: Tensor | None = None,
        kv_cache_sf: Tensor | tuple[Tensor, Tensor] | None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        use_fp16_softmax: bool | None = None,
        uses_spcompress: bool | None = None,
    ) -> Result:
        """Attention as planned. Waits for nothing.

        Args:
            q: ``[total_q, head, dqk]``.
            lse_base: "log2" or "ln". lse_layout: "NH" for ``[total_q, head]``, "HN" for ``[head, total_q]``.
            enable_pdl: Taken, as use_fp16_softmax and uses_spcompress.
            The others are those of :meth:`BatchDecodeWithPagedKVCacheWrapper.run`.

        Returns:
            out ``[total_q, head, dv]``, or (out, lse float32). A query that sees no key gives 0 and -inf.
        """
        refuse_variants(skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor)
        scores = self._planned()
        if window_left is not None:
            scores = scores._replace(window_left=window_left)
        want_rows("q", q, self._rows, "qo_indptr")
        lengths = {"cu_seqlens_q": self._cu_seqlens_q, "max_seqlen_q": self._max_seqlen_q}
        output = Output(self._shape.written, out, lse, return_lse, lse_base, lse_layout)
        scales = Scales(q_scale, k_scale, v_scale).times(q, args)
        return self._run_pages(q, paged_kv_cache, kv_cache_sf, scores, scales, output, sink=sinks, **lengths, **self._bits)

    @adapted()
    def run_return_lse(self, q: Tensor, paged_kv_cache: Cache, *args: Any, **options: Any) -> Result:
        """:meth:`run` with ``return_lse=True``."""
        return self.run(q, paged_kv_cache, *args, return_lse=True, **options)

    @adapted()
    def forward(
        self,
        q: Tensor,
        paged_kv_cache: Cache,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        k_scale: float | None = None,
        v_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        *,
        return_lse: bool = False,
    ) -> Result:
        """The older name of :meth:`run`: its mask, soft cap and scale replace those of the plan, for later calls too."""
        no_positions(pos_encoding_mode)
        scores = Scores(causal and not self._bits, window_left, logits_soft_cap, sm_scale)
        return self._with_scores(scores, self.run, q, paged_kv_cache, k_scale=k_scale, v_scale=v_scale, return_lse=return_lse)

    @adapted()
    def forward_return_lse(self, q: Tensor, paged_kv_cache: Cache, *args: Any, **options: Any) -> Result:
        """:meth:`forward` that returns the log-sum-exp too."""
        return self.forward(q, paged_kv_cache, *args, return_lse=True, **options)
