# SPDX-License-Identifier: Apache-2.0
"""The implementations in this build, the devices of this machine, and the settings of this process."""

from dataclasses import dataclass
from functools import cache

import torch

from fovea._calls import checked


@dataclass(frozen=True)
class Implementation:
    """One implementation of one operation, as ``implementation=`` takes its name."""

    name: str
    operation: str
    backend: str
    accepts: str
    unavailable_because: str
    """Why this machine cannot run it; empty when it can."""

    @property
    def available(self) -> bool:
        return not self.unavailable_because


@dataclass(frozen=True)
class Device:
    """A device that kernels exist for."""

    backend: str
    name: str
    features: tuple[str, ...]
    """Instruction sets that kernels exist for and the device has."""
    cores: int


@cache  # neither changes while a process lives
def _implementations() -> tuple[Implementation, ...]:
    return tuple(Implementation(*row.split("\t")) for row in torch.ops.fovea.implementations().splitlines())


@cache
def _devices() -> tuple[Device, ...]:
    rows = (row.split("\t") for row in torch.ops.fovea.devices().splitlines())
    return tuple(Device(backend, name, tuple(features.split()), int(cores)) for backend, name, features, cores in rows)


def implementations() -> list[Implementation]:
    """Every implementation in the build, in the order in which they are asked, operation by operation."""
    return list(_implementations())


def devices() -> list[Device]:
    """The devices that this process may use."""
    return list(_devices())


@checked
def set_num_threads(threads: int) -> None:
    """Threads that later calls use on the CPU, out of torch's own pool; 0 (the default) means as many as torch uses.

    The pool does not survive a fork: after a call of two threads or more, a forked child hangs unless it sets one thread, as with
    torch's own functions.
    """
    torch.ops.fovea.set_num_threads(threads)


def get_num_threads() -> int:
    """Threads that the next call would use on the CPU."""
    return torch.ops.fovea.num_threads()


@checked
def set_exact_rows(exact: bool) -> None:
    """Whether a query row has the same bits of out and lse in every later call, dense, ragged or paged, in a prompt or alone.

    Nothing beside the row counts: other rows, hidden keys, sequences, heads, pages. The CPU promises it, and Hopper for dense and
    paged attention of finite values. Where no implementation for the call's device does, the call raises ``NotImplementedError``.
    Latent attention makes the promise among its own calls, on the CPU.
    Gradients ignore it. Held plans keep what was in effect when they were made.
    """
    torch.ops.fovea.set_exact_rows(exact)


def get_exact_rows() -> bool:
    """The value that ``set_exact_rows`` has set; False at first."""
    return torch.ops.fovea.exact_rows()
