# SPDX-License-Identifier: Apache-2.0
"""Plans that callers hold: every operation, in the ways in which people run them, judged by the operations' definitions."""

import gc
import inspect
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import fovea
import judge
from calls import Calls
from fovea import _plan
from public_calls import CALLS, DEVICES, call_on, copied
from small_calls import dense, int32, latent, paged, ragged
from test_storage import shortened

PLANNED = [label for label in CALLS if hasattr(fovea, f"plan_{label.partition(',')[0]}")]
every_plan = pytest.mark.parametrize("label", PLANNED)
everywhere = pytest.mark.parametrize("device", DEVICES)
given_or_new = pytest.mark.parametrize("outputs", [False, True], ids=["new outputs", "given outputs"])
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
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


def planned(label, device="cpu", outputs=False):
    """A call, its arguments and a plan of it."""
    call, arguments = call_on(label, device, outputs)
    return call, arguments, getattr(fovea, f"plan_{call.name}")(**arguments)


def tensors_of(call, plan):
    """The arguments of a call that its plan takes by name."""
    names = [slot.name for slot in plan._slots]
    flat = dict(call)
    if "qk" in call:
        flat |= call["qk"]._asdict() | {"v": call["v"].v, "v_scale": call["v"].scale, "v_mean": call["v"].mean}
    return {name: flat[name] for name in names if isinstance(flat.get(name), torch.Tensor) and plan._description[name]}


def check(call, arguments, before, result):
    judge.check(call.name, arguments, result, before)


# ---- every operation -----------------------------------------------------------------------------------------------------------


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


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in flat(item)] if isinstance(value, list | tuple) else []


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


# ---- tensors that do not fit ----------------------------------------------------------------------------------------------------

WRONG = {
    "dtype": (lambda q: q.double(), r"q\.dtype: got torch.float64, want torch.float32, as planned"),
    "shape": (lambda q: q[:1], r"q\.shape: got \[1, 5, 4, 64\], want \[2, 5, 4, 64\], as planned"),
    "rank": (lambda q: q[0], r"q\.shape: got \[5, 4, 64\], want \[2, 5, 4, 64\], as planned"),
    "strides": (
        lambda q: q.transpose(1, 2).contiguous().transpose(1, 2),
        r"q\.strides\[1\]: got 64, want 256, as planned",
    ),
    "alignment": (
        lambda q: torch.empty(q.numel() + 1)[1:].view(q.shape),
        r"q\.alignment: got 4 bytes, want 16, as planned",
    ),
    "device": (lambda q: q.to("meta"), r"q\.device: got meta, want cpu, as planned"),
    "layout": (lambda q: q.to_sparse(), r"q\."),
    "storage": (shortened, r"q\.storage: got \d+ bytes, want at least \d+"),
    "requires_grad": (lambda q: q.requires_grad_(), r"q\.requires_grad: got True, want False"),
}


@pytest.mark.parametrize("field", WRONG)
def test_one_field_is_wrong(field):
    plan = fovea.plan_attention(**dense())
    change, text = WRONG[field]
    q = dense()["q"]
    with pytest.raises((ValueError, NotImplementedError), match="^" + text):
        plan.run(change(q.clone()))
    plan.run(q)


@every_plan
@pytest.mark.parametrize("change", [lambda t: t[..., None], lambda t: t.to(torch.complex64), shortened])
def test_every_tensor_is_checked(label, change):
    call, arguments, plan = planned(label, outputs=True)
    for name, tensor in tensors_of(arguments, plan).items():
        if change is not shortened or tensor.numel():
            with pytest.raises(ValueError, match=rf"^(extra_)?{name}\."):
                plan.run(**{name: change(tensor)})
    assert plan.run() is not None or call.name == "paged_cache_append"


def test_arguments_that_a_plan_does_not_take():
    call = dense()
    plan = fovea.plan_attention(call["q"], call["k"], call["v"])
    with pytest.raises(TypeError, match="unexpected keyword argument 'scale'; want q, k, v"):
        plan.run(scale=1.0)
    with pytest.raises(TypeError, match="takes 3 tensors by position"):
        plan.run(*call.values())
    with pytest.raises(TypeError, match="multiple values for argument 'q'"):
        plan.run(call["q"], q=call["q"])
    with pytest.raises(TypeError, match=r"^q: got 1, want a torch\.Tensor"):
        plan.run(1)
    with pytest.raises(ValueError, match=r"^lse: got a tensor, want none, as planned"):
        plan.run(lse=call["lse"])
    with pytest.raises(ValueError, match=r"^prepared: got True, want False before prepare\(\)"):
        plan.run(prepared=True)
    with pytest.raises(TypeError, match=r"^prepared: got 1, want a bool"):
        plan.run(prepared=1)


def test_errors_of_a_run_are_in_pythons_words():
    call = paged()
    plan = fovea.plan_paged_attention(**call)
    with pytest.raises(ValueError, match=r"^kv_len\[1\]"):
        plan.run(kv_len=int32(3, 99))
    with pytest.raises(ValueError, match=r"^out \(address\): got that of q"):
        plan.run(out=call["q"])
    assert plan.run() is call["out"]


def test_sizes_of_one_have_any_stride():
    q = torch.randn(1, 1, 4, 64)
    plan = fovea.plan_attention(q, q, q)
    assert torch.equal(plan.run(q.as_strided(q.shape, (7, 3, 64, 1))), plan.run(q))


