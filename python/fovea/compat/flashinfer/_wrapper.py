# SPDX-License-Identifier: Apache-2.0
"""Shared by the wrapper classes: the tensors that plan() leaves for run(). They keep their addresses for CUDA graphs.

plan() copies all that it keeps, and checks all that it gets before it changes anything.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea._library import is_captured
from fovea._paged import paged_attention
from fovea._plan import Plan, plan_paged_attention
from fovea.compat._arguments import refuse, rows
from fovea.compat.flashinfer._output import Output
from fovea.compat.flashinfer._plan import PageList, Shape, int32_of, longest, nvfp4, try_pages
from fovea.compat.flashinfer._scales import Scales
from fovea.compat.flashinfer._terms import FOUR_BITS, Cache, Result, Scores, checked_layout, pages_of, want

Buffers = dict[str, Tensor | None]


class Wrapper:
    """A plan and its tensors."""

    def __init__(self, workspace: Tensor, kv_layout: str, buffers: Buffers | None) -> None:
        """buffers: In CUDA-graph mode those that the caller gives, by their names; None otherwise. The workspace is not used."""
        want(workspace.layout == torch.strided, "float_workspace_buffer.layout", workspace.layout, "torch.strided")
        want(not workspace.is_quantized, "float_workspace_buffer.dtype", workspace.dtype, "a plain one")
        self.device = workspace.device
        self._kv_layout = checked_layout(kv_layout)
        self._buffers: dict[str, Tensor] = {}
        for name, buffer in (buffers or {}).items():
            want(isinstance(buffer, Tensor), name, buffer, "a tensor (use_cuda_graph=True)")
            assert buffer is not None
            want(buffer.dtype == torch.int32, f"{name}.dtype", buffer.dtype, torch.int32)
            want(buffer.dim() == 1, f"{name}.rank", buffer.dim(), 1)
            want(buffer.device == self.device, f"{name}.device", buffer.device, f"{self.device} (of the workspace)")
            self._buffers[name] = buffer
        self._scores: Scores | None = None
        self._shape: Shape
        self._batch_invariant = False
        self._held: Plan | None = None
        self._held_for: tuple[Any, ...] = ()

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return bool(self._buffers)

    @adapted()
    def reset_workspace_buffer(self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor) -> None:
        """Nothing: Fovea's workspaces are its own."""

    def end_forward(self) -> None:
        """Nothing, as in FlashInfer."""

    def _planned(self) -> Scores:
        if self._scores is None:
            raise RuntimeError(f"{type(self).__name__}: plan() comes before run()")
        return self._scores

    def _with_scores(self, scores: Scores, run: Callable[..., Result], *tensors: Any, **options: Any) -> Result:
        """run() with scores that replace those of the plan, unless it is refused."""
        before, self._scores = self._planned(), scores
        self._held = None
        try:
            return run(*tensors, **options)
        except BaseException:
            self._scores = before
            raise

    def _check_buffer(self, name: str, ends: Tensor) -> None:
        """Whether an indptr fits the buffer that a CUDA graph reads."""
        if name in self._buffers and len(ends) != len(self._buffers[name]):
            wanted = f"{len(ends)} (of a plan with {len(ends) - 1} sequences)"
            want(False, f"{name}.shape[0]", len(self._buffers[name]), wanted)

    def _kept(self, name: str, ends: Tensor) -> tuple[Tensor, int, int]:
        """A checked indptr: on the device, in the caller's buffer where a CUDA graph reads that; a bound of its lengths; its rows.

        The bound is 0, which is all rows, where a CUDA graph outlives the plan.
        """
        if name in self._buffers:
            return self._buffers[name].copy_(ends, non_blocking=True), 0, int(ends[-1])
        return ends.to(self.device, torch.int32, non_blocking=True), longest(ends), int(ends[-1])


def want_rows(name: str, tensor: Tensor, planned: int, indptr: str) -> None:
    """Whether all the rows exist that a plan speaks of: kernels rely on it."""
    if tensor.shape[0] < planned:
        want(False, f"{name}.shape[0]", tensor.shape[0], f"{planned} or more ({indptr}[-1]), as planned")


