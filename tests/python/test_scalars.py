# SPDX-License-Identifier: Apache-2.0
"""Numbers of a call: what would turn into another number, or would be ignored, is refused."""

import math

import pytest
import torch

import fovea
from small_calls import append, backward, codes, dense, int32, latent, packed_latent, paged, quantize_qk, ragged, sparse

SCALED = {
    fovea.attention: dense,
    fovea.attention_backward: backward,
    fovea.paged_attention: paged,
    fovea.latent_attention: latent,
    fovea.sparse_latent_attention: sparse,
    fovea.quantized_attention: codes,
    fovea.quantize_and_attend: dense,
}
CAPPED = {function: SCALED[function] for function in (fovea.attention, fovea.attention_backward, fovea.paged_attention)}
# Beyond a normal float32: 0, which means the default, or a number of few bits, or infinity.
BEYOND = (1e-46, -1e-46, 1e-40, 1e39, -1e39, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("function", SCALED, ids=lambda function: function.__name__)
@pytest.mark.parametrize("scale", BEYOND)
def test_a_scale_that_float32_does_not_hold(function, scale):
    call = SCALED[function]()
    before = call["out"].clone()
    with pytest.raises(ValueError) as caught:
        function(**call, scale=scale)
    assert str(caught.value) == f"scale: got {scale:g}, want 1.2e-38 to 3.4e38 in magnitude (a normal float)"
    assert torch.equal(call["out"].nan_to_num(1.0), before.nan_to_num(1.0))


@pytest.mark.parametrize("function", CAPPED, ids=lambda function: function.__name__)
@pytest.mark.parametrize("softcap", [*BEYOND, -1.0])
def test_a_softcap_that_is_no_bound(function, softcap):
    with pytest.raises(ValueError) as caught:
        function(**CAPPED[function](), softcap=softcap)
    assert str(caught.value).startswith(f"softcap: got {softcap:g}, want 1.2e-38 to 3.4e38")


def test_the_smallest_numbers_that_do():
    call = dense(q=torch.randn(2, 5, 4, 64), out=None, lse=None)
    mean = call["v"].mean(1, keepdim=True).repeat_interleave(2, 2).expand(2, 5, 4, 64)
    torch.testing.assert_close(fovea.attention(**call, scale=1.2e-38), mean)
    torch.testing.assert_close(fovea.attention(**call, softcap=1.2e-38), mean)
    call["q"][0, 0] = 0  # a score of 0 over a softcap of nearly 0
    assert not fovea.attention(**call, softcap=1.2e-38).isnan().any()


@pytest.mark.parametrize("numbers", [{"scale": 1 / 3}, {"scale": 0.1, "softcap": 0.7}], ids=["scale", "softcap"])
def test_float64_keeps_the_digits(numbers):
    q, k, v = (torch.randn(1, 5, 2, 16, dtype=torch.float64) for _ in range(3))
    scores = numbers["scale"] * torch.einsum("bqhd,bkhd->bhqk", q, k)
    if "softcap" in numbers:
        scores = numbers["softcap"] * (scores / numbers["softcap"]).tanh()
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    torch.testing.assert_close(fovea.attention(q, k, v, **numbers), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("scale", BEYOND)
def test_a_dequantisation_scale_that_float32_does_not_hold(scale):
    codes = torch.zeros(6, 8, 2, 64, dtype=torch.float8_e4m3fn)
    calls = [
        (fovea.attention, "v_scale", dict.fromkeys("qkv", torch.zeros(1, 5, 2, 64, dtype=torch.float8_e4m3fn))),
        (fovea.paged_attention, "k_scale", paged(k_cache=codes, v_cache=codes)),
        (fovea.paged_cache_append, "k_scale", append(k_cache=codes, v_cache=codes.clone())),
        (fovea.latent_attention, "cache_scale", latent(cache=torch.zeros(6, 8, 1, 576, dtype=torch.float8_e4m3fn))),
    ]
    for function, name, call in calls:
        with pytest.raises(ValueError, match=rf"^{name}: got .*, want 1\.2e-38 to 3\.4e\+38 in magnitude"):
            function(**call, **{name: scale})


def with_lengths(name):
    """The functions over rows, fixed batches, with a bound of lengths that nothing has."""
    call = {"q": torch.randn(2, 5, 4, 64), "k": torch.randn(2, 7, 2, 64), "v": torch.randn(2, 7, 2, 64)}
    yield fovea.attention, call
    yield fovea.attention, call | {"q": call["q"].clone().requires_grad_()}
    yield fovea.attention_backward, backward()
    yield fovea.quantize_qk_int8, quantize_qk()
    yield fovea.quantized_attention, codes()
    yield fovea.quantize_and_attend, call
    if name == "max_seqlen_k":
        yield fovea.quantize_v, {"v": call["v"]}


@pytest.mark.parametrize("name", ["max_seqlen_q", "max_seqlen_k"])
@pytest.mark.parametrize("bound", [5, 0, -1])
def test_a_bound_without_lengths_is_refused(name, bound):
    for function, call in with_lengths(name):
        with pytest.raises(ValueError, match=rf"^{name}: got {bound}, want none without cu_seqlens_{name[-1]}$"):
            function(**call, **{name: bound})


@pytest.mark.parametrize("name", ["max_seqlen_q", "max_seqlen_k"])
def test_a_negative_bound_is_refused(name):
    call = ragged()
    with pytest.raises(ValueError, match=rf"^{name}: got -1, want 0 to 2\^31 - 1$"):
        fovea.attention(**call, **{name: -1})
    with pytest.raises(ValueError, match=rf"^{name}: got -1, want "):
        fovea.attention(**call | {"q": call["q"].requires_grad_(), "out": None}, **{name: -1})
    with pytest.raises(ValueError, match=r"^max_seqlen_k: got -7, want "):
        fovea.quantize_v(call["v"], cu_seqlens_k=call["cu_seqlens_k"], max_seqlen_k=-7)


@pytest.mark.parametrize("name", ["max_seqlen_q", "max_kv_len"])
def test_a_negative_bound_of_a_cache_is_refused(name):
    for function, call in ((fovea.paged_attention, paged()), (fovea.latent_attention, latent())):
        with pytest.raises(ValueError, match=rf"^{name}: got -1, want 0 "):
            function(**call, **{name: -1})


def test_a_bound_beyond_64_bits_is_refused():
    for function, call in ((fovea.attention, ragged()), (fovea.paged_attention, paged())):
        with pytest.raises(ValueError, match=r"^max_seqlen_q: got 9223372036854775808, want a number of 64 bits$"):
            function(**call, max_seqlen_q=1 << 63)


def test_what_a_call_would_ignore_is_refused():
    with pytest.raises(ValueError, match=r"^max_seqlen_q: got 3, want 0 \(none\), as q has a batch$"):
        fovea.latent_attention(**latent(), max_seqlen_q=3)
    with pytest.raises(ValueError, match=r"^extra_cache: got none, want a tensor, as extra_format is given$"):
        fovea.sparse_latent_attention(**sparse(), extra_format="v41_fp4")
    with pytest.raises(ValueError, match=r"^extra_cache: got none, want a tensor, as extra_indices or extra_topk_length is given$"):
        fovea.sparse_latent_attention(**sparse(), extra_topk_length=int32(1, 2))
    with pytest.raises(ValueError, match=r"^cache_scale: got a scale, want none"):
        fovea.latent_attention(**packed_latent(), cache_scale=2.0)
    for name in ("k_scale", "v_scale"):
        with pytest.raises(ValueError, match=rf"^{name}: got a scale for a tensor of torch\.float32, want none"):
            fovea.paged_attention(**paged(), **{name: 2.0})
        with pytest.raises(ValueError, match=rf"^{name}: got a scale for a tensor of torch\.float32, want none"):
            fovea.paged_cache_append(**append(), **{name: 2.0})
