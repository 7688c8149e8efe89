# SPDX-License-Identifier: Apache-2.0
"""8-bit attention: the quantisers bit for bit against int8.py, quantised attention against float64, and the promised accuracy."""

import pytest
import torch

import fovea
import int8
import plain

LENGTHS_Q, LENGTHS_K = [0, 130, 1, 70, 20], [30, 131, 99, 200, 0]
E4M3 = torch.float8_e4m3fn


def tensors(batch=2, seq_q=150, seq_k=200, d=64, dtype=torch.bfloat16):
    q = torch.randn(batch, seq_q, 4, d)
    k = torch.randn(batch, seq_k, 2, d) + 4 * torch.randn(1, 1, 2, d)
    v = torch.randn(batch, seq_k, 2, d) + torch.randn(1, 1, 2, d)
    return tuple(tensor.to(dtype) for tensor in (q, k, v))


def ragged_tensors(dtype=torch.bfloat16):
    q, k, v = tensors(1, sum(LENGTHS_Q), sum(LENGTHS_K), dtype=dtype)
    cu = {f"cu_seqlens_{name}": torch.tensor([0, *n]).cumsum(0).int() for name, n in (("q", LENGTHS_Q), ("k", LENGTHS_K))}
    return q[0], k[0], v[0], cu


def check_numbers(got, want, roundoff=2**-21):
    """Sums of float32 in any order: relative to the largest."""
    assert got.dtype == torch.float32 and got.shape == want.shape
    assert torch.allclose(got.double(), want, rtol=0, atol=roundoff * float(want.abs().max())), float((got - want).abs().max())


