# SPDX-License-Identifier: Apache-2.0
"""Block masks against masks of all pairs, by the formula in double precision."""

import math

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

import fovea
from fovea import block_masks

BATCH, SEQ, HEAD, KV_HEAD, DIM = 2, 150, 4, 2, 16
SIZE = (32, 64)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))])
def device(request):
    return request.param


def tensors(device, seq_q=SEQ, seq_k=SEQ, dim=DIM):
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q = torch.randn(BATCH, seq_q, HEAD, dim, device=device).to(dtype)
    k, v = (torch.randn(BATCH, seq_k, KV_HEAD, dim, device=device).to(dtype) for _ in range(2))
    return q, k, v


def exact(q, k, v, mask):
    """out and lse under a bool mask that broadcasts to [batch, head, q, k]."""
    k, v = (each.double().repeat_interleave(HEAD // KV_HEAD, 2) for each in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k) / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(~mask, -torch.inf)
    weights = torch.softmax(scores, -1).nan_to_num(0)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v), torch.logsumexp(scores, -1)


def check(inputs, block_mask, mask, **options):
    out, lse = fovea.attention(*inputs, block_mask=block_mask, return_lse=True, **options)
    want, want_lse = exact(*inputs, mask)
    close = {"rtol": 1e-5, "atol": 1e-5} if out.dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(out.double(), want, **close)
    torch.testing.assert_close(lse.double(), want_lse, **close)


def numbers(seq_q=SEQ, seq_k=SEQ, device="cpu"):
    """Positions of queries, [seq_q, 1], and of keys."""
    return torch.arange(seq_k - seq_q, seq_k, device=device)[:, None], torch.arange(seq_k, device=device)


@pytest.mark.parametrize("seqs", [(SEQ, SEQ), (70, SEQ)])
def test_a_window_with_sinks(device, seqs):
    at, key = numbers(*seqs, device)
    mask = block_masks.sliding_window(*seqs, 40, sinks=5, block_size=SIZE, device=device)
    check(tensors(device, *seqs), mask, (key <= at) & ((key > at - 40) | (key < 5)))


@pytest.mark.parametrize("dilation", [1, 3])
def test_dilated(device, dilation):
    at, key = numbers(device=device)
    mask = block_masks.dilated(SEQ, SEQ, 20, dilation, block_size=SIZE, device=device)
    check(tensors(device), mask, (at >= key) & (at - key < 20 * dilation) & ((at - key) % dilation == 0))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [1, BATCH])
def test_documents(device, causal, rows):
    at, key = numbers(device=device)
    ids = torch.arange(SEQ, device=device)[None] // torch.tensor([[60], [37]], device=device)[:rows]
    mask = block_masks.documents(ids.to(torch.int32), causal=causal, block_size=SIZE)
    seen = (ids[:, None, :, None] == ids[:, None, None, :]) & ((key <= at) | (not causal))
    check(tensors(device), mask, seen)


