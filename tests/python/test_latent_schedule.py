# SPDX-License-Identifier: Apache-2.0
"""A schedule that calls share: computed once, refused where it does not belong, and the results are those without."""

import pytest
import torch

import fovea
import public_calls
from calls import Calls
from pages import Pages

LENGTHS = [37, 5, 0, 64]


def dense(**options):
    pages, q = Pages(LENGTHS), torch.randn(4, 3, 5, 576)
    return fovea.latent_attention, {"q": q, "cache": pages.cache, "block_table": pages.table, "kv_len": pages.kv_len} | options


def packed(**options):
    pages, q = Pages(LENGTHS, format="v32_fp8"), torch.randn(4, 1, 16, 576).bfloat16()
    call = {"q": q, "cache": pages.cache, "block_table": pages.table, "kv_len": pages.kv_len, "format": "v32_fp8"}
    return fovea.latent_attention, call | options


def ragged(**options):
    pages, q = Pages(LENGTHS), torch.randn(15, 6, 576)
    cu = torch.tensor([0, 1, 6, 6, 15], dtype=torch.int32)
    call = {"q": q, "cache": pages.cache, "block_table": pages.table, "kv_len": pages.kv_len, "cu_seqlens_q": cu}
    return fovea.latent_attention, call | options


def sparse(**options):
    cache, extra = torch.randn(4, 8, 1, 576), torch.randn(3, 2, 1, 576)
    call = {
        "q": torch.randn(2, 3, 4, 576),
        "cache": cache,
        "indices": torch.randint(-1, 32, (2, 3, 20), dtype=torch.int32),
        "topk_length": torch.tensor([20, 7], dtype=torch.int32),
        "extra_cache": extra,
        "extra_indices": torch.randint(-1, 6, (2, 3, 4), dtype=torch.int32),
        "sink": torch.randn(4),
        "return_max_logits": True,
    }
    return fovea.sparse_latent_attention, call | options


def flat(**options):
    q, cache, indices = torch.randn(6, 4, 576), torch.randn(30, 1, 576), torch.randint(-1, 30, (6, 20), dtype=torch.int32)
    return fovea.sparse_latent_attention, {"q": q, "cache": cache, "indices": indices} | options


CASES = [dense, packed, ragged, sparse, flat]


def implementations(function):
    rows = fovea.implementations()
    return [row.name for row in rows if row.operation == function.__name__ and row.backend == "cpu" and row.available]


@pytest.mark.parametrize("case", CASES)
def test_layers_share_one_schedule_and_have_the_same_bits(case):
    function, layer = case(return_lse=True)
    for implementation in implementations(function):
        schedule = fovea.LatentSchedule()
        with Calls() as calls:
            for scale in (0.5, 2.0, 1.0):  # of what the caches hold
                call = layer | {"cache": layer["cache"] if layer["cache"].dtype == torch.uint8 else layer["cache"] * scale}
                call |= {"q": torch.randn_like(layer["q"]), "implementation": implementation}
                for got, want in zip(function(**call, schedule=schedule), function(**call), strict=True):
                    assert torch.equal(got, want)
        assert calls.names == ["prepare_" + function.__name__] + 6 * [function.__name__]


OTHER = [
    (dense, {"q": torch.randn(4, 2, 5, 576)}, r"q\.shape: got \[4, 2, 5, 576\], want \[4, 3, 5, 576\]"),
    (dense, {"q": torch.randn(4, 3, 6, 576)[:, :, :5]}, r"q\.strides: got \[10368, 3456, 576, 1\], want \[8640, 2880, 576, 1\]"),
    (packed, {"q": torch.randn(4, 1, 16, 576)}, r"q\.dtype: got torch\.float32, want torch\.bfloat16"),
    (dense, {"causal": False}, r"window_right: got None, want 0"),
    (dense, {"max_kv_len": 64}, r"max_kv_len: got 64, want 0"),
    (dense, {"return_lse": True}, r"lse: got a tensor, want none"),
    (sparse, {"return_max_logits": False}, r"max_logits: got none, want a tensor"),
    (dense, {"batch_invariant": True}, r"batch_invariant: got True, want False"),
    (dense, {"implementation": "reference.latent_attention"}, r"implementation: got reference\.latent_attention, want "),
    (sparse, {"topk_length": None}, r"topk_length: got none, want a tensor"),
    (sparse, {"extra_indices": torch.zeros(2, 3, 5, dtype=torch.int32)}, r"extra_indices\.shape: got \[2, 3, 5\]"),
]


