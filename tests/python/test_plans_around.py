# SPDX-License-Identifier: Apache-2.0
"""Runs of a plan within threads, autocast, checkpoints, modes, transforms, traces and compiled functions."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import fovea
from calls import Calls
from plans import check, every_plan, everywhere, flat, planned, tensors_of
from public_calls import call_on, copied
from small_calls import dense


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