def check_sequence(qk, q, k, kind):
    """One sequence's quantised values, scales, means and shift, without axes for the batch."""
    groups_q, groups_k = int8.query_groups(len(q), *kind), int8.key_groups(len(k), *kind)
    k = k.float() if qk.k_mean is None else k.float() - qk.k_mean
    for codes, scales, values, groups in ((qk.q, qk.q_scale, q.float(), groups_q), (qk.k, qk.k_scale, k, groups_k)):
        want_codes, want_scales = int8.to_int8(values, groups)
        assert codes.dtype == torch.int8 and torch.equal(codes, want_codes)
        torch.testing.assert_close(scales, want_scales, rtol=0, atol=0, equal_nan=True)
    if qk.lse_shift is not None and len(q):
        mean = qk.k_mean.repeat_interleave(q.shape[1] // k.shape[1], dim=0).double()
        check_numbers(qk.lse_shift.T, (q.double() * mean).sum(dim=-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", int8.KINDS)
@pytest.mark.parametrize("smooth_k", [False, True])
def test_int8_codes(smooth_k, kind, dtype, quantize_qk_int8_implementation):
    q, k, _ = tensors(dtype=dtype)
    k[1, 64:128] = 0  # zeros stay zeros
    options = {"smooth_k": smooth_k, "implementation": quantize_qk_int8_implementation}
    qk = fovea.quantize_qk_int8(q, k, granularity=kind[0], warp_rows=kind[1], **options)
    assert (qk.k_mean is not None, qk.lse_shift is not None) == (smooth_k, smooth_k)
    assert (qk.granularity, qk.warp_rows) == kind
    if smooth_k:
        check_numbers(qk.k_mean, k.double().mean(dim=1))
    for b in range(2):
        check_sequence(int8.sequence(qk, fovea.QuantizedV(k), b)[0], q[b], k[b], kind)


@pytest.mark.parametrize("kind", int8.KINDS)
def test_int8_codes_of_ragged_sequences(kind, quantize_qk_int8_implementation):
    q, k, _, cu = ragged_tensors()
    options = {"granularity": kind[0], "warp_rows": kind[1], "implementation": quantize_qk_int8_implementation}
    qk = fovea.quantize_qk_int8(q, k, **cu, **options)
    starts = [length.tolist() for length in cu.values()]
    for b, (rows, keys) in enumerate(zip(LENGTHS_Q, LENGTHS_K, strict=True)):
        at_q, at_k = (start[b] for start in starts)
        count_q, count_k = (len(of(n, *kind)) for of, n in ((int8.query_groups, rows), (int8.key_groups, keys)))
        per_q, per_k = (len(of(1, *kind)) for of in (int8.query_groups, int8.key_groups))
        first_q, first_k = (at_q // 128 + b) * per_q, (at_k // 64 + b) * per_k
        part = fovea.QuantizedQk(
            qk.q[at_q : at_q + rows],
            qk.k[at_k : at_k + keys],
            qk.q_scale[:, first_q : first_q + count_q],
            qk.k_scale[:, first_k : first_k + count_k],
            qk.k_mean[b],
            qk.lse_shift[at_q : at_q + rows].T,
        )
        check_sequence(part, q[at_q : at_q + rows], k[at_k : at_k + keys], kind)
        if keys:
            check_numbers(qk.k_mean[b], k[at_k : at_k + keys].double().mean(dim=0))


def test_what_is_not_finite_marks_its_group(quantize_qk_int8_implementation, quantize_v_implementation):
    q, k, v = tensors(1)
    q[0, 3, 1, 5], k[0, 70, 0, 7], v[0, 9, 1, 2] = torch.nan, torch.inf, -torch.inf
    qk = fovea.quantize_qk_int8(q, k, smooth_k=False, implementation=quantize_qk_int8_implementation)
    assert int(qk.q_scale.isnan().sum()) == int(qk.k_scale.isnan().sum()) == 1
    check_sequence(int8.sequence(qk, fovea.QuantizedV(v), 0)[0], q[0], k[0], ("thread", 32))
    codes = fovea.quantize_v(v, dtype=E4M3, implementation=quantize_v_implementation)
    assert codes.scale.isnan().nonzero().tolist() == [[0, 1, 2]]
    assert torch.equal(codes.v[0].float(), int8.to_e4m3(v[0].float())[0].float())


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float16, E4M3])
@pytest.mark.parametrize("smooth_v", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
def test_v(ragged, smooth_v, dtype, source, quantize_v_implementation):
    options = {"dtype": dtype, "smooth_v": smooth_v, "implementation": quantize_v_implementation}
    if ragged:
        *_, v, cu = ragged_tensors(source)
        got = fovea.quantize_v(v, cu_seqlens_k=cu["cu_seqlens_k"], **options)
        sequences, codes = v.split(LENGTHS_K), got.v.split(LENGTHS_K)
    else:
        v = tensors(dtype=source)[2]
        got = fovea.quantize_v(v, **options)
        sequences, codes = v.unbind(), got.v.unbind()
    assert got.v.dtype == dtype and (got.scale is not None, got.mean is not None) == (dtype == E4M3, smooth_v)
    for b, (values, code) in enumerate(zip(sequences, codes, strict=True)):
        values = values.float()
        if len(values) == 0:
            continue
        if smooth_v:
            check_numbers(got.mean[b], values.double().mean(dim=0))
            values = values - got.mean[b]
        if dtype == E4M3:
            want, scales = int8.to_e4m3(values)
            assert torch.equal(got.scale[b], scales)
        else:
            want = values.half()
        assert torch.equal(code.float(), want.float())


MASKS = [({}, {}), ({"causal": True}, {"right": 0}), ({"window": (30, 9)}, {"left": 30, "right": 9})]
MASKS.append(({"causal": True, "anchor": "top_left"}, {"right": 0, "offset": 0}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("v_dtype", [torch.float16, E4M3])
@pytest.mark.parametrize("kind", int8.KINDS)
def test_attention_on_codes(kind, v_dtype, dtype, quantized_attention_implementation):
    q, k, v = tensors(seq_q=220)
    qk = fovea.quantize_qk_int8(q, k, granularity=kind[0], warp_rows=kind[1])
    codes = fovea.quantize_v(v, dtype=v_dtype, smooth_v=v_dtype == E4M3)
    options = {"dtype": dtype, "return_lse": True, "implementation": quantized_attention_implementation}
    for mask, bounds in MASKS:  # with the rows that a causal mask leaves without a key
        out, lse = fovea.quantized_attention(qk, codes, **mask, **options)
        assert out.dtype == dtype and lse.shape == (2, 4, 220)
        for b in range(2):
            plain.check(out[b], lse[b].T, int8.attention(*int8.sequence(qk, codes, b), **bounds))


def test_scale_and_no_smoothing(quantized_attention_implementation):
    q, k, v = tensors(1, d=96)
    qk, codes = fovea.quantize_qk_int8(q, k, smooth_k=False), fovea.quantize_v(v)
    options = {"scale": 0.3, "dtype": torch.float32, "return_lse": True, "implementation": quantized_attention_implementation}
    out, lse = fovea.quantized_attention(qk, codes, **options)
    plain.check(out[0], lse[0].T, int8.attention(*int8.sequence(qk, codes, 0), scale=0.3))


@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_queries_of_scale_zero_weigh_visible_keys_alike(dtype, return_lse):
    """A scale of zero times a hidden score must not be NaN."""
    q, k, v = tensors(1, seq_q=300, seq_k=300, d=128)
    qk, codes = fovea.quantize_qk_int8(q, k, smooth_k=False), fovea.quantize_v(v)
    none = qk._replace(q_scale=torch.zeros_like(qk.q_scale))
    got = fovea.quantized_attention(none, codes, causal=True, dtype=dtype, return_lse=return_lse)
    out = got[0] if return_lse else got
    means = v[0].float().cumsum(0) / torch.arange(1, 301)[:, None, None]
    torch.testing.assert_close(out[0].float(), means.repeat_interleave(2, dim=1), rtol=2e-2, atol=2e-2)


STEPS = [
    {},
    {"v_dtype": E4M3, "smooth_v": True},
    {"smooth_k": False, "granularity": "block"},
    {"granularity": "warp", "warp_rows": 16},
]


def in_steps(q, k, v, cu, v_dtype=torch.float16, smooth_v=False, **qk_options):
    qk = fovea.quantize_qk_int8(q, k, **qk_options, **cu)
    lengths = {name: value for name, value in cu.items() if name == "cu_seqlens_k"}
    codes = fovea.quantize_v(v, dtype=v_dtype, smooth_v=smooth_v, **lengths)
    return fovea.quantized_attention(qk, codes, causal=True, dtype=q.dtype, return_lse=True, **cu)


@pytest.mark.parametrize("options", STEPS, ids=str)
@pytest.mark.parametrize("ragged", [False, True])
def test_one_call_gives_the_bits_of_its_steps(ragged, options):
    """The steps do not know which keys are invisible. A causal mask, anchored at the last key, leaves none."""
    q, k, v, cu = ragged_tensors() if ragged else (*tensors(), {})
    out, lse = fovea.quantize_and_attend(q, k, v, causal=True, return_lse=True, **cu, **options)
    steps_out, steps_lse = in_steps(q, k, v, cu, **options)
    assert torch.equal(out, steps_out) and torch.equal(lse, steps_lse)
    assert out.isfinite().all() and out.any()


def accuracy(got, want):
    got, want = got.double().flatten(), want.flatten()
    return float(torch.dot(got, want) / (got.norm() * want.norm())), float((got - want).abs().sum() / want.abs().sum())


GATES = {torch.float16: (0.9998, 0.02), E4M3: (0.9985, 0.055)}


@pytest.mark.parametrize("bias", [0.0, 8.0])
@pytest.mark.parametrize("v_dtype", GATES, ids=str)
@pytest.mark.parametrize(("d", "kind"), [(128, kind) for kind in int8.KINDS] + [(d, ("thread", 32)) for d in (64, 96, 256)])
def test_promised_accuracy(d, kind, v_dtype, bias, quantize_and_attend_implementation):
    q, k, v = (torch.randn(1, 192, head, d) for head in (2, 1, 1))
    q, k, v = (tensor.bfloat16() for tensor in (q, k + bias * torch.randn(d), v))
    want = plain.attention(q[0], k[0], v[0])
    options = {"v_dtype": v_dtype, "implementation": quantize_and_attend_implementation, "return_lse": True}
    out, lse = fovea.quantize_and_attend(q, k, v, granularity=kind[0], warp_rows=kind[1], **options)
    cosine, relative_l1 = accuracy(out, want.out)
    assert cosine >= GATES[v_dtype][0] and relative_l1 <= GATES[v_dtype][1], f"cosine {cosine:.6f}, relative L1 {relative_l1:.4f}"
    # lse is that of k before smoothing: a score is off by what q and k lose, and log-sum-exp by no more than the worst score.
    assert float((lse[0].T.double() - want.lse).abs().max()) <= 0.1


def test_smoothing_is_what_makes_a_biased_k_accurate():
    q, k, v = (torch.randn(1, 512, 1, 128).bfloat16() for _ in "qkv")
    k = (k.float() + 8 * torch.randn(128)).bfloat16()
    want = plain.attention(q[0], k[0], v[0]).out
    smoothed, rough = (accuracy(fovea.quantize_and_attend(q, k, v, smooth_k=smooth), want) for smooth in (True, False))
    assert smoothed[0] >= GATES[torch.float16][0] > rough[0]


def test_keys_that_nobody_sees_may_hold_anything(quantize_and_attend_implementation):
    q, k, v = tensors(2, seq_q=60, seq_k=300)
    options = {"window": (20, 0), "smooth_v": True, "implementation": quantize_and_attend_implementation, "return_lse": True}
    clean = fovea.quantize_and_attend(q, k, v, **options)
    for tensor in (k, v):
        tensor[:, : 300 - 60 - 20] = torch.nan
    for got, want in zip(fovea.quantize_and_attend(q, k, v, **options), clean, strict=True):
        assert torch.equal(got, want) and got.isfinite().all()


def test_given_outputs(poison):
    q, k, v = tensors()
    new = fovea.quantize_qk_int8(q, k, granularity="warp", warp_rows=16)
    given = fovea.QuantizedQk(*(torch.full_like(part, 77) for part in new[:6]), "warp", 16)
    assert fovea.quantize_qk_int8(q, k, out=given) is given
    assert all(torch.equal(got, want) for got, want in zip(given[:6], new[:6], strict=True))
    codes = fovea.quantize_v(v, dtype=E4M3, smooth_v=True)
    pieces = fovea.QuantizedV(torch.zeros_like(codes.v), poison(*codes.scale.shape), poison(*codes.mean.shape))
    assert fovea.quantize_v(v, out=pieces) is pieces
    assert all(torch.equal(got.float(), want.float()) for got, want in zip(pieces, codes, strict=True))
    out, lse = fovea.quantized_attention(new, codes, return_lse=True)
    both = fovea.quantize_and_attend(q, k, v, granularity="warp", warp_rows=16, v_dtype=E4M3, smooth_v=True, return_lse=True)
    wide, wide_lse = poison(2, 150, 4, 72, dtype=torch.bfloat16), poison(2, 150, 4).transpose(1, 2)
    for call, want in (
        (lambda out, lse: fovea.quantized_attention(new, codes, out=out, lse=lse), (out, lse)),
        (
            lambda out, lse: fovea.quantize_and_attend(
                q, k, v, granularity="warp", warp_rows=16, v_dtype=E4M3, smooth_v=True, out=out, lse=lse
            ),
            both,
        ),
    ):
        got = call(wide[..., :64], wide_lse)
        assert got[0].data_ptr() == wide.data_ptr() and got[1] is wide_lse
        assert torch.equal(wide[..., :64], want[0]) and torch.equal(wide_lse, want[1]) and wide[..., 64:].isnan().all()
        wide.fill_(torch.nan)


def test_views_of_wider_rows():
    q, k, v = tensors(seq_k=150)
    packed = torch.cat([q, k, v], dim=2)  # one row of all heads
    views = packed.split([4, 2, 2], dim=2)
    assert torch.equal(fovea.quantize_and_attend(*views, causal=True), fovea.quantize_and_attend(q, k, v, causal=True))


def test_lengths_of_one_and_none():
    for seq_q, seq_k in ((1, 1), (0, 5), (5, 0)):
        q, k, v = tensors(seq_q=seq_q, seq_k=seq_k)
        out, lse = fovea.quantize_and_attend(q, k, v, v_dtype=E4M3, smooth_v=True, return_lse=True)
        if seq_k == 0:
            assert not out.any() and lse.isneginf().all()
        elif seq_q:
            torch.testing.assert_close(out, v.repeat_interleave(2, dim=2), rtol=0.08, atol=0.01)


def step(q, k, v, cu):
    qk = fovea.quantize_qk_int8(q * 2, k, **cu)
    codes = fovea.quantize_v(v, dtype=E4M3, smooth_v=True, **{name: cu[name] for name in cu if name == "cu_seqlens_k"})
    out, lse = fovea.quantized_attention(qk, codes, causal=True, return_lse=True, **cu)
    whole, _ = fovea.quantize_and_attend(q * 2, k, v, v_dtype=E4M3, smooth_v=True, causal=True, return_lse=True, **cu)
    return qk, codes, out.float() - whole.float(), lse.exp(), whole


def test_rows_of_no_sequence_are_left_alone(quantize_and_attend_implementation):
    """A ragged batch of 0: scales have no element, so there is no address of them."""
    q, k, v, none = torch.randn(5, 4, 64), torch.randn(7, 2, 64), torch.randn(7, 2, 64), torch.zeros(1, dtype=torch.int32)
    out = torch.full_like(q, 3)
    options = {"cu_seqlens_q": none, "cu_seqlens_k": none, "implementation": quantize_and_attend_implementation}
    fovea.quantize_and_attend(q, k, v, out=out, **options)
    assert out.eq(3).all()


@pytest.mark.parametrize("ragged", [False, True])
def test_compile_fullgraph(ragged):
    torch._dynamo.reset()
    q, k, v, cu = ragged_tensors() if ragged else (*tensors(), {})
    qk, codes, difference, *rest = torch.compile(step, fullgraph=True, dynamic=False)(q, k, v, cu)
    assert isinstance(qk, fovea.QuantizedQk) and isinstance(codes, fovea.QuantizedV)
    assert not difference.any()
    want_qk, want_codes, _, *want = step(q, k, v, cu)
    assert torch.equal(qk.q, want_qk.q) and torch.equal(qk.k, want_qk.k) and torch.equal(qk.k_mean, want_qk.k_mean)
    assert torch.equal(codes.v.float(), want_codes.v.float()) and qk[6:] == want_qk[6:]
    for got, expected in zip(rest, want, strict=True):
        torch.testing.assert_close(got, expected)


def test_compile_with_changing_lengths():
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=True)
    for seq in (40, 150, 260):
        q, k, v = tensors(seq_q=seq, seq_k=seq + 3)
        assert torch.equal(compiled(q, k, v, {})[-1], step(q, k, v, {})[-1])


@pytest.mark.parametrize("function", [fovea.quantize_qk_int8, fovea.quantize_v, fovea.quantize_and_attend])
def test_gradients_are_refused_and_not_cut(function):
    inputs = {fovea.quantize_qk_int8: slice(2), fovea.quantize_v: slice(2, 3), fovea.quantize_and_attend: slice(3)}[function]
    arguments = tensors(dtype=torch.float32)[inputs]
    arguments[-1].requires_grad_()
    with pytest.raises(NotImplementedError, match="requires_grad"):
        function(*arguments)
    with torch.no_grad():
        function(*arguments)


def test_lse_of_a_smoothed_k_needs_its_shift():
    q, k, v = tensors()
    qk, codes = fovea.quantize_qk_int8(q, k)._replace(lse_shift=None), fovea.quantize_v(v)
    with pytest.raises(ValueError, match=r"qk\.lse_shift: got None, want a tensor"):
        fovea.quantized_attention(qk, codes, return_lse=True)
    assert fovea.quantized_attention(qk, codes).isfinite().all()


def test_head_dims_that_nobody_takes():
    q, k, v = tensors(d=32)
    for call in (lambda: fovea.quantize_qk_int8(q, k), lambda: fovea.quantize_v(v), lambda: fovea.quantize_and_attend(q, k, v)):
        with pytest.raises(NotImplementedError, match="32, want 64, 96, 128 or 256"):
            call()
