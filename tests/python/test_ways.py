# SPDX-License-Identifier: Apache-2.0
"""The ways in which people call the public functions: first in a thread, in a forked worker, under checkpointing, autocast and
inference mode, compiled, with given outputs. The results of a call are judged by the operation's definition (judge.py)."""

import contextlib
import copy
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import fovea
import fovea.distributed
import judge
from public_calls import CALLS, DEVICES, call_on, copied

every_call = pytest.mark.parametrize("label", CALLS)
everywhere = pytest.mark.parametrize("device", DEVICES)


def judged(label, device="cpu", outputs=False):
    """Makes the call and judges it."""
    call, arguments = call_on(label, device, outputs)
    before = copied(arguments)
    judge.check(call.name, arguments, call.function(**arguments), before)


@everywhere
@pytest.mark.parametrize("outputs", [False, True], ids=["new outputs", "given outputs"])
@every_call
def test_plainly(label, outputs, device):
    judged(label, device, outputs)


@every_call
def test_the_judge_notices_other_values(label):
    call, arguments = call_on(label, "cpu")
    before = copied(arguments)
    result = call.function(**arguments)
    for name, tensor in judge.results(call.name, arguments, result).items():
        wrong = tensor.view(torch.uint8)[..., -1:]  # of the caller's own memory, or of what the function made
        wrong += 64
        with pytest.raises(AssertionError):
            judge.check(call.name, arguments, result, before)
        wrong -= 64
        assert name


# ---- threads and processes -----------------------------------------------------------------------------------------------------


def in_threads_of_their_own(device):
    """Each call is the first that its thread makes."""
    for label, call in CALLS.items():
        with contextlib.suppress(pytest.skip.Exception):
            made = call_on(label, device)[1]
            before = copied(made)
            with ThreadPoolExecutor(1) as thread:
                result = thread.submit(call.function, **made).result()
            judge.check(call.name, made, result, before)


def in_autograds_thread(device):
    """The backward pass is the first work on the device of autograd's own thread."""
    for label in ("attention", "attention, ragged", "scaled_dot_product_attention", "merge_states"):
        check_gradient(label, device)


def in_workers():
    """Processes that are forked before a thread has been used, as DataLoader's."""
    loader = torch.utils.data.DataLoader(_Calls(), batch_size=None, num_workers=2, multiprocessing_context="fork")
    assert sorted(loader) == sorted(CALLS)


class _Calls(torch.utils.data.Dataset):
    def __len__(self):
        return len(CALLS)

    def __getitem__(self, index):
        label = list(CALLS)[index]
        judged(label)
        return label


def in_a_fresh_process(code):
    code = f"import sys; sys.path[:] = {sys.path!r}; import test_ways\n{code}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-3000:]


@everywhere
@pytest.mark.parametrize("function", [in_threads_of_their_own, in_autograds_thread], ids=lambda function: function.__name__)
def test_first_calls(function, device):
    in_a_fresh_process(f"test_ways.{function.__name__}({device!r})")


def test_forked_workers():
    in_a_fresh_process("test_ways.in_workers()")


@everywhere
def test_all_functions_from_several_threads_at_once(device):
    def run(label):
        with contextlib.suppress(pytest.skip.Exception):
            judged(label, device)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, list(CALLS) * 4))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_call
def test_streams(label):
    """Inputs come late on a stream that is not the default one, and results are read there."""
    call, ready = call_on(label, "cuda", outputs=True)
    before, arguments = copied(ready), copied(ready)
    late = [(to, value) for to, value in zip(tensors_of(arguments), tensors_of(ready), strict=True) if to.is_floating_point()]
    for to, _ in late:
        to.view(torch.uint8).zero_()
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for to, value in late:
            to.copy_(value)
        result = call.function(**arguments)
        judge.check(call.name, arguments, result, before)


def tensors_of(value):
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in tensors_of(item)] if isinstance(value, list | tuple) else []


# ---- around a call -------------------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.set_grad_enabled], ids=lambda mode: mode.__name__)
@every_call
def test_grad_modes(label, mode, device):
    """Also over tensors from outside of the mode."""
    call, arguments = call_on(label, device, outputs=True)
    before = copied(arguments)
    with mode(True) if mode is not torch.no_grad else mode():
        judge.check(call.name, arguments, call.function(**arguments), before)
        judged(label, device)


AUTOCAST = ("attention", "scaled_dot_product_attention")
"""Functions that follow it."""


@everywhere
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@every_call
def test_autocast(label, grad, device):
    call, arguments = call_on(label, device)
    before = copied(arguments)
    with torch.autocast(device, torch.bfloat16), torch.set_grad_enabled(grad):
        result = call.function(**arguments)
    if call.name in AUTOCAST:
        assert (result[0] if isinstance(result, tuple) else result).dtype == torch.bfloat16
        before |= {name: before[name].bfloat16() for name in ("q", "k", "v", "query", "key", "value") if name in before}
    judge.check(call.name, arguments, result, before)