@pytest.mark.parametrize(("case", "change", "message"), OTHER)
def test_a_call_of_another_description_is_refused(case, change, message):
    function, call = case()
    schedule = fovea.LatentSchedule()
    want = function(**call, schedule=schedule)
    with pytest.raises(ValueError, match=message + r".*, as in the first call with this schedule"):
        function(**call | change, schedule=schedule)
    with Calls() as calls:
        torch.testing.assert_close(function(**call, schedule=schedule), want, rtol=0, atol=0)
    assert calls.names == [function.__name__]  # it is what it was


def test_one_operation_at_a_time():
    schedule = fovea.LatentSchedule()
    for function, call in (dense(), sparse()):
        function(**call, schedule=schedule)
        schedule.reset()
    function(**call, schedule=schedule)
    other, call = dense()
    with pytest.raises(ValueError, match=r"operation: got latent_attention, want sparse_latent_attention"):
        other(**call, schedule=schedule)


def test_reset_begins_the_next_step():
    schedule, function = fovea.LatentSchedule(), fovea.latent_attention
    with Calls() as calls:
        for case in (dense, dense, packed, ragged):
            _, call = case()
            schedule.reset()
            for _ in range(2):
                assert torch.equal(function(**call, schedule=schedule), function(**call))
    assert calls.names.count("prepare_latent_attention") == 4


def test_a_first_call_that_fails_leaves_it_empty():
    schedule, (function, call) = fovea.LatentSchedule(), dense()
    with pytest.raises(ValueError, match=r"cache\.shape"):
        function(**call | {"cache": torch.randn(6, 8, 1, 128)}, schedule=schedule)
    assert torch.equal(function(**call, schedule=schedule), function(**call))


def test_explain_takes_one_too():
    function, call = dense()
    schedule = fovea.LatentSchedule()
    assert fovea.explain(function, **call, schedule=schedule) == fovea.explain(function, **call)
    assert torch.equal(function(**call, schedule=schedule), function(**call))


# ---- torch.compile ---------------------------------------------------------------------------------------------------------


def step(call, caches, schedule=None):
    """The layers of a step, each of whose queries is made of the result before."""
    schedule, total = schedule or fovea.LatentSchedule(), 0.0
    for cache in caches:
        out = fovea.latent_attention(**call | {"cache": cache}, schedule=schedule)
        total = total + out * 2
    return total


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic)
    _, call = dense()
    caches = [torch.randn_like(call["cache"]) for _ in range(3)]
    call["kv_len"].fill_(20)
    call["block_table"].fill_(2)
    want = step(call, caches)
    torch.testing.assert_close(compiled(call, caches), want)
    outside = fovea.LatentSchedule()  # filled by the first step, used by the others, compiled or not
    for one in (compiled, compiled, step):
        torch.testing.assert_close(one(call, caches, outside), want)
    outside.reset()
    call["q"] = call["q"][:, :2].contiguous()
    torch.testing.assert_close(compiled(call, caches, outside), step(call, caches))


def test_a_compiled_step_computes_its_schedule_once():
    torch._dynamo.reset()
    names = []

    def backend(module, inputs):
        names.extend(node.target.name() for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload))
        return module

    _, call = dense()
    call["cache"] = call["cache"].nan_to_num()
    torch.compile(step, fullgraph=True, backend=backend)(call, 3 * [call["cache"]])
    assert names == ["fovea::prepare_latent_attention"] + 3 * ["fovea::latent_attention"]


@pytest.mark.parametrize("label", ["latent_attention", "latent_attention, packed", "sparse_latent_attention"])
def test_calls_without_data_take_one_too(label):
    """Results have shapes alone; a tensor with data among others without is refused by name."""
    call = public_calls.CALLS[label]
    arguments = call.on("cpu")
    empty = {name: value.to("meta") if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    result = call.function(**empty, schedule=fovea.LatentSchedule())
    assert all(part.is_meta for part in (result if isinstance(result, tuple) else (result,)))
    with pytest.raises(ValueError, match=r"^cache\.device: got cpu, want meta, as the tensors before it$"):
        call.function(**arguments | {"q": empty["q"]}, schedule=fovea.LatentSchedule())
