# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

import fovea


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def available(operation: str) -> list[str]:
    """The implementations of an operation that take CPU tensors and that this machine can run."""
    return [row.name for row in fovea.implementations() if row.operation == operation and row.backend == "cpu" and row.available]


def pytest_generate_tests(metafunc):
    """A test with an argument named after an operation and `_implementation` runs once for each of its implementations."""
    for operation in dict.fromkeys(row.operation for row in fovea.implementations()):
        argument = f"{operation}_implementation"
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, available(operation))


@pytest.fixture
def poison():
    """A tensor full of NaN, which an operation that does not write all of it leaves behind."""
    return lambda *shape, dtype=torch.float32: torch.full(shape, torch.nan, dtype=torch.float32).to(dtype)
