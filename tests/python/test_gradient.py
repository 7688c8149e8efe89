# SPDX-License-Identifier: Apache-2.0
"""The gradient of fovea.attention: gradcheck in double, every implementation against float64 autograd, autograd's own rules."""

import pytest
import torch

import fovea
import plain

CASES = {
    "full": {},
    "causal": {"causal": True},
    "top_left": {"causal": True, "anchor": "top_left"},
    "window": {"window": (5, 2)},
    "sees nothing": {"causal": True, "seqs": slice(None, None, -1)},  # more queries than keys: the first are before all keys
    "softcap": {"causal": True, "softcap": 2.0},
    "sink": {"causal": True, "sink": True},
    "scale": {"scale": 0.4, "softcap": 3.0, "sink": True},
}


def inputs(seqs=(9, 13), heads=(4, 2), dims=(16, 24), dtype=torch.float64):
    (seq_q, seq_k), (head, kv_head), (dqk, dv) = seqs, heads, dims
    shapes = (2, seq_q, head, dqk), (2, seq_k, kv_head, dqk), (2, seq_k, kv_head, dv)
    return [torch.randn(shape).to(dtype).requires_grad_() for shape in shapes]


def lengths(counts):
    return torch.tensor([0, *counts]).cumsum(0).int()


# ---- double precision, through the reference ---------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_gradcheck(case):
    """float64 tensors are the reference's, so that forward and backward are double precision throughout."""
    options = dict(CASES[case])
    if options.pop("sink", False):
        options["sink"] = torch.tensor([0.5, -1.0, -torch.inf, torch.inf])
    q, k, v = inputs((3, 5)[options.pop("seqs", slice(None))], (4, 2), (8, 16))
    assert "reference.attention" in fovea.explain(fovea.attention, q, k, v).splitlines()[0]
    assert torch.autograd.gradcheck(lambda *qkv: fovea.attention(*qkv, **options), (q, k, v))


@pytest.mark.parametrize("case", CASES)
def test_gradcheck_of_out_and_lse(case):
    """A function of both. Rows without keys have an lse of -inf, which the function leaves out."""
    options = dict(CASES[case])
    if options.pop("sink", False):
        options["sink"] = torch.tensor([0.5, -1.0, -torch.inf, torch.inf])
    q, k, v = inputs((3, 5)[options.pop("seqs", slice(None))], (4, 2), (8, 16))

    def function(*qkv):
        out, lse = fovea.attention(*qkv, **options, return_lse=True)
        return out.sin() + torch.where(lse.isfinite(), lse, 0.0).double().cos().transpose(1, 2)[..., None]

    # lse is float32: a step of 2^-9 has an error of 2^-24 / 2^-9, and one of 2^-18 of the third derivative.
    assert torch.autograd.gradcheck(function, (q, k, v), eps=2.0**-9, atol=2.0**-13)


def test_gradcheck_ragged():
    q, k, v = (torch.randn(7, heads, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2))
    cu = {"cu_seqlens_q": lengths([2, 0, 4]), "cu_seqlens_k": lengths([3, 1, 2])}  # a row of q and one of k belong to nobody
    assert torch.autograd.gradcheck(lambda *qkv: fovea.attention(*qkv, causal=True, **cu), (q, k, v))


def test_gradcheck_of_the_sink():
    """A sink is float32: steps of 2^-10 from multiples of it are exact, and their own error is 2^-20 of a third derivative."""
    q, k, v = (tensor.detach() for tensor in inputs((3, 5), (4, 2), (8, 16)))
    sink = (torch.randn(4) * 1024).round().div(1024).double().requires_grad_()
    step = 2.0**-10
    function = lambda sink: fovea.attention(q, k, v, causal=True, sink=sink.float())  # noqa: E731
    assert torch.autograd.gradcheck(function, (sink,), eps=step, atol=step**2, rtol=1e-5)


# ---- every implementation ----------------------------------------------------------------------------------------------------


def judge(got, exact, rough):
    """Element by element: at most twice the largest error of a plain implementation, and half an ulp of the largest element."""
    for name, tensor, want, other in zip(("dq", "dk", "dv", "dsink"), got, exact, rough, strict=False):
        allowed = 2 * (other.double() - want).abs().max() + want.abs().max() * torch.finfo(tensor.dtype).eps / 2
        error = (tensor.double() - want).abs().max()
        assert tensor.shape == want.shape and error <= allowed, f"{name} is off by {error:.2e}, {allowed:.2e} allowed"
        assert want.abs().max() > 0


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("with_dlse", [False, True])
@torch.no_grad()
def test_values(case, dtype, with_dlse, attention_backward_implementation):
    options = dict(CASES[case])
    if options.pop("sink", False):
        options["sink"] = torch.tensor([0.5, -1.0, 3.0, 0.0])
    q, k, v = inputs((33, 47)[options.pop("seqs", slice(None))], (4, 2), (64, 40), dtype)
    out, lse = fovea.attention(q, k, v, **options, return_lse=True)
    dout = torch.randn_like(out)
    dlse = torch.randn_like(lse) if with_dlse else None
    got = fovea.attention_backward(dout, q, k, v, out, lse, dlse=dlse, **options, implementation=attention_backward_implementation)

    left, right = options.get("window") or (None, None)
    same = {name: options[name] for name in ("scale", "softcap", "sink") if name in options}
    same |= {"left": left, "right": 0 if options.get("causal") else right, "offset": 0 if "anchor" in options else None}
    of_lse = [None] * 2 if dlse is None else dlse.transpose(1, 2)
    rows = zip(of_lse, zip(dout, q, k, v, out, lse.transpose(1, 2), strict=True), strict=True)
    *rough, rough_sink = (
        torch.stack(parts) for parts in zip(*(plain.gradients(*row, dlse=of, **same) for of, row in rows), strict=True)
    )
    judge(got, exact_gradients(dout, of_lse, (q, k, v), same), (*rough, rough_sink.sum(dim=0)))


