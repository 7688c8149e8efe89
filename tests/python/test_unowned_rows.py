# SPDX-License-Identifier: Apache-2.0
"""Rows of a ragged q that no sequence has. In tensors that the library makes they hold 0 and, in lse, -inf. A caller's tensors
keep what they held. Memory that nobody wrote shows as NaN here: torch fills new tensors with it in its deterministic mode."""

import pytest
import torch

import fovea
from fovea.compat import sageattention
from fovea.compat.flash_attn import flash_attn_varlen_func
from fovea.compat.flashinfer import BatchPrefillWithPagedKVCacheWrapper, BatchPrefillWithRaggedKVCacheWrapper

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
ROWS, HEADS, DIM, PAGE = 6, 4, 64, 8
LENGTHS = {"none": [0], "the first": [0, 2, 4], "the last": [2, 3, 6], "the middle": [1, 4, 4, 5], "all": [0, 1, 6]}
OLD = 7.0


@pytest.fixture(autouse=True)
def new_tensors_hold_nan():
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture(params=LENGTHS)
def lengths(request):
    return LENGTHS[request.param]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def rows_of(lengths, device, dim=DIM):
    """q, cu_seqlens_q, and which rows no sequence has."""
    outside = torch.ones(ROWS, dtype=torch.bool)
    outside[lengths[0] : lengths[-1]] = False
    cu = torch.tensor(lengths, dtype=torch.int32, device=device)
    return torch.randn(ROWS, HEADS, dim).bfloat16().to(device), cu, outside.to(device)


def pages_of(lengths, device, dim=DIM):
    batch = len(lengths) - 1
    table = torch.arange(batch, dtype=torch.int32, device=device).view(batch, 1)
    kv_len = torch.full((batch,), PAGE, dtype=torch.int32, device=device)
    return torch.randn(max(batch, 1), PAGE, 1, dim).bfloat16().to(device), {"block_table": table, "kv_len": kv_len}


def dense(lengths, device):
    q, cu, outside = rows_of(lengths, device)
    call = {"q": q, "k": q, "v": q, "cu_seqlens_q": cu, "cu_seqlens_k": cu}
    return fovea.attention, call, outside


def paged(lengths, device):
    q, cu, outside = rows_of(lengths, device)
    cache, call = pages_of(lengths, device)
    return fovea.paged_attention, {"q": q, "k_cache": cache, "v_cache": cache, "cu_seqlens_q": cu, **call}, outside


def latent(lengths, device):
    q, cu, outside = rows_of(lengths, device, 576)
    cache, call = pages_of(lengths, device, 576)
    return fovea.latent_attention, {"q": q, "cache": cache, "cu_seqlens_q": cu, **call}, outside


def eight_bits(lengths, device):
    return fovea.quantize_and_attend, *dense(lengths, device)[1:]


def quantized(lengths, device):
    _, call, outside = dense(lengths, device)
    tensors = [call.pop(name) for name in "qkv"]
    qk = fovea.quantize_qk_int8(*tensors[:2], **call)
    v = fovea.quantize_v(tensors[2], cu_seqlens_k=call["cu_seqlens_k"])
    return fovea.quantized_attention, {"qk": qk, "v": v, **call}, outside


FUNCTIONS = [dense, paged, latent, eight_bits, quantized]


def check(out, lse, outside):
    assert (out[outside] == 0).all() and out[~outside].isfinite().all()
    assert (lse[outside] == -torch.inf).all() and lse[~outside].isfinite().all()


@pytest.mark.parametrize("make", FUNCTIONS)
def test_new_outputs(make, lengths, device):
    function, call, outside = make(lengths, device)
    for _ in range(4):  # also with a kept plan
        check(*function(**call, return_lse=True), outside)
    alone = function(**call)
    assert (alone[outside] == 0).all() and alone[~outside].isfinite().all()


@pytest.mark.parametrize("make", FUNCTIONS)
def test_outputs_of_the_caller_are_left_alone(make, lengths, device):
    function, call, outside = make(lengths, device)
    out, lse = function(**call, return_lse=True)
    for _ in range(4):
        given = {"out": torch.full_like(out, OLD), "lse": torch.full_like(lse, OLD)}
        function(**call, **given)
        assert (given["out"][outside] == OLD).all() and (given["lse"][outside] == OLD).all()
        assert given["out"][~outside].equal(out[~outside]) and given["lse"][~outside].equal(lse[~outside])


