# SPDX-License-Identifier: Apache-2.0
"""Docstrings as they stand in the package, for a site in Markdown: roles become links, examples become code, and arguments
that share a description (`k, v: ...`) get an entry each. A last line `The others are those of ..` becomes a paragraph."""

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|class|meth):`~?([\w.]+)`")
EXAMPLE = re.compile(r"(?:^>>> .*\n?(?:^\.\.\. .*\n?)*)+", re.MULTILINE)

SHARED = re.compile(r"^( +)(\w+(?:, \w+)+): ", re.MULTILINE)

OTHERS = re.compile(r"^ +(The others are [^\n]*(?:\n[^\n]+)*?\.)$\n?", re.MULTILINE)


def _fence(example: re.Match) -> str:
    code = re.sub(r"^(?:>>>|\.\.\.) ", "", example.group(0).rstrip("\n"), flags=re.MULTILINE)
    return f"```python\n{code}\n```\n"


def _entries(shared: re.Match) -> str:
    """The first name keeps the description, and the others refer to it. They come before it, as descriptions have more lines."""
    indent, names = shared.groups()
    first, *others = names.split(", ")
    return "".join(f"{indent}{name}: As `{first}`.\n" for name in others) + f"{indent}{first}: "


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is None:
            return
        text = SHARED.sub(_entries, EXAMPLE.sub(_fence, obj.docstring.value))
        others = [match[1] for match in OTHERS.finditer(text)]
        text = "\n\n".join([OTHERS.sub("", text).rstrip(), *others])
        obj.docstring.value = ROLE.sub(
            lambda role: f"[`{role[1]}`][{role[1]}]" if role[1].startswith("fovea.") else f"`{role[1]}`", text
        )
