# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's functions over Fovea, each optional argument once, and the tensors that a caller hands over or changes later."""

import inspect

import pytest
import torch

import fovea.compat.flashinfer as flashinfer
import plain
from flashinfer_pages import DIM, HEADS, KV_HEADS, LOG2E, SHAPE, WORKSPACE, Decode, Pages, Prefill, Ragged, check

NUMBERS = torch.zeros(2, dtype=torch.int32)
# By argument: a value that changes nothing.
TAKEN_BY_PLAN = {
    "pos_encoding_mode": "NONE",
    "use_fp16_qk_reduction": True,
    "rope_scale": 2.0,
    "rope_theta": 1e5,
    "non_blocking": False,
    "seq_lens": NUMBERS,
    "seq_lens_q": NUMBERS,
    "block_tables": NUMBERS[None],
    "max_token_per_sequence": 3,
    "max_sequence_kv": 20,
    "uniform_q_len": 2,
    "fixed_split_size": 4,
    "disable_split_kv": True,
    "o_data_type": "float32",
    "token_pos_in_items_len": 0,
}
TAKEN_BY_RUN = {"enable_pdl": True, "use_fp16_softmax": False, "uses_spcompress": False}
# By argument: a value, and what it makes of the formula.
SCORES_OF_PLAN = {
    "causal": (True, {"right": 0}),
    "window_left": (2, {"left": 2}),
    "logits_soft_cap": (1.5, {"softcap": 1.5}),
    "sm_scale": (0.4, {"scale": 0.4}),
}
SCORES_OF_RUN = {
    "q_scale": (0.5, {"scale": 0.125}),
    "k_scale": (2.0, {"scale": 0.5}),
    "window_left": (1, {"left": 1}),
    "sinks": (torch.tensor([0.5, -1.0, 2.0, 0.0]), {"sink": torch.tensor([0.5, -1.0, 2.0, 0.0])}),
}
REFUSED = {
    "prefix_len_ptr": NUMBERS,
    "token_pos_in_items_ptr": NUMBERS,
    "token_pos_in_items_len": 3,
    "max_item_len_ptr": NUMBERS,
    "v_indptr": NUMBERS,
    "o_indptr": NUMBERS,
    "window_right": 1,
    "o_scale": 2.0,
    "kv_cache_sf": (torch.ones(1), torch.ones(1)),
    "skip_softmax_threshold_scale_factor": 1.0,
}


class Case:
    """A wrapper and its tensors: two sequences of 5 and 9 keys."""

    def __init__(self, kind):
        self.kind, lengths = kind, [1, 1] if kind is Decode else [2, 3]
        self.pages = Pages([5, 9])
        self.q = torch.randn(sum(lengths), HEADS, DIM)
        self.queries = self.q.split(lengths)
        self.ends = torch.tensor([0, *lengths]).cumsum(0)
        self.keys = [torch.cat(self.pages.k), torch.cat(self.pages.v)] if kind is Ragged else [self.pages.cache]

    def tables(self):
        if self.kind is Decode:
            return [*self.pages.table(), *SHAPE.values(), self.pages.page]
        if self.kind is Prefill:
            return [self.ends, *self.pages.table(), *SHAPE.values(), self.pages.page]
        return [self.ends, torch.tensor([0, 5, 14]), *SHAPE.values()]

    def run(self, of_plan=(), of_run=()):
        wrapper = self.kind(WORKSPACE)
        wrapper.plan(*self.tables(), **{"q_data_type": "float32"} | dict(of_plan))
        return wrapper.run(self.q, *self.keys, **dict(of_run))

    def expect(self, **options):
        return self.pages.expect(self.queries, **options)


def case_with(kind, function, values):
    return [name for name in values if name in inspect.signature(function).parameters]


ALL = [(kind, name) for kind in (Decode, Prefill, Ragged) for name in case_with(kind, kind.plan, TAKEN_BY_PLAN | SCORES_OF_PLAN)]


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_each_argument_of_plan(kind, name):
    value, formula = SCORES_OF_PLAN.get(name, (TAKEN_BY_PLAN.get(name), {}))
    case = Case(kind)
    check(*case.run({name: value}, {"return_lse": True}), case.expect(**formula))


ALL = [(kind, name) for kind in (Decode, Prefill, Ragged) for name in case_with(kind, kind.run, TAKEN_BY_RUN | SCORES_OF_RUN)]


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_each_argument_of_run(kind, name):
    value, formula = SCORES_OF_RUN.get(name, (TAKEN_BY_RUN.get(name), {}))
    case = Case(kind)
    check(*case.run((), {"return_lse": True, name: value}), case.expect(**formula), formula.get("sink"))


ALL = [(kind, kind.plan, name) for kind in (Decode, Prefill, Ragged) for name in case_with(kind, kind.plan, REFUSED)]
ALL += [(kind, kind.run, name) for kind in (Decode, Prefill, Ragged) for name in case_with(kind, kind.run, REFUSED)]


