# SPDX-License-Identifier: Apache-2.0
"""The sections on MLA on a GPU: dense decode, from a file that bench/latent_decode.py wrote, and
token-sparse prefill and decode, from one of bench/sparse_latent.py."""

import math
from pathlib import Path

import matplotlib.pyplot as plt
from plotting import DOCS, GRID, INK, OURS, THEIRS, finish, milliseconds, missing, provenance, save, text_table

AXES = {"batch": "sequences", "kv_len": "tokens of each", "heads": "heads"}
SHORTEST, LINE = 8, 13  # per cent that hold a number; points of a line of the legend
PEER_COLOURS = ["#e0a458", "#8a5a83", "#6b8f5e", "#4f7cac", "#c0504d", "#7a6a53", "#3f3f3f"]


def ceiling_share(row: dict) -> float:
    """The least possible time over the measured one."""
    return max(row["of_matrix_rate"], row["of_copy_rate"])


def bound(row: dict) -> str:
    return "compute" if row["of_matrix_rate"] > row["of_copy_rate"] else "memory"


def peers(rows: list[dict]) -> list[str]:
    """The peers that were measured beside some case."""
    return list(dict.fromkeys(name for row in rows for name in row.get("peers", {})))


def plot_ceilings(results: dict, title: str, path: Path) -> None:
    rows = results["cases"][::-1]
    figure, axes = plt.subplots(figsize=(9, 0.4 * len(rows) + 1.1))
    share = [100 * ceiling_share(row) for row in rows]
    axes.barh(range(len(rows)), share, color=[OURS if bound(row) == "compute" else THEIRS for row in rows], height=0.65)
    for place, row in enumerate(rows):  # at the left end, where no mark of a peer is, or beside a bar that is too short
        inside = {"color": "white" if bound(row) == "compute" else INK} if share[place] >= SHORTEST else {}
        axes.text(1 if inside else share[place] + 1, place, f"{share[place]:.0f} %", va="center", **inside)
    for number, name in enumerate(peers(rows)):
        places = [place for place, row in enumerate(rows) if name in row.get("peers", {})]
        theirs = [share[place] * rows[place]["milliseconds"] / rows[place]["peers"][name] for place in places]
        axes.scatter(theirs, places, color=PEER_COLOURS[number], marker="|", s=150, linewidth=2.5, label=name, zorder=3)
    if peers(rows):
        axes.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), frameon=False, ncols=3)
    axes.set_xlim(0, max(110, 1.05 * max(share, default=0)))  # 8-bit products pass the ceiling of 16 bits
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=8)
    axes.set_xlabel("per cent of the ceiling measured beside it (dark: arithmetic, light: memory bandwidth)")
    finish(figure, axes, title, path, LINE * math.ceil(len(peers(rows)) / 3))


def rate_ceiling(row: dict, copy_rate: float) -> float:
    """FLOP/s that a case could reach at most: those of the matrix product, or what the bytes allow."""
    return min(row["matrix_rate"], copy_rate * row["flops"] / row["bytes"])


