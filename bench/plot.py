# SPDX-License-Identifier: Apache-2.0
"""Makes docs/performance.md, a page for each device, docs/peers.md and their pictures from the committed results, so that no number
is ever typed. The README shows the summary too."""

import re
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import plot_context
import plot_conversion
import plot_dense
import plot_latent
import plot_peers
import plot_ranks
from plotting import DOCS, OURS, ROOT, THEIRS, finish, latest_results, milliseconds, text_table


def title(results: dict) -> str:
    return f"{results['cpu'].replace('(R)', '')} ({', '.join(results['features'])})"


def plot_versus(results: dict, path: Path) -> None:
    rows = results["versus"][::-1]
    figure, axes = plt.subplots(figsize=(9, 0.55 * len(rows) + 1.1))
    speed = [row["torch_s"] / row["fovea_s"] for row in rows]
    axes.barh(range(len(rows)), speed, color=OURS, height=0.6)
    axes.axvline(1, color="black", linewidth=1)
    for place, value in enumerate(speed):
        axes.text(value + 0.01 * max(speed), place, f"{value:.2g} x", va="center")
    axes.set_xlim(0, max(speed) * 1.1)
    axes.set_yticks(range(len(rows)), [row["case"] for row in rows])
    axes.set_xlabel(f"times as fast as PyTorch {results['torch'].split('+')[0]}, {results['ceilings']['threads']} threads")
    finish(figure, axes, title(results), path)


def plot_ceilings(results: dict, path: Path) -> None:
    rows = [row for row in results["rows"] if "one-token" not in row["case"]][::-1]
    figure, axes = plt.subplots(figsize=(9, 0.4 * len(rows) + 1.1))
    share = [100 * row["floor_s"] / row["median_s"] for row in rows]
    axes.barh(range(len(rows)), share, color=[OURS if row["bound"] == "compute" else THEIRS for row in rows], height=0.65)
    for place, value in enumerate(share):
        axes.text(value + 1, place, f"{value:.0f} %", va="center")
    axes.set_xlim(0, 1.1 * max([100, *share]))
    axes.set_yticks(range(len(rows)), [row["case"].replace("/bench/", ": ") for row in rows], fontsize=8)
    axes.set_xlabel("per cent of the ceiling measured in the same run (dark: arithmetic, light: memory bandwidth)")
    finish(figure, axes, title(results), path)


def section(path: Path, results: dict) -> str:
    device = path.parent.name
    plot_versus(results, DOCS / f"performance-{device}.svg")
    plot_ceilings(results, DOCS / f"performance-{device}-ceilings.svg")
    ceilings = results["ceilings"]
    versus = [
        [
            row["case"],
            milliseconds(row["fovea_s"]),
            milliseconds(row["torch_s"]),
            f"{row['torch_s'] / row['fovea_s']:.2f} x",
            row["torch_does"],
        ]
        for row in results["versus"]
    ]
    rows = [
        [
            f"`{row['case']}`",
            f"`{row['implementation']}`",
            milliseconds(row["median_s"]),
            f"{row['flops'] / row['median_s'] / 1e9:.1f}",
            f"{row['bytes'] / row['median_s'] / 1e9:.1f}",
            f"{100 * row['floor_s'] / row['median_s']:.0f} % ({row['bound']})",
        ]
        for row in results["rows"]
    ]
    file = path.relative_to(ROOT)
    return f"""## Every operation, beside PyTorch

{results["date"][:10]}, commit {results["commit"]}, {ceilings["threads"]} threads,
PyTorch {results["torch"]} ({results["torch_capability"]}). {results["note"]} From [{file}](../{file}).

Ceilings: memory reads {ceilings["read_bandwidth"] / 1e9:.1f} GB/s,
f32 {ceilings["f32_peak"] / 1e9:.0f} GFLOP/s (`{ceilings["f32_instruction"]}`),
bf16 {ceilings["bf16_peak"] / 1e9:.0f} GFLOP/s (`{ceilings["bf16_instruction"]}`).

![Fovea against PyTorch](performance-{device}.svg)

{text_table(["work", "Fovea", "PyTorch", "Fovea is faster by", "what PyTorch does"], versus, range(1, 4))}
{own(results)}
{comparisons(results)}
![Fraction of the ceilings](performance-{device}-ceilings.svg)

{text_table(["case", "implementation", "median", "GFLOP/s", "GB/s", "of the ceiling"], rows, range(2, 6))}"""


def own(results: dict) -> str:
    """Operations that stand in for another of Fovea's."""
    rows = [
        [
            row["case"],
            milliseconds(row["fovea_s"]),
            row["other_does"],
            milliseconds(row["other_s"]),
            f"{row['other_s'] / row['fovea_s']:.2f} x",
        ]
        for row in results.get("own", [])
    ]
    return text_table(["work", "time", "in place of", "its time", "faster by"], rows, (1, 3, 4)) if rows else ""


