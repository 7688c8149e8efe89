# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

import fovea


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def available(operation: str, backend: str = "cpu") -> list[str]:
    """The implementations of an operation that take tensors of a backend and that this machine can run."""
    return [row.name for row in fovea.implementations() if row.operation == operation and row.backend == backend and row.available]


def pytest_generate_tests(metafunc):
    """A test with an argument named after an operation and `_implementation` runs for two of its implementations on the CPU: the
    one that users get, by None, and the reference, against which tests/conformance holds the others. With an argument named so and
    `_device`, it runs once for each device that has any."""
    for operation in dict.fromkeys(row.operation for row in fovea.implementations()):
        implementation, device = f"{operation}_implementation", f"{operation}_device"
        if implementation in metafunc.fixturenames:
            reference = f"reference.{operation}"
            metafunc.parametrize(implementation, [None, reference], ids=["fastest", reference])
        if device in metafunc.fixturenames:
            metafunc.parametrize(device, [backend for backend in ("cpu", "cuda") if available(operation, backend)])


@pytest.fixture
def poison():
    """A tensor full of NaN, which an operation that does not write all of it leaves behind."""
    return lambda *shape, dtype=torch.float32: torch.full(shape, torch.nan, dtype=torch.float32).to(dtype)
