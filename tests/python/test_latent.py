# SPDX-License-Identifier: Apache-2.0
"""Dense and sparse latent attention against float64 torch, over plain and packed caches full of traps."""

import pytest
import torch

import fovea
import packed
import plain
from pages import Pages, flat_lse

DENSE_FORMATS = ["v32_fp8", "v4_fp8", "v41_fp8", "v41_fp8_planar"]
LENGTHS = [37, 5, 0, 64]


@pytest.mark.parametrize("d", [576, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows(dtype, d, latent_attention_implementation):
    pages = Pages(LENGTHS, d=d, dtype=dtype)
    q = torch.randn(4, 3, 5, d).to(dtype)
    options = {"return_lse": True, "implementation": latent_attention_implementation, "scale": 192**-0.5}
    out, lse = fovea.latent_attention(q, pages.cache, pages.table, pages.kv_len, **options)
    assert out.shape == (4, 3, 5, 512) and out.dtype == dtype and lse.shape == (4, 5, 3)
    plain.check(out.flatten(0, 1), flat_lse(lse), pages.expect(q, scale=192**-0.5))


@pytest.mark.parametrize("format", DENSE_FORMATS)
def test_packed(format, latent_attention_implementation):
    d = packed.LAYOUTS[format].codes + packed.LAYOUTS[format].rope
    pages = Pages(LENGTHS, d=d, format=format)
    q = torch.randn(4, 2, 16, d).bfloat16()
    options = {"return_lse": True, "implementation": latent_attention_implementation}
    out, lse = fovea.latent_attention(q, pages.cache, pages.table, pages.kv_len, format=format, **options)
    plain.check(out.flatten(0, 1), flat_lse(lse), pages.expect(q))


@pytest.mark.parametrize("scale", [None, 0.25, torch.tensor([2.0])])
def test_e4m3_rows(scale, latent_attention_implementation):
    pages = Pages(LENGTHS, dtype=torch.float8_e4m3fn)
    q = torch.randn(4, 1, 4, 576).bfloat16()
    options = {"cache_scale": scale, "implementation": latent_attention_implementation}
    out = fovea.latent_attention(q, pages.cache, pages.table, pages.kv_len, **options)
    pages.tokens = pages.tokens.double() * (1.0 if scale is None else float(scale))
    plain.check(out.flatten(0, 1), None, pages.expect(q))


@pytest.mark.parametrize(("page", "kv_head"), [(1, 1), (64, 2), (7, 3)])
def test_ragged_pages_and_kv_heads(page, kv_head, latent_attention_implementation):
    pages = Pages(LENGTHS, page=page, kv_head=kv_head)
    lengths_q = [1, 5, 0, 9]
    q = torch.randn(sum(lengths_q), 6, 576 + 8)[..., :576]
    cu = torch.tensor([0, *lengths_q]).cumsum(0).int()
    options = {"return_lse": True, "implementation": latent_attention_implementation, "window": (20, None)}
    out, lse = fovea.latent_attention(q, pages.cache, pages.table, pages.kv_len, cu, **options)
    plain.check(out, lse, pages.expect(q.split(lengths_q), left=20))


def test_rows_of_no_sequence_are_left_alone(latent_attention_device):
    device = latent_attention_device
    q, cache = torch.randn(5, 16, 576).bfloat16().to(device), torch.randn(3, 64, 1, 576).bfloat16().to(device)
    table, lengths, cu = (torch.zeros(*shape, dtype=torch.int32, device=device) for shape in ((0, 2), (0,), (1,)))
    out = torch.full((5, 16, 512), 7.0, dtype=torch.bfloat16, device=device)
    fovea.latent_attention(q, cache, table, lengths, cu, max_seqlen_q=1, max_kv_len=64, out=out)
    assert bool((out == 7).all())


def test_one_row_a_sequence_and_given_outputs(poison):
    pages = Pages(LENGTHS)
    q, wide, lse = torch.randn(4, 3, 576), poison(4, 3, 520), poison(4, 3)
    out, same = fovea.latent_attention(q, pages.cache, pages.table, pages.kv_len, out=wide[..., :512], lse=lse, causal=False)
    assert same is lse and out.data_ptr() == wide.data_ptr() and wide[..., 512:].isnan().all()
    plain.check(out, lse, pages.expect(q[:, None], right=None))


# ---- token-sparse ----------------------------------------------------------------------------------------------------------

TRAPS = torch.tensor([-1, -(2**31), 2**31 - 1], dtype=torch.int32)


def lists(rows, topk, tokens):
    """Index lists over tokens that hold numbers, with traps and duplicates; `tokens` are the indices that may be read."""
    indices = tokens[torch.randint(len(tokens), (rows, topk))].int()
    trap = torch.rand(rows, topk) < 0.2
    indices[trap] = TRAPS[torch.randint(3, (int(trap.sum()),))]
    indices[0] = -1  # sees nothing
    return indices


@pytest.mark.parametrize("d", [576, 512])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_flat(dtype, d, sparse_latent_attention_implementation):
    kv = torch.randn(50, 1, d).to(dtype)
    kv[40:] = torch.nan  # nobody lists these
    q, indices = torch.randn(6, 4, d).to(dtype), lists(6, 33, torch.arange(40))
    lengths = torch.tensor([33, 33, 0, 1, 20, 7], dtype=torch.int32)
    for row, length in enumerate(lengths):
        indices[row, length:] = 45  # past the end of the list
    indices[1, :3] = torch.tensor([50, 5, 5])  # one past the end of the cache; twice the same
    sink = torch.tensor([0.5, -torch.inf, torch.inf, -2.0])
    out, lse, max_logits = fovea.sparse_latent_attention(
        q,
        kv,
        indices,
        lengths,
        sink=sink,
        return_lse=True,
        return_max_logits=True,
        implementation=sparse_latent_attention_implementation,
    )
    want, largest = plain.sparse(q, [(kv[:, 0], indices, lengths)], sink=sink)
    plain.check(out, lse, want)
    torch.testing.assert_close(max_logits.double(), largest, rtol=1e-4, atol=1e-5)
    assert torch.equal(out[:, 2], torch.zeros_like(out[:, 2]))  # an infinite sink takes everything


PAIRS = [(576, main, extra) for main in ("rows", "v32_fp8") for extra in (None, "rows", "v32_fp8")]
PAIRS += [(512, main, extra) for main in ("rows", *DENSE_FORMATS[1:]) for extra in (None, "rows", "v41_fp4", "v41_fp8")]


@pytest.mark.parametrize(("d", "format", "extra"), PAIRS)
def test_paged_with_an_extra_cache(d, format, extra, sparse_latent_attention_implementation):
    main = Pages([30, 21], d=d, dtype=torch.bfloat16, format=format)
    q = torch.randn(2, 3, 16, d).bfloat16()
    lengths = torch.tensor([40, 17], dtype=torch.int32)
    caches = [(main, lists(6, 40, torch.cat(main.slots)), lengths)]
    arguments = {"format": format}
    if extra:
        other = Pages([9, 12], page=4, d=d, dtype=torch.bfloat16, format=extra)
        caches.append((other, lists(6, 10, torch.cat(other.slots)), None))
        arguments |= {"extra_cache": other.cache, "extra_indices": caches[1][1].view(2, 3, 10), "extra_format": extra}
    out, lse, max_logits = fovea.sparse_latent_attention(
        q,
        main.cache,
        caches[0][1].view(2, 3, 40),
        lengths,
        scale=0.05,
        return_lse=True,
        return_max_logits=True,
        implementation=sparse_latent_attention_implementation,
        **arguments,
    )
    selections = [
        (pages.tokens[:, 0], indices, None if count is None else count.repeat_interleave(3)) for pages, indices, count in caches
    ]
    want, largest = plain.sparse(q.flatten(0, 1), selections, scale=0.05)
    plain.check(out.flatten(0, 1), flat_lse(lse), want)
    torch.testing.assert_close(flat_lse(max_logits).double(), largest, rtol=1e-4, atol=1e-5)


def test_sparse_outputs_are_what_was_asked_for():
    q, kv, indices = torch.randn(2, 1, 512), torch.randn(5, 1, 512), torch.zeros(2, 4, dtype=torch.int32)
    assert isinstance(fovea.sparse_latent_attention(q, kv, indices), torch.Tensor)
    out, max_logits = fovea.sparse_latent_attention(q, kv, indices, return_max_logits=True)
    assert max_logits.shape == (2, 1)
    given = torch.empty(2, 1, 520)[..., :512]
    assert fovea.sparse_latent_attention(q, kv, indices, out=given) is given and torch.equal(given, out)


def test_sparse_over_nothing():
    q, indices = torch.randn(2, 3, 576), torch.zeros(2, 4, dtype=torch.int32)
    out, lse = fovea.sparse_latent_attention(q, torch.empty(0, 1, 576), indices, return_lse=True)
    assert torch.equal(out, torch.zeros_like(out)) and bool((lse == -torch.inf).all())
    none = torch.empty(0, 3, 576)
    assert fovea.sparse_latent_attention(none, torch.randn(4, 1, 576), indices[:0]).shape == (0, 3, 512)
