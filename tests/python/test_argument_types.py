# SPDX-License-Identifier: Apache-2.0
"""Arguments that are no tensor, or no number: one sentence names the argument and says what was wanted."""

import inspect
import re
import time
import typing
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import fovea
import public_calls
from fovea.compat import flashinfer
from small_calls import codes, dense, int32, latent, paged, ragged

CALLS: dict[Callable[..., Any], dict[str, Any]] = {}
for each in public_calls.CALLS.values():
    CALLS.setdefault(each.function, each.make())


def wrong_values(annotation):
    """Values that an argument does not take. A tensor where a number belongs would wait for the device and cut the graph."""
    text = str(annotation)
    taken = {"text": ("str", "Literal"), "list": ("tuple", "Sequence"), "number": ("float",), "none": ("None", "typing.Any")}
    taken["tensor"] = () if "Sequence" in text else ("Tensor",)
    values = {"text": "cpu", "list": [1.0, 2.0], "number": 2.5, "none": None, "tensor": torch.randn(3, requires_grad=True)}
    yield from (value for kind, value in values.items() if not any(word in text for word in taken[kind]))
    yield from (numpy.ones(3, dtype=numpy.float32), object())


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_an_argument_of_another_type_is_named(function):
    hints = typing.get_type_hints(function)
    for name in inspect.signature(function).parameters:
        for value in wrong_values(hints[name]):
            with pytest.raises(TypeError) as caught:
                function(**{**CALLS[function], name: value})
            assert re.match(rf"{name}: got \S.*, want \S.*$", str(caught.value)), (name, value, str(caught.value))


def unusual(tensor):
    """Tensors for torch, but not in plain memory."""
    values = tensor.detach().float()
    yield values.to_sparse(), r"\.layout: got torch\.sparse_coo, want torch\.strided"
    yield values.to_mkldnn(), r"\.layout: got torch\._mkldnn, want torch\.strided"
    yield torch.quantize_per_tensor(values, 0.1, 0, torch.quint8), r"\.dtype: got torch\.quint8, want a plain one"
    if values.dim() > 1:
        yield values.flatten(1).to_sparse_csr(), r"\.layout: got torch\.sparse_csr, want torch\.strided"
        yield torch.nested.nested_tensor(list(values), layout=torch.jagged), ": got a nested tensor, want a padded one"


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_sparse_nested_and_quantized_tensors_are_refused(function):
    for name, value in CALLS[function].items():
        if not isinstance(value, torch.Tensor):
            continue
        for tensor, words in unusual(value):
            if tensor.is_nested and function is fovea.scaled_dot_product_attention:
                continue  # which takes them
            with pytest.raises(ValueError, match=rf"^{name}{words}"):
                function(**{**CALLS[function], name: tensor})


def test_entries_of_lists_and_of_quantised_tensors_are_named():
    part, lse = torch.randn(3, 2, 64), torch.randn(3, 2)
    with pytest.raises(TypeError, match=r"^outs\[1\]: got None, want a torch.Tensor$"):
        fovea.merge_states([part, None], [lse, lse])
    with pytest.raises(ValueError, match=r"^lses\[0\]\.layout: got torch\.sparse_coo"):
        fovea.merge_states([part, part], [lse.to_sparse(), lse])
    call = codes()
    with pytest.raises(TypeError, match=r"^qk\.q_scale: got numpy\.ndarray, want a torch\.Tensor$"):
        fovea.quantized_attention(call["qk"]._replace(q_scale=call["qk"].q_scale.numpy()), call["v"])
    with pytest.raises(TypeError, match=r"^v\.scale: got 2\.0, want a torch\.Tensor or None$"):
        fovea.quantized_attention(call["qk"], call["v"]._replace(scale=2.0))


