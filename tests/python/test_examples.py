# SPDX-License-Identifier: Apache-2.0
"""The examples run as they are. `./dev demo` runs generate.py in full; here it only has to start."""

import subprocess
import sys
from pathlib import Path

import pytest

from examples_as_modules import load

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True)


def test_quickstart():
    result = run(EXAMPLES / "quickstart.py")
    assert result.returncode == 0, result.stderr
    first = result.stdout.splitlines()[0]
    assert first.startswith("largest difference:") and float(first.split()[-1]) < 1e-5
    assert "paged_attention" in result.stdout


def test_shared_prefix():
    result = run(EXAMPLES / "shared_prefix.py")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "keys read: 176 instead of 464" in result.stdout


def test_speculative_decoding():
    result = run(EXAMPLES / "speculative_decoding.py", "--layers", 2, "--new-tokens", 24)
    assert result.returncode == 0, result.stdout + result.stderr
    steps, tokens, same = result.stdout.splitlines()
    assert int(steps.split()[1]) < 24 and float(tokens.split()[-1]) > 2 and same == "the same tokens as plain decoding"


def test_deepseek_v3():
    pytest.importorskip("transformers.models.deepseek_v3")
    result = run(EXAMPLES / "deepseek_v3.py")
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert lines[-1] == "passed"
    exact, packed = (next(line.split() for line in lines if line.startswith(cache)) for cache in ("rows", "v32_fp8"))
    assert exact[2] == "2304" and packed[2] == "656"
    assert exact[5] == exact[7]  # eager attention would have generated the same
    assert float(exact[4]) < 1e-4 and float(packed[3]) < 1 / 16  # an e4m3 value is off by 1/16 of itself at most


def test_deepseek_v32():
    helped = run(EXAMPLES / "deepseek_v32.py", "--help")
    assert helped.returncode == 0 and "On a GPU latent rows are bfloat16" in helped.stdout
    refused = run(EXAMPLES / "deepseek_v32.py", "--top-k", 0)
    assert refused.returncode == 2 and "must be at least 1" in refused.stderr
    pytest.importorskip("transformers.models.deepseek_v32")
    result = run(EXAMPLES / "deepseek_v32.py", "--new-tokens", 3)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert lines[-1] == "passed"
    plain, packed = (next(line.split() for line in lines if line.startswith(cache)) for cache in ("rows", "v32_fp8"))
    assert plain[1] == "2304" and packed[1] == "656"
    assert float(plain[3]) < 1e-4 and float(packed[2]) < 1 / 16
    assert 90 < float(plain[4].rstrip("%")) < 100  # codes are not float32


def test_eight_bits():
    pytest.importorskip("transformers.models.qwen2")
    result = run(EXAMPLES / "eight_bits.py", "--device", "cpu")
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert lines[-1] == "passed"
    sixteen, f16, f16_plain, e4m3, _ = (float(line[28:40]) for line in lines[2:7])  # relative errors of attention outputs
    assert sixteen < f16 < e4m3 and f16_plain > 2 * f16


def test_kv_formats(tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "kv.svg"
    sizes = ["--windows", 1, "--length", 96, "--batch", 1, "--context", 64, "--plot", picture]
    result = run(EXAMPLES / "kv_formats.py", "--device", "cpu", *sizes)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert lines[-1] == "passed" and picture.read_text().lstrip().startswith("<?xml")
    sizes = {line[:22].strip(): int(line[22:36]) for line in lines[3:-1]}
    assert sizes["bfloat16"] == 512 and sizes["int8_token"] == 272 and sizes["int4_token"] == sizes["int4_token, rotated"] == 144
    same = {line[:22].strip(): float(line[48:61].rstrip("% ")) for line in lines[3:-1]}
    assert same["int4_token"] < same["int8_token"] <= same["float32"] == 100


def test_train(tmp_path):
    pytest.importorskip("matplotlib")
    curves = tmp_path / "loss.svg"
    result = run(EXAMPLES / "train.py", "--steps", 12, "--seq", 96, "--batch", 4, "--plot", curves)
    assert result.returncode == 0, result.stdout + result.stderr
    losses = [
        float(line.split("loss ")[1].split(",")[0]) for line in result.stdout.splitlines() if "loss " in line and "step" in line
    ]
    assert losses[11] < losses[0] - 0.5 and losses[12:] == pytest.approx(losses[:12], abs=2e-3)
    assert curves.read_text().lstrip().startswith("<?xml")


@pytest.mark.parametrize("ranks", [1, 2])
def test_context_parallel(ranks):
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", ranks]
    sizes = ["--steps", 8, "--seq", 64, "--batch", 2, "--prompt", 33, "--generate", 5]
    result = run(*(launcher if ranks > 1 else []), EXAMPLES / "context_parallel.py", *sizes)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"on {ranks} ranks" in result.stdout and "the same as one rank alone" in result.stdout


@pytest.mark.parametrize(("name", "words"), [("train", "--steps 0"), ("train", "--head-dim -1"), ("context_parallel", "--seq 0")])
def test_numbers_that_cannot_be(capsys, name, words):
    with pytest.raises(SystemExit, match="2"):
        load(name).parse(words.split())
    assert "must be at least 1" in capsys.readouterr().err


def test_generate_helps_and_refuses():
    pytest.importorskip("transformers")
    helped = run(EXAMPLES / "generate.py", "--help")
    assert helped.returncode == 0 and "--max-new-tokens" in helped.stdout
    refused = run(EXAMPLES / "generate.py", "--model", "nowhere.gguf")
    assert refused.returncode == 2 and "no model" in refused.stderr
