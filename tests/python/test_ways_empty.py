# SPDX-License-Identifier: Apache-2.0
"""Calls without sequences, without query rows or without keys: results by the definition (judge.py), and gradients of zeros."""

import pytest
import torch

import judge
from public_calls import CALLS, DEVICES, call_on, copied, moved
from small_calls import int32
from test_ways import check_gradient, tensors_of


def rows(*shape):
    return torch.randn(shape)


def dense_shapes(batch, seq_q, seq_k):
    return {"q": rows(batch, seq_q, 4, 64), "k": rows(batch, seq_k, 2, 64), "v": rows(batch, seq_k, 2, 64)}


def ragged_shapes(*lengths):
    """(queries, keys) of each sequence."""
    ends_q, ends_k = (
        (int32(0, *torch.tensor(counts).cumsum(0).tolist()) for counts in zip(*lengths, strict=True))
        if lengths
        else (int32(0),) * 2
    )
    q, k = int(ends_q[-1]), int(ends_k[-1])
    tensors = {"q": rows(q, 4, 64), "k": rows(k, 2, 64), "v": rows(k, 2, 64)}
    return tensors | {"cu_seqlens_q": ends_q, "cu_seqlens_k": ends_k}


def table(batch, blocks=2):
    return torch.zeros(batch, blocks, dtype=torch.int32)


DENSE = {
    "no sequence": dense_shapes(0, 5, 7),
    "no query": dense_shapes(2, 0, 7),
    "no key": dense_shapes(2, 5, 0),
    "nothing": dense_shapes(0, 0, 0),
}
RAGGED = {
    "no sequence": ragged_shapes(),
    "no row": ragged_shapes((0, 0), (0, 0)),
    "no query": ragged_shapes((0, 3), (0, 0)),
    "no key": ragged_shapes((3, 0), (2, 0)),
    "one sequence has none": ragged_shapes((2, 0), (0, 4), (3, 5)),
}
SDPA = {
    name: {long: call[short].transpose(1, 2) for long, short in (("query", "q"), ("key", "k"), ("value", "v"))}
    for name, call in DENSE.items()
}


def only(names, cases):
    return {case: {name: value for name, value in call.items() if name in names} for case, call in cases.items()}


CASES = {
    "attention": {name: call | {"return_lse": True} for name, call in DENSE.items()},
    "attention, ragged": RAGGED,
    "scaled_dot_product_attention": SDPA,
    "paged_attention": {
        "no sequence": {"q": rows(0, 4, 64), "block_table": table(0), "kv_len": int32(), "cu_seqlens_q": int32(0)},
        "no row": {"q": rows(0, 4, 64), "cu_seqlens_q": int32(0, 0, 0)},
        "no key": {"kv_len": int32(0, 0)},
        "no block": {"kv_len": int32(0, 0), "block_table": table(2, 0)},
        "no cache": {"kv_len": int32(0, 0), "k_cache": rows(0, 8, 2, 64), "v_cache": rows(0, 8, 2, 64)},
        "one sequence has none": {"kv_len": int32(0, 9), "cu_seqlens_q": int32(0, 0, 3)},
    },
    "paged_attention, one row each": {"no sequence": {"q": rows(0, 4, 64), "block_table": table(0), "kv_len": int32()}},
    "paged_cache_append": {
        "no row": {"k": rows(0, 2, 64), "v": rows(0, 2, 64), "slot_mapping": torch.zeros(0, dtype=torch.int64)},
        "all skipped": {"slot_mapping": torch.full((3,), -1), "k_cache": rows(0, 8, 2, 64), "v_cache": rows(0, 8, 2, 64)},
    },
    "merge_states": {"no row": {"outs": [rows(0, 2, 64)] * 2, "lses": [rows(0, 2)] * 2}},
    "latent_attention": {
        "no sequence": {"q": rows(0, 3, 4, 576), "block_table": table(0), "kv_len": int32()},
        "no query": {"q": rows(2, 0, 4, 576)},
        "no key": {"kv_len": int32(0, 0), "return_lse": True},
        "no block": {"kv_len": int32(0, 0), "block_table": table(2, 0)},
        "no row": {"q": rows(0, 4, 576), "cu_seqlens_q": int32(0, 0, 0)},
    },
    "sparse_latent_attention": {
        "no sequence": {"q": rows(0, 3, 4, 512), "indices": torch.zeros(0, 3, 5, dtype=torch.int32)},
        "no query": {"q": rows(2, 0, 4, 512), "indices": torch.zeros(2, 0, 5, dtype=torch.int32)},
        "no key": {"indices": torch.full((2, 3, 5), -1, dtype=torch.int32), "return_lse": True, "return_max_logits": True},
        "no cache": {"cache": rows(0, 8, 1, 512)},
    },
    "sparse_latent_attention, flat": {
        "no row": {"q": rows(0, 4, 576), "indices": torch.zeros(0, 5, dtype=torch.int32), "topk_length": int32()},
        "no key": {"cache": rows(0, 1, 576)},
    },
    "quantize_latent_cache": {"no row": {"rows": rows(0, 576), "slot_mapping": torch.zeros(0, dtype=torch.int64)}},
    "dequantize_latent_cache": {"no row": {"slot_mapping": torch.zeros(0, dtype=torch.int64)}},
    "quantize_qk_int8": only(("q", "k"), DENSE),
    "quantize_qk_int8, ragged": only(("q", "k", "cu_seqlens_q", "cu_seqlens_k"), RAGGED),
    "quantize_v": only(("v",), DENSE),
    "quantize_and_attend": DENSE,
    "quantize_and_attend, ragged": RAGGED,
}
EVERY = [pytest.param(label, case, id=f"{label}: {case}") for label, cases in CASES.items() for case in cases]
GRADIENTS = [
    pytest.param(label, case, id=f"{label}: {case}")
    for label in ("attention", "attention, ragged", "scaled_dot_product_attention", "merge_states")
    for case in CASES[label]
]
everywhere = pytest.mark.parametrize("device", DEVICES)


