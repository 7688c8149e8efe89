# SPDX-License-Identifier: Apache-2.0
"""What the sections of docs/performance.md share: where results lie, and how tables and pictures look."""

import json
from collections.abc import Collection
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

matplotlib.rcParams["svg.hashsalt"] = "fovea"  # the same ids, so that a picture changes only with its numbers

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
DOCS = ROOT / "docs"
OURS, THEIRS, GRID = "#1f6f8b", "#b8b8b8", "#e4e4e4"


def latest_results(kind: str) -> list[tuple[Path, dict]]:
    """The newest file of a kind of each device."""
    newest = {path.parent: path for path in sorted(RESULTS.glob(f"*/*-{kind}.json"))}
    return [(path, json.loads(path.read_text())) for _, path in sorted(newest.items())]


def milliseconds(seconds: float) -> str:
    """Four digits, without an exponent."""
    value = 1e3 * seconds
    return f"{value:.0f} ms" if value >= 1000 else f"{value:#.4g} ms"


def text_table(header: list[str], rows: list[list[str]], numbers: Collection[int]) -> str:
    """A Markdown table with some columns of numbers."""
    rule = ["---:" if i in numbers else "---" for i in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows]) + "\n"


def finish(figure: plt.Figure, axes: plt.Axes, heading: str, path: Path) -> None:
    axes.set_title(heading, fontsize=10, loc="left")
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
