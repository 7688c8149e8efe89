# SPDX-License-Identifier: Apache-2.0
"""Every reason with which a call is not computed, read from the source: why implementations decline, what a machine lacks, and
what Python refuses. A value that is known only when a call is planned reads as `*`.

tests/tools/test_declines.py holds docs/troubleshooting.md against the list. As a program it prints the list.
"""

import ast
import re
from pathlib import Path

SUFFIXES = (".hpp", ".cpp", ".cu", ".cuh")
CALL = re.compile(r"(?:return |= |fail\()(?:detail::)?declined\(")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
# Reasons: what a machine or a build lacks, and why a later entry goes before one.
LACKS = re.compile(r'"((?:needs|no CUDA device|no HIP|left out by|built without|kernels for|on Intel)[^"]*)"')
COMMENT = re.compile(r"//[^\n]*")


def arguments(text: str, begin: int) -> list[str]:
    """The arguments of a call, from behind its opening parenthesis."""
    found, depth, start = [], 0, begin
    for match in re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\],]').finditer(text, begin):
        mark = match.group(0)
        if mark in "([{":
            depth += 1
        elif mark in ")]}" and depth > 0:
            depth -= 1
        elif depth == 0 and mark in ",)":
            found.append(text[start : match.start()])
            start = match.end()
            if mark == ")":
                return found
    raise ValueError("a call without an end")


def words(expression: str) -> list[str]:
    """The texts that an argument may read as: one text for each side of a ? :, with `*` for what is computed."""
    condition, mark, choices = expression.partition("?")
    if mark and '"' not in condition:
        return [text for choice in re.split(r'(?<=")\s*:\s*(?=")', choices) for text in words(choice)]
    parts = [part.strip() for part in re.split(r'\+(?=(?:[^"]*"[^"]*")*[^"]*$)', expression)]
    literals = [re.fullmatch(r'(?:std::string(?:_view)?\()?"((?:[^"\\]|\\.)*)"\)?', part) for part in parts]
    return ["".join(literal.group(1) if literal else "*" for literal in literals)]


def declines_in(text: str) -> set[str]:
    """The reasons in a C++ or CUDA source."""
    text = COMMENT.sub("", text)
    found = {re.sub(r"[ (=]$", r"\g<0>*", match.group(1)) for match in LACKS.finditer(text)}
    for call in CALL.finditer(text):
        subject, got, want = arguments(text, call.end())
        found |= {f"{s}: got {g}, want {w}" for s in words(subject) for g in words(got) for w in words(want)}
    return found - {"*: got *, want *"}


def refusals_in(text: str) -> set[str]:
    """The messages of each `raise NotImplementedError` in a Python module."""
    raised = (node.exc for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Raise))
    calls = (exc for exc in raised if isinstance(exc, ast.Call) and getattr(exc.func, "id", "") == "NotImplementedError")
    return {_message(call.args[0]) for call in calls}


def _message(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_message, node.values))
    return str(node.value) if isinstance(node, ast.Constant) else "*"


def declines(root: Path) -> dict[str, Path]:
    """Each reason, and a file that has it. Interfaces of other packages have pages of their own."""
    found: dict[str, Path] = {}
    for path in sorted((root / "src").rglob("*")):
        if path.suffix in SUFFIXES:
            found |= dict.fromkeys(declines_in(path.read_text(encoding="utf-8")), path)
    for path in sorted((root / "python").rglob("*.py")):
        if "compat" not in path.parts:
            found |= dict.fromkeys(refusals_in(path.read_text(encoding="utf-8")), path)
    return found


if __name__ == "__main__":
    print("\n".join(sorted(declines(Path(__file__).resolve().parent.parent))))
