# SPDX-License-Identifier: Apache-2.0
"""The section on dense and token-sparse MLA decode side by side over the length of the context, from a file
that bench/latent_context.py wrote."""

import math
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
from plotting import DOCS, GRID, OURS, milliseconds, missing, provenance, save, text_table

COLOURS = {"rows": OURS, "e4m3": "#8a5a83", "v32_fp8": "#e0a458"}
NAMES = {"rows": "bf16 rows", "e4m3": "e4m3 rows"}  # formats have names of their own
Series = dict[int, float]  # milliseconds by the tokens of a sequence


def series(rows: list[dict], batch: int) -> dict[tuple[bool, str], Series]:
    """By whether it is sparse and the format of the cache, dense ones first."""
    found: dict[tuple[bool, str], Series] = {}
    for row in sorted(rows, key=lambda row: (row["sparse"], row["kv_len"])):
        if row["batch"] == batch:
            found.setdefault((row["sparse"], row["cache"]), {})[row["kv_len"]] = row["milliseconds"]
    return found


def name_of(sparse: bool, cache: str) -> str:
    return f"{'sparse' if sparse else 'dense'}, {NAMES.get(cache, cache)}"


def tokens(count: float) -> str:
    return f"{count / 1024:.3g}k" if count >= 1024 else f"{count:.0f}"


def crossover(dense: Series, sparse: Series) -> tuple[float, float] | None:
    """Tokens from which the sparse one stays faster, and the time there. Both are interpolated on logarithms between measured
    lengths. None if sparse begins faster or ends slower: then there is no such place."""
    lengths = sorted(dense.keys() & sparse.keys())
    lead = {at: math.log(dense[at] / sparse[at]) for at in lengths}  # of the sparse one
    for low, high in reversed(list(pairwise(lengths))):
        if lead[high] <= 0:
            return None
        if lead[low] <= 0:
            part = lead[low] / (lead[low] - lead[high])
            return low * (high / low) ** part, sparse[low] * (sparse[high] / sparse[low]) ** part
    return None


def crossovers(found: dict[tuple[bool, str], Series]) -> dict[str, tuple[float, float] | None]:
    """By format, of those that were measured both ways."""
    return {
        cache: crossover(found[False, cache], times)
        for (sparse, cache), times in found.items()
        if sparse and (False, cache) in found
    }


def panel(axes: plt.Axes, batch: int, found: dict[tuple[bool, str], Series]) -> None:
    for (sparse, cache), times in found.items():
        style = {"linestyle": "--", "marker": "^"} if sparse else {"marker": "o"}
        axes.plot(times.keys(), times.values(), label=name_of(sparse, cache), color=COLOURS.get(cache), markersize=3, **style)
    for number, (cache, place) in enumerate(crossovers(found).items()):
        if place:
            colour, offset = COLOURS.get(cache, "black"), (7, -13) if number % 2 == 0 else (-7, 8)  # two are often close together
            axes.scatter(*place, s=90, facecolors="none", edgecolors=colour, linewidths=1.5, zorder=3)
            side = "left" if offset[0] > 0 else "right"
            axes.annotate(tokens(place[0]), place, offset, textcoords="offset points", ha=side, fontsize=8, color=colour)
    lengths = sorted({length for times in found.values() for length in times})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [tokens(length) for length in lengths], fontsize=8)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlabel("tokens of each sequence")
    axes.set_title(f"{batch} sequence{'s' if batch > 1 else ''}", fontsize=8, loc="left")
    axes.grid(color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def plot(by_batch: dict[int, dict[tuple[bool, str], Series]], path: Path) -> None:
    figure, panels = plt.subplots(1, len(by_batch), figsize=(9, 3.6), sharey=True, squeeze=False)
    for axes, (batch, found) in zip(panels[0], by_batch.items(), strict=True):
        panel(axes, batch, found)
    panels[0][0].set_ylabel("ms")
    panels[0][0].legend(fontsize=8, loc="upper left", frameon=False)
    figure.tight_layout()
    save(figure, path)


def verdict(batch: int, found: dict[tuple[bool, str], Series]) -> list[str]:
    lines = []
    for cache, place in crossovers(found).items():
        dense, sparse = found[False, cache], found[True, cache]
        longest = max(dense.keys() & sparse.keys(), default=0)
        if not longest:
            continue
        factor = dense[longest] / sparse[longest]
        if place:
            text = f"sparse is faster from {tokens(place[0])} tokens on"
        elif factor > 1:
            text = "sparse is faster at every length"
        else:
            text, factor = "dense is faster at the longest", 1 / factor
        lines.append(f"* {NAMES.get(cache, cache)}, batch {batch}: {text}; at {tokens(longest)} it is {factor:.2f} x as fast.")
    return lines


def table(by_batch: dict[int, dict[tuple[bool, str], Series]]) -> str:
    kinds = list(dict.fromkeys(kind for found in by_batch.values() for kind in found))
    lines = []
    for batch, found in by_batch.items():
        for length in sorted({length for times in found.values() for length in times}):
            times = [found.get(kind, {}).get(length) for kind in kinds]
            lines.append([str(batch), tokens(length), *("" if time is None else milliseconds(time / 1e3) for time in times)])
    header = ["batch", "tokens", *(name_of(*kind) for kind in kinds)]
    return text_table(header, lines, range(len(header)))


def section(path: Path, results: dict) -> str:
    rows = results.get("rows")
    if not rows:
        return ""
    device = path.parent.name
    by_batch = {batch: series(rows, batch) for batch in sorted({row["batch"] for row in rows})}
    plot(by_batch, DOCS / f"performance-{device}-context.svg")
    verdicts = "\n".join(line for batch, found in by_batch.items() for line in verdict(batch, found))
    return f"""## Dense and token-sparse MLA decode over the length of the context

{provenance(path, results, "latent_context.py")}

The same queries: one token of each sequence, {rows[0]["heads"]} heads. Dense they read the whole context, sparse
{rows[0]["topk"]} random tokens of it (all, where it is shorter); what it takes to choose the tokens is not counted. Circles mark
where the sparse one becomes the faster one over the same cache, on a straight line between the lengths that were measured.

![Dense and sparse over the length of the context](performance-{device}-context.svg)

{verdicts}

{table(by_batch)}
{missing(results)}"""
