# SPDX-License-Identifier: Apache-2.0
"""What the wrapper classes share: the tensors that plan() leaves for run(). They keep their addresses for CUDA graphs."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fovea._paged import paged_attention
from fovea.compat._arguments import rows
from fovea.compat.flashinfer._terms import Output, Result, Scales, Scores, checked_layout, dtype_of, pages_of, want
from fovea.compat.flashinfer.page import get_seq_lens


class Shape(NamedTuple):
    """What a plan expects of q, k and v."""

    q_heads: int
    kv_heads: int
    dim_qk: int
    dim_v: int
    q_dtype: torch.dtype
    kv_dtype: torch.dtype

    @classmethod
    def of(cls, heads: tuple[int, int], dims: tuple[int, int | None], q: Any, kv: Any, out: Any) -> "Shape":
        """Dtypes as plan() gets them: kv and out are q's if None."""
        q_dtype = dtype_of("q_data_type", q)
        kv_dtype = q_dtype if kv is None else dtype_of("kv_data_type", kv)
        written = torch.bfloat16 if q_dtype == torch.float8_e4m3fn else q_dtype
        if out is not None and dtype_of("o_data_type", out) != written:
            raise NotImplementedError(f"o_data_type: got {out}, want {written} (of q in {q_dtype})")
        return cls(*heads, dims[0], dims[0] if dims[1] is None else dims[1], q_dtype, kv_dtype)

    def check(self, q: Tensor, k: Tensor, v: Tensor) -> None:
        if (q.dtype, k.dtype, v.dtype) == (self.q_dtype, self.kv_dtype, self.kv_dtype) and (
            (*q.shape[-2:], *k.shape[-2:], *v.shape[-2:])
            == (self.q_heads, self.dim_qk, self.kv_heads, self.dim_qk, self.kv_heads, self.dim_v)
        ):
            return  # before any text is made, which takes longer than the call
        planned = {
            "q": (q, self.q_dtype, (self.q_heads, self.dim_qk)),
            "k": (k, self.kv_dtype, (self.kv_heads, self.dim_qk)),
            "v": (v, self.kv_dtype, (self.kv_heads, self.dim_v)),
        }
        for name, (tensor, dtype, shape) in planned.items():
            want(tensor.dtype == dtype, f"{name}.dtype", tensor.dtype, f"{dtype}, as planned")
            got = tuple(tensor.shape[-2:])
            want(got == shape, f"{name}.shape[-2:] (heads, head_dim)", got, f"{shape}, as planned")


class Wrapper:
    """A plan and its tensors."""

    def __init__(self, workspace: Tensor, kv_layout: str, buffers: dict[str, Tensor | None] | None) -> None:
        """buffers: In CUDA-graph mode those that the caller gives, by their names; None otherwise. The workspace is not used."""
        self.device = workspace.device
        self._kv_layout = checked_layout(kv_layout)
        self._buffers: dict[str, Tensor] = {}
        for name, buffer in (buffers or {}).items():
            want(isinstance(buffer, Tensor), name, buffer, "a tensor (use_cuda_graph=True)")
            assert buffer is not None
            self._buffers[name] = buffer
        self._scores: Scores | None = None
        self._shape: Shape
        self._batch_invariant = False

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return bool(self._buffers)

    def reset_workspace_buffer(self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor) -> None:
        """Nothing: Fovea's workspaces are its own."""

    def end_forward(self) -> None:
        """Nothing, as in FlashInfer."""

    def _planned(self) -> Scores:
        if self._scores is None:
            raise RuntimeError(f"{type(self).__name__}: plan() comes before run()")
        return self._scores

    def _kept(self, name: str, values: Tensor) -> Tensor:
        """An indptr on the device: int32, and in the caller's buffer where a CUDA graph reads that."""
        if name not in self._buffers:
            return values.to(self.device, torch.int32, non_blocking=True)
        buffer = self._buffers[name]
        want(
            len(values) == len(buffer),
            f"{name}.shape[0]",
            len(buffer),
            f"{len(values)} (of a plan with {len(values) - 1} sequences)",
        )
        return buffer.copy_(values, non_blocking=True)

    def _lengths(self, name: str, indptr: Tensor) -> tuple[Tensor, int | None]:
        """A ragged batch on the device, and a bound of its lengths: None is all rows, where a CUDA graph outlives the plan."""
        longest = None if self.is_cuda_graph_enabled else int(indptr.cpu().diff().max()) if len(indptr) > 1 else 0
        return self._kept(name, indptr), longest

    def _plan_queries(self, name: str, indptr: Tensor) -> None:
        self._cu_seqlens_q: Tensor | None
        self._cu_seqlens_q, self._max_seqlen_q = self._lengths(name, indptr)