@torch.enable_grad()
def exact_gradients(dout, dlse, qkv, options):
    """Float64 autograd through the formula."""
    inputs = (*qkv, options["sink"]) if "sink" in options else qkv
    leaves = [tensor.detach().double().requires_grad_() for tensor in inputs]
    if "sink" in options:
        options = options | {"sink": leaves[3]}
    loss = 0.0
    for of, of_lse, *rows in zip(dout, dlse, *leaves[:3], strict=True):
        expected = plain.attention(*rows, **options)
        loss = loss + (expected.out * of.double()).sum()
        if of_lse is not None:
            loss = loss + torch.where(expected.lse.isfinite(), expected.lse * of_lse.double(), 0.0).sum()
    return torch.autograd.grad(loss, leaves)


def test_autograd_calls_it():
    q, k, v = inputs(dtype=torch.float32)
    sink = torch.randn(4, requires_grad=True)
    out, lse = fovea.attention(q, k, v, causal=True, softcap=4.0, sink=sink, return_lse=True)
    assert out.requires_grad and lse.requires_grad
    dout = torch.randn_like(out)
    got = torch.autograd.grad(out, (q, k, v, sink), dout)
    with torch.no_grad():
        want = fovea.attention_backward(dout, q, k, v, out, lse, causal=True, softcap=4.0, sink=sink)
    assert_same(got, want)


def assert_same(got, want):
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)  # the same bits, too


@pytest.mark.parametrize("spread", [False, True])
def test_autograd_of_lse(spread):
    """Backward passes from lse alone, whose gradient may be one number for all rows, and from both."""
    q, k, v = inputs(dtype=torch.float32)
    out, lse = fovea.attention(q, k, v, causal=True, softcap=4.0, return_lse=True)
    dlse = torch.randn(()).expand(lse.shape) if spread else torch.randn_like(lse)
    for dout in (None, torch.randn_like(out)):
        outputs, gradients = ((lse,), (dlse,)) if dout is None else ((out, lse), (dout, dlse))
        got = torch.autograd.grad(outputs, (q, k, v), gradients, retain_graph=True)
        with torch.no_grad():
            some = torch.zeros_like(out) if dout is None else dout
            assert_same(got, fovea.attention_backward(some, q, k, v, out, lse, dlse=dlse, causal=True, softcap=4.0))


def test_only_the_sink_wants_a_gradient():
    q, k, v = (tensor.detach() for tensor in inputs(dtype=torch.float32))
    sink = torch.zeros(4, requires_grad=True)
    fovea.attention(q, k, v, sink=sink).sum().backward()
    assert sink.grad is not None and sink.grad.abs().min() > 0


def test_expanded_and_strided_gradients_of_out():
    q, k, v = inputs(dtype=torch.float32)
    for grad in (
        torch.ones(()).expand(2, 9, 4, 24),
        torch.randn(2, 4, 9, 24).transpose(1, 2),
        torch.randn(2, 9, 24, 4).transpose(2, 3),
    ):
        got = torch.autograd.grad(fovea.attention(q, k, v), (q, k, v), grad)
        want = torch.autograd.grad(fovea.attention(q, k, v), (q, k, v), grad.contiguous())
        for one, other in zip(got, want, strict=True):
            assert torch.equal(one, other)


def test_strided_inputs():
    """q, k and v as slices of one projection, as models have them."""
    packed = torch.randn(2, 11, 3, 4, 64, requires_grad=True)
    fovea.attention(*packed.unbind(2), causal=True).sin().sum().backward()
    got, packed.grad = packed.grad, None
    fovea.attention(*(part.contiguous() for part in packed.unbind(2)), causal=True).sin().sum().backward()
    assert torch.equal(got, packed.grad)


