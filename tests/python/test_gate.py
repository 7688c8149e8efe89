# SPDX-License-Identifier: Apache-2.0
"""The gate around public functions under names of their own: drop-ins, and what is distributed."""

import importlib
import inspect
import math
import re
import typing
from typing import Any, Literal

import pytest
import torch

import fovea
from fovea._calls import adapted
from fovea._foreign import _SAME
from fovea.compat import flash_attn
from fovea.distributed import Layout, PageDeal, merge_over_ranks, shard

Q = torch.randn(2, 5, 4, 16)
NAMES = {"q": "query", "k": "key", "v": "value", "causal": "is_causal", "scale": "factor"}
ROWS = "batch, seq, head, head_dim"


@adapted(NAMES, axes={"query": ROWS, "key": (ROWS, "total, head, head_dim")}, error=RuntimeError)
def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool = False,
    factor: float | None = None,
    mode: Literal["plain", "index", "name", "number", "key", "schema", "own"] = "plain",
    *rest: Any,
    **more: Any,
) -> torch.Tensor:
    if mode == "index":
        return query[0, 0, 0, 0, 0]
    if mode == "name":
        return query.no_such_name
    if mode == "number":
        return query * int(math.inf)
    if mode == "key":
        return {}[mode]
    if mode == "schema":
        return torch.ops.fovea.merge_states([query], [key], value, 3, "")
    if mode == "own":
        raise ValueError("mode: got 'own', want another one")
    return fovea.attention(query, key, value, causal=is_causal, scale=factor)


@adapted({"query": "qkv", "key": "qkv", "value": "qkv"}, error=IndexError)
def attend_packed(qkv: torch.Tensor) -> torch.Tensor:
    return attend(*qkv.unbind(2))


class Holder:
    @adapted(axes={"rows": "row, dim"})
    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    @adapted(axes={"index": "row"}, error=RuntimeError)
    def take(self, index: torch.Tensor) -> torch.Tensor:
        return self.rows[index]


def refusal(function, /, *args, **kwargs):
    with pytest.raises(Exception) as caught:
        function(*args, **kwargs)
    return type(caught.value), str(caught.value)


def test_good_calls_pass():
    assert torch.equal(attend(Q, Q, Q, True, 0.5, "plain", 3, other=4), fovea.attention(Q, Q, Q, causal=True, scale=0.5))
    assert torch.equal(Holder(rows=Q[0, 0]).take(torch.tensor([1])), Q[0, 0, 1:2])


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"query": None}, TypeError, "query: got None, want a torch.Tensor"),
        ({"is_causal": "yes"}, TypeError, "is_causal: got 'yes', want a bool"),
        ({"factor": Q}, TypeError, "factor: got torch.Tensor, want a number or None"),
        ({"query": Q[0]}, RuntimeError, "query.rank: got 3, want 4 ([batch, seq, head, head_dim])"),
        ({"key": Q[0, 0]}, RuntimeError, f"key.rank: got 2, want 4 ([{ROWS}]) or 3 ([total, head, head_dim])"),
        ({"key": Q.to_sparse()}, RuntimeError, "key.layout: got torch.sparse_coo, want torch.strided (key.to_dense())"),
        ({"key": Q[..., :8]}, RuntimeError, "key.shape[3] (head_dim_qk): got 8, want 16 (head_dim_qk of query)"),
        ({"value": Q.double()}, RuntimeError, "value.dtype: got torch.float64, want torch.float32"),
        ({"factor": math.nan}, RuntimeError, "factor: got nan, want 1.2e-38 to 3.4e38 in magnitude (a normal float)"),
        ({"factor": 0}, RuntimeError, "factor: got 0, want another number, or None for the default"),
        ({"mode": "own"}, ValueError, "mode: got 'own', want another one"),
    ],
)
def test_errors_are_in_the_words_of_the_caller(change, kind, text):
    assert refusal(attend, **{"query": Q, "key": Q, "value": Q} | change) == (kind, text)


