# SPDX-License-Identifier: Apache-2.0
"""Parts that the pages of performance share: where results lie, and how tables and pictures look."""

import io
import json
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

matplotlib.rcParams["legend.frameon"] = False
matplotlib.rcParams["svg.hashsalt"] = "fovea"  # the same ids, so that a picture changes only with its numbers
matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text: small, and found by who searches for it

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
DOCS = ROOT / "docs"
OURS, THEIRS, GRID = "#1f6f8b", "#b8b8b8", "#e4e4e4"
INK = "#111111"  # text on a light bar, which stays dark on any paper

# A picture has its own paper, and follows the reader's scheme by itself: it can be read beside any text.
ON_DARK = """@media (prefers-color-scheme: dark) {
path[style*="fill: #ffffff"] {fill: #12181f !important}
text:not([style*="fill"]) {fill: #e6edf3}
[style*="stroke: #000000"] {stroke: #9aa4af !important}
[style*="stroke: #e4e4e4"] {stroke: #39424d !important}
[style*="fill: #1f6f8b"] {fill: #3f9dbd !important}
[style*="stroke: #1f6f8b"] {stroke: #3f9dbd !important}
}"""


def latest_results(kind: str) -> list[tuple[Path, dict]]:
    """The newest file of a kind for each device: the one whose date inside is the latest, whatever its name says."""
    newest: dict[Path, tuple[datetime, Path, dict]] = {}
    for path in sorted(RESULTS.glob(f"*/*-{kind}.json")):
        results = json.loads(path.read_text())
        measured = moment(results["date"])
        if path.parent not in newest or measured >= newest[path.parent][0]:
            newest[path.parent] = (measured, path, results)
    return [(path, results) for _, (_, path, results) in sorted(newest.items())]


def moment(date: str) -> datetime:
    """When: a day is its beginning."""
    found = datetime.fromisoformat(date)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def heading(text: str) -> str:
    return text[0].upper() + text[1:]


def milliseconds(seconds: float) -> str:
    """Four digits, without an exponent."""
    value = 1e3 * seconds
    return f"{value:.0f} ms" if value >= 1000 else f"{value:#.4g} ms"


def text_table(header: list[str], rows: list[list[str]], numbers: Collection[int]) -> str:
    """A Markdown table with some columns of numbers, aligned in the source too."""
    widths = [max(3, *map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(row: list[str]) -> str:
        cells = (
            cell.rjust(width) if i in numbers else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "| " + " | ".join(cells) + " |"

    rule = ["-" * (width - 1) + ":" if i in numbers else "-" * width for i, width in enumerate(widths)]
    return "\n".join(map(line, [header, rule, *rows])) + "\n"


def provenance(path: Path, results: dict, script: str) -> str:
    file = path.relative_to(ROOT)
    driver, clocks = (
        results[name].partition("\n")[0] for name in ("driver", "clocks_max")
    )  # some files have a line for each GPU of the machine
    peers = "".join(f", {name} {version}".removesuffix(" unknown") for name, version in results.get("peers", {}).items())
    note = results.get("note", "")
    note = f"\n\n{note[0].upper()}{note[1:].rstrip('.')}." if note else ""
    return f"""{results["date"][:10]}, commit {results["commit"][:12]}, driver {driver}, {clocks},
PyTorch {results["torch"]}{peers}. From [{file}](../{file}), which `bench/{script}` wrote.{note}"""


def missing(results: dict) -> str:
    """Rows that were to be measured and were not."""
    return "".join(f"* Not measured: {row['name']} ({row['why'].splitlines()[0]}).\n" for row in results.get("missing", []))


def finish(figure: plt.Figure, axes: plt.Axes, heading: str, path: Path, legend: float = 0) -> None:
    """legend: points that a legend takes between the title and the axes."""
    axes.set_title(heading, fontsize=10, loc="left", pad=6 + legend)
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    save(figure, path)


def save(figure: plt.Figure, path: Path) -> None:
    """A picture for light and dark paper."""
    text = io.StringIO()
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    path.write_text(text.getvalue().replace("</style>", ON_DARK + "</style>", 1))
