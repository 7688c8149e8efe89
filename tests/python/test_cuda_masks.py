# SPDX-License-Identifier: Apache-2.0
"""Packed masks over CUDA tensors: every kernel that takes them beside the CPU, graphs over other trees, bytes that do not exist."""

import pytest
import torch

import fovea
from masked import ends_of, flat

TOKENS, PAGE, HEADS, KV_HEADS, DIM = 16, 16, 8, 2, 128
NAMES = ["cuda.portable.paged_attention", "cuda.sm90.paged_attention"]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available() or torch.version.hip is not None, reason="needs a CUDA device")


def paged_batch(lengths, dtype=torch.bfloat16, seed=0):
    """q, caches, block table, lengths and cu_seqlens_q of trees at the end of sequences. Unused slots hold NaN."""
    torch.manual_seed(seed)
    width = -(-max(lengths) // PAGE)
    blocks = sum(-(-length // PAGE) for length in lengths)
    table = torch.full((len(lengths), width), 2147480000, dtype=torch.int32)
    k, v = (torch.full((blocks, PAGE, KV_HEADS, DIM), torch.nan).to(dtype) for _ in "kv")
    free = iter(torch.randperm(blocks).tolist())
    for b, length in enumerate(lengths):
        for i in range(-(-length // PAGE)):
            table[b, i] = next(free)
            used = min(PAGE, length - i * PAGE)
            for cache in (k, v):
                cache[table[b, i], :used] = torch.randn(used, KV_HEADS, DIM).to(dtype)
    q = torch.randn(TOKENS * len(lengths), HEADS, DIM).to(dtype)
    return q, k, v, table, torch.tensor(lengths).int(), torch.arange(0, TOKENS * len(lengths) + 1, TOKENS).int()


def random_trees(count, seed=0):
    torch.manual_seed(seed)
    return torch.stack([torch.tensor([int(torch.randint(-1, i, ())) if i else -1 for i in range(TOKENS)]) for _ in range(count)])


def on_device(tensors):
    return [tensor.cuda() for tensor in tensors]


def attend(tensors, name=None, **bits):
    options = {"max_seqlen_q": TOKENS, "implementation": name, "return_lse": True}
    return fovea.paged_attention(*tensors, **options, **bits)


def skip_without(name):
    if not any(row.name == name and row.available for row in fovea.implementations()):
        pytest.skip(f"{name} is not available here")


@pytest.mark.parametrize("name", NAMES)
def test_trees_beside_the_cpu(name):
    skip_without(name)
    tensors = paged_batch([17, 300, 1000, 16])
    mask = fovea.tree_mask(random_trees(4)).flatten(0, 1)
    want = attend([x.float() if x.is_floating_point() else x for x in tensors], packed_mask=mask, mask_tail=TOKENS)
    got = attend(on_device(tensors), name, packed_mask=mask.cuda(), mask_tail=TOKENS)
    torch.testing.assert_close(got[0].cpu().float(), want[0], atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(got[1].cpu(), want[1], atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(fovea.tree_mask(random_trees(4).cuda()).flatten(0, 1).cpu(), mask)


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_replays_over_other_trees(name):
    skip_without(name)
    tensors = on_device(paged_batch([90, 200]))
    bits = {"packed_mask": fovea.tree_mask(random_trees(2)).flatten(0, 1).cuda(), "mask_tail": TOKENS}
    out = torch.empty_like(tensors[0])
    fovea.paged_attention(*tensors, max_seqlen_q=TOKENS, implementation=name, out=out, **bits)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fovea.paged_attention(*tensors, max_seqlen_q=TOKENS, implementation=name, out=out, **bits)
    for seed in (1, 2):
        bits["packed_mask"].copy_(fovea.tree_mask(random_trees(2, seed).cuda()).flatten(0, 1))
        graph.replay()
        want = fovea.paged_attention(*tensors, max_seqlen_q=TOKENS, implementation=name, **bits)
        assert torch.equal(out, want)


@pytest.mark.parametrize("name", NAMES)
def test_bits_outside_of_the_mask_are_zeros(name):
    skip_without(name)
    lengths = [40, 70, 33]
    tensors = on_device(paged_batch(lengths))
    packed, indptr = flat([torch.ones(TOKENS, length, dtype=torch.bool) for length in lengths])
    for wild in ([-5, 7, 2147483647, 3], [1 << 30, -(1 << 31), 0, 0]):
        pointers = torch.tensor(wild, dtype=torch.int32).cuda()
        out, lse = attend(tensors, name, packed_mask=packed.cuda(), mask_indptr=pointers)
        torch.cuda.synchronize()
        assert out.isfinite().all() and not lse.isnan().any()
    out, lse = attend(tensors, name, packed_mask=packed.cuda(), mask_indptr=torch.full_like(indptr, 1 << 30).cuda())
    assert (out == 0).all() and (lse == -torch.inf).all()


def test_dense_rows_beside_the_cpu():
    torch.manual_seed(3)
    shapes = [(70, 200), (3, 500), (128, 128)]
    q, k, v = (
        [torch.randn(n, heads, DIM) for n in lengths]
        for lengths, heads in zip(
            ([s[0] for s in shapes], [s[1] for s in shapes], [s[1] for s in shapes]), (HEADS, KV_HEADS, KV_HEADS), strict=True
        )
    )
    packed, indptr = flat([torch.rand(rows, keys) < 0.4 for rows, keys in shapes])
    lengths = {"cu_seqlens_q": ends_of(q), "cu_seqlens_k": ends_of(k)}
    tensors = [torch.cat(part).bfloat16() for part in (q, k, v)]
    bits = {"packed_mask": packed, "mask_indptr": indptr}
    want = fovea.attention(*(x.float() for x in tensors), **lengths, **bits)
    got = fovea.attention(*on_device(tensors), **{name: x.cuda() for name, x in (lengths | bits).items()})
    torch.testing.assert_close(got.cpu().float(), want, atol=2e-2, rtol=2e-2)
