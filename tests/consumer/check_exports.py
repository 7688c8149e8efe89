#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the exports of a shared library with what the public headers leave to it: functions without a body, and classes that
are thrown, whose type another library may catch."""

import argparse
import re
import subprocess
import sys
from pathlib import Path

COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/|^\s*#[^\n]*", re.DOTALL | re.MULTILINE)
DEFAULT = re.compile(r"=\s*[{][}]")  # of an argument
PUBLIC_SCOPE = re.compile(r'^(namespace fovea|extern "C") [{]$', re.MULTILINE)
INNERMOST_BRACES = re.compile(r"[{][^{}]*[}]")  # bodies, types, namespaces that are not public
FUNCTION = re.compile(r"^\s*(?!typedef|using|inline)[^=(]*\b(\w+)\((?:[^()]|\([^()]*\))*\)$")
THROWN = re.compile(r"class (\w+) : public std::runtime_error")
SYMBOL = re.compile(r"^(?:(?:typeinfo|typeinfo name|vtable) for )?(?:fovea::)?(\w+)")


def declared(header: str) -> set[str]:
    text = DEFAULT.sub("", PUBLIC_SCOPE.sub("", COMMENT.sub("", header)))
    names = set(THROWN.findall(text))
    while INNERMOST_BRACES.search(text):
        text = INNERMOST_BRACES.sub(";", text)
    return names | {match.group(1) for statement in text.split(";") if (match := FUNCTION.match(statement))}


def exported(nm: str, library: Path) -> dict[str, str]:
    """Symbol -> the declaration that it belongs to, or itself."""
    listed = subprocess.run(
        [nm, "--dynamic", "--defined-only", "--demangle", library], capture_output=True, text=True, check=True
    ).stdout
    symbols = [line.split(maxsplit=2)[2] for line in listed.splitlines()]
    return {symbol: match.group(1) if (match := SYMBOL.match(symbol)) else symbol for symbol in symbols}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="check_exports", description=__doc__)
    parser.add_argument("--nm", default="nm", help="the program that lists symbols")
    parser.add_argument("library", type=Path)
    parser.add_argument("headers", type=Path, help="the folder of the public headers")
    options = parser.parse_args(arguments)
    headers = [header.read_text(encoding="utf-8") for header in sorted(options.headers.iterdir())]
    public = set().union(*map(declared, headers))
    symbols = exported(options.nm, options.library)
    types = {f"typeinfo for fovea::{name}" for header in headers for name in THROWN.findall(header)}
    findings = [f"{symbol}: exported, but not public" for symbol, name in symbols.items() if name not in public]
    findings += [f"{name}: public, but not exported" for name in (public - set(symbols.values())) | (types - set(symbols))]
    print("\n".join(findings) or f"{len(symbols)} symbols of {len(public)} declarations")
    return 1 if findings or not public else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
