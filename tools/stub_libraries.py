# SPDX-License-Identifier: Apache-2.0
"""Shared libraries of names without code, for 64-bit Arm: to link with, or for programs that never call them.

exports LIBRARY PATTERN  what LIBRARY exports and PATTERN matches, under LIBRARY's soname
absent LIBRARY..         a library for each one that these need and no folder of --found has. Its functions return 100,
                         as CUDA's do where no device is
"""

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

NEEDED = re.compile(r"\(NEEDED\).*\[(.*)\]")
SONAME = re.compile(r"\(SONAME\).*\[(.*)\]")
SYMBOL = re.compile(
    r"^ *\d+: \S+ +\S+ +\w+ +(GLOBAL|WEAK) +\w+ +(?:\[.*\] +)?(\S+) +(\S+?)(?:@+(\S+))?(?: \(\d+\))?$", re.MULTILINE
)
VERSIONS = re.compile(r"Version: \d+  File: (\S+)|Name: (\S+) +Flags")  # needed ones: a file, then its versions
OF_PROGRAMS = re.compile("_?Py")  # names that a Python program itself has


class Library(NamedTuple):
    """The contents of the dynamic section and the symbols of a shared library."""

    soname: str
    needed: list[str]
    defined: list[str]
    undefined: list[tuple[str, str]]
    """Names that must be found, each with its version or ""."""
    files: dict[str, str]
    """By version, the library that it is asked of."""


def read(path: Path) -> Library:
    command = ["readelf", "-W", "--dynamic", "--dyn-syms", "--version-info", path]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    symbols, files, file = SYMBOL.findall(text), {}, ""
    for begun, version in VERSIONS.findall(text):
        file = begun or file
        if version:
            files[version] = file
    return Library(
        soname=(SONAME.findall(text) or [path.name])[0],
        needed=NEEDED.findall(text),
        defined=[name for _, section, name, _ in symbols if section != "UND"],
        undefined=[(name, version) for binding, section, name, version in symbols if (binding, section) == ("GLOBAL", "UND")],
        files=files,
    )


def write(options: argparse.Namespace, soname: str, names: dict[str, set[str]]) -> None:
    """`names`: those of each version, or of "" for none."""
    options.out.mkdir(parents=True, exist_ok=True)
    source, script = options.out / f"{soname}.s", options.out / f"{soname}.map"
    every = sorted(set().union(*names.values()))
    labels = "".join(f".globl {name}\n.type {name}, %function\n{name}:\n" for name in every)
    source.write_text(f".text\n{labels}mov w0, 100\nret\n")
    nodes = {version: "; ".join(sorted(of)) for version, of in names.items() if version}
    script.write_text("".join(f"{version} {{ global: {of}; }};\n" for version, of in nodes.items()))
    versions = [f"-Wl,--version-script={script}"] if nodes else []
    command = [options.compiler, "-shared", "-nostdlib", f"-Wl,-soname,{soname}", *versions, "-o", options.out / soname, source]
    subprocess.run(command, check=True)
    source.unlink()
    script.unlink()


def exports(options: argparse.Namespace) -> None:
    found = read(options.library)
    names = {name for name in found.defined if re.match(options.pattern, name)}
    if not names:
        raise SystemExit(f"stub_libraries: {options.library} exports nothing that matches {options.pattern}")
    write(options, found.soname, {"": names})
    print(f"{options.out / found.soname}: {len(names)} names")


def absent(options: argparse.Namespace) -> None:
    """Names without a version go to every library that no version names."""
    libraries = [read(path) for path in options.libraries]
    needed = {name for library in libraries for name in library.needed}
    here = {name: folder / name for folder in options.found for name in needed if (folder / name).exists()}
    defined = {name for library in [*libraries, *map(read, here.values())] for name in library.defined}
    names: dict[str, dict[str, set[str]]] = {soname: defaultdict(set) for soname in sorted(needed - here.keys())}
    plain = set()
    for library in libraries:
        for name, version in library.undefined:
            if version and library.files.get(version) in names:
                names[library.files[version]][version].add(name)
            elif not version and name not in defined and not OF_PROGRAMS.match(name):
                plain.add(name)
    for soname, versions in names.items():
        write(options, soname, versions or {"": plain})
    print(f"{options.out}: {', '.join(names) or 'no library is absent'}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiler", default="aarch64-linux-gnu-gcc", help="a C compiler (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the libraries that are made")
    kinds = parser.add_subparsers(required=True)
    kind = kinds.add_parser("exports")
    kind.set_defaults(run=exports)
    kind.add_argument("library", type=Path)
    kind.add_argument("pattern")
    kind = kinds.add_parser("absent")
    kind.set_defaults(run=absent)
    kind.add_argument("--found", type=Path, action="append", default=[], help="a folder that the program will look into")
    kind.add_argument("libraries", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    main(sys.argv[1:])