class PagedWrapper(Wrapper):
    """Over pages. plan() turns FlashInfer's list of pages into a block table, run() reads that.

    In CUDA-graph mode the block table has as many entries as the caller's buffer of indices: its length / batch a sequence.
    """

    def __init__(
        self,
        workspace: Tensor,
        kv_layout: str,
        names: tuple[str, str, str],
        prefix: str,
        buffers: Buffers | None,
        backend: str = "auto",
    ) -> None:
        """names: those of the buffers of indptr, indices and last_page_len. prefix: what plan() calls these begins with it."""
        super().__init__(workspace, kv_layout, buffers)
        self._names, self._prefix, self._backend = names, prefix, backend
        if self.is_cuda_graph_enabled:
            _, indices, last = (self._buffers[name] for name in names)
            self._table = torch.zeros(len(last), max(len(indices) // max(len(last), 1), 1), dtype=torch.int32, device=self.device)
            self._kv_len = torch.zeros(len(last), dtype=torch.int32, device=self.device)
            self._listed = torch.zeros(len(indices), dtype=torch.int32, device=self.device)

    def _checked_pages(
        self, pages: PageList, shape: Shape, page_size: int, scores: Scores, batch_invariant: bool, masked: bool = False
    ) -> None:
        """Whether run() computes such a plan, and a CUDA graph has room for it."""
        if self.is_cuda_graph_enabled:
            batch, name, width = len(pages.lengths), self._names[1], self._table.shape[1]
            wanted = f"{len(self._kv_len)} (use_cuda_graph=True fixes it)"
            want(batch == len(self._kv_len), f"{self._prefix}last_page_len.shape[0]", batch, wanted)
            want(pages.most <= width, f"{name}.shape[0] / {batch}", width, f"{pages.most} or more (pages of a sequence)")
            room, total = len(self._listed), pages.total
            want(total <= room, f"{name}.shape[0]", room, f"{total} or more ({self._prefix}indptr[-1])")
        try_pages(self.device, shape, page_size, scores, batch_invariant, masked)

    def _keep_pages(self, pages: PageList, shape: Shape, page_size: int) -> None:
        """The block table and the lengths, on the device."""
        self._page_size, self._shape, self._reads = page_size, shape, shape.over_pages
        converts = self._reads[1] != shape.kv_dtype  # in run(), the pages that are listed; the block table holds places in the list
        most, total = pages.most, pages.total
        first, lengths = (numbers.to(self.device, torch.int32, non_blocking=True) for numbers in (pages.first, pages.lengths))
        listed = pages.indices.clone() if pages.indices.is_pinned() else pages.indices  # a copy from there would not be done yet
        listed = int32_of(listed[:total]).to(self.device, non_blocking=True)
        if self.is_cuda_graph_enabled:
            self._kv_len.copy_(lengths)
            self._listed[:total] = listed
            if converts:
                self._table.zero_()  # of page numbers, where an earlier plan did not convert
        else:
            self._kv_len = lengths
            self._table = torch.zeros(len(lengths), max(most, 1), dtype=torch.int32, device=self.device)
            self._listed = listed.clone() if converts else listed
        if most:
            entry = (first[:, None] + torch.arange(most, dtype=torch.int32, device=self.device)).clamp(max=total - 1)
            self._table[:, :most] = entry if converts else listed[entry]

    def _converted(self, k: Tensor, v: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Copies of the pages, and the block table over these. A number of no page stays one, for Fovea to meet as any other."""
        if not len(self._listed) or not len(k) or not len(v):
            return k.to(dtype), v.to(dtype), torch.full_like(self._table, -1)
        last = min(len(k), len(v)) - 1
        known = self._listed.clamp(0, last)
        table = torch.where((known == self._listed)[self._table], self._table, -1)
        k, v = (each.view(torch.uint8).index_select(0, known).view(each.dtype).to(dtype) for each in (k, v))
        return k, v, table

    def _format(self, block_scales: Cache | None) -> dict[str, Any]:
        """Fovea's options of NVFP4 pages, none of others."""
        if self._shape.kv_dtype != FOUR_BITS:
            refuse(f"the pages are in {self._shape.kv_dtype}, as planned", kv_cache_sf=block_scales)
            return {}
        if block_scales is None:
            want(False, "kv_cache_sf", None, f"the scales of pages in {FOUR_BITS}")
        assert block_scales is not None
        return nvfp4(*pages_of(block_scales, self._kv_layout, "kv_cache_sf"))

    def _check_backend(self, shape: Shape) -> None:
        if shape.kv_dtype == FOUR_BITS and self._backend == "trtllm-gen":
            raise NotImplementedError("backend: got 'trtllm-gen', want 'fa2' (scales of NVFP4 values in plain order)")

    def _run_held(self, numbers: tuple[Any, ...], q: Tensor, cache: Cache, out: Tensor | None) -> Result | None:
        """A run with the plan of an earlier one, if that had the same numbers and tensors like these."""
        plan = self._held
        if plan is None or torch.compiler.is_compiling() or self._held_for != (*numbers, *self._settings()):
            return None
        k, v = pages_of(cache, self._kv_layout)
        lengths = () if self._cu_seqlens_q is None else (self._cu_seqlens_q,)
        try:
            return plan.run(q, k, v, self._table, self._kv_len, *lengths, out=out)
        except (NotImplementedError, TypeError, ValueError):  # the long way says what is wrong, or makes another plan
            self._held = None
            return None

    def _hold(self, numbers: tuple[Any, ...], q: Tensor, cache: Cache, scores: Scores, scales: Scales, **lengths: Any) -> None:
        """Plans later runs like this one, if they hand their tensors to Fovea as they are."""
        k, v = pages_of(cache, self._kv_layout)
        if (
            (q.dtype, k.dtype) != self._reads
            or q.dtype != self._shape.written
            or scales.of_values(v) != 1.0
            or scales.options(k=k, v=v)
        ):
            return
        if (
            torch.compiler.is_compiling()
            or type(q) is not Tensor
            or q.stride(-1) != 1
            or is_captured(q)
            or torch._C._len_torch_dispatch_stack()
        ):
            return
        options = scores.options(q.shape[-1], scales.of_scores()) | lengths | {"batch_invariant": self._batch_invariant}
        self._held = plan_paged_attention(q, k, v, self._table, self._kv_len, **options)
        self._held_for = (*numbers, *self._settings())

    def _settings(self) -> tuple[Any, ...]:
        """The settings of plan() beside the tensors."""
        return self._scores, self._shape, self._page_size, self._batch_invariant

    def _run_pages(
        self, q: Tensor, cache: Cache, block_scales: Cache | None, scores: Scores, scales: Scales, output: Output, **options: Any
    ) -> Result:
        """block_scales: kv_cache_sf. options: sink, cu_seqlens_q, max_seqlen_q."""
        k, v = pages_of(cache, self._kv_layout)
        shape, table = self._shape, self._table
        shape.check(q, k, v, ("paged_kv_cache[0]", "paged_kv_cache[1]"))
        if k.shape[1] != self._page_size:
            want(False, "paged_kv_cache (page size)", k.shape[1], f"{self._page_size}, as planned")
        options |= self._format(block_scales)
        if q.dtype != self._reads[0]:
            q, scales = q.to(self._reads[0]), scales.over_pages(shape.kv_heads)
        if k.dtype != self._reads[1]:
            k, v, table = self._converted(k, v, self._reads[1])
        return output.of(
            paged_attention,
            (rows(q), k, v, table, self._kv_len),
            factor=scales.of_values(v),
            batch_invariant=self._batch_invariant,
            **options,
            **scores.options(q.shape[-1], scales.of_scores()),
            **scales.options(k=k, v=v),
        )
