# SPDX-License-Identifier: Apache-2.0
"""Lays a built package out as Hugging Face `kernels` 0.17 loads it, in FOLDER/build/VARIANT/.

A variant's folder holds `__init__.py` (tools/hub_kernel.py), metadata.json, LICENSE and
the package. Its name says the oldest torch, by its stable ABI, torch's backend, the processor and
the system.
"""

import argparse
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of an ELF file
KERNEL_VERSION = 1  # transformers asks for it; callers that must change want another


def machine_of(extension: Path) -> str:
    """The processor that a shared object is for."""
    header = extension.open("rb").read(20)
    machine = int.from_bytes(header[18:20], "little")
    if header[:4] != b"\x7fELF" or machine not in MACHINES:
        raise SystemExit(f"{extension}: got a file of another kind, want an ELF file for {' or '.join(MACHINES.values())}")
    return MACHINES[machine]


def toolkit_of(extension: Path) -> str | None:
    """The CUDA toolkit of a shared object's kernels, as its compiler noted it; None without any."""
    content = extension.read_bytes()
    notes = re.findall(rb"Cuda compilation tools, release (\d+)\.(\d+)", content)
    if not notes and b".nv_fatbin" in content:
        raise SystemExit(f"{extension}: got CUDA kernels without a note of their compiler, want its release to name the variant")
    releases = sorted((int(major), int(minor)) for major, minor in notes)
    return f"cu{releases[-1][0]}{releases[-1][1]}" if releases else None


def variants(package: Path) -> dict[str, str]:
    """The folder of each backend."""
    oldest = re.search(r'"torch>=(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert oldest, "pyproject.toml names the oldest torch"
    machine, toolkit = machine_of(package / "_fovea.so"), toolkit_of(package / "_fovea.so")
    tags = {"cpu": "cpu"} | ({"cuda": toolkit} if toolkit else {})
    return {backend: f"torch-stable-abi{oldest[1]}{oldest[2]}-{tag}-{machine}-linux" for backend, tag in tags.items()}


def metadata(backend: str, version: str) -> dict[str, object]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name = project["name"]
    return {
        "name": name,
        "id": f"_{name}_{backend}_{version}".replace("-", "_").replace(".", "_"),
        "version": KERNEL_VERSION,
        "license": project["license"],
        "kernels-minver": "0.17.0",
        "python-depends": [],
        "backend": {"type": backend},
    }


def make(package: Path, folder: Path, version: str, copy: Callable = shutil.copy2) -> list[Path]:
    """The folders of the variants, made anew from a package folder."""
    made = []
    for backend, variant in variants(package).items():
        target = folder / "build" / variant
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(package, target / "fovea", copy_function=copy, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy2(ROOT / "tools/hub_kernel.py", target / "__init__.py")
        shutil.copy2(ROOT / "LICENSE", target)  # the hub hands out one variant alone
        (target / "metadata.json").write_text(json.dumps(metadata(backend, version), indent=2) + "\n", encoding="utf-8")
        made.append(target)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description="Lays a built package out as Hugging Face `kernels` loads it.")
    parser.add_argument("package", type=Path, help="the folder `fovea` of a build, or of an unpacked wheel")
    parser.add_argument("folder", type=Path, help="where build/VARIANT/ goes")
    options = parser.parse_args()
    if not (options.package / "_fovea.so").is_file():
        parser.error(f"package: got {options.package}, want the folder of Fovea's package, with _fovea.so in it")
    sys.path.insert(0, str(options.package.absolute().parent))
    import fovea

    for target in make(options.package.absolute(), options.folder, fovea.__version__):
        print(target)


if __name__ == "__main__":
    main()