def comparisons(results: dict) -> str:
    """Lines that compare rows with each other."""
    median = {row["case"].split("/bench/")[1]: row["median_s"] for row in results["rows"]}
    rate = {row["case"].split("/bench/")[1]: row["bytes"] / row["median_s"] for row in results["rows"]}
    lines = []
    many, one = (f"decode-bf16-d128-h32x8-page16-{size}" for size in ("b16-kv4096", "b1-kv32768"))
    if many in rate and one in rate:
        lines.append(
            f"* One sequence of 32768 tokens is read at {100 * rate[one] / rate[many]:.0f} % of the rate of 16 sequences of 4096."
        )
    parts = [f"mixed-bf16-d128-h32x8-{part}" for part in ("together", "decodes-alone", "prefill-alone")]
    if all(part in median for part in parts):
        together, decodes, alone = (median[part] for part in parts)
        share = 100 * together / (decodes + alone)
        lines.append(f"* A prefill of 2048 tokens beside 31 decodes takes {share:.0f} % of the sum of the two alone.")
    dense, sparse = "decode-bf16-h128-b8-kv2048", "decode-v32_fp8-h128-b8-topk2048"
    if dense in median and sparse in median:
        share = 100 * median[dense] / median[sparse]
        lines.append(
            f"* Sparse latent decode from `v32_fp8` runs at {share:.0f} % of the rate of dense bf16 latent decode at equal tokens."
        )
    if "one-token-bf16-d64-h8x2" in median:
        lines.append(
            f"* One token of one sequence takes {median['one-token-bf16-d64-h8x2'] * 1e6:.1f} us from C++ (`run`) "
            f"and {results['python_one_token_s'] * 1e6:.1f} us from Python (the whole call, planning included)."
        )
    return "\n".join(lines) + "\n" if lines else ""


ABOUT = """Every case is checked before it is timed. Times are medians. "Of the ceiling" is the least possible time over the
measured one: arithmetic at the measured peak, or each byte read once at the measured bandwidth, whichever takes longer. Above
100 % the data came from the caches. Fovea and the others run by turns in one process."""

HEAD = f"""# Performance

Made by `bench/plot.py` from the files in `bench/results/`; `./dev bench` writes such a file for your machine.
{ABOUT}

"""
SUMMARY = """## Beside the fastest peer

The time of the fastest peer over Fovea's, by turns on the same inputs: above 1 Fovea is faster. A row that is level is within 2 %.
Each mark of the picture is a row. The portable kernels, which other GPUs have, ran on Hopper here.
[Against the others](peers.md) has every row.

![Fovea beside the fastest peer, row by row](speed.svg)

"""

GPU_NOTE = "Ceilings above a table are those at its beginning."
CPU_NOTE = f"""{GPU_NOTE[:-1]}; a case is held against the better of what was
measured just before and just after it, where its results say so."""

MADE = re.compile(r"(<!-- made: bench/plot.py -->\n).*?(<!-- /made -->)", re.DOTALL)


def results_found() -> list[tuple[Callable[[Path, dict], str], Path, dict]]:
    """Each function that makes a section, with its file and results, in the order of a page."""
    sections = {
        **{kind: plot_dense.section_of(kind) for kind in plot_dense.ABOUT},
        "latent-decode": plot_latent.section,
        "sparse-latent": plot_latent.sparse_section,
        "latent-context": plot_context.section,
        "cache-conversion": plot_conversion.section,
        "context-parallel": plot_ranks.section,
        "cpu": section,
    }
    return [(make, *result) for kind, make in sections.items() for result in latest_results(kind)]


def page(results: dict, parts: list[str]) -> tuple[str, str]:
    """The name of a device, and its page."""
    name = title(results) if "cpu" in results else results["device"]
    note = CPU_NOTE if "cpu" in results else GPU_NOTE
    return name, f"# {name}\n\n{ABOUT}\n{note}\n\n" + "\n".join(parts)


def pages() -> dict[str, tuple[str, str]]:
    """By the folder of the results, a device's name and page: GPUs first."""
    made: dict[str, tuple[dict, list[str]]] = {}
    for make, path, results in results_found():
        if text := make(path, results):
            made.setdefault(path.parent.name, (results, []))[1].append(text)
    order = sorted(made, key=lambda folder: ("cpu" in made[folder][0], folder))
    return {folder: page(*made[folder]) for folder in order}


def anchor(title: str) -> str:
    """As GitHub and MkDocs have it."""
    return re.sub("[^a-z0-9-]", "", title.lower().replace(" ", "-"))


def device_list(found: dict[str, tuple[str, str]]) -> str:
    """A line for each device, with links to the sections of its page."""
    lines = []
    for folder, (name, text) in found.items():
        link = f"performance-{folder}.md"
        titles = re.findall(r"^## (.*)$", text, re.MULTILINE)
        sections = (f"[{title}]({link}#{anchor(title)})" for title in titles)
        lines.append(f"* **[{name}]({link})**: " + ", ".join(sections))
    head = "A page has whole runs of a day. Rows that were timed again since are in [Against the others](peers.md)."
    return f"## By device\n\n{head}\n\n" + "\n".join(lines) + "\n" if lines else ""


def write(path: Path, text: str) -> None:
    path.write_text(re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n")


def main() -> None:
    found, groups = pages(), plot_peers.groups()
    for folder, (_, text) in found.items():
        write(DOCS / f"performance-{folder}.md", text)
    summary = plot_peers.summary(groups) if groups else ""
    write(DOCS / "performance.md", HEAD + (SUMMARY + summary + "\n" if groups else "") + device_list(found))
    if groups:
        write(DOCS / "peers.md", plot_peers.page(groups))
    readme = ROOT / "README.md"
    if summary and readme.exists():
        readme.write_text(MADE.sub(lambda marks: f"{marks[1]}\n{summary}\n{marks[2]}", readme.read_text()))
    print(f"docs/performance.md: {len(found)} page{'s' if len(found) != 1 else ''}")


if __name__ == "__main__":
    main()
