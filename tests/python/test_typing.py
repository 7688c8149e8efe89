# SPDX-License-Identifier: Apache-2.0
"""Types that checkers see."""

import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import fovea
import fovea.distributed

ROOT = Path(__file__).parents[2]
OVERLOADED = (
    fovea.attention,
    fovea.attention_backward,
    fovea.paged_attention,
    fovea.latent_attention,
    fovea.sparse_latent_attention,
    fovea.merge_states,
    fovea.quantized_attention,
    fovea.quantize_and_attend,
    fovea.distributed.attention,
    fovea.distributed.paged_attention,
    fovea.distributed.latent_attention,
    fovea.distributed.sparse_latent_attention,
)


def test_mypy_knows_when_a_tuple_comes_back():
    """The package's own sources are checked with it. The cache is kept: reading torch takes mypy far longer than both."""
    options = ["--config-file=", f"--cache-dir={ROOT}/build/mypy", "--warn-unused-ignores", "--no-error-summary"]
    command = [sys.executable, "-m", "mypy", *options, str(Path(__file__).with_name("typed_calls.py"))]
    environment = {"MYPYPATH": str(ROOT / "python")}
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert result.stdout == "" and result.returncode == 0, result.stdout + result.stderr


@pytest.mark.skipif(not hasattr(typing, "get_overloads"), reason="Python 3.10 does not keep overloads")
@pytest.mark.parametrize("function", OVERLOADED, ids=lambda function: function.__name__)
def test_overloads_take_what_the_function_takes(function):
    taken = {name: parameter for name, parameter in inspect.signature(function).parameters.items()}
    hints = typing.get_type_hints(function)
    for overload in typing.get_overloads(inspect.unwrap(function)):
        parameters = dict(inspect.signature(overload).parameters)
        options = getattr(
            sys.modules[function.__module__], re.fullmatch(r"Unpack\[(\w+)\]", parameters.pop("options").annotation)[1]
        )
        assert {*parameters, *options.__annotations__} == {*taken} and not {*parameters} & {*options.__annotations__}
        for name, hint in typing.get_type_hints(options).items():
            assert hint == hints[name], name
        for name, parameter in parameters.items():
            assert parameter.kind == taken[name].kind, name
            assert parameter.default in (parameter.empty, taken[name].default), name