@pytest.mark.parametrize("tile", [None, (1, 5, 5)])
def test_a_video_window(device, tile):
    shape, window = (3, 5, 10), (1, 2, 3)
    order = torch.arange(SEQ) if tile is None else block_masks.tile_order(shape, tile)
    assert sorted(order.tolist()) == list(range(SEQ))
    places = (order // 50, order // 10 % 5, order % 10)
    near = [(each[:, None] - each).abs() <= far for each, far in zip(places, window, strict=True)]
    mask = block_masks.video_window(shape, window, tile=tile, block_size=SIZE, device=device)
    check(tensors(device), mask, (near[0] & near[1] & near[2]).to(device))


def size_of_head_lists(device):
    """Blocks of lists that differ among the heads of a group: GPUs take query blocks from 64 on there."""
    return SIZE if device == "cpu" else (64, 64)


@pytest.mark.parametrize("shared", [False, True])
def test_the_best_blocks(device, shared):
    q, k, v = tensors(device)
    rows, columns = size = size_of_head_lists(device)
    mask = block_masks.topk_blocks(q, k, 2, shared=shared, block_size=size)
    at, key = numbers(device=device)
    listed = torch.zeros(BATCH, HEAD, math.ceil(SEQ / rows), math.ceil(SEQ / columns), dtype=torch.bool, device=device)
    used = torch.arange(2, device=device) < mask.full_counts[..., None]
    listed.scatter_(3, mask.full_indices.long(), used)
    seen = listed.repeat_interleave(rows, 2).repeat_interleave(columns, 3)[:, :, :SEQ, :SEQ] & (key <= at)
    assert bool(seen.diagonal(dim1=2, dim2=3).all()), "each query sees itself"
    assert not shared or torch.equal(listed[:, 0], listed[:, 1])
    check((q, k, v), mask, seen, causal=True)


def test_masks_of_pairs_and_blocks(device):
    rows, columns = size = size_of_head_lists(device)
    pairs = torch.rand(BATCH, HEAD, SEQ, SEQ, device=device) < 0.3
    pairs[:, :, rows : rows + 64] = False  # rows without keys
    pairs[:, :, :rows, :columns] = True
    mask = fovea.BlockMask.from_mask(pairs, size)
    assert int(mask.full_counts.max()) == 1
    check(tensors(device), mask, pairs)
    blocks = torch.rand(HEAD, math.ceil(SEQ / rows), math.ceil(SEQ / columns), device=device) < 0.5
    whole = blocks.repeat_interleave(rows, 1).repeat_interleave(columns, 2)[:, :SEQ, :SEQ]
    check(tensors(device), fovea.BlockMask.from_blocks(blocks, size), whole)


def test_masks_of_flex_attention(device):
    at, _key = numbers(device=device)
    ids = torch.arange(SEQ, device=device) // 60
    calls = []

    def by_document(b, h, q_idx, kv_idx):
        calls.append(1)
        return (ids[q_idx] == ids[kv_idx]) & ((q_idx + b) % 3 != h)

    mask = create_block_mask(by_document, BATCH, HEAD, SEQ, SEQ, device=device, BLOCK_SIZE=64)
    batch = torch.arange(BATCH, device=device)[:, None, None, None]
    head = torch.arange(HEAD, device=device)[:, None, None]
    check(tensors(device), mask, (ids[:, None] == ids) & ((at + batch) % 3 != head))
    made = len(calls)
    fovea.attention(*tensors(device), block_mask=mask)
    assert len(calls) == made, "bits are computed once for a mask"


def test_lists_of_flex_attention_without_a_mask_mod():
    from torch.nn.attention.flex_attention import BlockMask

    counts, indices = torch.tensor([[[1, 2, 0]]], dtype=torch.int32), torch.tensor([[[[2, 9], [0, 1], [5, 5]]]], dtype=torch.int32)
    full = (torch.tensor([[[1, 1, 2]]], dtype=torch.int32), torch.tensor([[[[0, 7], [2, 7], [1, 0]]]], dtype=torch.int32))
    mask = BlockMask.from_kv_blocks(counts, indices, *full, BLOCK_SIZE=64, seq_lengths=(SEQ, SEQ), compute_q_blocks=False)
    listed = torch.tensor([[1, 0, 1], [1, 1, 1], [1, 1, 0]], dtype=torch.bool)
    check(tensors("cpu"), mask, listed.repeat_interleave(64, 0).repeat_interleave(64, 1)[:SEQ, :SEQ])


def test_gradients():
    q, k, v = (each.requires_grad_() for each in tensors("cpu"))
    ids = torch.arange(SEQ) // 60
    mask = block_masks.documents(ids, block_size=SIZE)
    out = fovea.attention(q, k, v, block_mask=mask)
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, k, v), dout)
    at, key = numbers()
    want = torch.autograd.grad(exact(q, k, v, (ids[:, None] == ids) & (key <= at))[0], (q, k, v), dout.double())
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_flex_attention_masks(dtype):
    q, k, v = (each.to(dtype).requires_grad_() for each in tensors("cpu"))

    def rule(b, h, q_idx, kv_idx):
        return ((kv_idx // 64 + b) % 2 == h % 2) & ((q_idx * 3 + kv_idx) % 7 != h) & (q_idx < 140)

    mask = create_block_mask(rule, BATCH, HEAD, SEQ, SEQ, device="cpu", BLOCK_SIZE=64)
    out, lse = fovea.attention(q, k, v, block_mask=mask, return_lse=True)
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
    at, key = numbers()
    batch, head = torch.arange(BATCH)[:, None, None, None], torch.arange(HEAD)[:, None, None]
    want = torch.autograd.grad(exact(q, k, v, rule(batch, head, at, key))[0], (q, k, v), dout.double())
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 3e-2, "atol": 3e-2}
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, **close)
    # A kernel computes it, not the reference, and in the same order each time.
    kernel = next(
        i.name for i in fovea.implementations() if i.operation == "attention_backward" and "cpu." in i.name and i.available
    )
    inputs = (dout, *(each.detach() for each in (q, k, v, out, lse)))
    again = fovea.attention_backward(*inputs, block_mask=mask, implementation=kernel)
    assert all(torch.equal(one, other) for one, other in zip(got, again, strict=True))


