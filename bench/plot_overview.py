# SPDX-License-Identifier: Apache-2.0
"""Draws docs/speed.svg, the README's picture: a few GPU cases of the committed results beside the peers measured with them."""

from typing import NamedTuple

import matplotlib.pyplot as plt
from plot_latent import PEER_COLOURS, ceiling_share
from plotting import DOCS, GRID, OURS, latest_results

# Kinds of results, and of each the cases that stand for the others. One that the newest file lacks is left out.
PANELS = {
    "dense attention, forward": ("dense-attention", ["d128 h16 b4 s4096 causal", "d64 h32 b4 s4096 causal"]),
    "dense attention, backward": ("dense-backward", ["d128 h16 b4 s4096 causal", "d192/128 h16 b4 s4096 causal"]),
    "MLA decode, dense": ("latent-decode-long", ["b128 sq1 len~4096 h128", "b128 sq1 len~8192 h16"]),
    "MLA decode, sparse": ("sparse-latent", ["b128 sq1 kv32768 h128 topk2048 v32_fp8"]),
    "paged decode": ("paged-decode", ["b64 sq1 len=8192 h32/8 d128 page 16"]),
}
NAMES = {"cuDNN": "PyTorch (cuDNN)", "FlashAttention-2": "PyTorch (FlashAttention-2)"}
COLOURS = {
    "cuDNN": "#9a9a9a",
    "FlashAttention-2": "#c9c9c9",
    "FlashAttention-3": PEER_COLOURS[0],
    "FlashMLA": PEER_COLOURS[1],
    "FlashInfer": PEER_COLOURS[2],
}


class Group(NamedTuple):
    """The bars of a case: per cent of the ceiling by who reached it, Fovea first."""

    label: str
    shares: dict[str, float]


def group_of(row: dict) -> Group:
    """A schedule that layers share is how engines run, so where that was timed for both it counts."""
    shared = "shared_milliseconds" in row and row.get("shared_peers")
    ours = row["shared_milliseconds"] if shared else row["milliseconds"]
    peers = row["shared_peers"] if shared else row.get("peers") or {}
    share = 100 * ceiling_share(row) * row["milliseconds"]
    return Group(row["name"], {"Fovea": share / ours} | {name: share / time for name, time in peers.items() if name in COLOURS})


def panels() -> dict[str, list[Group]]:
    """The groups by a heading that says operation, device and date."""
    found = {}
    for what, (kind, names) in PANELS.items():
        files = sorted(latest_results(kind), key=lambda file: file[1]["date"])
        if not files:
            continue
        results = files[-1][1]
        rows = {row["name"]: row for part in ("cases", "decode") for row in results.get(part, [])}
        groups = [group_of(rows[name]) for name in names if name in rows]
        device = " ".join(results["device"].removeprefix("NVIDIA ").split()[:1])
        if groups:
            found[f"{what} ({device}, {results['date'][:10]})"] = groups
    return found


def draw(found: dict[str, list[Group]]) -> plt.Figure:
    bars = [len(group.shares) for groups in found.values() for group in groups]
    figure, axes = plt.subplots(figsize=(8.5, 0.19 * sum(bars) + 0.12 * len(bars) + 0.36 * len(found) + 0.7))
    place, ticks = 0.0, []
    for heading, groups in found.items():
        axes.text(0.5, place + 0.1, heading, fontweight="bold", fontsize=9, va="center")
        place += 1.3
        for group in groups:
            ticks.append((place + (len(group.shares) - 1) / 2, group.label))
            for name, share in group.shares.items():
                axes.barh(place, share, height=0.9, color=OURS if name == "Fovea" else COLOURS[name], label=NAMES.get(name, name))
                axes.text(
                    share + 0.8,
                    place,
                    f"{share:.0f}",
                    va="center",
                    fontsize=7.5,
                    fontweight="bold" if name == "Fovea" else "normal",
                )
                place += 1
            place += 0.6
        place += 0.5
    axes.set_ylim(place - 0.6, -1)
    axes.set_xlim(0, 100)
    axes.set_yticks(*zip(*ticks, strict=True), fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel(
        "per cent of the device's limit, measured in the same run: matrix products or memory, whichever binds", fontsize=8.5
    )
    handles = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
    at = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": len(handles), "columnspacing": 1.2, "handlelength": 1.2}
    axes.legend(handles.values(), handles.keys(), frameon=False, fontsize=8.5, **at)
    return figure


def main() -> None:
    found = panels()
    figure = draw(found)
    figure.savefig(DOCS / "speed.svg", bbox_inches="tight", facecolor="white", metadata={"Date": None})
    plt.close(figure)
    print(f"docs/speed.svg: {sum(map(len, found.values()))} cases")


if __name__ == "__main__":
    main()