def plot_sweep(axes: plt.Axes, axis: str, rows: list[dict], copy_rate: float) -> None:
    def line(name: str, points: list[tuple[int, float]], **style) -> None:
        axes.plot([at for at, _ in points], [rate / 1e12 for _, rate in points], label=name, **style)

    line("ceiling", [(row[axis], rate_ceiling(row, copy_rate)) for row in rows], color=THEIRS, linestyle="--")
    for number, name in enumerate(peers(rows)):
        measured = [row for row in rows if name in row.get("peers", {})]
        rates = [(row[axis], row["flops"] * row["milliseconds"] / row["peers"][name]) for row in measured]
        line(name, rates, color=PEER_COLOURS[number], marker=".")
    line("Fovea", [(row[axis], row["flops"]) for row in rows], color=OURS, marker="o", markersize=4)
    axes.set_xscale("log", base=2)
    at = [row[axis] for row in rows]
    axes.set_xticks(at, [f"{x // 1024}k" if x >= 1024 else str(x) for x in at], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel(AXES[axis])
    axes.set_title(", ".join(f"{rows[0][other]} {word}" for other, word in AXES.items() if other != axis), fontsize=8, loc="left")
    axes.grid(color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def plot_sweeps(results: dict, path: Path) -> None:
    sweeps = {axis: rows for axis, rows in results["sweeps"].items() if rows}
    figure, panels = plt.subplots(1, len(sweeps), figsize=(9, 3), sharey=True, squeeze=False)
    for axes, (axis, rows) in zip(panels[0], sweeps.items(), strict=True):
        plot_sweep(axes, axis, rows, results["copy_rate"])
    panels[0][0].set_ylim(bottom=0)
    panels[0][0].set_ylabel("TFLOP/s")
    panels[0][-1].legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    save(figure, path)


def case_table(rows: list[dict]) -> str:
    names = peers(rows)
    header = ["case", "Fovea", "TFLOP/s", "GB/s", "of the ceiling"]
    for name in names:
        header += [name, "Fovea is faster by"]
    shared = any("shared_milliseconds" in row for row in rows)
    if shared:
        header += ["Fovea, shared schedule", *(f"{name}, shared" for name in names)]
    lines = []
    for row in rows:
        line = [
            row["name"],
            milliseconds(row["milliseconds"] / 1e3),
            f"{row['flops'] / 1e12:.0f}",
            f"{row['bytes'] / 1e9:.0f}",
            f"{100 * ceiling_share(row):.0f} % ({bound(row)})",
        ]
        for name in names:
            theirs = row.get("peers", {}).get(name)
            line += [milliseconds(theirs / 1e3), f"{theirs / row['milliseconds']:.2f} x"] if theirs else ["", ""]
        if shared:
            times = [row.get("shared_milliseconds"), *(row.get("shared_peers", {}).get(name) for name in names)]
            line += [milliseconds(time / 1e3) if time else "" for time in times]
        lines.append(line)
    return text_table(header, lines, range(1, len(header)))


def about_sharing(rows: list[dict]) -> str:
    if not any("shared_milliseconds" in row for row in rows):
        return ""
    return '"Shared" is the time of a layer that runs with the schedule of one before it.'


def small_batches(results: dict) -> str:
    """The cost of calls that have little to compute."""
    lines = []
    for row in results.get("latency", []):
        sparse = f", {row['topk']} of them listed, {row['cache_format']}" if "topk" in row else ""
        sizes = f"Batch {row['batch']}, {row['kv_len']} tokens, {row['heads']} heads{sparse}"
        shared = f"; {row['shared_us']:.1f} us where these share a schedule" if "shared_us" in row else ""
        lines.append(
            f"* {sizes}, as a CUDA graph: {row['alone_us']:.1f} us for one call, {row['chained_us']:.1f} us "
            f"for each of {row['chain']} calls in one graph, each with tensors of its own{shared}."
        )
    host = results.get("host", {})
    parts = [f"{host['python_us']:.1f} us from Python (the whole call, planning included)"] if "python_us" in host else []
    if "native_us" in host:
        parts.append(f"{host['native_us']:.1f} us from C++ (`run`: schedule and kernel)")
    if parts:
        sizes = f" of the sizes of `{host['case']}`" if "case" in host else ""
        lines.append(f"* A call{sizes} takes the host {' and '.join(parts)}.")
    return "\n".join(lines) + "\n" if lines else ""


def format_table(results: dict) -> str:
    rows = results.get("formats")
    if not rows:
        return ""
    kinds = "`rows512` are rows of 512 values"
    if any("e4m3" in row["name"] for row in rows):
        kinds = "`rows512` and `e4m3_512` are rows of 512 values, `e4m3` rows have one scale"
    return f"""Other caches. {kinds}; with `_f16` the queries
are f16, not bf16.

{case_table(rows)}"""


def sweep_picture(results: dict, device: str) -> str:
    if not any(results.get("sweeps", {}).values()):
        return ""
    plot_sweeps(results, DOCS / f"performance-{device}-latent-sweeps.svg")
    return f"![Rate against batch, length and heads](performance-{device}-latent-sweeps.svg)\n"


def ceilings(results: dict) -> str:
    matrix = [row["matrix_rate"] / 1e12 for row in results["cases"]]
    copy = results["copy_rate"] / 1e12
    return f"""Ceilings: copy within device memory {copy:.2f} TB/s (read and written), bf16 product of PyTorch's
library {min(matrix):.0f} to {max(matrix):.0f} TFLOP/s, measured again beside each case."""


def section(path: Path, results: dict) -> str:
    device, title = path.parent.name, f"{results['device']}: dense MLA decode"
    plot_ceilings(results, title, DOCS / f"performance-{device}-latent-ceilings.svg")
    others = " and ".join(peers(results["cases"]))
    beside = (
        f" Every time is that of a whole call, scheduling included; {others} ran on the same inputs in the same process."
        if others
        else ""
    )
    return f"""## Dense MLA decode

{provenance(path, results, "latent_decode.py")}

bf16 rows of 576 values in pages of 64 tokens. A case says how many sequences it has, the query tokens and cached tokens of each
(`~`: normal around that number with half of it as deviation; `=`: all equal) and the heads. L2 is flushed before each call,
and the same calls go before until the clock has settled.{beside}
{about_sharing(results["cases"])}

{ceilings(results)}

![Fraction of the ceilings](performance-{device}-latent-ceilings.svg)

{case_table(results["cases"])}
{small_batches(results)}
{sweep_picture(results, device)}
{format_table(results)}
{missing(results)}"""


def sparse_section(path: Path, results: dict) -> str:
    device, title = path.parent.name, f"{results['device']}: token-sparse MLA"
    plot_ceilings(results, title, DOCS / f"performance-{device}-sparse-ceilings.svg")
    return f"""## Token-sparse MLA

{provenance(path, results, "sparse_latent.py")}

A case says how many sequences it has, the query tokens and cached tokens of each, the heads, how many tokens a query lists (and
of the extra cache) and the format of the cache; lists are random. Times are those of a whole call, scheduling included; of the
cache each byte that is read counts once.
{about_sharing(results["cases"])}

{ceilings(results)}

![Fraction of the ceilings](performance-{device}-sparse-ceilings.svg)

{case_table(results["cases"])}
{small_batches(results)}
{format_table(results)}
{missing(results)}"""
