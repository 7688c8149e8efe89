# SPDX-License-Identifier: Apache-2.0
"""Plans of every operation's good call, for the tests of plans."""

import pytest
import torch

import fovea
import judge
from public_calls import CALLS, DEVICES, call_on

PLANNED = [label for label in CALLS if hasattr(fovea, f"plan_{label.partition(',')[0]}")]
every_plan = pytest.mark.parametrize("label", PLANNED)
everywhere = pytest.mark.parametrize("device", DEVICES)
given_or_new = pytest.mark.parametrize("outputs", [False, True], ids=["new outputs", "given outputs"])
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


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


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in flat(item)] if isinstance(value, list | tuple) else []
