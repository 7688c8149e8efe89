# SPDX-License-Identifier: Apache-2.0
"""Fails where a library in a wheel is of another processor, exports more than is asked of it, or wants more than torch and
an old glibc have. It reads files, so the processor need not be this machine's.

usage: check_wheel.py WHEEL MACHINE GLIBC      check_wheel.py dist/x.whl aarch64 2.28
"""

import re
import sys
import tempfile
import zipfile
from pathlib import Path

from stub_libraries import Library, read

MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine of an ELF file
EXPORTS = re.compile(r"fovea_program|fovea_jax_\w+|PyInit__plans")
NEEDED = re.compile(r"libtorch_cpu\.so|lib(c|m|dl|rt|pthread|gcc_s)\.so\.\d|ld-linux-[\w-]+\.so\.\d")
GLIBC = re.compile(r"GLIBC_([\d.]+)")


def machine(path: Path) -> str:
    number = int.from_bytes(path.read_bytes()[18:20], "little")
    return MACHINES.get(number, f"machine {number}")


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def newer(library: Library, glibc: str) -> list[str]:
    """Its symbols from a newer glibc."""
    found = ((name, GLIBC.fullmatch(version)) for name, version in library.undefined)
    return [f"{name}@{match[0]}" for name, match in found if match and numbers(match[1]) > numbers(glibc)]


def faults(path: Path, want_machine: str, glibc: str) -> list[str]:
    """The faults of one library."""
    if (got := machine(path)) != want_machine:
        return [f"got a library for {got}, want {want_machine}"]
    library = read(path)
    wrong = {
        "exports": [name for name in library.defined if not EXPORTS.fullmatch(name)],
        "needs": [name for name in library.needed if not NEEDED.fullmatch(name)],
        f"needs more than glibc {glibc}": newer(library, glibc),
    }
    return [f"{what}: {', '.join(names)}" for what, names in wrong.items() if names]


def main(wheel: str, want_machine: str, glibc: str) -> int:
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        libraries = sorted(Path(folder).rglob("*.so"))
        findings = [f"{path.name} {fault}" for path in libraries for fault in faults(path, want_machine, glibc)]
    if not libraries:
        findings = [f"{wheel}: got no library"]
    print(*findings, f"check_wheel: {len(libraries)} libraries, {len(findings)} faults", sep="\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
