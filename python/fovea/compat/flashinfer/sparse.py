# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's attention over blocks that a list names, as dense attention with a block mask."""

from typing import Any

import torch
from torch import Tensor

from fovea import block_masks
from fovea._block_mask import BlockMask
from fovea._calls import adapted
from fovea.compat.flashinfer._dense import dense
from fovea.compat.flashinfer._output import Output
from fovea.compat.flashinfer._scales import Scales
from fovea.compat.flashinfer._terms import NAMES, ROWS, Result, Scores, dtype_of, no_positions, refuse_variants, want, want_sizes

__all__ = ["BlockSparseAttentionWrapper", "VariableBlockSparseAttentionWrapper"]

_BLOCK = 128
"""Rows and keys of a block of the mask, where the caller's are no multiples of it."""


class _Wrapper:
    """A block mask that plan() leaves for run(). The workspace is not used."""

    @adapted()
    def __init__(self, float_workspace_buffer: Tensor, backend: str = "auto") -> None:
        self.device = float_workspace_buffer.device
        self._mask: BlockMask | None = None

    @adapted()
    def reset_workspace_buffer(
        self,
        float_workspace_buffer: Tensor,
        int_workspace_buffer: Tensor,
        vector_sparse_indices_buffer: Tensor | None = None,
        vector_sparse_indptr_buffer: Tensor | None = None,
    ) -> None:
        """Nothing: Fovea's workspaces are its own."""

    def end_forward(self) -> None:
        """Nothing, as in FlashInfer."""

    def _keep(self, mask: BlockMask, shape: tuple[tuple[int, int], ...], scores: Scores, dtypes: tuple[torch.dtype, ...]) -> None:
        self._mask, self._shape, self._scores, self._dtypes = mask, shape, scores, dtypes

    def _run(self, q: Tensor, k: Tensor, v: Tensor, output: Output) -> Result:
        """q, k and v: ``[rows, head, head_dim]``."""
        if self._mask is None:
            raise RuntimeError(f"{type(self).__name__}: plan() comes before run()")
        for name, tensor, planned, dtype in zip("qkv", (q, k, v), self._shape, self._dtypes, strict=True):
            rows = tuple(tensor.shape[:2])
            want(rows == planned, f"{name}.shape (rows, head)", list(rows), f"{list(planned)}, as planned")
            want(tensor.dtype == dtype, f"{name}.dtype", tensor.dtype, f"{dtype}, as planned")
        return dense(q, k, v, self._scores, Scales(), output, {"block_mask": self._mask})


