# SPDX-License-Identifier: Apache-2.0
"""Bad calls: the right exception, in the library's words, with outputs untouched."""

import pytest
import torch

import fovea


def dense(**changes):
    call = {"q": torch.randn(2, 5, 4, 64), "k": torch.randn(2, 7, 2, 64), "v": torch.randn(2, 7, 2, 64)}
    call["out"] = torch.full((2, 5, 4, 64), torch.nan)
    call["lse"] = torch.full((2, 4, 5), torch.nan)
    return call | changes


def ragged(**changes):
    cu = torch.tensor([0, 2, 5], dtype=torch.int32)
    call = {
        "q": torch.randn(5, 4, 64),
        "k": torch.randn(5, 2, 64),
        "v": torch.randn(5, 2, 64),
        "cu_seqlens_q": cu,
        "cu_seqlens_k": cu,
    }
    call["out"] = torch.full((5, 4, 64), torch.nan)
    return call | changes


def paged(**changes):
    call = {
        "q": torch.randn(3, 4, 64),
        "k_cache": torch.randn(6, 8, 2, 64),
        "v_cache": torch.randn(6, 8, 2, 64),
        "block_table": torch.tensor([[0, 1], [2, 3]], dtype=torch.int32),
        "kv_len": torch.tensor([12, 9], dtype=torch.int32),
        "cu_seqlens_q": torch.tensor([0, 2, 3], dtype=torch.int32),
        "out": torch.full((3, 4, 64), torch.nan),
    }
    return call | changes


def append(**changes):
    call = {"k": torch.randn(3, 2, 64), "v": torch.randn(3, 2, 64), "slot_mapping": torch.tensor([0, 1, 2])}
    call |= {"k_cache": torch.full((2, 8, 2, 64), torch.nan), "v_cache": torch.full((2, 8, 2, 64), torch.nan)}
    return call | changes


def merge(**changes):
    call = {"outs": [torch.randn(3, 2, 64)] * 2, "lses": [torch.randn(3, 2)] * 2}
    call |= {"out": torch.full((3, 2, 64), torch.nan), "lse": torch.full((3, 2), torch.nan)}
    return call | changes


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


INVALID = [
    (fovea.attention, dense(k=torch.randn(2, 7, 3, 64), v=torch.randn(2, 7, 3, 64)), ["kv_head", "3", "4"]),
    (fovea.attention, dense(k=torch.randn(2, 7, 2, 32)), ["k.shape[3]", "32", "64"]),
    (fovea.attention, dense(k=torch.randn(3, 7, 2, 64)), ["k.shape[0]", "3", "2"]),
    (fovea.attention, dense(v=torch.randn(2, 6, 2, 64)), ["v.shape[1]", "6", "7"]),
    (fovea.attention, dense(v=torch.randn(2, 7, 2, 64).bfloat16()), ["v.dtype", "bf16", "f32"]),
    (fovea.attention, dense(q=torch.randn(2, 5, 4, 64).double()), ["q.dtype", "Double"]),
    (fovea.attention, dense(q=torch.randn(5, 64)), ["q"]),
    (fovea.attention, dense(q=torch.randn(1, 2, 5, 4, 64)), ["q.rank", "5", "4"]),
    (fovea.attention, dense(q=torch.randn(2, 5, 64, 4).transpose(2, 3)), ["q.strides[3]", "1"]),
    (fovea.attention, dense(out=torch.full((2, 5, 4, 32), torch.nan)), ["out.shape[3]", "32", "64"]),
    (fovea.attention, dense(out=torch.full((2, 5, 4, 64), torch.nan, dtype=torch.float16)), ["out.dtype", "f16"]),
    (fovea.attention, dense(out=torch.full((2, 5, 1, 64), torch.nan).expand(2, 5, 4, 64)), ["out.strides"]),
    (fovea.attention, dense(lse=torch.full((2, 4, 6), torch.nan)), ["lse.shape[2]", "6", "5"]),
    (fovea.attention, dense(lse=torch.full((2, 4, 5), torch.nan).double()), ["lse.dtype", "Double"]),
    (fovea.attention, dense(sink=torch.randn(3)), ["sink.shape", "[3]", "[4]"]),
    (fovea.attention, dense(sink=torch.randn(4).half()), ["sink.dtype", "Half", "f32"]),
    (fovea.attention, dense(softcap=-1.0), ["softcap", "-1"]),
    (fovea.attention, dense(scale=float("nan")), ["scale", "nan"]),
    (fovea.attention, dense(k_scale=2.0), ["k_scale"]),
    (fovea.attention, dense(anchor="middle"), ["anchor", "middle", "top_left"]),
    (
        fovea.attention,
        dense(implementation="cpu.fast.attention"),
        ["options.implementation", "cpu.fast.attention", "reference.attention"],
    ),
    (fovea.attention, ragged(cu_seqlens_k=None), ["cu_seqlens_k", "none"]),
    (fovea.attention, ragged(cu_seqlens_q=torch.tensor([0, 2, 5])), ["cu_seqlens_q.dtype", "Long", "i32"]),
    (fovea.attention, ragged(cu_seqlens_k=int32(0, 5)), ["cu_seqlens_k.shape", "[2]", "[3]"]),
    (fovea.attention, ragged(cu_seqlens_q=int32(0, 4, 2)), ["cu_seqlens_q"]),
    (fovea.attention, ragged(cu_seqlens_q=int32(0, 2, 9)), ["cu_seqlens_q[2]", "7", "5"]),
    (fovea.paged_attention, paged(k_cache=torch.randn(6, 8, 2, 32)), ["k_cache.shape[3]", "32", "64"]),
    (fovea.paged_attention, paged(v_cache=torch.randn(6, 4, 2, 64)), ["v_cache.shape[1]", "4", "8"]),
    (fovea.paged_attention, paged(k_cache=torch.randn(6, 8, 2, 64).half()), ["k_cache.dtype", "f16"]),
    (fovea.paged_attention, paged(block_table=torch.zeros(2, 2, dtype=torch.int64)), ["block_table.dtype", "i64", "i32"]),
    (fovea.paged_attention, paged(block_table=int32([0, 6], [2, 3])), ["block_table", "6"]),
    (fovea.paged_attention, paged(block_table=int32([0, -1], [2, 3])), ["block_table", "-1"]),
    (fovea.paged_attention, paged(kv_len=int32(12)), ["kv_len.shape", "[1]", "[2]"]),
    (fovea.paged_attention, paged(kv_len=int32(17, 9)), ["kv_len", "17", "16"]),
    (fovea.paged_attention, paged(kv_len=int32(12, -1)), ["kv_len", "-1"]),
    (fovea.paged_attention, paged(cu_seqlens_q=int32(0, 1, 4)), ["cu_seqlens_q", "4", "3"]),
    (fovea.paged_attention, paged(cu_seqlens_q=None), ["cu_seqlens_q", "none", "3 query rows", "2 sequences"]),
    (fovea.paged_attention, paged(k_scale=torch.ones(2)), ["k_scale"]),
    (fovea.paged_cache_append, append(slot_mapping=torch.tensor([0, 1, 16])), ["slot_mapping", "16"]),
    (fovea.paged_cache_append, append(slot_mapping=torch.tensor([0, -2, 3])), ["slot_mapping", "-2"]),
    (fovea.paged_cache_append, append(slot_mapping=torch.tensor([0, 1])), ["slot_mapping.shape", "[2]", "[3]"]),
    (fovea.paged_cache_append, append(slot_mapping=int32(0, 1, 2)), ["slot_mapping.dtype", "Int", "i64"]),
    (fovea.paged_cache_append, append(v=torch.randn(2, 2, 64)), ["v.shape[0]", "2", "3"]),
    (fovea.paged_cache_append, append(k_cache=torch.full((2, 8, 2, 64), torch.nan).half()), ["k_cache.dtype", "f16"]),
    (fovea.merge_states, merge(lses=[torch.randn(3, 2)]), ["lses", "1", "2"]),
    (fovea.merge_states, merge(outs=[torch.randn(3, 2, 64), torch.randn(3, 2, 32)]), ["parts[1].out.shape[2]", "32", "64"]),
    (fovea.merge_states, merge(lses=[torch.randn(3, 2), torch.randn(2, 3)]), ["parts[1].lse.shape[0]", "2", "3"]),
]