def test_gradients_where_lists_are_odd():
    """In any order, a block twice, numbers of no block, counts beyond the slots and below 0."""
    q, k, v = (each.requires_grad_() for each in tensors("cpu"))
    indices = torch.tensor(
        [[2, 0, 2, -1], [9, 1, 2**31 - 1, -(2**31)], [1, 0, 1, 1], [0, 1, 2, 0], [0, 0, 0, 0]], dtype=torch.int32
    )
    counts = torch.tensor([3, 4, 99, -5, 0], dtype=torch.int32)
    listed = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0]], dtype=torch.bool)
    mask = fovea.BlockMask(counts[None, None], indices[None, None], block_size=SIZE)
    whole = listed.repeat_interleave(32, 0).repeat_interleave(64, 1)[:SEQ, :SEQ]
    out = fovea.attention(q, k, v, block_mask=mask)
    dout = torch.randn_like(out)
    want_out = exact(q, k, v, whole)[0]
    torch.testing.assert_close(out.double(), want_out, rtol=1e-5, atol=1e-5)
    got = torch.autograd.grad(out, (q, k, v), dout)
    want = torch.autograd.grad(want_out, (q, k, v), dout.double())
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


SIZES = [(64, 64), (128, 128), (64, 128), (192, 64)]
KERNELS = [
    each.name
    for each in fovea.implementations()
    if each.operation == "attention_backward" and each.name.startswith("cuda.") and each.available
]
every_kernel = pytest.mark.parametrize("kernel", KERNELS)


def gradients(inputs, mask, dout, kernel):
    """By one kernel, which must give the same bits again."""
    q, k, v = (each.detach() for each in inputs)
    out, lse = fovea.attention(q, k, v, block_mask=mask, return_lse=True)
    got, again = (fovea.attention_backward(dout, q, k, v, out, lse, block_mask=mask, implementation=kernel) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(got, again, strict=True))
    return got


def close_gradients(inputs, got, dout, mask):
    """Gradients against those of the formula."""
    want = torch.autograd.grad(exact(*inputs, mask)[0], inputs, dout.double())
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=3e-2, atol=3e-2)


@every_kernel
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("dim", [DIM, 128])
def test_gradients_on_a_gpu(kernel, size, own, dim):
    """Full, partial and absent blocks at random, also a query and a key block that nobody lists."""
    seq_q, seq_k = 330, 500
    inputs = [each.requires_grad_() for each in tensors("cuda", seq_q, seq_k, dim)]
    torch.manual_seed(7)
    shape = (BATCH, HEAD) if own else (1, 1)
    kinds = torch.randint(3, (*shape, -(-seq_q // size[0]), -(-seq_k // size[1])), device="cuda")
    kinds[..., 1, :], kinds[..., 2] = 0, 0
    kinds = kinds.repeat_interleave(size[0], 2)[:, :, :seq_q].repeat_interleave(size[1], 3)[..., :seq_k]
    pairs = (kinds == 2) | (kinds == 1) & (torch.rand(kinds.shape, device="cuda") < 0.5)
    mask = fovea.BlockMask.from_mask(pairs, block_size=size)
    out = fovea.attention(*inputs, block_mask=mask)
    dout = torch.randn_like(out)
    close_gradients(inputs, gradients(inputs, mask, dout, kernel), dout, pairs)
    close_gradients(inputs, torch.autograd.grad(out, inputs, dout), dout, pairs)


@every_kernel
@pytest.mark.parametrize("size", SIZES[:2], ids=str)
def test_gradients_on_a_gpu_where_lists_are_odd(kernel, size):
    """Numbers of no block, counts beyond the slots and below 0."""
    inputs = [each.requires_grad_() for each in tensors("cuda", 5 * size[0] - 3, 3 * size[1] - 1)]
    indices = torch.tensor(
        [[2, 0, -1], [9, 1, 2**31 - 1], [1, 0, -(2**31)], [0, 1, 2], [0, 0, 0]], dtype=torch.int32, device="cuda"
    )
    counts = torch.tensor([3, 3, 99, -5, 0], dtype=torch.int32, device="cuda")
    listed = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0]], dtype=torch.bool, device="cuda")
    mask = fovea.BlockMask(counts[None, None], indices[None, None], block_size=size)
    whole = listed.repeat_interleave(size[0], 0).repeat_interleave(size[1], 1)[: inputs[0].shape[1], : inputs[1].shape[1]]
    dout = torch.randn_like(inputs[0])
    close_gradients(inputs, gradients(inputs, mask, dout, kernel), dout, whole)