def test_memory_that_changes_under_a_tensor():
    call = dense()
    plan = fovea.plan_attention(**call)
    for _ in range(2):
        plan.run()
    call["q"].set_(torch.randn(2, 5, 4, 64))
    want = fovea.attention(call["q"], call["k"], call["v"])
    assert torch.equal(plan.run()[0], want)
    call["q"].untyped_storage().resize_(16)
    with pytest.raises(ValueError, match=r"^q\.storage: got 16 bytes"):
        plan.run()


# ---- outputs --------------------------------------------------------------------------------------------------------------------


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


# ---- around a run ---------------------------------------------------------------------------------------------------------------


@everywhere
@every_plan
def test_threads(label, device):
    """One plan in several threads at once, each with tensors of its own."""
    plan = planned(label, device)[2]
    calls = [call_on(label, device) for _ in range(4)]

    def run(made):
        call, arguments = made
        before = copied(arguments)
        for _ in range(5):
            check(call, arguments, before, plan.run(**tensors_of(arguments, plan)))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, calls))


@everywhere
@pytest.mark.parametrize("grad", [False, True])
@every_plan
def test_autocast_is_ignored(label, grad, device):
    call, arguments = call_on(label, device)
    before = copied(arguments)
    with torch.autocast(device, torch.bfloat16), torch.set_grad_enabled(grad):
        plan = getattr(fovea, f"plan_{call.name}")(**arguments)
        check(call, arguments, before, plan.run())
    assert torch.is_autocast_enabled(device) is False


@pytest.mark.parametrize("reentrant", [False, True])
@every_plan
def test_checkpoints(label, reentrant):
    call, arguments, plan = planned(label, outputs=True)
    before, x = copied(arguments), torch.ones(3, requires_grad=True)
    results = []

    def layer(x):
        results.append(plan.run())
        return x.exp()

    checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    for result in results:
        check(call, arguments, before, result)
    assert len(results) == 2


def test_gradients_are_refused():
    call = dense()
    with pytest.raises(NotImplementedError, match=r"^q\.requires_grad: got True"):
        fovea.plan_attention(call["q"].requires_grad_(), call["k"], call["v"])
    with torch.no_grad():
        plan = fovea.plan_attention(call["q"], call["k"], call["v"])
        plan.run()
    with pytest.raises(NotImplementedError, match=r"^q\.requires_grad"):
        plan.run()
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="tangent"):
        plan.run(forward_ad.make_dual(call["q"].detach(), torch.ones(2, 5, 4, 64)))


@pytest.mark.parametrize("make", ["attention", "paged_attention", "sparse_latent_attention, flat"])
def test_modes_see_the_operator(make):
    call, _, plan = planned(make)
    want = plan.run()
    with Calls() as calls:
        got = plan.run()
    assert calls.names == [call.name]
    assert all(torch.equal(one, other) for one, other in zip(flat([got]), flat([want]), strict=True))
    assert fovea.explain(plan.run) == plan.explain()


def test_function_modes_see_the_operator():
    seen = []

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    plan = fovea.plan_attention(**dense())
    with Mode():
        plan.run()
    assert any("fovea.attention" in name for name in seen)


@pytest.mark.filterwarnings("ignore")
def test_traces_have_the_operator():
    call = dense()
    plan = fovea.plan_attention(call["q"], call["k"], call["v"])
    traced = torch.jit.trace(lambda q: plan.run(q), (call["q"],))
    assert "fovea::attention" in str(traced.graph)


def test_transforms_are_refused():
    call = dense()
    plan = fovea.plan_attention(call["q"], call["k"], call["v"])
    with pytest.raises(NotImplementedError, match=r"^q: got a tensor mapped by torch\.vmap"):
        torch.vmap(lambda q: plan.run(q))(torch.stack([call["q"], call["q"]]))
    with pytest.raises(NotImplementedError, match=r"^q\.requires_grad: got True"):
        torch.func.grad(lambda q: plan.run(q).sum())(call["q"])
    with pytest.raises(NotImplementedError, match=r"^q: got a tensor within torch\.vmap"):
        torch.vmap(lambda q: fovea.plan_attention(q, call["k"], call["v"]))(torch.stack([call["q"], call["q"]]))


def test_views_of_negatives_have_the_values_that_they_show():
    call = dense()
    plan = fovea.plan_attention(call["q"], call["k"], call["v"])
    want = plan.run(-call["q"])
    for _ in range(2):
        assert torch.equal(plan.run(torch._neg_view(call["q"])), want)


def test_subclasses_take_the_operator_and_parameters_do_not():
    class Own(torch.Tensor):
        pass

    call = dense()
    plan = fovea.plan_attention(call["q"], call["k"], call["v"])
    want = plan.run()
    assert torch.equal(plan.run(call["q"].as_subclass(Own)), want)
    assert torch.equal(plan.run(torch.nn.Parameter(call["q"], requires_grad=False)), want)


def test_compiled_functions_break_their_graph():
    torch._dynamo.reset()
    call = dense()
    plan = fovea.plan_attention(call["q"], call["k"], call["v"])
    compiled = torch.compile(lambda q: plan.run(q + 1) + 1, backend="aot_eager")
    torch.testing.assert_close(compiled(call["q"]), plan.run(call["q"] + 1) + 1)


# ---- schedules ------------------------------------------------------------------------------------------------------------------


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
