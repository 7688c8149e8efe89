# SPDX-License-Identifier: Apache-2.0
"""Plans that callers hold: every operation, its outputs and schedules, judged by the operations' definitions."""

import gc
import inspect
import subprocess
import sys
import weakref

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import fovea
from fovea import _plan
from plans import PLANNED, check, every_plan, everywhere, flat, given_or_new, needs_cuda, planned, tensors_of
from public_calls import call_on, copied
from small_calls import dense, int32, latent, paged, ragged

FUNCTIONS = [getattr(fovea, name) for name in fovea.__all__ if name.startswith("plan_")]


def test_runs_are_in_c():
    """A torch without one of the names that the module needs must not pass unnoticed."""
    assert _plan.IN_C


def test_the_package_works_without_the_module():
    code = (
        "import sys; sys.modules['fovea._plans'] = None; import torch, fovea; from fovea import _plan; assert not _plan.IN_C;"
        "q = torch.ones(1, 4, 1, 16); plan = fovea.plan_attention(q, q, q); plan.prepare();"
        "assert torch.equal(plan.run(q, prepared=True), q) and plan.implementation"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ---- every operation -------------------------------------------------------------------------------------------------------------


@everywhere
@given_or_new
@every_plan
def test_planning_writes_nothing_and_runs_compute(label, outputs, device):
    call, arguments = call_on(label, device, outputs)
    before = copied(arguments)
    plan = getattr(fovea, f"plan_{call.name}")(**arguments)
    for got, want in zip(flat(arguments), flat(before), strict=True):
        assert torch.equal(got.view(torch.uint8), want.view(torch.uint8))
    for _ in range(2):
        check(call, arguments, before, plan.run())


@everywhere
@given_or_new
@every_plan
def test_other_tensors(label, outputs, device):
    """A plan runs over tensors of another call with the same description, by name and by position."""
    plan = planned(label, device, outputs)[2]
    torch.manual_seed(5)
    call, other = call_on(label, device, outputs)
    before = copied(other)
    tensors = tensors_of(other, plan)
    check(call, other, before, plan.run(**tensors))
    by_position = [plan._slots[index].name for index in plan._order]
    args = [tensors.pop(name) if name in tensors else None for name in by_position]
    check(call, other, before, plan.run(*args, **tensors))


@every_plan
def test_a_plan_gives_the_bits_of_its_function(label):
    call, arguments, plan = planned(label)
    want = call.function(**copied(arguments))
    got = plan.run()
    for one, other in zip(flat([got]), flat([want]), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@everywhere
@every_plan
def test_what_a_plan_says(label, device):
    call, arguments, plan = planned(label, device)
    assert plan.explain() == fovea.explain(call.function, **arguments)
    assert plan.implementation in [row.name for row in fovea.implementations()]
    assert plan.workspace_bytes >= 0
    assert call.name in repr(plan) and plan.implementation in repr(plan)


@pytest.mark.parametrize("plan", FUNCTIONS, ids=lambda plan: plan.__name__)
def test_signatures(plan):
    function = getattr(fovea, plan.__name__.removeprefix("plan_"))
    assert inspect.signature(plan).parameters == inspect.signature(function).parameters
    assert plan.__annotations__["return"] is fovea.Plan


def test_errors_of_planning_are_those_of_the_function():
    with pytest.raises(ValueError, match=r"^v\.shape"):
        fovea.plan_attention(**dense(v=torch.randn(2, 7, 3, 64)))
    with pytest.raises(TypeError, match=r"^scale: got 'x'"):
        fovea.plan_attention(**dense(), scale="x")
    with pytest.raises(ValueError, match=r"^implementation: got nothing"):
        fovea.plan_attention(**dense(), implementation="nothing")
    with pytest.raises(ValueError, match=r"^kv_len\.shape: got \[3\], want \[2\]"):
        fovea.plan_paged_attention(**paged(kv_len=int32(1, 2, 3)))
    with pytest.raises(ValueError, match=r"^schedule: got a schedule, want None"):
        fovea.plan_latent_attention(**latent(), schedule=fovea.LatentSchedule())


# ---- outputs ---------------------------------------------------------------------------------------------------------------------


def test_outputs():
    call = dense()
    given, new = fovea.plan_attention(**call), fovea.plan_attention(call["q"], call["k"], call["v"], return_lse=True)
    out, lse = given.run()
    assert out is call["out"] and lse is call["lse"]
    other = torch.empty_like(call["out"])
    assert given.run(out=other)[0] is other and given.run()[0] is call["out"]
    assert new.run(out=other, lse=lse) == (other, lse)
    one, two = new.run()[0], new.run()[0]
    assert one.data_ptr() != two.data_ptr() and torch.equal(one, two)


@pytest.mark.parametrize("make", [lambda: ragged(), lambda: paged(cu_seqlens_q=int32(0, 1, 2))])
def test_rows_of_no_sequence(make):
    """A plan that makes its outputs fills them, in whatever memory."""
    call = make()
    function = fovea.plan_attention if "k" in call else fovea.plan_paged_attention
    if "k" in call:
        call["cu_seqlens_q"] = int32(0, 2, 4)
    out = call.pop("out")
    last = function(**call).run()[-1]
    assert torch.equal(last, torch.zeros_like(last))
    assert function(**call, out=out).run()[-1].isnan().all()


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@every_plan
def test_what_is_written_counts_as_changed(label, mode):
    _, arguments, plan = planned(label, outputs=True)
    tensors = tensors_of(arguments, plan)
    with mode():
        before = {name: tensor._version for name, tensor in tensors.items()}
        plan.run(**tensors)
        changed = {name for name, tensor in tensors.items() if tensor._version != before[name]}
    assert changed == {slot.name for slot in plan._slots if slot.written} & tensors.keys()


def test_plans_and_tensors_are_freed():
    call = dense()
    plan, q = fovea.plan_attention(call["q"], call["k"], call["v"]), torch.randn(2, 5, 4, 64)
    plan.run(q)
    gone = [weakref.ref(plan), weakref.ref(q), weakref.ref(call["q"])]
    gc.disable()
    del plan, q, call
    gc.enable()
    assert [ref() for ref in gone] == [None, None, None]


def positional(function, arguments):
    """The tensors that a plan of a function takes by position, out of its arguments."""
    kinds = inspect.signature(function).parameters.values()
    names = [each.name for each in kinds if each.kind is each.POSITIONAL_OR_KEYWORD and each.name in arguments]
    return [arguments.pop(name) for name in names[: 5 if function is fovea.paged_cache_append else 2]]


@everywhere
@pytest.mark.parametrize("name", ["attention", "paged_attention", "paged_cache_append", "latent_attention"])
def test_plans_of_layers_keep_no_tensor_of_a_layer(name, device):
    function = getattr(fovea, name)
    call, arguments = call_on(next(label for label in PLANNED if label.partition(",")[0] == name), device, True)
    before, named = copied(arguments), dict(arguments)
    tensors = positional(function, named)
    plan = _plan.layers_planner(function)(*tensors, **named)
    check(call, arguments, before, plan.run(*tensors))
    plan.prepare(*tensors)
    check(call, arguments, before, plan.run(*tensors, prepared=True))
    for missing in ((), (None, *tensors[1:])):
        for use in (plan.run, plan.prepare):
            with pytest.raises(TypeError, match="missing a tensor: '"):
                use(*missing)
    gone = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]
    del tensors, arguments, before, missing
    assert all(ref.expired() for ref in gone)


# ---- schedules -------------------------------------------------------------------------------------------------------------------


@everywhere
@every_plan
def test_prepared_runs(label, device):
    call, arguments, plan = planned(label, device, outputs=True)
    before = copied(arguments)
    plan.prepare()
    for _ in range(2):
        check(call, arguments, before, plan.run(prepared=True))
    plan.prepare(**tensors_of(arguments, plan))
    check(call, arguments, before, plan.run(prepared=True))


@needs_cuda
@every_plan
def test_streams(label):
    """One plan on two streams at once: each run has a workspace of its own."""
    plan = planned(label, "cuda")[2]
    made = [call_on(label, "cuda") for _ in range(2)]
    before = [copied(arguments) for _, arguments in made]
    streams, results = [torch.cuda.Stream() for _ in made], []
    torch.cuda.synchronize()
    for _ in range(10):
        results = []
        for stream, (_, arguments) in zip(streams, made, strict=True):
            with torch.cuda.stream(stream):
                results.append(plan.run(**tensors_of(arguments, plan)))
    torch.cuda.synchronize()
    for (call, arguments), result, old in zip(made, results, before, strict=True):
        check(call, arguments, old, result)


@needs_cuda
@pytest.mark.parametrize("prepared", [False, True])
@every_plan
def test_graphs(label, prepared):
    """Captured runs replay over the values of later; a schedule from outside is read where it was left."""
    call, arguments, plan = planned(label, "cuda", outputs=True)
    before = copied(arguments)
    plan.prepare()
    plan.run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = plan.run(prepared=prepared)
    for tensor in flat(result):
        tensor.fill_(torch.nan)
    plan.prepare()
    plan.run()
    graph.replay()
    torch.cuda.synchronize()
    check(call, arguments, before, result)