@pytest.mark.parametrize(("kind", "function", "name"), ALL)
def test_each_argument_that_is_refused(kind, function, name):
    case, option = Case(kind), {name: REFUSED[name]}
    with pytest.raises(NotImplementedError, match=rf"^{name}: got "):
        case.run(*(option, ()) if function is kind.plan else ((), option))


def test_other_arguments_of_plans():
    case = Case(Decode)
    for options in ({"q_data_type": None, "data_type": "float32"}, {"kv_data_type": torch.float32, "is_causal": False}):
        plain.check(case.run(options), None, case.expect())
    wrapper = Decode(WORKSPACE, "NHD", False, True, backend="fa2")
    assert wrapper.use_tensor_cores and not wrapper.is_cuda_graph_enabled
    wrapper.reset_workspace_buffer(WORKSPACE, WORKSPACE)
    case = Case(Ragged)
    v = torch.randn(14, KV_HEADS, 8)
    case.keys[1] = v
    parts = zip(case.queries, case.pages.k, v.split([5, 9]), strict=True)
    plain.check(case.run({"head_dim_vo": 8}), None, plain.join([plain.attention(*part) for part in parts]))
    case = Case(Prefill)
    case.keys = [(case.pages.cache[0], case.pages.cache[1][..., :8])]
    case.pages.v = [v[..., :8] for v in case.pages.v]
    plain.check(case.run({"head_dim_vo": 8}), None, case.expect())


SINGLE = {
    "use_fp16_qk_reduction": True,
    "backend": "fa2",
    "use_tensor_cores": True,
    "rope_scale": 2.0,
    "rope_theta": 1e5,
    "pos_encoding_mode": "NONE",
    "o_dtype": torch.float32,
}
SINGLE_FUNCTIONS = (flashinfer.single_prefill_with_kv_cache, flashinfer.single_decode_with_kv_cache)
ALL = [
    (function, name)
    for function in SINGLE_FUNCTIONS
    for name in case_with(None, function, SINGLE | SCORES_OF_PLAN | {"q_scale": 0, "k_scale": 0, "v_scale": 0})
]


@pytest.mark.parametrize(("function", "name"), ALL)
def test_each_argument_of_one_sequence(function, name):
    decode = function is SINGLE_FUNCTIONS[1]
    q, k, v = torch.randn(1 if decode else 3, HEADS, DIM), torch.randn(7, KV_HEADS, DIM), torch.randn(7, KV_HEADS, DIM)
    value, formula = {**SCORES_OF_PLAN, **SCORES_OF_RUN, "v_scale": (4.0, {})}.get(name, (SINGLE.get(name), {}))
    value, formula = SCORES_OF_PLAN.get(name, (value, formula))
    out, lse = function(q[0] if decode else q, k, v, return_lse=True, **{name: value})
    out = out / 4 if name == "v_scale" else out
    check(*(x[None] if decode else x for x in (out, lse)), plain.attention(q, k, v, **formula))


# ---- what is handed over, and what is kept ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Decode, Prefill, Ragged])
@pytest.mark.parametrize("with_lse", [False, True])
@pytest.mark.parametrize("v_scale", [None, 0.5])
def test_outputs_that_are_given_are_filled(kind, with_lse, v_scale):
    case = Case(kind)
    out, lse = torch.full_like(case.q, torch.nan), torch.full(case.q.shape[:2], torch.nan)
    sinks = {} if kind is Ragged else {"sinks": torch.ones(HEADS)}
    got = case.run((), {"out": out, "lse": lse, "return_lse": with_lse, "v_scale": v_scale, **sinks})
    assert got[0] is out and got[1] is lse if with_lse else got is out
    check(out / (v_scale or 1.0), lse, case.expect(sink=sinks.get("sinks")), sinks.get("sinks"))
    room = torch.full((3, *case.q.shape[:2]), torch.nan)
    case.run((), {"lse": room[1], "v_scale": v_scale, **sinks})  # the lse alone
    assert torch.equal(room[1], lse) and room[0].isnan().all() and room[2].isnan().all()


def test_outputs_of_the_older_names_and_of_appending_are_filled():
    case = Case(Prefill)
    wrapper, lse = Prefill(WORKSPACE), torch.full((5, HEADS), torch.nan)
    wrapper.plan(*case.tables(), q_data_type="float32")
    out, _ = wrapper.run_return_lse(case.q, *case.keys, lse=lse, lse_base="ln")
    plain.check(out, lse, case.expect())
    given = torch.full((7,), 9, dtype=torch.int32), torch.full((7,), 9, dtype=torch.int64)
    got = flashinfer.get_batch_indices_positions(case.ends, torch.tensor([5, 9]), 6, *given)
    assert given[0].tolist() == [0, 0, 1, 1, 1, -1, 9] and given[1].tolist() == [3, 4, 6, 7, 8, -1, 9]
    assert all(torch.equal(one, other[:6]) for one, other in zip(got, given, strict=True))