@pytest.mark.parametrize("mode", ["index", "name", "number", "key", "schema"])
def test_what_escapes_becomes_one_error_that_says_the_call(mode):
    kind, text = refusal(attend, Q, Q, Q, mode=mode)
    assert kind is RuntimeError
    assert text.startswith("attend(): got query float32[2, 5, 4, 16], key float32[2, 5, 4, 16], value float32[2, 5, 4, 16], mode ")
    assert "want arguments that go together (" in text


def test_names_pass_through_several_gates():
    packed = torch.randn(2, 5, 3, 4, 20)
    assert refusal(attend_packed, packed.int()) == (
        RuntimeError,
        "qkv.dtype: got torch.int32, want torch.float32 or torch.float16 or torch.bfloat16 or torch.float8_e4m3fn or torch.float64",
    )
    assert refusal(attend_packed, packed[0])[1] == "qkv.rank: got 3, want 4 ([batch, seq, head, head_dim])"
    kind, text = refusal(attend_packed, packed)
    assert kind is NotImplementedError and "20" in text
    assert refusal(attend_packed, qkv=3) == (TypeError, "qkv: got 3, want a torch.Tensor")


def test_methods_and_constructors_have_a_gate():
    assert refusal(Holder, Q) == (ValueError, "rows.rank: got 4, want 2 ([row, dim])")
    assert refusal(Holder) == (TypeError, "Holder() missing a required argument: 'rows'")
    holder = Holder(Q[0, 0])
    assert refusal(holder.take, "first") == (TypeError, "index: got 'first', want a torch.Tensor")
    assert refusal(holder.take, torch.tensor(1)) == (RuntimeError, "index.rank: got 0, want 1 ([row])")
    assert refusal(holder.take)[1] == "Holder.take() missing a required argument: 'index'"


def test_functions_beside_the_operations_have_a_gate():
    packed = fovea.cache_formats()["v32_fp8"]
    assert refusal(packed.empty, -1, 8) == (ValueError, "blocks: got -1, want 0 or more")
    assert refusal(packed.empty, 2, 0) == (ValueError, "page: got 0, want 1 or more")
    assert refusal(packed.empty, "2", 8) == (TypeError, "blocks: got '2', want an int")
    assert refusal(fovea.compat.install, 3) == (TypeError, "package: got 3, want a str")
    assert refusal(fovea.compat.install, "flash_attn", force="x") == (TypeError, "force: got 'x', want a bool")
    assert refusal(fovea.explain, 3) == (TypeError, "function: got 3, want a function")


def test_an_error_of_torch_keeps_its_class():
    kind, text = refusal(Holder(Q[0, 0]).take, torch.tensor([1.5]))
    assert kind is RuntimeError and text.startswith("Holder.take(): got index float32[1], want ") and "IndexError" in text
    with pytest.raises(RuntimeError, match="must match the size"):
        adapted()(lambda: torch.ones(2) + torch.ones(3))()


def test_gates_are_traced():
    compiled = torch.compile(attend, fullgraph=True, backend="eager")
    assert torch.equal(compiled(Q, Q, Q, is_causal=True), attend(Q, Q, Q, True))


def test_gates_of_objects_that_a_traced_function_makes_are_traced():
    def own(lengths):
        return PageDeal(4, 2).local_length(lengths, 1)

    lengths = torch.tensor([0, 5, 7, 20], dtype=torch.int32)
    assert torch.compile(own, fullgraph=True, backend="eager")(lengths).tolist() == own(lengths).tolist() == [0, 1, 3, 8]