def test_rows_of_no_sequence_get_zeros():
    q, k, v = (torch.randn(40, heads, 32, requires_grad=True) for heads in (4, 2, 2))
    out = fovea.attention(q, k, v, cu_seqlens_q=lengths([5, 20]), cu_seqlens_k=lengths([7, 30]))
    assert torch.equal(out[25:], torch.zeros_like(out[25:]))
    out.sum().backward()
    for tensor, rows in ((q, 25), (k, 37), (v, 37)):
        assert torch.equal(tensor.grad[rows:], torch.zeros_like(tensor.grad[rows:])) and tensor.grad[:rows].any()


def test_what_nobody_sees_may_be_nan():
    q, k, v = inputs((4, 20), dtype=torch.float32)
    with torch.no_grad():
        k[:, 15:], v[:, 15:] = torch.nan, torch.inf
    fovea.attention(q, k, v, causal=True, anchor="top_left").sum().backward()
    for tensor in (q, k, v):
        assert tensor.grad.isfinite().all()
    assert torch.equal(k.grad[:, 4:], torch.zeros_like(k.grad[:, 4:]))


# ---- what torch asks -----------------------------------------------------------------------------------------------------------


def test_opcheck():
    q, k, v = inputs(dtype=torch.float32)
    operator = torch.ops.fovea.differentiable_attention.default
    mask, options = (None, 0, False, 0.0, 0.0), ("", False, False)
    sink, blocks, terms = torch.randn(4, requires_grad=True), (*(None,) * 5, 0, 0), (None, None, 0.0, None)
    no_bits = (None, None, None)
    torch.library.opcheck(operator, (q, k, v, None, None, None, None, *mask, sink, *blocks, *terms, *no_bits, *options))
    terms = (torch.rand(4), torch.randn(1, 4, 1, 1, requires_grad=True), 0.3, torch.tensor([5, 6]))
    bits = (torch.full((q.shape[0], q.shape[1], 1), 0b1101, dtype=torch.uint8), 4, None)
    torch.library.opcheck(operator, (q, k, v, None, None, None, None, *mask, sink, *blocks, *terms, *bits, *options))
    q, k, v = (torch.randn(7, heads, 16, requires_grad=True) for heads in (4, 2, 2))
    terms = (None, None, 0.0, None)
    ragged = (lengths([2, 4]), lengths([3, 4]), None, None)
    torch.library.opcheck(operator, (q, k, v, *ragged, *mask, None, *blocks, *terms, *no_bits, *options))


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_forward_and_backward(dynamic):
    def loss(q, k, v, sink):
        out, lse = fovea.attention(2 * q, k, v, causal=True, sink=sink, softcap=5.0, return_lse=True)
        return out.sin().sum() + lse.cos().sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic)
    for seq in (12, 7) if dynamic else (12,):
        tensors = [*inputs((seq, seq + 3), dtype=torch.float32), torch.randn(4, requires_grad=True)]
        want, got = (torch.autograd.grad(function(*tensors), tensors) for function in (loss, compiled))
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_a_training_step():
    """A layer learns to copy: autograd, an optimiser and the sink together."""
    projection, sink = torch.nn.Linear(16, 3 * 32), torch.nn.Parameter(torch.zeros(2))
    optimiser = torch.optim.Adam([*projection.parameters(), sink], lr=0.02)
    x, target = torch.randn(4, 10, 16), torch.randn(4, 10, 2, 16)
    losses = []
    for _ in range(30):
        q, k, v = projection(x).unflatten(-1, (3, 2, 16)).unbind(2)
        loss = (fovea.attention(q, k, v, causal=True, sink=sink) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0] and sink.abs().min() > 0


def test_refusals():
    q, k, v = inputs(dtype=torch.float32)
    with pytest.raises(NotImplementedError, match="out: got a value, want None"):
        fovea.attention(q, k, v, out=torch.empty(2, 9, 4, 24))
    with pytest.raises(NotImplementedError, match="create_graph"):
        torch.autograd.grad(fovea.attention(q, k, v).sum(), q, create_graph=True)
    codes = torch.randn(1, 4, 2, 16).to(torch.float8_e4m3fn).requires_grad_()
    with pytest.raises(NotImplementedError, match=r"q\.dtype: got torch\.float8_e4m3fn"):
        fovea.attention(codes, codes, codes)
    with pytest.raises(ValueError, match=r"k\.shape\[3\]"):
        fovea.attention(q, k[..., :8], v)
    with pytest.raises(NotImplementedError, match="head_dim"):
        fovea.attention(q[..., :9], k[..., :9], v)
    with pytest.raises(ValueError, match=r"dout\.shape\[1\]"), torch.no_grad():
        out, lse = fovea.attention(q, k, v, return_lse=True)
        fovea.attention_backward(out[:, :3], q, k, v, out, lse)
    for dlse, message in (
        (lse.double(), r"dlse\.dtype: got torch\.float64"),
        (lse[:, :3], r"dlse\.shape\[1\]"),
        (lse[0], r"dlse\.rank: got 2"),
    ):
        with pytest.raises(ValueError, match=message), torch.no_grad():
            fovea.attention_backward(out, q, k, v, out, lse, dlse=dlse)
