# SPDX-License-Identifier: Apache-2.0
"""Packed masks, against attention written out with the mask as booleans."""

import re

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import fovea
from masked import causal_band, ends_of, flat, written_out


def random_case(seed, shapes, dtype=torch.float32):
    torch.manual_seed(seed)
    q = [torch.randn(rows, 4, 32, dtype=dtype) for rows, _ in shapes]
    k = [torch.randn(keys, 2, 32, dtype=dtype) for _, keys in shapes]
    v = [torch.randn(keys, 2, 32, dtype=dtype) for _, keys in shapes]
    masks = [torch.rand(rows, keys) < 0.5 for rows, keys in shapes]
    masks[0][1] = False  # a row without keys
    return q, k, v, masks


SHAPES = [(5, 40), (9, 9), (1, 130), (3, 2)]


@pytest.mark.parametrize("causal", [False, True])
def test_ragged_rows_see_what_their_bits_show(causal):
    q, k, v, masks = random_case(1, SHAPES)
    packed, indptr = flat(masks)
    lengths = {"cu_seqlens_q": ends_of(q), "cu_seqlens_k": ends_of(k)}
    bits = {"packed_mask": packed, "mask_indptr": indptr}
    out, lse = fovea.attention(torch.cat(q), torch.cat(k), torch.cat(v), causal=causal, return_lse=True, **lengths, **bits)
    for b, (rows, keys) in enumerate(SHAPES):
        visible = masks[b] & (causal_band(rows, keys) if causal else True)
        want, want_lse = written_out(q[b], k[b], v[b], visible)
        at = slice(int(lengths["cu_seqlens_q"][b]), int(lengths["cu_seqlens_q"][b + 1]))
        torch.testing.assert_close(out[at].double(), want, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(lse[at].double(), want_lse, atol=2e-6, rtol=1e-5)


def test_rows_of_bytes_over_pages():
    shapes = [(8, 50), (8, 8), (8, 300)]
    q, k, v, masks = random_case(2, shapes)
    masks = [mask[:, -8:] for mask in masks]
    page, width = 16, 19
    table, caches = torch.full((3, width), 2147480000, dtype=torch.int32), [torch.full((40, page, 2, 32), torch.nan) for _ in "kv"]
    free = iter(torch.randperm(40).tolist())
    for b, (_, keys) in enumerate(shapes):
        for i in range(-(-keys // page)):
            table[b, i] = next(free)
            for cache, rows in zip(caches, (k[b], v[b]), strict=True):
                cache[table[b, i], : min(page, keys - i * page)] = rows[i * page : (i + 1) * page]
    kv_len = torch.tensor([keys for _, keys in shapes], dtype=torch.int32)
    packed = torch.cat([fovea.pack_mask(mask) for mask in masks])
    out = fovea.paged_attention(torch.cat(q), *caches, table, kv_len, ends_of(q), packed_mask=packed, mask_tail=8)
    for b, (rows, keys) in enumerate(shapes):
        visible = causal_band(rows, keys)
        visible[:, -8:] &= masks[b]
        torch.testing.assert_close(out[8 * b : 8 * b + 8].double(), written_out(q[b], k[b], v[b], visible)[0], atol=2e-6, rtol=1e-5)


def test_a_tree_sees_its_ancestors():
    torch.manual_seed(3)
    for tokens in (1, 2, 5, 8, 33, 64):
        parents = torch.stack([torch.tensor([int(torch.randint(-1, i, ())) if i else -1 for i in range(tokens)]) for _ in range(3)])
        packed = fovea.tree_mask(parents)
        assert packed.shape == (3, tokens, -(-tokens // 8)) and packed.dtype == torch.uint8
        seen = torch.eye(tokens, dtype=torch.bool).repeat(3, 1, 1)
        for b in range(3):
            for i in range(tokens):
                if parents[b, i] >= 0:
                    seen[b, i] |= seen[b, parents[b, i]]
        torch.testing.assert_close(packed, fovea.pack_mask(seen))
        torch.testing.assert_close(fovea.tree_mask(parents[0].int()), packed[0])
    chain = fovea.tree_mask(torch.arange(-1, 63))
    torch.testing.assert_close(chain, fovea.pack_mask(torch.ones(64, 64).tril().bool()))


def test_bits_of_a_tail_longer_than_the_keys():
    q, k, v, _ = random_case(4, [(3, 5), (3, 5)])
    q, k, v = (torch.stack(part) for part in (q, k, v))
    mask = torch.rand(2, 3, 20) < 0.6
    out = fovea.attention(q, k, v, packed_mask=fovea.pack_mask(mask), mask_tail=20)
    for b in range(2):
        torch.testing.assert_close(out[b].double(), written_out(q[b], k[b], v[b], mask[b][:, -5:])[0], atol=2e-6, rtol=1e-5)


BITS = torch.zeros(64, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"packed_mask": BITS.bool()}, "packed_mask.dtype: got torch.bool, want torch.uint8 (8 keys a byte)"),
        ({"packed_mask": BITS[:4, None, None, None]}, "packed_mask.shape: got [4, 1, 1, 1], want [bytes], or [2, 3, bytes]"),
        ({"packed_mask": BITS[:24].view(2, 4, 3)}, "packed_mask.shape: got [2, 4, 3], want [bytes], or [2, 3, bytes]"),
        ({"packed_mask": BITS[:6].view(2, 3, 1)}, "packed_mask.row_bytes: got 1, want 2 or more (bits of 9 keys)"),
        ({"packed_mask": BITS[::2]}, "packed_mask.strides[0]: got 2, want 1 (contiguous)"),
        ({"packed_mask": BITS}, "mask_indptr (pointer): got null, want an address"),
        ({"mask_tail": 3}, "mask_tail: got 3, want none without packed_mask"),
        ({"mask_indptr": torch.zeros(3, dtype=torch.int32)}, "mask_indptr: got a tensor, want none without packed_mask"),
        ({"packed_mask": BITS, "mask_tail": 0}, "mask_tail: got 0, want 1 or more"),
        ({"packed_mask": BITS, "mask_indptr": torch.zeros(2, dtype=torch.int32)}, "mask_indptr.shape: got [2], want [3]"),
        ({"packed_mask": BITS, "mask_indptr": torch.tensor([0, 4, 2]).int()}, "mask_indptr[2]: got 2, want 4 or more"),
        ({"packed_mask": BITS, "mask_indptr": torch.tensor([-1, 4, 8]).int()}, "mask_indptr[0]: got -1, want 0 or more"),
        ({"packed_mask": BITS, "mask_indptr": torch.tensor([0, 4, 65]).int()}, "mask_indptr[2]: got 65, want at most 64"),
        (
            {"packed_mask": BITS, "mask_indptr": torch.tensor([0, 3, 8]).int()},
            "mask_indptr[1] (bytes of the sequence): got 3, want 4",
        ),
        (
            {"packed_mask": torch.zeros(2, 3, 2, dtype=torch.uint8), "mask_indptr": torch.zeros(3).int()},
            "mask_indptr: got a tensor, want none, as packed_mask has a row of bytes",
        ),
    ],
)
def test_bad_masks_are_named(arguments, message):
    q, k = torch.randn(2, 3, 2, 16), torch.randn(2, 9, 2, 16)
    with pytest.raises(ValueError, match=re.escape(message)):
        fovea.attention(q, k, k, **arguments)


def test_makers_refuse_what_they_cannot_pack():
    for call, message in (
        (lambda: fovea.pack_mask(torch.ones(3)), "visible.dtype: got torch.float32, want torch.bool"),
        (lambda: fovea.tree_mask(torch.ones(3)), "parents.dtype: got torch.float32, want torch.int32 or torch.int64"),
        (lambda: fovea.tree_mask(torch.tensor([[-1, 0], [-1, 1]])), "parents[1, 1]: got 1, want -1 (before the tree) to 0"),
        (lambda: fovea.tree_mask(torch.tensor([-2])), "parents[0]: got -2, want -1 (before the tree) to -1"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()


KERNELS = [i.name for i in fovea.implementations() if i.operation == "attention_backward" and i.backend == "cpu" and i.available]
TOLERANCES = {torch.float32: {"rtol": 1e-5, "atol": 1e-5}, torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2}}
LENGTHS = [(5, 40), (0, 7), (70, 70), (1, 130), (3, 0), (1, 1), (130, 97)]


def bits_of(masks, tail):
    """A packed mask, flat or by rows over the last `tail` keys; and what it shows together with causality."""
    if tail is None:
        packed, indptr = flat(masks)
        return {"packed_mask": packed, "mask_indptr": indptr}, [mask & causal_band(*mask.shape) for mask in masks]
    visible = [(mask | (torch.arange(len(mask.T)) < len(mask.T) - tail)) & causal_band(*mask.shape) for mask in masks]
    rows = [torch.nn.functional.pad(mask, (tail, 0))[:, -tail:] for mask in masks]
    return {"packed_mask": fovea.pack_mask(torch.cat(rows)), "mask_tail": tail}, visible


def exact_gradients(q, k, v, visible, dout, dlse):
    """The gradients of one sequence, float64. Hidden keys are left out, as 0 times NaN is NaN."""
    leaves = [torch.nan_to_num(each.double()).requires_grad_() for each in (q, k, v)]
    out, lse = written_out(*leaves, visible)
    total = (out * dout.double()).sum() + (torch.where(lse == -torch.inf, 0, lse) * dlse.double()).sum()
    return torch.autograd.grad(total, leaves)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("tail", [None, 33])
def test_gradients(kernel, dtype, tail):
    q, k, v, masks = random_case(5, LENGTHS, dtype)
    for mask in masks:
        mask[::7], mask[:, 3::5] = False, False
    bits, visible = bits_of(masks, tail)
    for b, seen in enumerate(visible):  # rows that see no key, and keys that no row sees
        q[b][~seen.any(1)], k[b][~seen.any(0)], v[b][~seen.any(0)] = torch.nan, torch.nan, torch.nan
    lengths = {"cu_seqlens_q": ends_of(q), "cu_seqlens_k": ends_of(k)}
    options = {"causal": True, **lengths, **bits}
    tensors = [torch.cat(each) for each in (q, k, v)]
    out, lse = fovea.attention(*tensors, return_lse=True, **options)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    got = fovea.attention_backward(dout, *tensors, out, lse, dlse=dlse, implementation=kernel, **options)
    again = fovea.attention_backward(dout, *tensors, out, lse, dlse=dlse, implementation=kernel, **options)
    assert all(torch.equal(one, other) for one, other in zip(got, again, strict=True))
    for b, seen in enumerate(visible):
        rows, keys = (slice(*lengths[name][b : b + 2].tolist()) for name in lengths)
        want = exact_gradients(q[b], k[b], v[b], seen, dout[rows], dlse[rows])
        unseen = (~seen.any(1), *[~seen.any(0)] * 2)
        for one, other, at, alone in zip(got, want, (rows, keys, keys), unseen, strict=True):
            torch.testing.assert_close(one[at].double(), other, **TOLERANCES[dtype])
            assert not one[at][alone].any()


def test_gradients_of_rows_that_see_nothing_are_zero():
    q, k, v = (torch.full((2, 9, 2, 16), torch.nan, requires_grad=True) for _ in range(3))
    out = fovea.attention(q, k, v, packed_mask=torch.zeros(2, 9, 2, dtype=torch.uint8))
    out.sum().backward()
    assert all(not each.grad.any() for each in (q, k, v))


def test_gradients_in_float64():
    """By finite differences."""
    torch.manual_seed(6)
    q, k, v = (torch.randn(1, n, h, 8, dtype=torch.float64, requires_grad=True) for n, h in ((5, 2), (7, 1), (7, 1)))
    packed = fovea.pack_mask(torch.rand(1, 5, 7) < 0.6)
    assert torch.autograd.gradcheck(lambda *each: fovea.attention(*each, packed_mask=packed), (q, k, v), atol=1e-5)


def fixed_case(dtype=torch.float32):
    torch.manual_seed(7)
    tensors = [torch.randn(2, n, h, 32, dtype=dtype, requires_grad=True) for n, h in ((70, 4), (90, 2), (90, 2))]
    return tensors, torch.rand(2, 70, 90) < 0.5


def gradients(function, tensors, dout):
    return torch.autograd.grad(function(*tensors), tensors, dout)


def test_gradients_beside_biases_and_dropout():
    """A mask hides what a bias of -inf hides, and its gradient is 0 there."""
    tensors, mask = fixed_case()
    bias = torch.randn(2, 4, 70, 90)
    terms = {"alibi_slopes": torch.rand(4), "dropout_p": 0.2, "dropout_state": torch.tensor([3, 4]), "causal": True}
    dout = torch.randn(2, 70, 4, 32)
    results = []
    for hidden, bits in (
        (bias.masked_fill(~mask[:, None], -torch.inf), {}),
        (bias.masked_fill(~mask[:, None], torch.nan), {"packed_mask": fovea.pack_mask(mask)}),
    ):
        leaves = [*tensors, hidden.requires_grad_()]
        results.append(gradients(lambda q, k, v, b, bits=bits: fovea.attention(q, k, v, bias=b, **terms, **bits), leaves, dout))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
    assert not results[1][3][~mask[:, None].expand_as(bias)].any()


def test_gradients_beside_a_block_mask():
    tensors, mask = fixed_case()
    blocks = torch.rand(70, 90) < 0.5
    lists = fovea.BlockMask.from_mask(blocks, block_size=(32, 32))
    dout = torch.randn(2, 70, 4, 32)
    got = gradients(lambda *each: fovea.attention(*each, block_mask=lists, packed_mask=fovea.pack_mask(mask)), tensors, dout)
    want = gradients(lambda *each: fovea.attention(*each, packed_mask=fovea.pack_mask(mask & blocks)), tensors, dout)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_under_checkpoint(reentrant):
    tensors, mask = fixed_case()
    packed, dout = fovea.pack_mask(mask), torch.randn(2, 70, 4, 32)

    def function(*each):
        return fovea.attention(*each, packed_mask=packed)

    got = gradients(function, tensors, dout)
    checkpoint(function, *tensors, use_reentrant=reentrant).backward(dout)
    assert all(torch.equal(one, leaf.grad) for one, leaf in zip(got, tensors, strict=True))


def test_gradients_of_a_compiled_function():
    tensors, mask = fixed_case()
    packed, dout = fovea.pack_mask(mask), torch.randn(2, 70, 4, 32)

    def function(q, k, v, packed):
        return fovea.attention(q, k, v, packed_mask=packed) * 2.0

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    got, want = (gradients(lambda *each, f=f: f(*each, packed), tensors, dout) for f in (compiled, function))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other)


def test_a_gradient_names_bad_masks():
    q, k = torch.randn(2, 3, 2, 16), torch.randn(2, 9, 2, 16)
    out, lse = fovea.attention(q, k, k, return_lse=True)
    for arguments, message in (
        ({"packed_mask": BITS.bool()}, "packed_mask.dtype: got torch.bool, want torch.uint8 (8 keys a byte)"),
        ({"mask_tail": 3}, "mask_tail: got 3, want none without packed_mask"),
        ({"packed_mask": BITS}, "mask_indptr (pointer): got null, want an address"),
        ({"packed_mask": BITS, "mask_indptr": torch.tensor([0, 4, 2]).int()}, "mask_indptr[2]: got 2, want 4 or more"),
        ({"packed_mask": BITS, "mask_indptr": torch.zeros(2, dtype=torch.int32)}, "mask_indptr.shape: got [2], want [3]"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            fovea.attention_backward(out, q, k, k, out, lse, **arguments)


def test_vmap_takes_no_mask():
    q, packed = torch.randn(2, 1, 3, 2, 16), torch.zeros(1, 3, 1, dtype=torch.uint8)
    with pytest.raises(NotImplementedError, match=r"^packed_mask: got a tensor within torch\.vmap, want None"):
        torch.vmap(lambda each: fovea.attention(each, each, each, packed_mask=packed))(q)


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize("kind", ["bits", "band", "paged"])
def test_a_scale_of_nan_does_not_reach_rows_that_see_nothing(kind, device):
    if kind == "bits" and device == "cuda":
        pytest.skip("no kernel of GPUs has bits beside e4m3 rows")
    mask = torch.tensor([[False, False, False], [True, False, True], [False, True, True]])
    options = {"k_scale": torch.tensor([torch.nan, 1.0], device=device), "return_lse": True}
    options |= {"causal": True} if kind == "band" else {"packed_mask": fovea.pack_mask(mask.flatten()).to(device)}
    q, count = torch.randn(3, 4, 64, device=device), 2 if kind == "band" else 3  # the band hides all keys of the first row then
    k, v = (torch.randn(1, count, 2, 64, device=device).to(torch.float8_e4m3fn) for _ in "kv")
    if kind == "paged":
        table, kv_len, ends = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([[0]], [3], [0, 3]))
        out, lse = fovea.paged_attention(q.half(), k, v, table, kv_len, ends, **options)
    else:
        out, lse = fovea.attention(q[None].to(torch.float8_e4m3fn), k, v, **options)
        out, lse = out[0], lse[0].T
    assert bool((out[0] == 0).all() and lse[0].isneginf().all())
    assert bool(out[1:, :2].isnan().all() and out[1:, 2:].isfinite().all())
