# SPDX-License-Identifier: Apache-2.0
"""Tensors that do not fit a plan: the error names the field and what was planned."""

import pytest
import torch

import fovea
from plans import every_plan, planned, tensors_of
from small_calls import dense, int32, paged
from test_storage import shortened

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


@pytest.mark.parametrize("share", [2, 0.5, torch.rand(2)])
def test_dropout_and_schedules_of_functions_without_them(share):
    """They are refused as the function refuses them."""
    with pytest.raises(TypeError, match=r"^paged_attention\(\) got an unexpected keyword argument 'dropout_p'"):
        fovea.plan_paged_attention(**paged(), dropout_p=share)
    with pytest.raises(TypeError, match=r"^attention\(\) got an unexpected keyword argument 'schedule'"):
        fovea.plan_attention(**dense(), schedule=fovea.LatentSchedule())
    if isinstance(share, torch.Tensor):
        with pytest.raises(TypeError, match=r"^dropout_p: got torch.Tensor, want a number"):
            fovea.plan_attention(**dense(), dropout_p=share)
    else:
        with pytest.raises(ValueError, match=r"^dropout_state: got None, want a tensor"):
            fovea.plan_attention(**dense(), dropout_p=share)


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


def test_lengths_that_were_not_planned(monkeypatch):
    """On a GPU a call without lengths makes some, of one row each: the plan rests on these."""
    monkeypatch.setattr("fovea._paged.one_row_each", lambda q: torch.arange(q.shape[0] + 1, dtype=torch.int32))
    call = paged(q=torch.randn(2, 4, 64), out=torch.full((2, 4, 64), torch.nan), cu_seqlens_q=None)
    plan = fovea.plan_paged_attention(**call)
    tensors = [call[name] for name in ("q", "k_cache", "v_cache", "block_table", "kv_len")]
    assert torch.equal(plan.run(*tensors), fovea.paged_attention(**call))
    for given, named in (((int32(0, 1, 1),), {}), ((), {"cu_seqlens_q": int32(0, 1, 1)})):
        with pytest.raises(TypeError, match=r"^run\(\) "):
            plan.run(*tensors, *given, **named)
