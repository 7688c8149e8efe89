# SPDX-License-Identifier: Apache-2.0
"""The examples run as they are. `./dev demo` runs generate.py in full; here it only has to start."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True)


def test_quickstart():
    result = run(EXAMPLES / "quickstart.py")
    assert result.returncode == 0, result.stderr
    first = result.stdout.splitlines()[0]
    assert first.startswith("largest difference:") and float(first.split()[-1]) < 1e-5
    assert "paged_attention" in result.stdout


def test_generate_helps_and_refuses():
    pytest.importorskip("transformers")
    helped = run(EXAMPLES / "generate.py", "--help")
    assert helped.returncode == 0 and "--max-new-tokens" in helped.stdout
    refused = run(EXAMPLES / "generate.py", "--model", "nowhere.gguf")
    assert refused.returncode == 2 and "no model" in refused.stderr
