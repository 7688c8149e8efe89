# SPDX-License-Identifier: Apache-2.0
"""flashinfer.decode over Fovea."""

from typing import Any

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea.compat._arguments import refuse
from fovea.compat.flashinfer._dense import dense
from fovea.compat.flashinfer._output import Output
from fovea.compat.flashinfer._plan import PageList, Shape
from fovea.compat.flashinfer._scales import Scales
from fovea.compat.flashinfer._terms import (
    EIGHT_BITS,
    INDPTR,
    NAMES,
    PLAN_NAMES,
    ROWS,
    Cache,
    Result,
    Scores,
    no_positions,
    refuse_variants,
    token_major,
    want,
    want_sizes,
)
from fovea.compat.flashinfer._wrapper import PagedWrapper

__all__ = ["BatchDecodeWithPagedKVCacheWrapper", "CUDAGraphBatchDecodeWithPagedKVCacheWrapper", "single_decode_with_kv_cache"]

_BUFFERS = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")
_PLAN_NAMES = PLAN_NAMES | {"q.shape (head_dim_qk)": "head_dim"}
_RUN_NAMES = NAMES | {"block_table": "indices"}
_GRAPH_NAMES = dict(zip(_BUFFERS, ("indptr_buffer", "indices_buffer", "last_page_len_buffer"), strict=True)) | {
    "float_workspace_buffer": "workspace_buffer"
}


@adapted(NAMES, axes={"q": "head, dim", "k": ROWS, "v": ROWS})
def single_decode_with_kv_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv_layout: str = "NHD",
    pos_encoding_mode: str = "NONE",
    use_tensor_cores: bool = False,
    q_scale: float | None = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    window_left: int = -1,
    logits_soft_cap: float | None = None,
    sm_scale: float | None = None,
    rope_scale: float | None = None,
    rope_theta: float | None = None,
    return_lse: bool = False,
) -> Result:
    """Attention of one query over a sequence.

    Args:
        q: ``[head, dim]``.
        k: ``[seq, kv_head, dim]``, with "HND" ``[kv_head, seq, dim]``; v likewise.
        use_tensor_cores: Taken; Fovea chooses. rope_scale and rope_theta likewise: there is no RoPE.
        The others are those of :class:`BatchDecodeWithPagedKVCacheWrapper`.

    Returns:
        out ``[head, dim]``, or (out, lse float32 ``[head]`` to base 2).
    """
    no_positions(pos_encoding_mode)
    scores, scales = Scores(False, window_left, logits_soft_cap, sm_scale), Scales(q_scale, k_scale, v_scale)
    k, v = token_major(k, kv_layout), token_major(v, kv_layout)
    output = Output(torch.bfloat16 if q.dtype in EIGHT_BITS else q.dtype, return_lse=return_lse)
    result = dense(q[None], k, v, scores, scales, output)
    return (result[0][0], result[1][0]) if return_lse else result[0]


