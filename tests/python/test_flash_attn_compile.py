# SPDX-License-Identifier: Apache-2.0
"""flash-attn's functions over Fovea in compiled functions: caches that are written, 8 bits, used rows, chunks, padding, qv."""

import pytest
import torch

import fovea.compat.flash_attn as flash_attn
import fovea.compat.flash_attn_interface as flash_attn_3
from kvcache import lengths

E4M3 = torch.float8_e4m3fn
ANGLES, ENDS = torch.rand(16, 32), lengths([3, 3, 3])
INTERFACES = {"2": flash_attn, "3": flash_attn_3}
ROTARY = {"rotary_cos": ANGLES.cos(), "rotary_sin": ANGLES.sin()}


def compiled(attend, inputs, **options):
    """The results of a function, eager and compiled without a break, and tensors that both have written."""
    others = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs]
    torch._dynamo.reset()
    want, got = attend(*inputs), torch.compile(attend, fullgraph=True, **{"backend": "aot_eager"} | options)(*others)
    torch.testing.assert_close(got, want)
    for one, other in zip(inputs, others, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
    return want, got, others


def append(q, k_cache, v_cache, new, seqlens, table):
    options = {name: table[:, :4] for name, table in ROTARY.items()} | {"cache_seqlens": seqlens, "page_table": table}
    return flash_attn_3.flash_attn_with_kvcache(q, k_cache, v_cache, new, new, causal=True, **options)


def append_8_bits(q, k_cache, v_cache, new, seqlens, table):
    q, k_cache, v_cache, new = (tensor.to(E4M3) for tensor in (q, k_cache, v_cache, new))
    scale = q.float().abs().amax(dim=(1, 3))[:, :2]
    options = {"q_descale": scale, "v_descale": scale, "cache_seqlens": seqlens, "page_table": table}
    return flash_attn_3.flash_attn_with_kvcache(q, k_cache, v_cache, new, new, **options)


def rows_used(q, k_cache, v_cache, new, seqlens, table):
    q, new = q.flatten(0, 1), new.flatten(0, 1)
    return flash_attn_3.flash_attn_varlen_func(q, new, new, ENDS, ENDS, 3, 3, seqlens // 2, seqlens // 3, causal=True)


def chunks(q, k_cache, v_cache, new, seqlens, table):
    options = {"cache_seqlens": seqlens, "page_table": table, "attention_chunk": 3, "return_softmax_lse": True}
    return flash_attn_3.flash_attn_with_kvcache(q, k_cache, v_cache, new, new, causal=True, **options)[:2]


def chunks_of_ragged_queries(q, k_cache, v_cache, new, seqlens, table):
    options = {"cache_seqlens": seqlens, "page_table": table, "cu_seqlens_q": ENDS, "max_seqlen_q": 3}
    return flash_attn_3.flash_attn_with_kvcache(q.flatten(0, 1), k_cache, v_cache, attention_chunk=4, **options)


@pytest.mark.parametrize("attend", [append, append_8_bits, rows_used, chunks, chunks_of_ragged_queries])
def test_pages(attend):
    """Without a break of the graph, and caches are written."""
    cache, table = torch.randn(12, 4, 2, 16), torch.arange(12, dtype=torch.int32).view(3, 4)
    seqlens = torch.tensor([5, 0, 6], dtype=torch.int32)
    compiled(attend, [torch.randn(3, 3, 4, 16), cache, cache.clone(), torch.randn(3, 3, 2, 16), seqlens, table])


# ---- caches padded on the left -------------------------------------------------------------------------------------------------


def padded(interface, new, **options):
    def attend(q, k_cache, v_cache, k, v, ends):
        more = {"k": k, "v": v, **ROTARY} if new else {}
        more |= {"cache_seqlens": ends[0], "cache_leftpad": ends[1], "return_softmax_lse": True, **options}
        return INTERFACES[interface].flash_attn_with_kvcache(q, k_cache, v_cache, causal=True, **more)[:2]

    return attend


def padded_inputs(batch=3, seq_q=2, dims=(64, 64), heads=(4, 2)):
    """The first sequence has padding alone. Rows of padding are NaN."""
    ends = torch.tensor([[5, 7, 9], [5, 0, 4]])[:, :batch].int()
    caches = [torch.randn(batch, 16, heads[1], dim) for dim in dims]
    for row in range(batch):
        for cache in caches:
            cache[row, : ends[1, row]] = torch.nan
    q, new = torch.randn(batch, seq_q, heads[0], dims[0]), [torch.randn(batch, seq_q, heads[1], dim) for dim in dims]
    return [q, *caches, *new, ends]


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_padding_on_the_left(interface, new, dynamic):
    compiled(padded(interface, new), padded_inputs(), dynamic=dynamic)


def test_padding_on_the_left_by_inductor():
    compiled(padded("3", True), padded_inputs(), backend="inductor")


@pytest.mark.parametrize("layout", ["rows of a larger cache", "heads first", "k alone"])
def test_padding_in_caches_of_other_strides(layout):
    """The caches are views of the function's inputs, and new keys are written through them."""

    def attend(q, k_cache, v_cache, k, v, ends):
        if layout == "rows of a larger cache":
            k_cache, v_cache = k_cache[:, :12], v_cache[:, :12]
        elif layout == "heads first":
            k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
        else:
            k_cache = k_cache.transpose(1, 2)
        return padded("3", True)(q, k_cache, v_cache, k, v, ends)

    inputs = padded_inputs()
    if layout != "rows of a larger cache":
        inputs[1] = inputs[1].transpose(1, 2).contiguous()
    if layout == "heads first":
        inputs[2] = inputs[2].transpose(1, 2).contiguous()
    compiled(attend, inputs)


def test_one_graph_serves_other_batches():
    attend = padded("3", True, attention_chunk=3)
    torch._dynamo.reset()
    function = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=True)
    for batch, seq_q in ((3, 2), (2, 3), (3, 1)):
        inputs = padded_inputs(batch, seq_q)
        others = [tensor.clone() for tensor in inputs]
        torch.testing.assert_close(function(*others), attend(*inputs))
        torch.testing.assert_close(others, inputs, equal_nan=True)


def test_ragged_queries_over_a_padded_cache():
    def attend(q, k_cache, v_cache, k, v, ends):
        options = {"cu_seqlens_q": lengths([2, 1, 3]), "max_seqlen_q": 3, "cache_seqlens": ends[0], "cache_leftpad": ends[1]}
        return flash_attn_3.flash_attn_with_kvcache(q.flatten(0, 1), k_cache, v_cache, **options)

    compiled(attend, padded_inputs())


# ---- chunks ----------------------------------------------------------------------------------------------------------------------


def fixed_chunks(q, k, v):
    return flash_attn_3.flash_attn_func(q, k, v, causal=True, attention_chunk=4, return_attn_probs=True)


def ragged_chunks(q, k, v):
    call = (q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), lengths([5, 9]), lengths([8, 14]), 9, 14)
    return flash_attn_3.flash_attn_varlen_func(*call, window_size=(5, 0), attention_chunk=4, return_attn_probs=True)