def test_outputs_that_do_not_fit_are_refused():
    case = Case(Ragged)
    for options, text in (
        ({"lse": torch.empty(5, 3)}, r"^lse\.shape: got \[5, 3\], want \[5, 4\]$"),
        ({"lse": torch.empty(5, 4), "lse_layout": "HN"}, r"^lse\.shape: got \[5, 4\], want \[4, 5\]$"),
        ({"lse": torch.empty(5, 4).double()}, r"^lse\.dtype: got torch\.float64, want torch\.float32$"),
        ({"out": torch.empty(5, 4, 8), "v_scale": 2.0}, r"^out\.shape: got \[5, 4, 8\], want \[5, 4, 16\]$"),
        ({"out": torch.empty(5, 4, 16).half(), "v_scale": 2.0}, r"^out\.dtype: got torch\.float16, want torch\.float32$"),
        ({"out": torch.empty(5, 4, 16).half()}, r"^out\.dtype: got torch\.float16, want torch\.float32$"),
    ):
        with pytest.raises(ValueError, match=text):
            case.run((), options)
    room = torch.empty(5 * 4 * 17)
    out, lse = room[:320].view(5, 4, 16), room[310:330].view(5, 4)
    with pytest.raises(ValueError, match=r"^lse: got memory of out, want memory of its own$"):
        case.run((), {"out": out, "lse": lse})
    packed = room.view(5, 4, 17)
    case.run((), {"out": packed[..., :16], "lse": packed[..., 16]})
    check(packed[..., :16], packed[..., 16], case.expect())
    case.q.requires_grad_()
    for name in ("out", "lse"):
        with pytest.raises(NotImplementedError, match=rf"^{name}: got a tensor, want None where a gradient is wanted"):
            case.run((), {name: torch.empty(5, 4, 16) if name == "out" else torch.empty(5, 4), "v_scale": 0.5})


@pytest.mark.parametrize("kind", [Decode, Prefill, Ragged])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kv_dtype", ["float32", "float8_e5m2"])
def test_a_plan_keeps_none_of_its_tensors(kind, dtype, kv_dtype):
    case = Case(kind)
    cache = [
        [x.to(torch.float8_e5m2) for x in keys] if isinstance(keys, tuple) else keys.to(torch.float8_e5m2) for keys in case.keys
    ]
    keys = case.keys if kv_dtype == "float32" else [tuple(x) if isinstance(x, list) else x for x in cache]
    tables = [x.to(dtype).clone() if isinstance(x, torch.Tensor) else x for x in case.tables()]
    wrapper = kind(WORKSPACE)
    wrapper.plan(*tables, q_data_type="float32", kv_data_type=kv_dtype)
    before = wrapper.run(case.q, *keys)
    for table in tables:
        if isinstance(table, torch.Tensor):
            table.fill_(1)
    assert torch.equal(wrapper.run(case.q, *keys), before)


@pytest.mark.parametrize("kind", [Decode, Prefill, Ragged])
def test_a_plan_that_is_refused_changes_nothing(kind):
    case = Case(kind)
    wrapper = kind(WORKSPACE)
    wrapper.plan(*case.tables(), q_data_type="float32", window_left=2)
    before = wrapper.run(case.q, *case.keys)
    wrong = case.tables()
    wrong[0] = torch.tensor([0, 4, 1])
    for tables, options in ((wrong, {}), (case.tables(), {"logits_soft_cap": -1.0}), (case.tables(), {"q_data_type": "float64"})):
        if kind is Ragged and options.get("q_data_type"):
            continue  # which it computes
        with pytest.raises(ValueError, match=": got "):
            wrapper.plan(*tables, **{"q_data_type": "float32"} | options)
        assert torch.equal(wrapper.run(case.q, *case.keys), before)


def test_parts_that_are_merged_in_place_are_checked_first():
    v, s = torch.randn(3, HEADS, DIM), torch.randn(3, HEADS)
    for other, mask in (((v[:2], s), None), ((v, s[:2]), None), ((v, s), torch.ones(2, dtype=torch.bool))):
        mine = v.clone(), s.clone()
        with pytest.raises(ValueError, match=r"^(v_other|s_other|mask)\.shape\[0\]"):
            flashinfer.merge_state_in_place(*mine, *other, mask)
        assert torch.equal(mine[0], v) and torch.equal(mine[1], s)


def test_lses_of_other_dtypes_are_merged():
    """s is converted, as FlashInfer does, and in place too."""
    v, s = torch.randn(2, 3, HEADS, DIM), torch.randn(2, 3, HEADS).bfloat16()
    out, lse = flashinfer.merge_state(v[0], s[0], v[1], s[1])
    weights = torch.softmax(s.float() / LOG2E, 0)
    torch.testing.assert_close(out, (weights[..., None] * v).sum(0))
    into = v[0].clone(), s[0].clone()
    flashinfer.merge_state_in_place(*into, v[1], s[1])
    assert torch.equal(into[0], out) and torch.equal(into[1], lse.bfloat16())