@pytest.mark.parametrize("make", FUNCTIONS)
def test_one_output_of_the_caller(make, lengths, device):
    function, call, outside = make(lengths, device)
    out, lse = function(**call, return_lse=True)
    for _ in range(4):
        given, new = torch.full_like(out, OLD), torch.full_like(lse, OLD)
        assert (function(**call, out=given, return_lse=True)[1][outside] == -torch.inf).all()
        assert (given[outside] == OLD).all()
        assert (function(**call, lse=new)[0][outside] == 0).all()
        assert (new[outside] == OLD).all()


def test_no_memory_of_others_in_what_quantisers_return(lengths, device):
    _, call, _ = dense(lengths, device)
    tensors = [call.pop(name) for name in "qkv"]
    for granularity in ("block", "warp", "thread"):
        qk = fovea.quantize_qk_int8(*tensors[:2], **call, granularity=granularity)
        assert not any(tensor.isnan().any() for tensor in qk[2:6])
        outside = torch.ones(ROWS, dtype=torch.bool)
        outside[lengths[0] : lengths[-1]] = False
        assert (qk.q[outside] == 0).all() and (qk.k[outside] == 0).all()
    for dtype in (torch.float16, torch.float8_e4m3fn):
        v = fovea.quantize_v(tensors[2], dtype=dtype, smooth_v=True, cu_seqlens_k=call["cu_seqlens_k"])
        assert not any(tensor.float().isnan().any() for tensor in v if tensor is not None)


@pytest.mark.parametrize("seq", [0, 1, 17, 129])
@pytest.mark.parametrize("granularity", ["block", "warp", "thread"])
def test_scales_of_a_fixed_batch_are_all_written(seq, granularity, device):
    q, k = (torch.randn(2, rows, HEADS, DIM).bfloat16().to(device) for rows in (seq, seq + 1))
    assert not any(tensor.isnan().any() for tensor in fovea.quantize_qk_int8(q, k, granularity=granularity)[2:6])


def test_gradients(lengths, device):
    _, call, outside = dense(lengths, device)
    inputs = [call.pop(name).clone().requires_grad_() for name in "qkv"]
    out, lse = fovea.attention(*inputs, **call, return_lse=True)
    check(out.detach(), lse.detach(), outside)
    for gradient in torch.autograd.grad(out.sum(), inputs):
        assert (gradient[outside] == 0).all() and gradient.isfinite().all()


def test_flash_attn(lengths, device):
    _, call, outside = dense(lengths, device)
    out, lse, _ = flash_attn_varlen_func(*call.values(), ROWS, ROWS, return_attn_probs=True)
    check(out, lse.transpose(0, 1), outside)


def test_sageattention(lengths, device):
    _, call, outside = dense(lengths, device)
    out = sageattention.sageattn_varlen(*call.values(), ROWS, ROWS)
    assert (out[outside] == 0).all() and out[~outside].isfinite().all()


def test_flashinfer(device):
    """Its query rows end where the last request's do; a q with more rows is refused, or has no memory of others in its result."""
    q, cu, outside = rows_of([0, 2, 4], device)
    workspace = torch.empty(1 << 20, dtype=torch.uint8, device=device)
    ragged = BatchPrefillWithRaggedKVCacheWrapper(workspace)
    ragged.plan(cu, cu, HEADS, HEADS, DIM, q_data_type=torch.bfloat16)
    paged = BatchPrefillWithPagedKVCacheWrapper(workspace)
    pages = torch.arange(3, dtype=torch.int32, device=device)
    last = torch.full((2,), PAGE, dtype=torch.int32, device=device)
    paged.plan(cu, pages, pages[:2], last, HEADS, 1, DIM, PAGE, q_data_type=torch.bfloat16)
    cache = torch.randn(2, 2, PAGE, 1, DIM).bfloat16().to(device)
    for run in (lambda: ragged.run(q, q, q, return_lse=True), lambda: paged.run(q, cache, return_lse=True)):
        try:
            out, lse = run()
        except ValueError:
            continue
        check(out, lse, outside)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_graph_replays_over_other_lengths():
    function, call, _ = dense([0, 2, 4], "cuda")
    for _ in range(3):
        function(**call)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out, lse = function(**call, return_lse=True)
    for lengths in ([2, 3, 6], [0, 1, 1], [1, 1, 5]):
        call["cu_seqlens_q"].copy_(torch.tensor(lengths))
        out.fill_(OLD)
        lse.fill_(OLD)
        graph.replay()
        check(out, lse, rows_of(lengths, "cuda")[2])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("make", [dense, paged, latent, eight_bits])
def test_a_sequence_over_its_bound(make):
    """A device cuts lengths to their bound. Rows that are cut off hold nothing of others either."""
    function, call, _ = make([0, 4, 6], "cuda")
    out, lse = function(**call, max_seqlen_q=3, return_lse=True)
    assert (out[3] == 0).all() and (lse[3] == -torch.inf).all()
    assert out.isfinite().all()