def cache_of_one_length(q, k, v):
    options = {"cache_seqlens": 9, "attention_chunk": 4, "return_softmax_lse": True}
    return flash_attn_3.flash_attn_with_kvcache(q, k, v, **options)[:2]


@pytest.mark.parametrize(
    ("attend", "options"),
    [(attend, {"dynamic": dynamic}) for attend in (fixed_chunks, ragged_chunks, cache_of_one_length) for dynamic in (False, True)]
    + [(ragged_chunks, {"backend": "inductor"})],
)
def test_chunks_of_tensors_and_their_gradients(attend, options):
    inputs = [torch.randn(2, seq, heads, 16, requires_grad=True) for seq, heads in ((7, 4), (11, 2), (11, 2))]
    want, got, others = compiled(attend, inputs, **options)
    gradients = [
        torch.autograd.grad(out.sin().sum() + lse[lse.isfinite()].sum(), tensors)
        for (out, lse), tensors in ((want, inputs), (got, others))
    ]
    torch.testing.assert_close(*gradients)


# ---- qv --------------------------------------------------------------------------------------------------------------------------


def latent_fixed(q, qv, rows, new, seqlens, leftpad):
    return flash_attn_3.flash_attn_func(q, rows[..., 512:], rows[..., :512], qv=qv, causal=True, return_attn_probs=True)


def latent_ragged(q, qv, rows, new, seqlens, leftpad):
    q, qv, rows = q.flatten(0, 1), qv.flatten(0, 1), rows.flatten(0, 1)
    ends = lengths([3, 1, 2]), lengths([20, 8, 20]), 3, 20
    return flash_attn_3.flash_attn_varlen_func(q, rows[..., 512:], rows[..., :512], *ends, qv=qv, attention_chunk=3)


def latent_cache(q, qv, rows, new, seqlens, leftpad):
    options = {"qv": qv, "cache_seqlens": seqlens, "cache_leftpad": leftpad, "attention_chunk": 5}
    return flash_attn_3.flash_attn_with_kvcache(q, rows[..., 512:], rows[..., :512], **options)


def latent_append(q, qv, rows, new, seqlens, leftpad):
    options = {"qv": qv, "cache_seqlens": seqlens, "causal": True, "cache_leftpad": leftpad, **ROTARY}
    parts = rows[..., 512:], rows[..., :512], new[..., 512:], new[..., :512]
    return flash_attn_3.flash_attn_with_kvcache(q, *parts, **options)


def latent_pages(q, qv, rows, new, seqlens, leftpad):
    table = torch.arange(12, dtype=torch.int32).view(3, 4)
    options = {"qv": qv, "cache_seqlens": seqlens, "page_table": table, "return_softmax_lse": True}
    rows = rows.view(12, 4, 1, 576)
    return flash_attn_3.flash_attn_with_kvcache(q, rows[..., 512:], rows[..., :512], **options)[:2]


@pytest.mark.parametrize("attend", [latent_fixed, latent_ragged, latent_cache, latent_append, latent_pages])
@pytest.mark.parametrize("dynamic", [False, True])
def test_qv(attend, dynamic):
    q, qv, rows, new = (torch.randn(3, seq, heads, dim) for seq, heads, dim in ((2, 3, 64), (2, 3, 512), (16, 1, 576), (2, 1, 576)))
    compiled(attend, [q, qv, rows, new, torch.tensor([5, 7, 9]).int(), torch.tensor([5, 0, 4]).int()], dynamic=dynamic)


@pytest.mark.parametrize("interface", INTERFACES.values(), ids=INTERFACES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_function_whose_closure_has_the_module(interface, dynamic):
    def attend(q):
        return interface.flash_attn_func(q, q, q, causal=True)

    compiled(attend, [torch.randn(1, 8, 2, 32).bfloat16()], dynamic=dynamic)
