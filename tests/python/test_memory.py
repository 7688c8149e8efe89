# SPDX-License-Identifier: Apache-2.0
"""Calls leave nothing behind: memory in use does not grow with their number."""

import ctypes
import gc
import itertools

import pytest
import torch

import fovea
from test_operators import OPERATORS


class MallInfo(ctypes.Structure):
    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names)


@pytest.fixture
def leaked():
    """Bytes that each of so many calls leaves with malloc, which gives out torch's strings and CPU tensors, too. The least of three
    rounds: a cache that grows meanwhile is no leak."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("mallinfo2 is glibc's")
    library.mallinfo2.restype = MallInfo

    def in_use():
        gc.collect()
        info = library.mallinfo2()
        return info.uordblks + info.hblkhd

    def measure(call, count):
        for _ in range(20):
            call()
        marks = [in_use()]
        for _ in range(3):
            for _ in range(count // 3):
                call()
            marks.append(in_use())
        return min(after - before for before, after in itertools.pairwise(marks)) / (count // 3)

    fovea.set_num_threads(1)  # the calls are too small for more
    yield measure
    fovea.set_num_threads(0)


LIMIT = 4  # the smallest block has 32


@pytest.mark.parametrize("name", OPERATORS)
def test_calls(name, leaked):
    arguments = OPERATORS[name]()
    operator = getattr(torch.ops.fovea, name).default
    assert leaked(lambda: operator(*arguments), 10_000) < LIMIT


@pytest.mark.parametrize("name", OPERATORS)
def test_explanations(name, leaked):
    arguments = OPERATORS[name]()
    operator = getattr(torch.ops.fovea, name).default
    assert leaked(lambda: fovea.explain(operator, *arguments), 300) < LIMIT


@pytest.mark.parametrize("name", ["latent_attention", "sparse_latent_attention"])
def test_schedules(name, leaked):
    arguments = OPERATORS[name]()
    operator = getattr(torch.ops.fovea, f"prepare_{name}").default
    assert leaked(lambda: operator(*arguments), 300) < LIMIT


def refusals():
    """Each operator with a wrong text, and whatever else is looked at before the shapes are."""
    wrong = {"implementation": "nonsense", "format": "nonsense", "granularity": "nonsense", "v_dtype": torch.float32}
    for name, arguments in OPERATORS.items():
        for argument in getattr(torch.ops.fovea, name).default._schema.arguments:
            if argument.name in wrong:
                yield pytest.param(name, arguments, argument.name, wrong[argument.name], id=f"{name} {argument.name}")
    yield pytest.param(
        "sparse_latent_attention", OPERATORS["sparse_latent_attention"], "extra_indices", None, id="half an extra cache"
    )


@pytest.mark.parametrize(("name", "arguments", "field", "value"), list(refusals()))
def test_refused_calls(name, arguments, field, value, leaked):
    operator = getattr(torch.ops.fovea, name).default
    at = [argument.name for argument in operator._schema.arguments].index(field)
    wrong = [*arguments()]
    wrong[at] = value

    def call():
        with pytest.raises(ValueError):
            operator(*wrong)

    assert leaked(call, 300) < LIMIT


def test_what_the_library_says_of_itself(leaked):
    def call():
        fovea.implementations(), fovea.devices(), fovea.cache_formats(), fovea.get_num_threads()

    assert leaked(call, 1_000) < LIMIT