class BlockSparseAttentionWrapper(_Wrapper):
    """Attention over blocks of one size, named in block compressed sparse rows: plan() once, run() for each layer."""

    @adapted(NAMES)
    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        M: int,
        N: int,
        R: int,
        C: int,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        mask: Tensor | None = None,
        packed_mask: Tensor | None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: torch.dtype | str = "float16",
        kv_data_type: torch.dtype | str | None = None,
        o_data_type: torch.dtype | str = "float16",
        non_blocking: bool = True,
    ) -> None:
        """Makes the mask. The host waits for the device.

        Args:
            indptr: ``[M / R + 1]``: blocks ``indptr[i]`` to ``indptr[i + 1] - 1`` of the list are those of the i-th rows of blocks.
            indices: ``[blocks]``: their columns.
            M: Rows of q; N those of k and v.
            R: Rows of a block; C its columns.
            mask: bool ``[blocks, R, C]``, which pairs of a block see each other; packed_mask the same in bits.
        """
        no_positions(pos_encoding_mode)
        want_sizes(1 << 30, M=M, N=N, R=R, C=C, num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
        want(M % R == 0, "M", M, f"a multiple of R, {R}")
        want(N % C == 0, "N", N, f"a multiple of C, {C}")
        ends = indptr.to("cpu", torch.int64)
        want(tuple(ends.shape) == (M // R + 1,), "indptr.shape", list(ends.shape), f"[{M // R + 1}] (M / R + 1)")
        want(int(ends[0]) == 0 and bool((ends.diff() >= 0).all()), "indptr", "another order", "0, and never less than before")
        blocks = int(ends[-1])
        want(indices.dim() == 1 and len(indices) >= blocks, "indices.shape", list(indices.shape), f"[{blocks}] (indptr[-1])")
        listed = indices[:blocks].to(self.device, torch.int64)
        want(not blocks or bool(((listed >= 0) & (listed < N // C)).all()), "indices", "others", f"0 to {N // C - 1} (N / C - 1)")
        if packed_mask is not None:
            mask = _unpacked(packed_mask.to(self.device), ends.diff().to(self.device), (R, C))
        if mask is not None:
            want(mask.numel() == blocks * R * C, "mask.shape", list(mask.shape), [blocks, R, C])
            mask = mask.to(self.device).view(blocks, R, C)
        rows = torch.repeat_interleave(torch.arange(M // R, device=self.device), ends.diff().to(self.device))
        seen = torch.zeros(M // R, N // C, dtype=torch.bool, device=self.device)
        seen[rows, listed] = True
        made = _of_blocks(seen, (rows, listed), mask, (R, C))
        self._o_dtype = dtype_of("o_data_type", o_data_type)
        shape = ((M, num_qo_heads), (N, num_kv_heads), (N, num_kv_heads))
        self._keep(made, shape, Scores(causal, -1, logits_soft_cap, sm_scale), _dtypes(q_data_type, kv_data_type))

    begin_forward = plan

    @adapted(NAMES, axes={"q": ROWS, "k": ROWS, "v": ROWS})
    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale_q: Tensor | None = None,
        scale_k: Tensor | None = None,
        scale_v: Tensor | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
    ) -> Result:
        """Attention of q ``[M, head, head_dim]`` over k and v ``[N, kv_head, head_dim]``. The lse is to base 2."""
        refuse_variants(scale_q=scale_q, scale_k=scale_k, scale_v=scale_v)
        return self._run(q, k, v, Output(self._o_dtype if self._mask else q.dtype, out, lse, return_lse))

    forward = run


class VariableBlockSparseAttentionWrapper(_Wrapper):
    """Attention over blocks of different sizes, with a grid for each kv head: plan() once, run() for each layer."""

    @adapted(NAMES)
    def plan(
        self,
        block_mask_map: Tensor,
        block_row_sz: Tensor,
        block_col_sz: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        non_blocking: bool = True,
        q_data_type: torch.dtype | str = "float16",
        kv_data_type: torch.dtype | str | None = None,
    ) -> None:
        """Makes the mask. The host waits for the device.

        Args:
            block_mask_map: bool ``[kv_head, row, column]``: the blocks that are seen.
            block_row_sz: int ``[kv_head, row]``: queries of each row, as many together for each head.
            block_col_sz: int ``[kv_head, column]``: keys of each column, likewise.
        """
        no_positions(pos_encoding_mode)
        want_sizes(1 << 30, num_qo_heads=num_qo_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
        want(num_qo_heads % num_kv_heads == 0, "num_qo_heads", num_qo_heads, f"a multiple of num_kv_heads, {num_kv_heads}")
        want(block_mask_map.dim() == 3, "block_mask_map.rank", block_mask_map.dim(), 3)
        heads, rows, columns = block_mask_map.shape
        want(heads == num_kv_heads, "block_mask_map.shape[0]", heads, f"num_kv_heads, {num_kv_heads}")
        for name, sizes, count in (("block_row_sz", block_row_sz, rows), ("block_col_sz", block_col_sz, columns)):
            want(tuple(sizes.shape) == (heads, count), f"{name}.shape", list(sizes.shape), [heads, count])
            sums = sizes.sum(1)
            want(bool((sizes >= 0).all() & (sums == sums[0]).all()), name, "others", "sizes of 0 or more, of one sum for each head")
        seen = block_mask_map.to(self.device, torch.bool)
        q_rows, k_rows = (_places(sizes.to(self.device)) for sizes in (block_row_sz, block_col_sz))
        group = num_qo_heads // num_kv_heads
        seen, by_row, by_column = (each.repeat_interleave(group, 0) for each in (seen, q_rows, k_rows))
        made = block_masks.grid(seen, by_row, by_column)
        keys = (k_rows.shape[1], num_kv_heads)
        scores = Scores(causal, -1, logits_soft_cap, sm_scale)
        self._keep(made, ((q_rows.shape[1], num_qo_heads), keys, keys), scores, _dtypes(q_data_type, kv_data_type))

    begin_forward = plan

    @adapted(NAMES, axes={"q": "head, rows, head_dim", "k": "kv_head, rows, head_dim", "v": "kv_head, rows, head_dim"})
    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        enable_pdl: bool | None = None,
    ) -> Result:
        """Attention of q ``[head, seq_q, head_dim]`` over k and v ``[kv_head, seq_k, head_dim]``. The lse ``[head, seq_q]`` is to
        base 2."""
        room = out if out is None else out.transpose(0, 1)
        output = Output(q.dtype, room, lse, return_lse, layout="HN")
        result: Any = self._run(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), output)
        if not return_lse:
            return out if out is not None else result.transpose(0, 1)
        return (out if out is not None else result[0].transpose(0, 1)), result[1]

    forward = run


def _dtypes(q_data_type: torch.dtype | str, kv_data_type: torch.dtype | str | None) -> tuple[torch.dtype, ...]:
    """Those of q, k and v; keys and values have q's unless the call says another."""
    q = dtype_of("q_data_type", q_data_type)
    kv = q if kv_data_type is None else dtype_of("kv_data_type", kv_data_type)
    return q, kv, kv


def _places(sizes: Tensor) -> Tensor:
    """The row or column of each token ``[head, seq]``, from the sizes ``[head, count]``."""
    ends = sizes.long().cumsum(1)
    tokens = torch.arange(int(ends[0, -1]), device=sizes.device).expand(len(ends), -1).contiguous()
    return torch.searchsorted(ends, tokens, right=True)


def _unpacked(packed: Tensor, counts: Tensor, size: tuple[int, int]) -> Tensor:
    """The bits ``[blocks, R, C]`` of a packed mask. Each row of blocks begins with a byte, and has the rows of all its blocks side
    by side. ``counts``: blocks of each row of blocks."""
    device = packed.device
    bits = ((packed[:, None] >> torch.arange(8, device=device)) & 1).flatten()
    block_bits = size[0] * size[1]
    starts = ((counts * block_bits + 7) // 8 * 8).cumsum(0).roll(1)
    starts[:1] = 0
    row = torch.repeat_interleave(torch.arange(len(counts), device=device), counts)
    inside = torch.arange(len(row), device=device) - (counts.cumsum(0) - counts)[row]
    first = (starts[row] + inside * size[1])[:, None, None]
    stride = (counts[row] * size[1])[:, None, None]
    last = int(starts[-1] + counts[-1] * block_bits)
    want(packed.dim() == 1 and bits.numel() >= last, "packed_mask.shape", list(packed.shape), f"[{(last + 7) // 8}] or more")
    at = first + torch.arange(size[0], device=device)[:, None] * stride + torch.arange(size[1], device=device)
    return bits[at].bool()


def _of_blocks(seen: Tensor, listed: tuple[Tensor, Tensor], mask: Tensor | None, size: tuple[int, int]) -> BlockMask:
    """A mask of blocks of one size. ``listed``: row and column of each block of ``mask``."""
    whole = size[0] % 64 == 0 and size[1] % 64 == 0 and max(size) <= 8192
    if mask is None and whole:
        return BlockMask.from_blocks(seen, size)
    rows, columns = (torch.arange(count * each, device=seen.device) // each for count, each in zip(seen.shape, size, strict=True))
    if mask is None:
        return block_masks.grid(seen, rows, columns, block_size=(_BLOCK, _BLOCK))
    place = torch.zeros(seen.shape, dtype=torch.long, device=seen.device)
    place[listed] = torch.arange(len(mask), device=seen.device)

    def pairs(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        query = query.clamp(max=len(rows) - 1)
        return mask.bool()[place[rows[query], columns[key]], query % size[0], key % size[1]]

    return block_masks.grid(seen, rows, columns, pairs=pairs, block_size=(_BLOCK, _BLOCK))
