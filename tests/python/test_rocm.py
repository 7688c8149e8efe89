# SPDX-License-Identifier: Apache-2.0
"""ROCm's build of torch calls its devices cuda. The binding recognises it by its library; that of these tests has streams alone."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fovea

PROGRAM = Path(__file__).parent / "rocm.py"
EMULATED_RUNTIME = Path(fovea.__file__).parents[2] / "tests/hip/rocm"  # of the build: a HIP runtime whose devices are emulated
STREAM = "int aoti_torch_get_current_cuda_stream(int device, void** stream) { *stream = 0; return device; }"
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
    command = [compiler, "-shared", "-x", "c", "-", "-Wl,-soname,libtorch_hip.so", "-o", str(library)]
    subprocess.run(command, input=STREAM, text=True, check=True)
    return str(library)


def test_devices_of_rocm_are_hip(libtorch_hip: str):
    assert "reference.latent_attention: device.backend: got hip, want cpu" in declines(libtorch_hip)


def test_devices_of_other_builds_are_cuda():
    assert "reference.latent_attention: device.backend: got cuda, want cpu" in declines()


def custom_paged_attn(libtorch_hip: str, libraries: str) -> list[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "LD_LIBRARY_PATH": libraries}
    done = subprocess.run([sys.executable, PROGRAM, libtorch_hip], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.splitlines()


def test_custom_paged_attn_runs_on_an_emulated_device(libtorch_hip: str):
    if not (EMULATED_RUNTIME / "libamdhip64.so").exists():
        pytest.skip("a build without emulated HIP devices")
    assert custom_paged_attn(libtorch_hip, str(EMULATED_RUNTIME)) == ["['emulated gfx90a', 'emulated gfx942']", "right", "right"]


def test_custom_paged_attn_says_that_the_runtime_is_missing(libtorch_hip: str):
    entries = [row for row in fovea.implementations() if row.name == "hip.cdna.paged_attention"]
    if not entries or entries[0].available:
        pytest.skip("a build without HIP, or a machine with it")
    text = custom_paged_attn(libtorch_hip, "")
    assert text[0] == "[]"
    assert f"  hip.cdna.paged_attention: not available on this machine: {entries[0].unavailable_because}" in text
    assert "  cpu.scalar.paged_attention: device.backend: got hip, want cpu" in text