@pytest.mark.parametrize(
    ("function", "arguments", "kind", "text"),
    [
        (flash_attn.flash_attn_func, (Q[0], Q, Q), RuntimeError, f"q.rank: got 3, want 4 ([{ROWS}])"),
        (
            flash_attn.flash_attn_func,
            (Q, Q, Q, 0.0, "x"),
            TypeError,
            "softmax_scale: got 'x', want a torch.Tensor or a number or None",
        ),
        (
            flash_attn.flash_attn_func,
            (Q, Q, Q, 0.0, 0.5, True, ("a", 1)),
            TypeError,
            "window_size[0]: got 'a', want an int or a torch.Tensor",
        ),
        (flash_attn.flash_attn_qkvpacked_func, (None,), TypeError, "qkv: got None, want a torch.Tensor"),
        (Layout, ("12", 2), TypeError, "lengths: got '12', want an int or a tuple"),
        (Layout, ((12, "a"), 2), TypeError, "lengths[1]: got 'a', want an int"),
        (Layout, (12, 1.5), TypeError, "ranks: got 1.5, want an int"),
        (shard, (Q, 5, 0), TypeError, "layout: got 5, want a fovea.Layout"),
        (merge_over_ranks, (Q, Q), ValueError, "out.rank: got 4, want 3 ([rows, head, dv])"),
    ],
)
def test_bad_calls_of_drop_ins_and_distributed_functions(function, arguments, kind, text):
    assert refusal(function, *arguments) == (kind, text)


def test_flash_attn_says_its_own_names():
    kind, text = refusal(flash_attn.flash_attn_func, Q, Q, Q, softmax_scale=math.nan)
    assert kind is RuntimeError and text.startswith("softmax_scale: got nan, want ")
    kind, text = refusal(flash_attn.flash_attn_qkvpacked_func, torch.zeros(1, 2, 3, 4, 8, dtype=torch.int32))
    assert kind is RuntimeError and text.startswith("qkv.dtype: got torch.int32, want ")


TAKES = {
    fovea.attention: (Q, Q, Q),
    fovea.attention_backward: (Q, Q, Q, Q, Q, Q),
    fovea.paged_attention: (Q, Q, Q, Q, Q),
    fovea.latent_attention: (Q, Q, Q, Q),
    fovea.sparse_latent_attention: (Q, Q, Q),
    fovea.quantize_and_attend: (Q, Q, Q),
    fovea.scaled_dot_product_attention: (Q, Q, Q),
    flash_attn.flash_attn_func: (Q, Q, Q),
}


@pytest.mark.parametrize("function", TAKES, ids=lambda function: function.__name__)
def test_keywords_of_other_packages_are_answered(function):
    """Each name of one meaning, where the function has another one."""
    taken = inspect.signature(function).parameters
    answered = 0
    for names in _SAME:
        here = [name for name in names if name in taken]
        for keyword in (name for name in names if here and name not in taken):
            kind, text = refusal(function, *TAKES[function], **{keyword: 1})
            assert kind is TypeError and text.startswith(f"{function.__name__}() got {keyword}; here it is ")
            assert re.search(r"here it is (\w+)", text)[1] in taken
            answered += 1
    assert answered >= 5


@pytest.mark.parametrize(
    ("keyword", "text"),
    [
        ("softmax_scale", "attention() got softmax_scale; here it is scale"),
        ("window_size", "attention() got window_size; here it is window, where None is no bound"),
        ("sliding_window", "attention() got sliding_window; here it is window, as (sliding_window - 1, None), with causal=True"),
        ("is_causal", "attention() got is_causal; here it is causal"),
        ("attn_bias", "attention() got attn_bias; here it is bias"),
        (
            "tensor_layout",
            "attention() got tensor_layout; here tensors are [batch, seq, head, head_dim]: transpose(1, 2) of another order",
        ),
        ("colour", "attention() got an unexpected keyword argument 'colour'"),
    ],
)
def test_what_is_said_to_keywords_of_other_packages(keyword, text):
    assert refusal(fovea.attention, Q, Q, Q, **{keyword: None}) == (TypeError, text)


def test_the_first_foreign_keyword_is_answered_where_ours_are_too():
    text = refusal(fovea.paged_attention, Q, Q, Q, block_tables=Q, cache_seqlens=Q, scale=1.0)[1]
    assert text == "paged_attention() got block_tables; here it is block_table"
    assert refusal(fovea.paged_attention, Q, Q, Q, Q, cache_seqlens=Q)[1].endswith("here it is kv_len")
    assert "a mask is causal or a window" in refusal(fovea.attention, Q, Q, Q, attn_mask=Q)[1]