class BatchDecodeWithPagedKVCacheWrapper(PagedWrapper):
    """Decode of a batch over pages: plan() once for the layers of a step, run() for each."""

    @adapted()
    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
        backend: str = "auto",
        jit_args: list[Any] | None = None,
    ) -> None:
        """
        Args:
            float_workspace_buffer: Says which device; its memory is not used.
            kv_layout: "NHD": pages are ``[page, kv_head, dim]``. "HND": ``[kv_head, page, dim]``.
            use_cuda_graph: Whether run() is replayed over later plans: their tensors then keep their addresses. The batch is fixed.
            use_tensor_cores: Taken: Fovea chooses. backend: likewise, but "trtllm-gen" has NVFP4 scales in an order of its own.
            paged_kv_indptr_buffer: ``[batch + 1]``, with use_cuda_graph; the next two likewise: ``[n]`` and ``[batch]``.
            jit_args: None.
        """
        refuse_variants(jit_args=jit_args)
        given = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        buffers = dict(zip(_BUFFERS, given, strict=True)) if use_cuda_graph else None
        super().__init__(float_workspace_buffer, kv_layout, _BUFFERS, "", buffers, backend)
        self._use_tensor_cores = use_tensor_cores
        self._queries = 0

    @property
    def use_tensor_cores(self) -> bool:
        return self._use_tensor_cores

    @adapted(_PLAN_NAMES, axes={"indptr": INDPTR, "indices": "pages", "last_page_len": "batch"})
    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str = "NONE",
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype | str | None = "float16",
        kv_data_type: torch.dtype | str | None = None,
        o_data_type: torch.dtype | str | None = None,
        data_type: torch.dtype | str | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
        block_tables: Tensor | None = None,
        seq_lens: Tensor | None = None,
        fixed_split_size: int | None = None,
        disable_split_kv: bool = False,
        q_len_per_req: int = 1,
        *,
        window_right: int = 0,
        is_causal: bool | None = None,
    ) -> None:
        """Plans run() for a batch. Waits for the device where ``indptr`` is on it: give it on the CPU, as engines have it.

        Args:
            indptr: ``[batch + 1]``: the pages of sequence b are ``indices[indptr[b] : indptr[b + 1]]``.
            indices: Page numbers.
            last_page_len: ``[batch]``: the tokens in each sequence's last page.
            window_left: Keys before a query's own position that it sees; -1 is no bound.
            logits_soft_cap: c > 0 bounds the scores: ``c * tanh(s / c)``.
            q_data_type: The dtype of q; kv_data_type that of the pages, o_data_type that of out, if they are others.
            data_type: The dtype of q where q_data_type is None, and of the pages where kv_data_type is None.
            sm_scale: Multiplies the scores; None is ``head_dim ** -0.5``.
            fixed_split_size: With a number, or with disable_split_kv, results do not depend on the rest of the batch.
            q_len_per_req: Queries of each sequence: its last tokens. From 2 on the mask is causal.
            non_blocking: Taken, as rope_scale, rope_theta, block_tables and seq_lens: the other arguments say it all.
            window_right: 0. is_causal: None, or what q_len_per_req makes of it.
        """
        no_positions(pos_encoding_mode)
        refuse("the last query is the last token", window_right=window_right)
        want_sizes(65535, q_len_per_req=q_len_per_req, head_dim=head_dim)
        causal = bool(q_len_per_req > 1)
        if is_causal not in (None, causal):
            raise NotImplementedError(f"is_causal: got {is_causal}, want None or {causal} (q_len_per_req is {q_len_per_req})")
        if self.is_cuda_graph_enabled and self._queries not in (0, q_len_per_req):
            want(False, "q_len_per_req", q_len_per_req, f"{self._queries} (use_cuda_graph=True fixes it)")
        q_dtype = data_type if q_data_type is None else q_data_type
        kv_dtype = data_type if kv_data_type is None else kv_data_type
        heads, dims = (num_qo_heads, num_kv_heads), (head_dim, head_dim)
        shape = Shape.of(heads, dims, q_dtype or "float16", kv_dtype, o_data_type)
        pages = PageList.of("", indptr, indices, last_page_len, page_size)
        scores, invariant = Scores(causal, window_left, logits_soft_cap, sm_scale), disable_split_kv or fixed_split_size is not None
        self._check_backend(shape)
        self._checked_pages(pages, shape, page_size, scores, invariant)
        self._keep_pages(pages, shape, page_size)
        if not causal:
            self._cu_seqlens_q = None
        elif not self.is_cuda_graph_enabled or self._scores is None:
            self._cu_seqlens_q = torch.arange(len(pages.lengths) + 1, dtype=torch.int32, device=self.device) * q_len_per_req
        self._queries, self._batch_invariant, self._scores = q_len_per_req, invariant, scores

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
        enable_pdl: bool | None = None,
        window_left: int | None = None,
        sinks: Tensor | None = None,
        q_len_per_req: int | None = None,
        skip_softmax_threshold_scale_factor: float | None = None,
        kv_cache_sf: Tensor | tuple[Tensor, Tensor] | None = None,
    ) -> Result:
        """Attention as planned. Waits for nothing.

        Args:
            q: ``[batch * q_len_per_req, head, dim]``.
            paged_kv_cache: ``[pages, 2, page, kv_head, dim]``, or keys and values without the 2; 8 bits too. Without page: pages of
                one token.
            args: None, or the three scales of q in 8 bits.
            q_scale: A number that multiplies the scores, or of 8-bit q over float8_e4m3fn pages a tensor.
            k_scale: Likewise, or a tensor of float8_e4m3fn pages: one element or ``[kv_head]``.
            v_scale: Multiplies out; a tensor as k_scale.
            out: Written and returned instead of a new tensor. lse: written, and returned with return_lse.
            return_lse: Whether to return the log-sum-exp of the scores too, to base 2, and with the sinks in it.
            window_left: Instead of the plan's.
            kv_cache_sf: The scales of NVFP4 pages (kv_data_type torch.uint8), float8_e4m3fn, shaped as paged_kv_cache with
                ``dim // 16`` last: K's and V's in plain order.
            sinks: float32 ``[head]``: a logit of each head that joins the softmax's denominator only.
            enable_pdl: Taken.

        Returns:
            out, or (out, lse float32 ``[batch * q_len_per_req, head]``). A query that sees no key gives 0 and -inf.
        """
        numbers = (q_scale, k_scale, v_scale, window_left, q_len_per_req)
        is_plain = not (args or return_lse) and lse is sinks is skip_softmax_threshold_scale_factor is kv_cache_sf is None
        is_plain = is_plain and not any(isinstance(number, Tensor) for number in numbers)
        if is_plain and (result := self._run_held(numbers, q, paged_kv_cache, out)) is not None:
            return result
        refuse_variants(skip_softmax_threshold_scale_factor=skip_softmax_threshold_scale_factor)
        scores = self._planned()
        if q_len_per_req not in (None, self._queries):
            want(False, "q_len_per_req", q_len_per_req, f"{self._queries}, as planned")
        count = self._kv_len.shape[0] * self._queries
        if q.shape[0] != count:
            want(False, "q.shape[0]", q.shape[0], f"{count} (batch * q_len_per_req), as planned")
        if window_left is not None:
            scores = scores._replace(window_left=window_left)
        lengths = {"cu_seqlens_q": self._cu_seqlens_q, "max_seqlen_q": self._queries}
        output = Output(self._shape.written, out, lse, return_lse)
        scales = Scales(q_scale, k_scale, v_scale).times(q, args)
        result = self._run_pages(q, paged_kv_cache, kv_cache_sf, scores, scales, output, sink=sinks, **lengths)
        if is_plain:
            self._hold(numbers, q, paged_kv_cache, scores, scales, **lengths)
        return result

    @adapted()
    def run_return_lse(self, q: Tensor, paged_kv_cache: Cache, *args: Any, **options: Any) -> Result:
        """:meth:`run` with ``return_lse=True``."""
        return self.run(q, paged_kv_cache, *args, return_lse=True, **options)

    @adapted()
    def forward(
        self,
        q: Tensor,
        paged_kv_cache: Cache,
        pos_encoding_mode: str = "NONE",
        q_scale: float | None = None,
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
        """The older name of :meth:`run`: its window, soft cap and scale replace those of the plan, for later calls too."""
        no_positions(pos_encoding_mode)
        scores = Scores(self._planned().causal, window_left, logits_soft_cap, sm_scale)
        scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
        return self._with_scores(scores, self.run, q, paged_kv_cache, return_lse=return_lse, **scales)

    @adapted()
    def forward_return_lse(self, q: Tensor, paged_kv_cache: Cache, *args: Any, **options: Any) -> Result:
        """:meth:`forward` that returns the log-sum-exp too."""
        return self.forward(q, paged_kv_cache, *args, return_lse=True, **options)


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """:class:`BatchDecodeWithPagedKVCacheWrapper` with ``use_cuda_graph=True``."""

    @adapted(_GRAPH_NAMES)
    def __init__(
        self,
        workspace_buffer: Tensor,
        indptr_buffer: Tensor,
        indices_buffer: Tensor,
        last_page_len_buffer: Tensor,
        kv_layout: str = "NHD",
        use_tensor_cores: bool = False,
    ) -> None:
        buffers = (indptr_buffer, indices_buffer, last_page_len_buffer)
        super().__init__(workspace_buffer, kv_layout, True, use_tensor_cores, *buffers)