def empty_call(label, case, device):
    call, arguments = call_on(label, device)
    return call, arguments | moved(CASES[label][case], device, device != "cpu")


@everywhere
@pytest.mark.parametrize(("label", "case"), EVERY)
def test_results(label, case, device):
    call, arguments = empty_call(label, case, device)
    before = copied(arguments)
    judge.check(call.name, arguments, call.function(**arguments), before)


@everywhere
@pytest.mark.parametrize(("label", "case"), GRADIENTS)
def test_gradients(label, case, device):
    check_gradient(label, device, changes=empty_call(label, case, device)[1])


@everywhere
@pytest.mark.parametrize(("label", "case"), GRADIENTS)
def test_gradients_of_what_rows_and_keys_share(label, case, device):
    """One tensor is all inputs of a sum, as in `f(x, x, x).sum().backward()`."""
    call, arguments = empty_call(label, case, device)
    x = torch.ones((), device=device, requires_grad=True)
    changed = (
        {name: value * x for name, value in arguments.items() if tensors_of([value]) and value.is_floating_point()}
        if label != "merge_states"
        else {name: [part * x for part in parts] for name, parts in arguments.items() if isinstance(parts, list)}
    )
    result = call.function(**arguments | changed)
    for part in result if isinstance(result, tuple) else (result,):
        part.sum().nan_to_num(neginf=0.0).backward(retain_graph=True)
    assert x.grad is not None and bool(x.grad.isfinite())


@everywhere
@pytest.mark.parametrize("case", DENSE)
def test_backward_and_quantised_attention(case, device):
    """Their arguments are results of other functions."""
    call, arguments = empty_call("attention", case, device)
    out, lse = call.function(**arguments)
    backward = {name: arguments[name] for name in "qkv"} | {"out": out, "lse": lse, "dout": torch.ones_like(out), "causal": True}
    backward["sink"] = arguments["sink"]
    judge.check("attention_backward", backward, CALLS["attention_backward"].function(**backward), copied(backward))
    qk = CALLS["quantize_qk_int8"].function(arguments["q"], arguments["k"])
    codes = {"qk": qk, "v": CALLS["quantize_v"].function(arguments["v"]), "return_lse": True}
    judge.check("quantized_attention", codes, CALLS["quantized_attention"].function(**codes), copied(codes))