def outputs(call):
    return [call[name] for name in ("out", "lse", "k_cache", "v_cache") if name in call]


@pytest.mark.parametrize(
    ("function", "call", "words"), INVALID, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_contradictions_raise_value_error(function, call, words):
    before = [tensor.clone() for tensor in outputs(call)]
    with pytest.raises(ValueError) as caught:
        function(**call)
    for word in words:
        assert word in str(caught.value)
    assert "want" in str(caught.value)
    for tensor, old in zip(outputs(call), before, strict=True):
        assert torch.equal(tensor.nan_to_num(123.0), old.nan_to_num(123.0))


def test_unsupported_raises_not_implemented_error():
    call = dense(q=torch.randn(2, 5, 4, 20), k=torch.randn(2, 7, 2, 20))
    with pytest.raises(NotImplementedError) as caught:
        fovea.attention(**call)
    assert "reference.attention" in str(caught.value) and "20" in str(caught.value)
    assert not str(caught.value).startswith("unsupported")
    assert call["out"].isnan().all() and call["lse"].isnan().all()


def test_forcing_an_implementation_that_declines():
    q = torch.randn(1, 5, 1, 12)
    with pytest.raises(NotImplementedError, match=r"reference\.attention"):
        fovea.attention(q, q, q, implementation="reference.attention")


def test_gradients_are_refused_and_not_cut():
    q = torch.randn(1, 4, 2, 32, requires_grad=True)
    with pytest.raises(NotImplementedError, match="requires_grad"):
        fovea.attention(q, q, q)
    with torch.no_grad():
        assert fovea.attention(q, q, q).shape == q.shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_tensors_are_refused():
    with pytest.raises(ValueError, match=r"q\.device: got cuda, want cpu"):
        fovea.attention(*torch.randn(3, 1, 4, 2, 32, device="cuda"))
    call = paged()
    with pytest.raises(ValueError, match=r"kv_len\.device: got cuda, want cpu"):
        fovea.paged_attention(**call | {"kv_len": call["kv_len"].cuda()})


def test_bad_thread_counts():
    for threads in (-1, 1 << 20):
        with pytest.raises(ValueError, match="threads: got"):
            fovea.set_num_threads(threads)