def test_scaled_dot_product_attention_says_its_own_names():
    heads = torch.randn(1, 2, 5, 8)
    assert refusal(fovea.scaled_dot_product_attention, heads[0], heads, heads) == (
        ValueError,
        "query.rank: got 3, want 4 ([batch, head, seq, head_dim])",
    )
    kind, text = refusal(fovea.scaled_dot_product_attention, heads, heads, heads.double())
    assert kind is ValueError and text.startswith("value.dtype: got torch.float64, want torch.float32")


def test_extents_are_at_the_places_of_the_callers_layout():
    heads = torch.randn(1, 4, 5, 8)
    attention = fovea.scaled_dot_product_attention
    assert refusal(attention, heads, heads, heads[:, :, :3])[1] == "value.shape[2] (seq_k): got 3, want 5 (rows of key)"
    assert refusal(attention, heads, heads[:, :3], heads[:, :3], enable_gqa=True) == (
        ValueError,
        "key.shape (kv_head): got 3, want a divisor of 4 (head)",  # and nothing of another layout
    )
    assert refusal(attention, heads, heads, heads[:, :2])[1].startswith("value.shape[1] (kv_head): got 2, want 4")
    assert "k is [batch, seq, head, head_dim]" in refusal(flash_attn.flash_attn_func, Q, Q[:, :, :3], Q[:, :, :3])[1]


MODULES = (
    "fovea",
    "fovea.distributed",
    "fovea.compat",
    "fovea.compat.custom_attn",
    "fovea.compat.flash_attn",
    "fovea.compat.flash_attn.bert_padding",
    "fovea.compat.flash_attn_interface",
    "fovea.compat.flash_mla",
    "fovea.compat.flashinfer",
    "fovea.compat.flashinfer.cascade",
    "fovea.compat.flashinfer.decode",
    "fovea.compat.flashinfer.page",
    "fovea.compat.flashinfer.prefill",
    "fovea.compat.sageattention",
)
RECORDS = ("CacheFormat", "KvFormat", "Device", "Implementation", "FlashMLASchedMeta")  # which functions fill


def public_functions():
    """Functions, methods and constructors that the package shows, each once, with the arguments before those of the caller."""
    for name in MODULES:
        module = importlib.import_module(name)
        own = [
            shown for shown, item in vars(module).items() if getattr(item, "__module__", "") == name and not shown.startswith("_")
        ]
        for item in (getattr(module, shown) for shown in getattr(module, "__all__", own)):
            if inspect.isfunction(item):
                yield item, ()
            elif inspect.isclass(item):
                skipped = {"__init__"} if item.__name__ in RECORDS else set()
                methods = {key: value for key, value in vars(item).items() if not key.startswith("_") or key == "__init__"}
                yield from (
                    (value, (object(),)) for key, value in methods.items() if inspect.isfunction(value) and key not in skipped
                )


def wrong_call(function, before):
    """The first argument that has a type, and a call that gives something else for it and for all that are needed."""
    hints = typing.get_type_hints(function)
    parameters = list(inspect.signature(function).parameters.values())[len(before) :]
    typed = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    typed = [each for each in typed if hints.get(each.name, Any) is not Any]
    needed = [
        each.name for each in parameters if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    return (typed[0].name, dict.fromkeys([*needed, typed[0].name], object())) if typed else (None, {})


def test_every_public_function_has_a_gate():
    names = set()
    for function, before in public_functions():
        name, call = wrong_call(function, before)
        if name is not None:
            kind, text = refusal(function, *before, **call)
            assert kind is TypeError and text.startswith(f"{name}: got object, want "), (function.__qualname__, text)
            names.add(function.__qualname__)
    assert len(names) > 80 and {"attention", "Layout.__init__", "sageattn", "unpad_input", "flash_mla_sparse_fwd"} <= names
