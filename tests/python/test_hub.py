# SPDX-License-Identifier: Apache-2.0
"""The folder that Hugging Face `kernels` loads: variants, functions, and a model of transformers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fovea
import plain

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))
import make_hub_folder  # noqa: E402

LOADS = """
import sys, torch
from pathlib import Path
from kernels import get_loaded_kernels, get_local_kernel
kernel = get_local_kernel(Path(sys.argv[1]), backend="cpu")
dense, ragged = torch.load("inputs.pt")
torch.save([kernel.flash_attn_func(*dense, causal=True), kernel.flash_attn_varlen_func(*ragged, causal=True)], "outputs.pt")
print(kernel.fovea.__file__, get_loaded_kernels()[0].metadata.id, *sys.path, sep="\\n")
"""
GENERATES = """
import sys, torch
from transformers import LlamaConfig, LlamaForCausalLM
sizes = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2)).eval()
ids, mask = torch.randint(3, 97, (2, 20)), torch.ones(2, 20, dtype=torch.long)
mask[1, :7] = 0
with torch.no_grad():
    want = model(ids, attention_mask=mask).logits
    model.set_attn_implementation("anyone/fovea-attention")
    torch.testing.assert_close(model(ids, attention_mask=mask).logits[mask > 0], want[mask > 0], atol=1e-5, rtol=1e-5)
print(sys.modules["fovea"].__file__)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of links, as a cache of the hub has them."""
    made = tmp_path_factory.mktemp("hub")
    make_hub_folder.make(Path(fovea.__file__).parent, made, fovea.__version__, copy=lambda *names: os.symlink(*names))
    return made


def variant(folder, backend):
    return folder / "build" / f"torch-stable-abi211-{backend}-{os.uname().machine}-linux"


def run(script, *arguments, cwd, **environment):
    """In a process that knows no other Fovea than the folder's."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-B", "-c", script, *map(str, arguments)]
    ran = subprocess.run(command, cwd=cwd, env=clean | environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_variants(folder):
    """One for CPUs, and one for the toolkit of the kernels where the build has any."""
    made = sorted((folder / "build").iterdir())
    cuda = variant(folder, r"cu1\d\d")
    has_cuda = any(row.backend == "cuda" for row in fovea.implementations())
    assert (
        made[0] == variant(folder, "cpu")
        and len(made) == 1 + has_cuda
        and all(re.fullmatch(str(cuda), str(each)) for each in made[1:])
    )
    for backend, each in zip(("cpu", "cuda"), made, strict=False):
        metadata = json.loads((each / "metadata.json").read_text())
        assert metadata["backend"] == {"type": backend} and metadata["license"] == "Apache-2.0"
        assert metadata["id"] == f"_fovea_attention_{backend}_{fovea.__version__.replace('.', '_')}"
        assert (each / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
        assert (each / "fovea" / "_fovea.so").samefile(Path(fovea.__file__).with_name("_fovea.so"))


def test_functions(folder, tmp_path):
    pytest.importorskip("kernels", reason="needs kernels, which loads the folder")
    lengths = [3, 0, 6]
    q, k, v = torch.randn(2, 7, 4, 32), torch.randn(2, 9, 2, 32), torch.randn(2, 9, 2, 32)
    rows, keys, values = torch.randn(9, 4, 32), torch.randn(9, 2, 32), torch.randn(9, 2, 32)
    cu = torch.tensor([0, 3, 3, 9], dtype=torch.int32)
    torch.save([(q, k, v), (rows, keys, values, cu, cu, 6, 6)], tmp_path / "inputs.pt")
    loaded, identity, *path = run(LOADS, folder, cwd=tmp_path)
    assert loaded == str(variant(folder, "cpu") / "fovea" / "__init__.py")
    assert identity.startswith("_fovea_attention_cpu_") and str(variant(folder, "cpu")) not in path
    dense, ragged = torch.load(tmp_path / "outputs.pt")
    for out, *qkv in zip(dense, q, k, v, strict=True):
        torch.testing.assert_close(out.double(), plain.attention(*qkv, right=0).out, atol=1e-5, rtol=1e-5)
    for out, *qkv in zip(*(each.split(lengths) for each in (ragged, rows, keys, values)), strict=True):
        torch.testing.assert_close(out.double(), plain.attention(*qkv, right=0).out, atol=1e-5, rtol=1e-5)


def test_one_fovea_in_a_process(folder):
    """This process has that of the build."""
    kernels = pytest.importorskip("kernels", reason="needs kernels, which loads the folder")
    path = list(sys.path)
    with pytest.raises(ImportError, match=r"fovea: got \S+__init__.py, want \S+-cpu-\S+__init__.py: a process has one Fovea"):
        kernels.get_local_kernel(folder, backend="cpu")
    assert sys.path == path


def test_a_model_of_transformers(folder, tmp_path):
    utils = pytest.importorskip("transformers.utils")
    if not utils.is_kernels_available():
        pytest.skip("this transformers wants another version of kernels than the one that is here, if any")
    assert run(GENERATES, cwd=tmp_path, LOCAL_KERNELS=f"anyone/fovea-attention={folder}") == [
        str(variant(folder, "cpu") / "fovea" / "__init__.py")
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"MZ" + bytes(30), "got a file of another kind, want an ELF file for x86_64 or aarch64"),
        (
            b"\x7fELF" + bytes(14) + b"\x3e\0 .nv_fatbin",
            "got CUDA kernels without a note of their compiler, want its release to name the variant",
        ),
    ],
)
def test_packages_without_a_variant(tmp_path, content, message):
    (tmp_path / "_fovea.so").write_bytes(content)
    with pytest.raises(SystemExit, match=f"_fovea.so: {message}"):
        make_hub_folder.make(tmp_path, tmp_path / "hub", "0.2.0")
    assert not (tmp_path / "hub").exists()
