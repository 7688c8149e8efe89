# SPDX-License-Identifier: Apache-2.0
"""Outputs that the caller gives: any of them, of their own or slices of larger tensors. Each is poisoned before.

It is returned itself, holds what the definition says (judge.py), and nothing beside it changes."""

import inspect
import itertools

import pytest
import torch

import judge
from public_calls import CALLS, DEVICES, QUANTIZE, call_on, copied

OUTPUTS = ("out", "lse", "max_logits", "rows")
E4M3 = torch.float8_e4m3fn
OF_INDEXER = {"index_logits": torch.float32, "topk_rows": torch.int32}


def outputs_of(function):
    return [name for name in OUTPUTS if name in inspect.signature(function).parameters]


def poisoned(shape, dtype, device):
    if dtype.is_floating_point:
        return torch.full(shape, torch.nan, device=device).to(dtype)
    return torch.full(shape, torch.iinfo(dtype).min, dtype=dtype, device=device)


def exactly(shape, dtype, device):
    """The tensor, and the memory around it."""
    memory = poisoned((max(int(torch.Size(shape).numel()), 1),), dtype, device)
    return memory[: torch.Size(shape).numel()].view(shape), memory


def within_larger(shape, dtype, device):
    """Rows stay contiguous and lie at multiples of 16 bytes."""
    memory = poisoned([extent + 2 for extent in shape[:-1]] + [shape[-1] + 32], dtype, device)
    at = [slice(1, extent + 1) for extent in shape[:-1]] + [slice(16, 16 + shape[-1])]
    return memory[tuple(at)], memory


def strided(shape, dtype, device):
    """Dimensions in another order in memory, for outputs without rows."""
    memory = poisoned([2 * extent + 1 for extent in reversed(shape)], dtype, device)
    view = memory[tuple(slice(1, 2 * extent + 1, 2) for extent in reversed(shape))]
    return view.permute(*reversed(range(len(shape)))), memory


PLACES = [exactly, within_larger, strided]
CASES = [
    pytest.param(label, names, id=f"{label}: {' and '.join(names)}")
    for label, call in CALLS.items()
    if call.name not in ("attention_backward", "quantize_v", "quantize_qk_int8", QUANTIZE)
    for count in (1, 2, 3)
    for names in itertools.combinations(outputs_of(call.function), count)
]


def dtype_of(function, name, arguments):
    """The dtype of out: its own in the indexer, float32 where q is quantised, or that of q."""
    if function in OF_INDEXER:
        return OF_INDEXER[function]
    rows = arguments.get("q", arguments["outs"][0] if "outs" in arguments else None)
    return torch.float32 if rows is None or name in ("lse", "max_logits") else rows.dtype


def unchanged_beside(memory, given):
    """Whether all memory but that of the tensor is still poisoned."""
    poison = poisoned((), given.dtype, given.device)
    given.copy_(poison)
    return bool((memory.isnan() if memory.is_floating_point() else memory == poison).all())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize(("label", "names"), CASES)
def test_what_is_given_is_filled(label, names, place, device):
    call, arguments = call_on(label, device)
    arguments = {name: value for name, value in arguments.items() if not name.startswith("return_")}
    wants = judge.FORMULAS[call.name](judge.arguments(call.name, arguments))
    memories = {}
    for name in names:
        at = within_larger if place is strided and name in ("out", "rows") else place
        arguments[name], memories[name] = at(tuple(wants[name].value.shape), dtype_of(call.name, name, arguments), device)
    before = copied(arguments)
    result = call.function(**arguments)
    judge.check(call.name, arguments, result, before)
    assert all(unchanged_beside(memory, arguments[name]) for name, memory in memories.items())


QUANTISED = {
    "quantize_qk_int8": {},
    "quantize_qk_int8, ragged": {},
    "quantize_v": {"dtype": torch.float16},
    "quantize_v, e4m3": {"dtype": E4M3, "smooth_v": True},
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("label", QUANTISED)
def test_quantised_tensors_that_are_given_are_filled(label, device):
    call, arguments = call_on(label.removesuffix(", e4m3"), device)
    first = call.function(**arguments | QUANTISED[label])
    memories = []
    parts = []
    for part in first:
        if not isinstance(part, torch.Tensor):
            parts.append(part)
            continue
        given, memory = exactly(tuple(part.shape), part.dtype, device)
        given.view(torch.uint8).fill_(1)
        parts.append(given)
        memories.append(memory)
    arguments["out"] = type(first)(*parts)
    before = copied(arguments)
    result = call.function(**arguments)
    assert all(one is other for one, other in zip(result, parts, strict=True))
    judge.check(call.name, arguments, result, before)
