# SPDX-License-Identifier: Apache-2.0
"""Repeated calls of a public function leave torch's dispatcher out: which do, and which must not."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fovea
from fovea._c_plans import C_PLANS
from fovea._dispatch import OPERATORS
from public_calls import CALLS, DEVICES, call_on
from small_calls import paged

FOR_THE_OPERATOR = ("merge_states", "quantize_and_attend")
"""Calls that hold a list of tensors, or a dtype."""


class Watched:
    """How the calls of an operator went: True for those that ran a known plan."""

    def __init__(self, monkeypatch, name: str) -> None:
        self.known: list[bool] = []
        operator = OPERATORS[name]
        run = operator.run_known

        def run_known(args):
            self.known.append(run(args))
            return self.known[-1]

        monkeypatch.setattr(operator, "run_known", run_known)


@pytest.fixture
def calls(monkeypatch):
    return Watched(monkeypatch, "paged_attention")


def unlike_others() -> dict:
    """A call with a scale that no other test has."""
    unlike_others.scale = getattr(unlike_others, "scale", 0.125) + 0.0009765625
    return paged() | {"scale": unlike_others.scale}


def test_the_module_is_there():
    """Its parts of torch are looked up by name: one that is gone must not only make calls slow."""
    assert C_PLANS is not None


def test_the_second_call_of_a_kind(calls):
    call = unlike_others()
    want = fovea.paged_attention(**call).clone()
    version = call["out"]._version
    call["out"].fill_(torch.nan)
    assert torch.equal(fovea.paged_attention(**call), want)
    assert calls.known == [False, True] and call["out"]._version > version + 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("label", [label for label in CALLS if not label.startswith(FOR_THE_OPERATOR)])
def test_every_function(label, device, monkeypatch):
    public, arguments = call_on(label, device)
    public.function(**arguments)
    watched = [Watched(monkeypatch, name) for name in OPERATORS]
    public.function(**arguments)
    known = [each for operator in watched for each in operator.known]
    assert known and all(known)


def test_other_values_and_memory(calls):
    call = unlike_others()
    fovea.paged_attention(**call)
    call["q"] = torch.randn_like(call["q"])
    call["k_cache"].mul_(0.5)
    known = fovea.paged_attention(**call).clone()
    plan = fovea.plan_paged_attention(**call)
    assert torch.equal(plan.run(), known) and calls.known[:2] == [False, True]


def test_an_error_of_a_known_call(calls):
    call = unlike_others()
    fovea.paged_attention(**call)
    with pytest.raises(ValueError, match=r"^kv_len\[0\]: got 1000"):
        fovea.paged_attention(**call | {"kv_len": torch.full_like(call["kv_len"], 1000)})
    assert len(calls.known) == 1  # the second one raised in C


def test_gradients_are_refused(calls):
    call = unlike_others()
    fovea.paged_attention(**call)
    with pytest.raises(NotImplementedError, match=r"^q.requires_grad"):
        fovea.paged_attention(**call | {"q": call["q"].clone().requires_grad_()})
    assert calls.known == [False, False]


def test_negative_views_are_resolved(calls):
    call = unlike_others()
    want = fovea.paged_attention(**call | {"q": -call["q"]}).clone()
    negative = torch._neg_view(call["q"])
    assert torch.equal(fovea.paged_attention(**call | {"q": negative}), want) and calls.known == [False, False]


def test_a_negative_view_in_the_place_of_another_tensor(calls):
    """Its object may have the address of one that is gone, over the same memory."""
    call, base = unlike_others(), torch.randn(3, 4, 64)
    want = fovea.paged_attention(**call | {"q": -base}).clone()
    for _ in range(20):
        fovea.paged_attention(**call | {"q": base[:]})
        assert torch.equal(fovea.paged_attention(**call | {"q": torch._neg_view(base)}), want)


def test_storage_that_shrinks(calls):
    call = unlike_others()
    fovea.paged_attention(**call)
    q = torch.empty_like(call["q"]).copy_(call["q"])
    q.untyped_storage().resize_(4)
    with pytest.raises(ValueError, match=r"^q.storage"):
        fovea.paged_attention(**call | {"q": q})
    assert calls.known == [False, False]


def test_modes_see_every_call(calls):
    call = unlike_others()
    fovea.paged_attention(**call)
    seen = []

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        fovea.paged_attention(**call)
    assert OPERATORS["paged_attention"].overload in seen and calls.known == [False, False]


def test_the_profiler_sees_every_call(calls):
    call = unlike_others()
    fovea.paged_attention(**call)
    with torch.profiler.profile() as profile:
        fovea.paged_attention(**call)
    assert any(event.key == "fovea::paged_attention" for event in profile.key_averages()) and len(calls.known) == 1


def test_threads_of_torch_are_part_of_a_call(calls):
    call, before = unlike_others(), torch.get_num_threads()
    fovea.paged_attention(**call)
    try:
        torch.set_num_threads(before + 1)
        fovea.paged_attention(**call)
    finally:
        torch.set_num_threads(before)
    fovea.paged_attention(**call)
    assert calls.known == [False, False, True]
