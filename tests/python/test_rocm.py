# SPDX-License-Identifier: Apache-2.0
"""ROCm's build of torch calls its devices cuda. The binding recognises it by its library, of which this makes an empty one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PLAN = """
import ctypes, sys, torch
if sys.argv[1:]:
    ctypes.CDLL(sys.argv[1])
import fovea
meta = torch.device("meta")
q = torch.empty(1, 16, 576, dtype=torch.bfloat16, device=meta)
cache = torch.empty(2, 64, 1, 576, dtype=torch.bfloat16, device=meta)
table, lengths = torch.empty(1, 2, dtype=torch.int32, device=meta), torch.empty(1, dtype=torch.int32, device=meta)
out = torch.empty(1, 16, 512, dtype=torch.bfloat16, device=meta)
offsets = torch.empty(2, dtype=torch.int32, device=meta)
arguments = (q, cache, "rows", table, offsets, lengths, out, None, 1, 128, None, 0, 0.0, None, "", False, None)
try:
    torch.ops.fovea.schedule_bytes_latent_attention(torch.device("cuda:0"), *arguments)
except RuntimeError as error:
    print(error)
"""


def declines(*library: str) -> str:
    command = [sys.executable, "-c", PLAN, *library]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    return done.stdout


@pytest.fixture
def libtorch_hip(tmp_path: Path) -> str:
    compiler = shutil.which("cc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C compiler")
    library = tmp_path / "libtorch_hip.so"
    subprocess.run([compiler, "-shared", "-x", "c", "/dev/null", "-Wl,-soname,libtorch_hip.so", "-o", str(library)], check=True)
    return str(library)


def test_devices_of_rocm_are_hip(libtorch_hip: str):
    assert "reference.latent_attention: device.backend: got hip, want cpu" in declines(libtorch_hip)


def test_devices_of_other_builds_are_cuda():
    assert "reference.latent_attention: device.backend: got cuda, want cpu" in declines()
