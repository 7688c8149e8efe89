# SPDX-License-Identifier: Apache-2.0
"""``import fovea`` loads little beside torch: engines import their plug-ins in each of their processes."""

import subprocess
import sys

HEAVY = (
    "fovea.compat.",
    "fovea.distributed",
    "fovea.integrations",
    "numpy",
    "sympy",
    "torch._dynamo",
    "torch._export",
    "torch._functorch.aot_autograd",
    "torch._inductor",
    "torch.distributed.device_mesh",
    "torch.testing",
    "transformers",
    "vllm",
)
"""Beginnings of the names of modules that only some users need."""
PROBE = "import sys, torch; before = set(sys.modules); import fovea; print(*sorted(set(sys.modules) - before))"


def test_nothing_heavy_beside_torch():
    ran = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True, timeout=300)
    brought = ran.stdout.split()
    assert "fovea" in brought
    assert [name for name in brought if name.startswith(HEAVY)] == []
