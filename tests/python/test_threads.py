# SPDX-License-Identifier: Apache-2.0
"""Statements of docs/troubleshooting.md on forked children."""

import os
import subprocess
import sys

PROGRAM = """
import os, torch, fovea
torch.set_num_threads(2)
q = torch.randn(2, 512, 8, 64)
fovea.attention(q, q, q)
child = os.fork()
if child == 0:
    fovea.set_num_threads(1)
    fovea.attention(q, q, q)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_computes_with_one_thread():
    environment = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout == "7\n"
