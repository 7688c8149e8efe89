# SPDX-License-Identifier: Apache-2.0
"""How long a call keeps the host, which waits for no device: from Python, and from C++ by the fovea program."""

import gc
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

CALLS = 50  # in a row, whose host time is measured: too few to fill the device's queue


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def host_python(call: Callable[[], object], count: int) -> float:
    """Microseconds that a call takes the host, planning included: the median of so many samples."""
    call()
    samples = []
    gc.disable()  # as timeit does: what else the process holds is no part of a call
    try:
        for _ in range(count):
            synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            samples.append((time.perf_counter() - start) / CALLS * 1e6)
    finally:
        gc.enable()
    synchronize()
    return statistics.median(samples)


def host_native(program: Path, case: str) -> float:
    """Microseconds that `run` of a plan (schedule and kernels) takes the host from C++."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [program, "bench", "--case", case, "--implementation", "cuda.", "--device-peak", "1e15"]
        subprocess.run([*command, "--seconds", "0.1", "--json", file.name], check=True, stdout=subprocess.DEVNULL)
        return json.loads(Path(file.name).read_text())["rows"][0]["host_s"] * 1e6