@everywhere
@every_call
def test_compiled(label, device):
    torch._dynamo.reset()
    call, arguments = call_on(label, device, outputs=True)
    before = copied(arguments)
    compiled = torch.compile(lambda arguments: call.function(**arguments), backend="aot_eager", fullgraph=True)
    result = compiled(arguments)
    judge.check(call.name, arguments, result, before)


# ---- gradients -----------------------------------------------------------------------------------------------------------------

DIFFERENTIABLE = ("attention", "attention, ragged", "scaled_dot_product_attention", "merge_states")
every_gradient = pytest.mark.parametrize("label", DIFFERENTIABLE)


def leaves_of(call):
    """The tensors with a derivative."""
    return [tensor for tensor in tensors_of(call) if tensor.is_floating_point()]


def call_function(function, call, leaves):
    """Calls the function with these leaves in the place of the call's own. Results are a tuple."""
    replacements = iter(leaves)

    def replaced(value):
        if isinstance(value, list):
            return list(map(replaced, value))
        return next(replacements) if isinstance(value, Tensor) and value.is_floating_point() else value

    result = function({name: replaced(value) for name, value in call.items()})
    return result if isinstance(result, tuple) else (result,)


def check_gradient(label, device, around=lambda function, *leaves: function(*leaves)):
    """The gradient of all results against that of the definition. `around` calls a function of the leaves."""
    call, arguments = call_on(label, device)
    leaves = [leaf.detach().requires_grad_() for leaf in leaves_of(arguments)]
    results = around(lambda *leaves: call_function(lambda call_: call.function(**call_), arguments, leaves), *leaves)
    weights = [torch.randn_like(result) for result in results]
    torch.autograd.backward(results, weights)
    exact = [leaf.detach().cpu().double().requires_grad_() for leaf in leaves]
    wants = call_function(lambda call_: tuple(exact_results(call.name, call_)), arguments, exact)
    total = sum((want * weight.cpu()).sum() for want, weight in zip(wants, weights, strict=False)) + sum(
        leaf.sum() * 0 for leaf in exact
    )
    want = torch.autograd.grad(total, exact)
    rough = 1e-4 if leaves[0].dtype == torch.float32 else 0.05
    for leaf, theirs in zip(leaves, want, strict=True):
        torch.testing.assert_close(leaf.grad.double().cpu(), theirs, rtol=rough, atol=rough)


def exact_results(name, call):
    """Differentiable ones, in float64, of lse without a row that sees nothing."""
    for want in judge.FORMULAS[name](judge.arguments(name, call)).values():
        yield torch.where(want.value.isneginf(), 0.0, want.value)


@everywhere
@every_gradient
def test_gradients(label, device):
    check_gradient(label, device)


@everywhere
@pytest.mark.parametrize("reentrant", [False, True])
@every_gradient
def test_checkpointed_gradients(label, reentrant, device):
    check_gradient(label, device, lambda function, *leaves: checkpoint(function, *leaves, use_reentrant=reentrant))


@everywhere
@pytest.mark.parametrize("reentrant", [False, True])
@every_call
def test_checkpoints_around_what_has_no_gradient(label, reentrant, device):
    """The function runs twice, over the same arguments."""
    call, arguments = call_on(label, device, outputs=True)
    before, x = copied(arguments), torch.ones(3, device=device, requires_grad=True)
    results = []

    def layer(x):
        results.append(call.function(**arguments))
        return x.exp()

    checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
    for result in results:
        judge.check(call.name, arguments, result, before)
    assert len(results) == 2 and torch.equal(x.grad, x.exp())


# ---- copies of objects ---------------------------------------------------------------------------------------------------------


def used_schedule():
    schedule = fovea.LatentSchedule()
    call = CALLS["latent_attention"].on("cpu")
    fovea.latent_attention(**call, schedule=schedule)
    return schedule


OBJECTS = {
    "CacheFormat": lambda: fovea.cache_formats()["v32_fp8"],
    "Device": lambda: fovea.devices()[0],
    "Implementation": lambda: fovea.implementations()[0],
    "Layout": lambda: fovea.distributed.Layout((3, 4), 2),
    "LatentSchedule": fovea.LatentSchedule,
    "LatentSchedule, used": used_schedule,
    "PageDeal": lambda: fovea.distributed.PageDeal(4, 2),
    "QuantizedQk": lambda: fovea.quantize_qk_int8(**CALLS["quantize_qk_int8"].on("cpu")),
    "QuantizedV": lambda: fovea.quantize_v(torch.randn(2, 7, 2, 64), smooth_v=True),
}


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize(
    "copy_of", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))], ids=["copy", "deepcopy", "pickle"]
)
def test_copies_of_objects(name, copy_of):
    value = OBJECTS[name]()
    again = copy_of(value)
    assert type(again) is type(value)
    if isinstance(value, tuple):
        assert all(
            torch.equal(one, other) if isinstance(one, Tensor) else one == other for one, other in zip(value, again, strict=True)
        )
    elif not isinstance(value, fovea.LatentSchedule):
        assert again == value and hash(again) == hash(value)
    else:
        call = CALLS["latent_attention"].on("cpu")
        judge.check("latent_attention", call, fovea.latent_attention(**call, schedule=again), copied(call))
