# SPDX-License-Identifier: Apache-2.0
"""Draws docs/speed.svg, the README's picture: every row of docs/peers.md as a mark, group by group. It fits a phone."""

import matplotlib.pyplot as plt
import plot_peers
from plotting import DOCS, GRID, OURS, heading, save

COLOURS = {"ahead": OURS, "level": "#8a8a8a", "behind": "#d9822b"}
TICKS = (0.7, 0.8, 0.9, 1, 1.2, 1.5, 2)
FAR = 2.1  # a row beyond it is a triangle there
INCHES, GROUP = 5.2, 0.54  # the width of a phone, and the height of a group


def draw(found: dict[str, dict[str, plot_peers.Row]]) -> plt.Figure:
    figure, axes = plt.subplots(figsize=(INCHES, GROUP * len(found) + 0.5))
    ratios = [row.ratio for rows in found.values() for row in rows.values()]
    low, high = min(0.7, *ratios) / 1.03, max(1.5, *(min(ratio, FAR) for ratio in ratios)) * 1.03
    for place, (group, rows) in enumerate(found.items()):
        said = ", ".join(f"{count} {verdict}" for verdict, count in plot_peers.counts(rows).items())
        axes.text(
            0, place - 0.3, heading(group), fontsize=9.5, fontweight="bold", va="center", transform=axes.get_yaxis_transform()
        )
        axes.text(1, place - 0.3, said, fontsize=8.5, ha="right", va="center", transform=axes.get_yaxis_transform())
        axes.axhline(place + 0.15, color=GRID, linewidth=1, zorder=0)
        axes.plot((1, 1), (place - 0.1, place + 0.4), color="black", linewidth=1, zorder=1)
        for row in rows.values():
            at, far = min(row.ratio, FAR), row.ratio > FAR
            axes.plot(
                at, place + 0.15, ">" if far else "|", color=COLOURS[row.verdict()], markersize=6 if far else 11, markeredgewidth=2
            )
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(len(found) - 0.55, -0.6)
    axes.set_xticks(*zip(*((at, f"{at:g}") for at in TICKS if low < at < high), strict=True), fontsize=9)
    axes.minorticks_off()
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("time of the fastest peer / time of Fovea: right of 1 Fovea is faster", fontsize=8.5)
    return figure


def main() -> None:
    found = plot_peers.groups()
    if found:
        save(draw(found), DOCS / "speed.svg")
    print(f"docs/speed.svg: {sum(map(len, found.values()))} rows")


if __name__ == "__main__":
    main()