def test_tensors_of_quantised_tuples_are_named_by_their_place():
    call, q, k = codes(), torch.randn(2, 5, 4, 64), torch.randn(2, 7, 2, 64)
    qk, v = call["qk"], call["v"]
    for wrong, words in (
        ({"qk": qk._replace(q_scale=qk.q_scale[0]), "v": v}, "qk.q_scale.rank: got 2"),
        ({"qk": qk._replace(k=k), "v": v}, "qk.k.dtype: got torch.float32"),
        ({"qk": qk._replace(warp_rows=3), "v": v}, "qk.warp_rows: got 3"),
        ({"qk": qk, "v": v._replace(scale=k)}, "v.scale.rank: got 4"),
    ):
        with pytest.raises(ValueError, match=rf"^{re.escape(words)}, want "):
            fovea.quantized_attention(**wrong)
    with pytest.raises(ValueError, match=r"^out\.q\.dtype: got torch\.float32, want torch\.int8"):
        fovea.quantize_qk_int8(q, k, out=qk._replace(q=q))
    with pytest.raises(ValueError, match=r"^out\.mean\.rank: got 4, want 3"):
        fovea.quantize_v(k, out=v._replace(mean=k))
    with pytest.raises(ValueError, match=r"^dtype: got torch\.int8, want torch\.float16 or torch\.float8_e4m3fn$"):
        fovea.quantize_v(k, dtype=torch.int8)


@pytest.mark.parametrize("function", CALLS, ids=lambda function: function.__name__)
def test_tensors_without_dimensions_or_elements_are_refused(function):
    parameters = inspect.signature(function).parameters
    call = {name: value for name, value in CALLS[function].items() if parameters[name].default is inspect.Parameter.empty}
    for name, value in call.items():
        if not isinstance(value, torch.Tensor):
            continue
        with pytest.raises(ValueError, match=r"got .*, want "):
            function(**call | {name: torch.tensor(1).to(value.dtype)})
        if name != "slot_mapping":  # one without elements is of no tokens
            with pytest.raises(ValueError, match=r"got .*, want "):
                function(**call | {name: torch.empty(0, dtype=value.dtype)})


@pytest.mark.parametrize(
    "cu_seqlens", [torch.tensor(1, dtype=torch.int32), torch.empty(0, dtype=torch.int32), int32([0, 2], [3, 5])]
)
def test_lengths_of_another_shape_are_refused(cu_seqlens):
    call = ragged(out=None, cu_seqlens_q=cu_seqlens)
    for function in (fovea.attention, fovea.quantize_and_attend):
        with pytest.raises(ValueError, match=r"^cu_seqlens_q\.shape: got "):
            function(**call)
    with pytest.raises(ValueError, match=r"^cu_seqlens_q\.shape: got "):
        fovea.quantize_qk_int8(**{name: call[name] for name in ("q", "k", "cu_seqlens_q", "cu_seqlens_k")})
    with pytest.raises(ValueError, match=r"^cu_seqlens_k\.shape: got "):
        fovea.quantize_v(call["v"], dtype=torch.float8_e4m3fn, cu_seqlens_k=cu_seqlens)


@pytest.mark.parametrize("sink", [torch.randn(3), torch.randn(4).half(), torch.tensor(1.0)])
def test_a_gradient_that_is_made_is_named_by_what_it_is_like(sink):
    with pytest.raises(ValueError, match=r"^sink\.(shape|dtype): got "):
        fovea.attention_backward(**CALLS[fovea.attention_backward], sink=sink)


@pytest.mark.parametrize("function", [fovea.scaled_dot_product_attention, fovea.sparse_latent_attention])
def test_resized_storage_is_named_where_torch_gets_the_tensor_first(function):
    call = public_calls.copied(
        public_calls.CALLS["sparse_latent_attention, flat"].make() if "sparse" in function.__name__ else CALLS[function]
    )
    for name in ("cache", "query", "key", "value"):
        if name in call:
            short = call[name].clone()
            short.untyped_storage().resize_(64)
            needed = short.numel() * 4
            with pytest.raises(ValueError, match=rf"^{name}\.storage: got 64 bytes, want at least {needed}$"):
                function(**call | {name: short})


def test_missing_and_unknown_arguments_are_named():
    q = torch.randn(1, 5, 2, 64)
    with pytest.raises(TypeError, match=r"^attention\(\) missing a required argument: 'v'$"):
        fovea.attention(q, q)
    with pytest.raises(TypeError, match=r"^attention\(\) got an unexpected keyword argument 'windows'$"):
        fovea.attention(q, q, q, windows=(-1, -1))
    with pytest.raises(TypeError, match=r"^threads: got '2', want an int$"):
        fovea.set_num_threads("2")


