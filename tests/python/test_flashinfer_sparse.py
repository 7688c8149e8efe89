# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's wrappers of block-sparse attention against masks of all pairs."""

import math

import pytest
import torch

from fovea.compat.flashinfer import BlockSparseAttentionWrapper, VariableBlockSparseAttentionWrapper

WORKSPACE = torch.empty(1, dtype=torch.uint8)
HEADS, KV_HEADS, DIM = 4, 2, 16
LOG2E = math.log2(math.e)


def exact(q, k, v, seen):
    """out ``[rows, head, dim]`` and the lse to base 2, under a mask ``[.., q, k]``."""
    k, v = (each.double().repeat_interleave(HEADS // KV_HEADS, 1) for each in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) / math.sqrt(DIM)
    scores = scores.masked_fill(~seen, -torch.inf)
    out = torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1).nan_to_num(0), v)
    return out.float(), (torch.logsumexp(scores, -1).t() * LOG2E).float()


def tensors(rows, keys):
    return torch.randn(rows, HEADS, DIM), torch.randn(keys, KV_HEADS, DIM), torch.randn(keys, KV_HEADS, DIM)


@pytest.mark.parametrize("size", [(64, 64), (16, 32), (3, 5), (1, 16)])
@pytest.mark.parametrize("masked", ["", "mask", "packed_mask"])
def test_blocks_of_one_size(size, masked):
    grid = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0]], dtype=torch.bool)
    counts = grid.sum(1)
    indptr = torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()
    rows, columns = grid.nonzero(as_tuple=True)
    m, n = 3 * size[0], 4 * size[1]
    seen = grid.repeat_interleave(size[0], 0).repeat_interleave(size[1], 1)
    options = {}
    if masked:
        bits = torch.rand(len(rows), *size) < 0.6
        for row, column, block in zip(rows, columns, bits, strict=True):
            seen[row * size[0] : (row + 1) * size[0], column * size[1] : (column + 1) * size[1]] = block
        options["mask"] = bits
    if masked == "packed_mask":
        # A row of blocks is [R, blocks * C], and begins with a byte.
        parts = [bits[rows == row].transpose(0, 1).flatten() for row in range(3)]
        parts = [torch.nn.functional.pad(part, (0, -len(part) % 8)).view(-1, 8) for part in parts]
        options = {"packed_mask": (torch.cat(parts).to(torch.uint8) << torch.arange(8)).sum(1).to(torch.uint8)}
    wrapper = BlockSparseAttentionWrapper(WORKSPACE)
    dtypes = {"q_data_type": torch.float32, "o_data_type": torch.float32}
    wrapper.plan(indptr, columns.int(), m, n, *size, HEADS, KV_HEADS, DIM, **options, **dtypes)
    q, k, v = tensors(m, n)
    out, lse = wrapper.run(q, k, v, return_lse=True)
    want, want_lse = exact(q, k, v, seen)
    torch.testing.assert_close(out, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse, want_lse, rtol=1e-5, atol=1e-5)
    given = torch.empty_like(q)
    assert wrapper.run(q, k, v, out=given).data_ptr() == given.data_ptr()
    torch.testing.assert_close(given, want, rtol=1e-5, atol=1e-5)


def test_blocks_of_different_sizes():
    rows = torch.tensor([[100, 0, 60], [1, 130, 29]])
    columns = torch.tensor([[37, 200, 13], [128, 1, 121]])
    seen = torch.rand(KV_HEADS, 3, 3) < 0.6
    seen[:, 0] = torch.tensor([True, False, True])
    wrapper = VariableBlockSparseAttentionWrapper(WORKSPACE)
    wrapper.plan(seen, rows, columns, HEADS, KV_HEADS, DIM, q_data_type="float32")
    q, k, v = tensors(160, 250)
    out, lse = wrapper.run(*(each.transpose(0, 1) for each in (q, k, v)), return_lse=True)
    whole = [one.repeat_interleave(rows[head], 0).repeat_interleave(columns[head], 1) for head, one in enumerate(seen)]
    want, want_lse = exact(q, k, v, torch.stack(whole).repeat_interleave(HEADS // KV_HEADS, 0))
    torch.testing.assert_close(out, want.transpose(0, 1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse, want_lse.t(), rtol=1e-5, atol=1e-5)


def test_what_bad_plans_get():
    wrapper = BlockSparseAttentionWrapper(WORKSPACE)
    indptr, indices = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    numbers = (HEADS, KV_HEADS, DIM)
    q, k, v = tensors(32, 32)
    with pytest.raises(RuntimeError, match="plan\\(\\) comes before run\\(\\)"):
        wrapper.run(q, k, v)
    with pytest.raises(ValueError, match="M: got 33, want a multiple of R, 16"):
        wrapper.plan(indptr, indices, 33, 32, 16, 16, *numbers)
    with pytest.raises(ValueError, match=r"indptr.shape: got \[3\], want \[5\]"):
        wrapper.plan(indptr, indices, 64, 32, 16, 16, *numbers)
    with pytest.raises(ValueError, match="indices: got others, want 0 to 0"):
        wrapper.plan(indptr, indices, 32, 16, 16, 16, *numbers)
    wrapper.plan(indptr, indices, 32, 32, 16, 16, *numbers)
    with pytest.raises(ValueError, match=r"q\.dtype: got torch\.float32, want torch\.float16, as planned"):
        wrapper.run(q, k, v)
    with pytest.raises(ValueError, match=r"block_row_sz: got others, want sizes"):
        VariableBlockSparseAttentionWrapper(WORKSPACE).plan(
            torch.ones(2, 1, 1, dtype=torch.bool), torch.tensor([[3], [4]]), torch.tensor([[5], [5]]), *numbers
        )
