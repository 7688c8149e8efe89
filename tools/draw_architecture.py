# SPDX-License-Identifier: Apache-2.0
"""Draws docs/architecture.svg, the folders and what they include, from the tree itself. Needs Graphviz's `dot`.

An arrow that follows from others is left out. tests/tools/test_draw_architecture.py compares the picture with the tree.
"""

import html
import re
import subprocess
import sys
from pathlib import Path

import repository

ROOT = Path(__file__).resolve().parent.parent
PICTURE = Path("docs/architecture.svg")

# The tree of a box: its own path, or where it is told apart from the rest of a folder.
BOXES = re.compile(
    r"include/fovea|src/plan/(?:implementations|fill)\.cpp|src/gpu/cuda/\w+|src/gpu/hip/\w+(?=/)|src/gpu/hip|src/gpu|src/\w+|python/fovea|cli|examples"
)
SUFFIXES = {".hpp", ".h", ".cpp", ".c", ".cu", ".cuh", ".hip", ".py"}
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
OPERATORS = "torch.ops.fovea"

# The picture has its own paper, and follows the reader's scheme.
ON_DARK = """<style>@media (prefers-color-scheme: dark) {
[fill="white"] {fill: #12181f}
text {fill: #e6edf3}
[fill="#eeeeee"] {fill: #2a323b}
[fill="#dcebf0"] {fill: #173a47}
[fill="#f6e3cc"] {fill: #4d3820}
[fill="#777777"] {fill: #9aa4af}
[stroke="#777777"] {stroke: #9aa4af}
[stroke="#1f6f8b"] {stroke: #3f9dbd}
}</style>
"""

Edges = set[tuple[str, str]]


def box_of(path: str) -> str | None:
    match = BOXES.match(path)
    return match.group(0) if match else None


def uses(root: Path) -> Edges:
    """(folder, folder that it includes) over all files. The Python package uses the binding's operators."""
    paths = [path.as_posix() for path in repository.files(root) if path.suffix in SUFFIXES and box_of(path.as_posix())]
    known = set(paths)
    found: Edges = set()
    for path in paths:
        text = (root / path).read_text(encoding="utf-8")
        targets = [target for name in INCLUDE.findall(text) for target in (f"src/{name}", f"include/{name}", f"cli/{name}")]
        found |= {(box_of(path), box_of(target)) for target in targets if target in known}
        if path.endswith(".py") and OPERATORS in text:
            found.add((box_of(path), "src/torch"))
    return {(user, used) for user, used in found if user != used}


def reaches(edges: Edges, start: str, end: str) -> bool:
    reached, new = {start}, {start}
    while new:
        new = {used for user, used in edges if user in new} - reached
        reached |= new
    return end in reached


def reduced(edges: Edges) -> Edges:
    """The edges without those that a longer way has too. One at a time: two folders may include each other."""
    left = set(edges)
    for edge in sorted(edges):
        if reaches(left - {edge}, *edge):
            left.remove(edge)
    return left


def graph(edges: Edges) -> str:
    """In Graphviz's language."""
    boxes = sorted({box for edge in edges for box in edge})
    colours = {"src/gpu": "#dcebf0", "src/cpu": "#dcebf0", "src/reference": "#dcebf0", "include": "#f6e3cc"}
    fill = {box: next((c for start, c in colours.items() if box.startswith(start)), "#eeeeee") for box in boxes}
    lines = [f'  "{box}" [fillcolor="{fill[box]}"];' for box in boxes]
    lines += [f'  "{user}" -> "{used}";' for user, used in sorted(edges)]
    style = 'rankdir=TB; nodesep=0.25; ranksep=0.45; bgcolor="white";'
    node = 'node [shape=box, style="filled,rounded", color="#1f6f8b", fontname="Helvetica,sans-serif", fontsize=12];'
    return "\n".join(["digraph fovea {", f"  {style}", f"  {node}", '  edge [color="#777777", arrowsize=0.7];', *lines, "}"])


def drawn(svg: str) -> Edges:
    """The arrows of a picture."""
    titles = (html.unescape(title) for title in re.findall(r"<title>([^<]*)</title>", svg))
    return {tuple(title.split("->")) for title in titles if "->" in title}


def on_any_paper(svg: str) -> str:
    return re.sub(r"(<svg[^>]*>\n)", lambda start: start.group(1) + ON_DARK, svg, count=1)


def main() -> int:
    text = graph(reduced(uses(ROOT)))
    svg = subprocess.run(["dot", "-Tsvg"], input=text, capture_output=True, text=True, check=True).stdout
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)  # Graphviz's version among them
    (ROOT / PICTURE).write_text(on_any_paper(svg), encoding="utf-8")
    print(f"{PICTURE}: {len(drawn(svg))} arrows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
