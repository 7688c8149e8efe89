# SPDX-License-Identifier: Apache-2.0
"""docs/peers.md, each row of a GPU that was timed by turns beside the fastest peer, and the summary of its groups."""

import json
from collections import Counter
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import NamedTuple

from plotting import RESULTS, heading, moment, text_table

# By kinds of results: what their rows are called, and the lists that have such rows.
GROUPS = {
    "dense-attention": ("dense attention, forward", ("cases",)),
    "dense-backward": ("dense attention, gradient", ("cases",)),
    "paged-decode": ("paged attention", ("cases", "decode", "pages", "head_dims", "prefill", "mixed")),
    "latent-decode": ("MLA decode, dense", ("cases",)),
    "latent-decode-long": ("MLA decode, dense", ("cases",)),
    "sparse-latent": ("MLA, token-sparse", ("cases",)),
    "indexer": ("indexer of token-sparse MLA", ("cases",)),
    "quantized-attention": ("8-bit attention", ("cases",)),
    "portable-attention": ("portable kernels", ("forward", "backward")),
}
NO_PEERS = ("16 bits", "dense, ", "PyTorch, ", "Fovea")  # other ways of this library, or around what a peer lacks
LEVEL = 0.02  # how far from 1 a ratio says nothing
VERDICTS = ("ahead", "level", "behind")


class Row(NamedTuple):
    """One call, and its fastest peer."""

    measured: datetime
    device: str
    milliseconds: float
    peer: str
    ratio: float
    is_shared: bool
    is_apart: bool
    """Whether the peer ran in a process of its own."""

    def verdict(self) -> str:
        ratio = round(self.ratio, 2)
        return "ahead" if ratio > 1 + LEVEL else "behind" if ratio < 1 - LEVEL else "level"

    def cells(self, name: str) -> list[str]:
        ratio = f"**{self.ratio:.2f}**" if self.verdict() == "behind" else f"{self.ratio:.2f}"
        case = f"{name}, shared schedule" if self.is_shared else name
        return [case, f"{self.milliseconds:.4g} ms", self.peer, f"{self.milliseconds * self.ratio:.4g} ms", ratio, self.of()]

    def card(self) -> str:
        return " ".join(self.device.removeprefix("NVIDIA ").split()[:1])

    def of(self) -> str:
        apart = ", two processes" if self.is_apart else ""
        return f"{self.card()}, {self.measured.date()}{apart}"


def row_of(results: dict, row: dict) -> Row | None:
    """None where no peer was timed. A schedule that layers share is how engines run, so where that was timed it counts."""
    shared = bool(row.get("shared_by_turns"))
    ratios = row.get("shared_by_turns" if shared else "by_turns") or {}
    ratios = {name: ratio for name, ratio in ratios.items() if not name.startswith(NO_PEERS)}
    if not ratios:
        return None
    best = min(ratios, key=ratios.__getitem__)
    milliseconds = row["shared_milliseconds" if shared else "milliseconds"]
    measured, apart = moment(row.get("date", results["date"])), bool(row.get("two_processes"))
    return Row(measured, results["device"], milliseconds, best, ratios[best], shared, apart)


def groups() -> dict[str, dict[str, Row]]:
    """The newest measurement of each row, by group and name, in the order of the groups and of the files."""
    found: dict[str, dict[str, Row]] = {}
    for kind, (group, lists) in GROUPS.items():
        for path in files_of(kind):
            results = json.loads(path.read_text())
            for part in lists:
                for measured in results.get(part, []):
                    row = row_of(results, measured)
                    name = f"{part} {measured['name']}" if kind == "portable-attention" else measured.get("name", "")
                    rows = found.setdefault(group, {}) if row else {}
                    if row and (name not in rows or row.measured >= rows[name].measured):
                        rows[name] = row
    return found


def files_of(kind: str) -> list[Path]:
    """Whole results of a kind, and rows that were timed alone."""
    day = "[0-9]" * 4 + "-[0-9][0-9]-[0-9][0-9]"
    return sorted(path for end in ("", "-by-turns") for path in RESULTS.glob(f"*/{day}-{kind}{end}.json"))


def counts(rows: dict[str, Row]) -> dict[str, int]:
    """How many rows are ahead, level and behind."""
    found = Counter(row.verdict() for row in rows.values())
    return {verdict: found[verdict] for verdict in VERDICTS}


def names(of: list[str]) -> str:
    return ", ".join(dict.fromkeys(of))


def summary(found: dict[str, dict[str, Row]]) -> str:
    """A line for each group."""
    header = ["work", *VERDICTS, "lowest", "median", "highest", "fastest peers", "devices"]
    lines = []
    for group, rows in found.items():
        ratios = sorted(row.ratio for row in rows.values())
        shown = (f"{ratio:.2f}" for ratio in (ratios[0], median(ratios), ratios[-1]))
        peers, cards = (
            names([row.peer.partition(",")[0] for row in rows.values()]),
            names(sorted(row.card() for row in rows.values())),
        )
        lines.append([group, *map(str, counts(rows).values()), *shown, peers, cards])
    return text_table(header, lines, range(1, 7))


HEAD = f"""# Against the others

The time of the fastest peer over Fovea's: above 1 Fovea is faster. Each row was timed by turns with its peers, on the same inputs,
in one process unless its last column says two. Its newest measurement counts. Level is within {100 * LEVEL:.0f} % of 1. Rows behind
are bold.

Gradients since 2026-11-27 are beside cuDNN alone, as no wheel has FlashAttention-3's. Before, FlashAttention-3 was ahead at head
dim 128 on an H200, 0.80 to 0.99. DeepGEMM gets a schedule of paged calls from another kernel, which was not timed, and these calls
leave logits unwritten that no query sees. [Performance](performance.md) has whole runs by device beside their ceilings, and says
what a case's name means.
"""


def page(found: dict[str, dict[str, Row]]) -> str:
    header = ["case", "Fovea", "fastest peer", "its time", "ratio", "device, date"]
    parts = [HEAD, summary(found)]
    for group, rows in found.items():
        table = text_table(header, [row.cells(name) for name, row in rows.items()], (1, 3, 4))
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts(rows).items())
        parts.append(f"## {heading(group)}\n\n{len(rows)} rows: {said}.\n\n{table}")
    return "\n".join(parts)
