# SPDX-License-Identifier: Apache-2.0
"""The first table of docs/performance.md: each row of a GPU that was timed by turns, beside the fastest peer."""

import json
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from plotting import RESULTS, moment, text_table

# By kinds of results: what their rows are called, and the lists that have such rows.
GROUPS = {
    "dense-attention": ("dense", ("cases",)),
    "dense-backward": ("gradient", ("cases",)),
    "portable-attention": ("portable kernels", ("forward", "backward")),
    "paged-decode": ("paged", ("cases", "decode", "pages", "head_dims", "prefill", "mixed")),
    "latent-decode": ("MLA", ("cases",)),
    "latent-decode-long": ("MLA", ("cases",)),
    "sparse-latent": ("sparse MLA", ("cases",)),
    "quantized-attention": ("8 bits", ("cases",)),
}
NO_PEERS = ("16 bits", "dense, ", "PyTorch, ", "Fovea")  # other ways of this library, or around what a peer lacks


class Row(NamedTuple):
    """One call, and its fastest peer."""

    measured: datetime
    device: str
    milliseconds: float
    peer: str
    ratio: float

    def is_behind(self) -> bool:
        return round(self.ratio, 2) < 1

    def cells(self, group: str, name: str) -> list[str]:
        ratio = f"**{self.ratio:.2f}**" if self.is_behind() else f"{self.ratio:.2f}"
        theirs = self.milliseconds * self.ratio
        return [group, name, f"{self.milliseconds:.4g} ms", self.peer, f"{theirs:.4g} ms", ratio, self.of()]

    def of(self) -> str:
        return f"{' '.join(self.device.removeprefix('NVIDIA ').split()[:1])}, {self.measured.date()}"


def row_of(results: dict, row: dict) -> Row | None:
    """None where no peer was timed. A schedule that layers share is how engines run, so where that was timed it counts."""
    shared = bool(row.get("shared_by_turns"))
    ratios = row.get("shared_by_turns" if shared else "by_turns") or {}
    ratios = {name: ratio for name, ratio in ratios.items() if not name.startswith(NO_PEERS)}
    if not ratios:
        return None
    best = min(ratios, key=ratios.__getitem__)
    milliseconds = row["shared_milliseconds" if shared else "milliseconds"]
    return Row(moment(row.get("date", results["date"])), results["device"], milliseconds, best, ratios[best])


def newest_rows() -> dict[tuple[str, str], Row]:
    """By group and name, in the order of the groups and of the files."""
    rows: dict[tuple[str, str], Row] = {}
    for kind, (group, lists) in GROUPS.items():
        for path in files_of(kind):
            results = json.loads(path.read_text())
            for part in lists:
                for measured in results.get(part, []):
                    row = row_of(results, measured)
                    key = group, f"{part} {measured['name']}" if kind == "portable-attention" else measured.get("name", "")
                    if row and (key not in rows or row.measured >= rows[key].measured):
                        rows[key] = row
    return rows


def files_of(kind: str) -> list[Path]:
    """Whole results of a kind, and rows that were timed alone."""
    day = "[0-9]" * 4 + "-[0-9][0-9]-[0-9][0-9]"
    return sorted(path for end in ("", "-by-turns") for path in RESULTS.glob(f"*/{day}-{kind}{end}.json"))


ABOUT = """The time of the fastest peer over Fovea's, for every row that was timed by turns with one, in one process, on the same
inputs: above 1 Fovea is faster. Of each row the newest measurement. {behind} of {all} rows are below 1. Gradients since
2026-11-27 are beside cuDNN alone: no wheel has FlashAttention-3's. It was ahead at head dim 128 before, 0.80 to 0.99 on an H200.
"""


def section() -> str:
    rows = newest_rows()
    if not rows:
        return ""
    header = ["work", "case", "Fovea", "fastest peer", "its time", "ratio", "device, date"]
    about = ABOUT.format(behind=sum(row.is_behind() for row in rows.values()), all=len(rows))
    return f"""## Beside the fastest peer

{about}
{text_table(header, [row.cells(*key) for key, row in rows.items()], (2, 4, 5))}"""