def test_numbers_of_numpy_are_numbers():
    call = dense()
    fovea.attention(**call, scale=numpy.float32(0.5), window=(numpy.int64(3), None))
    expected = fovea.attention(**dense(q=call["q"], k=call["k"], v=call["v"]), scale=0.5, window=(3, None))
    assert torch.equal(call["out"], expected[0])
    fovea.attention(**ragged(), max_seqlen_q=numpy.int32(4))


def test_heads_in_the_place_of_rows_are_recognised():
    q, k = torch.randn(2, 8, 1, 64), torch.randn(2, 2, 7, 64)
    for function in (fovea.attention, fovea.quantize_and_attend):
        with pytest.raises(ValueError) as caught:
            function(q, k, k)
        for words in ("k.shape (kv_head): got 7", "a divisor of 1", "k is [batch, seq, head, head_dim]"):
            assert words in str(caught.value)
        assert "[2, 2, 7, 64] looks like [batch, head, seq, head_dim]: transpose(1, 2)" in str(caught.value)
    with pytest.raises(ValueError, match=r"k is \[batch, seq, head, head_dim\]$"):
        fovea.attention(torch.randn(2, 5, 4, 64), torch.randn(2, 7, 3, 64), torch.randn(2, 7, 3, 64))
    cache = torch.randn(6, 2, 8, 64)  # as some engines lay it out
    with pytest.raises(ValueError, match=r"^k_cache\.shape \(kv_head\): got 8, .* looks like \[blocks, kv_head, page, head_dim\]"):
        fovea.paged_attention(**paged(k_cache=cache, v_cache=cache))
    cache = torch.randn(6, 2, 8, 576)
    with pytest.raises(ValueError, match=r"^cache\.shape \(kv_head\): got 8, .* looks like \[blocks, kv_head, page, head_dim\]"):
        fovea.latent_attention(**latent(cache=cache))


def test_declines_speak_of_torchs_dtypes_too():
    q = torch.randn(1, 5, 2, 64, dtype=torch.float64)
    with pytest.raises(NotImplementedError) as caught:
        fovea.attention(q, q, q, implementation="cpu.scalar.attention")
    assert "torch.float64" in str(caught.value) and not re.search(r"\bf64\b", str(caught.value))


def test_compiled_functions_check_too():
    """Dynamo traces the checks of a good call, and leaves a bad one to Python."""
    compiled, q = torch.compile(fovea.attention, backend="eager"), torch.randn(1, 5, 2, 64)
    assert torch.equal(compiled(q, q, q, window=(2, None), scale=0.5), fovea.attention(q, q, q, window=(2, None), scale=0.5))
    with pytest.raises(TypeError, match=r"^k: got None, want a torch\.Tensor$"):
        compiled(q, None, q)
    with pytest.raises(ValueError, match=r"^window: got \(-1, -1\), want "):
        compiled(q, q, q, window=(-1, -1))


def test_checks_cost_little():
    """The bound is generous, as in test_latency.py: the checks take about one microsecond of a call's ten."""
    q = torch.randn(1, 1, 4, 64)
    call = {"causal": True, "window": (7, None), "scale": 0.1, "out": torch.empty_like(q)}
    best = dict.fromkeys((fovea.attention, fovea.attention.__wrapped__), float("inf"))
    for _ in range(50):
        for function in best:
            start = time.perf_counter()
            for _ in range(50):
                function(q, q, q, **call)
            best[function] = min(best[function], (time.perf_counter() - start) / 50 * 1e6)
    checked, bare = best.values()
    assert checked - bare < 10


def test_signatures_stay_readable():
    assert list(inspect.signature(fovea.attention).parameters)[:4] == ["q", "k", "v", "causal"]
    assert fovea.attention.__doc__.startswith("Attention, ``dropout(softmax")


def test_tensors_without_data_are_named_where_torch_gets_them_first():
    pages, last = torch.tensor([0, 2, 3]), torch.tensor([4, 1])
    with pytest.raises(ValueError, match=r"^kv_last_page_len\.device: got meta, want cpu, as the tensors before it$"):
        flashinfer.get_seq_lens(pages, last.to("meta"), 4)
    with pytest.raises(ValueError, match=r"^kv_last_page_len\.device: got cpu, want meta, as the tensors before it$"):
        flashinfer.get_seq_lens(pages.to("meta"), last, 4)