@every_kernel
@pytest.mark.parametrize("size", SIZES[:2], ids=str)
def test_a_graph_replays_gradients_over_other_lists(kernel, size):
    q, k, v = tensors("cuda", 4 * size[0], 4 * size[1])
    blocks = torch.eye(4, dtype=torch.bool, device="cuda")
    masks = [fovea.BlockMask.from_blocks(each, size) for each in (blocks, ~blocks)]
    held = fovea.BlockMask(torch.zeros_like(masks[1].full_counts), torch.zeros_like(masks[1].full_indices), block_size=size)

    def differentiate(mask):
        out, lse = fovea.attention(q, k, v, block_mask=mask, return_lse=True)
        return fovea.attention_backward(out, q, k, v, out, lse, block_mask=mask, implementation=kernel)

    differentiate(held)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = differentiate(held)
    for mask in masks:
        held.full_counts.copy_(mask.full_counts)
        held.full_indices[..., : mask.full_indices.shape[-1]].copy_(mask.full_indices)
        graph.replay()
        for one, other in zip(got, differentiate(mask), strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)


def test_what_bad_masks_get():
    q, k, v = tensors("cpu")
    blocks = torch.ones(5, 3, dtype=torch.bool)
    good = fovea.BlockMask.from_blocks(blocks, SIZE)
    with pytest.raises(TypeError, match=r"block_mask: got int, want a fovea\.BlockMask"):
        fovea.attention(q, k, v, block_mask=3)
    with pytest.raises(ValueError, match=r"^block_mask\.full_counts\.shape\[2\] \(q_block\): got 5, want 3"):
        fovea.attention(q[:, :96], k, v, block_mask=good)
    with pytest.raises(ValueError, match=r"^block_mask\.block_size\[1\]: got 48, want a multiple of 32"):
        fovea.attention(q, k, v, block_mask=fovea.BlockMask(good.full_counts, good.full_indices, block_size=(32, 48)))
    with pytest.raises(ValueError, match=r"^block_mask\.full_counts: got none, want a tensor"):
        fovea.attention(q, k, v, block_mask=fovea.BlockMask(None, good.full_indices, block_size=SIZE))
    with pytest.raises(ValueError, match=r"^block_mask\.partial_bits: got none, want a tensor"):
        lists = (good.full_counts, good.full_indices)
        fovea.attention(q, k, v, block_mask=fovea.BlockMask(*lists, *lists, block_size=SIZE))
    with pytest.raises(ValueError, match=r"^block_mask\.full_counts\.shape\[0\] \(batch\): got 3, want 2"):
        fovea.attention(q, k, v, block_mask=fovea.BlockMask.from_blocks(blocks.expand(3, 1, 5, 3), SIZE))
    with pytest.raises(ValueError, match=r"^cu_seqlens_q: got bounds, want none"):
        cu = torch.tensor([0, SEQ], dtype=torch.int32)
        fovea.attention(q[0], k[0], v[0], cu_seqlens_q=cu, cu_seqlens_k=cu, block_mask=good)
    with pytest.raises(ValueError, match=r"mask: got torch.int64 \[5, 3\], want bool"):
        fovea.BlockMask.from_blocks(blocks.long())
    with pytest.raises(ValueError, match=r"tile\[1\]: got 3, want a divisor of shape\[1\], 5"):
        block_masks.tile_order((3, 5, 10), (1, 3, 5))