class PagedWrapper(Wrapper):
    """Over pages. plan() turns FlashInfer's list of pages into a block table, run() reads that.

    In CUDA-graph mode the block table has as many entries as the caller's buffer of indices: its length / batch a sequence.
    """

    def __init__(
        self, workspace: Tensor, kv_layout: str, names: tuple[str, str, str], buffers: dict[str, Tensor | None] | None
    ) -> None:
        """names: those of the buffers of indptr, indices and last_page_len."""
        super().__init__(workspace, kv_layout, buffers)
        self._names = names
        if self.is_cuda_graph_enabled:
            _, indices, last = (self._buffers[name] for name in names)
            self._table = torch.zeros(len(last), max(len(indices) // max(len(last), 1), 1), dtype=torch.int32, device=self.device)
            self._kv_len = torch.zeros(len(last), dtype=torch.int32, device=self.device)

    def _plan_pages(self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, page_size: int) -> None:
        """The block table and the lengths. Waits for the device if indptr is there."""
        ends = indptr.cpu()
        pages = ends.diff()
        batch, longest = len(pages), int(pages.max()) if len(pages) else 0
        want(len(last_page_len) == batch, "last_page_len.shape[0]", len(last_page_len), f"{batch} (sequences of indptr)")
        want(batch == 0 or int(pages.min()) >= 0, "indptr", "one that decreases", "numbers that do not decrease")
        want(int(ends[-1]) <= len(indices), "indices.shape[0]", len(indices), f"at least {int(ends[-1])} (indptr[-1])")
        first, listed, last = (
            tensor.to(self.device, torch.int32, non_blocking=True) for tensor in (indptr, indices, last_page_len)
        )
        kv_len = get_seq_lens(first, last, page_size)
        self._page_size = page_size
        if not self.is_cuda_graph_enabled:
            self._table = torch.zeros(batch, max(longest, 1), dtype=torch.int32, device=self.device)
            self._kv_len = kv_len
        else:
            name, width = self._names[1], self._table.shape[1]
            want(batch == len(self._kv_len), "last_page_len.shape[0]", batch, f"{len(self._kv_len)} (use_cuda_graph=True fixes it)")
            want(longest <= width, f"{name}.shape[0] / {batch}", width, f"at least {longest} (pages of a sequence)")
            self._kv_len.copy_(kv_len)
        if longest:
            entry = first[:-1, None].long() + torch.arange(longest, device=self.device)
            self._table[:, :longest] = listed[entry.clamp(max=len(listed) - 1)]

    def _run_pages(
        self, q: Tensor, cache: Tensor | tuple[Tensor, Tensor], scores: Scores, scales: Scales, output: Output, **options: Any
    ) -> Result:
        """options: sink, cu_seqlens_q, max_seqlen_q."""
        k, v = pages_of(cache, self._kv_layout)
        self._shape.check(q, k, v)
        if k.shape[1] != self._page_size:
            want(False, "paged_kv_cache (page size)", k.shape[1], f"{self._page_size}, as planned")
        return output.of(
            paged_attention,
            rows(q),
            k,
            v,
            self._table,
            self._kv_len,
            factor=scales.of_values(v),
            batch_invariant=self._batch_invariant,
            **options,
            **scores.options(q.shape[-1], scales.of_scores()),
            **scales.options(k=k, v=v),
        )
