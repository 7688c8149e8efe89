# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's prefill of a ragged batch."""

from typing import Any

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea.compat._arguments import refuse
from fovea.compat.flashinfer._dense import dense
from fovea.compat.flashinfer._masks import Bits, check_buffers, kept, masked
from fovea.compat.flashinfer._output import Output
from fovea.compat.flashinfer._plan import Shape, checked_indptr, try_dense
from fovea.compat.flashinfer._scales import Scales
from fovea.compat.flashinfer._terms import (
    INDPTR,
    NAMES,
    PLAN_NAMES,
    ROWS,
    Result,
    Scores,
    no_positions,
    refuse_masks,
    refuse_variants,
    token_major,
    want,
    want_sizes,
)
from fovea.compat.flashinfer._wrapper import Wrapper, want_rows

_BUFFERS = ("qo_indptr_buf", "kv_indptr_buf")


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    """Prefill of a batch whose keys lie one sequence after another: plan() once for the layers of a step, run() for each."""

    @adapted()
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: Tensor | None = None,
        kv_indptr_buf: Tensor | None = None,
        custom_mask_buf: Tensor | None = None,
        mask_indptr_buf: Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
        jit_kwargs: dict[str, Any] | None = None,
        variant_owns_mask: bool = False,
    ) -> None:
        """
        Args:
            kv_layout: "NHD": k is ``[total_k, kv_head, dim]``. "HND": ``[kv_head, total_k, dim]``.
            qo_indptr_buf: ``[batch + 1]``, with use_cuda_graph; kv_indptr_buf likewise.
            The others are those of :class:`BatchPrefillWithPagedKVCacheWrapper`.
        """
        refuse_variants(jit_args=jit_args, jit_kwargs=jit_kwargs, variant_owns_mask=variant_owns_mask)
        given = dict(zip(_BUFFERS, (qo_indptr_buf, kv_indptr_buf), strict=True))
        super().__init__(float_workspace_buffer, kv_layout, given if use_cuda_graph else None)
        self._mask_buffers = {"custom_mask_buf": custom_mask_buf, "mask_indptr_buf": mask_indptr_buf} if use_cuda_graph else None
        self._bits: Bits = {}

    @adapted(PLAN_NAMES, axes={"qo_indptr": INDPTR, "kv_indptr": INDPTR})
    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int | None = None,
        custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
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
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        seq_lens: Tensor | None = None,
        seq_lens_q: Tensor | None = None,
        max_token_per_sequence: int | None = None,
        max_sequence_kv: int | None = None,
        v_indptr: Tensor | None = None,
        o_indptr: Tensor | None = None,
        uniform_q_len: int | None = None,
    ) -> None:
        """Plans run() for a batch. Waits for the device where an indptr is on it: give them on the CPU, as engines have them.

        Args:
            qo_indptr: ``[batch + 1]``: rows ``qo_indptr[b]`` to ``qo_indptr[b + 1] - 1`` of q belong to sequence b; kv_indptr:
                those of k and v. The last query of a sequence is at its last key.
            v_indptr: None, as o_indptr: v's rows are k's, out's are q's.
            The others are those of :meth:`BatchPrefillWithPagedKVCacheWrapper.plan`.
        """
        no_positions(pos_encoding_mode)
        refuse_masks(prefix_len_ptr=prefix_len_ptr, token_pos_in_items_ptr=token_pos_in_items_ptr)
        refuse_masks(token_pos_in_items_len=token_pos_in_items_len, max_item_len_ptr=max_item_len_ptr)
        refuse("v's rows are k's, out's are q's", v_indptr=v_indptr, o_indptr=o_indptr)
        head_dim_vo = head_dim_qk if head_dim_vo is None else head_dim_vo
        want_sizes(65535, head_dim_qk=head_dim_qk, head_dim_vo=head_dim_vo)
        heads, dims = (num_qo_heads, num_kv_heads), (head_dim_qk, head_dim_vo)
        shape = Shape.of(heads, dims, q_data_type, kv_data_type, o_data_type)
        q_ends, k_ends = checked_indptr("qo_indptr", qo_indptr), checked_indptr("kv_indptr", kv_indptr)
        want(len(q_ends) == len(k_ends), "kv_indptr.shape[0]", len(k_ends), f"{len(q_ends)} (that of qo_indptr)")
        bits = masked(custom_mask, packed_custom_mask, q_ends, k_ends.diff(), self.device)
        scores = Scores(causal and not bits, window_left, logits_soft_cap, sm_scale)
        invariant = disable_split_kv or fixed_split_size is not None
        self._check_buffer("qo_indptr_buf", q_ends)
        self._check_buffer("kv_indptr_buf", k_ends)
        if self._mask_buffers is not None:
            check_buffers(bits, self._mask_buffers)
        try_dense(self.device, shape, scores, invariant, bool(bits))
        self._cu_seqlens_q, self._max_seqlen_q, self._rows = self._kept("qo_indptr_buf", q_ends)
        self._cu_seqlens_k, self._max_seqlen_k, self._keys = self._kept("kv_indptr_buf", k_ends)
        self._shape, self._batch_invariant, self._scores = shape, invariant, scores
        self._bits = kept(bits, self._mask_buffers)

    begin_forward = plan

    @adapted(NAMES, axes={"q": ROWS, "k": ROWS, "v": ROWS})
    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *args: Any,
        q_scale: Tensor | float | None = None,
        k_scale: Tensor | float | None = None,
        v_scale: Tensor | float | None = None,
        o_scale: float | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        lse_base: str = "log2",
        lse_layout: str = "NH",
        enable_pdl: bool | None = None,
        kv_cache_sf: Tensor | tuple[Tensor, Tensor] | None = None,
    ) -> Result:
        """Attention as planned. Waits for nothing.

        Args:
            q: ``[total_q, head, dqk]``.
            k: ``[total_k, kv_head, dqk]``, with "HND" ``[kv_head, total_k, dqk]``; v likewise with its own head dim.
            q_scale: A number that multiplies the scores, or a tensor of float8_e4m3fn; k_scale likewise. v_scale: multiplies out.
            o_scale: None.
            The others are those of :meth:`BatchPrefillWithPagedKVCacheWrapper.run`.

        Returns:
            out ``[total_q, head, dv]``, or (out, lse float32). A query that sees no key gives 0 and -inf.
        """
        refuse_variants(o_scale=o_scale, kv_cache_sf=kv_cache_sf)
        scores = self._planned()
        k, v = token_major(k, self._kv_layout), token_major(v, self._kv_layout)
        self._shape.check(q, k, v)
        want_rows("q", q, self._rows, "qo_indptr")
        want_rows("k", k, self._keys, "kv_indptr")
        return dense(
            q,
            k,
            v,
            scores,
            Scales(q_scale, k_scale, v_scale).times(q, args),
            Output(self._shape.written, out, lse, return_lse, lse_base, lse_layout),
            cu_seqlens_q=self._cu_seqlens_q,
            cu_seqlens_k=self._cu_seqlens_k,
            max_seqlen_q=self._max_seqlen_q or None,
            max_seqlen_k=self._max_seqlen_k or None,
            batch_invariant=self._batch_invariant,
            **self._bits,
        )

    @adapted()
    def run_return_lse(self, q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Result:
        """:meth:`run` with ``return_lse=True``."""
        return self.run(q, k, v, *args, return_lse=True, **options)

    @adapted()
    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
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
        return self._with_scores(scores, self.run, q, k, v, return_lse=return_lse)

    @adapted()
    def forward_return_lse(self, q: Tensor, k: Tensor, v: Tensor, *args: Any, **options: Any) -> Result:
        """:meth:`forward` that returns the log-sum-exp too."""
        return self.forward(q, k, v, *args, return_lse=True, **options)
