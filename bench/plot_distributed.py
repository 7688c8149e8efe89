# SPDX-License-Identifier: Apache-2.0
"""The pictures of docs/distributed.md: who holds which tokens and pages, and what the model says of many ranks."""

from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
from plotting import DOCS, GRID, OURS, save

from fovea.distributed import Layout, cost

RANK_COLOURS = [OURS, "#e0a458", "#8a5a83", "#7aa874"]
WAY_COLOURS = dict(zip((*cost.WAYS, "two_level"), RANK_COLOURS, strict=True))
RANKS = [2**power for power in range(11)]
TOKENS = {1 << 15: "32k", 1 << 17: "128k", 1 << 20: "1M", 10 << 20: "10M"}
GPUS_OF_A_NODE = 8


def machine(ranks: int) -> cost.Machine:
    return cost.HOPPER_NVLINK if ranks <= GPUS_OF_A_NODE else cost.HOPPER_INFINIBAND


def strip(axes: plt.Axes, height: float, pieces: list[tuple[float, float, int, str]]) -> None:
    """A row of coloured pieces: begin, end, rank and what is written in it."""
    for begin, end, rank, text in pieces:
        axes.barh(height, end - begin, left=begin, height=0.7, color=RANK_COLOURS[rank], edgecolor="white")
        axes.text((begin + end) / 2, height, text, ha="center", va="center", fontsize=7, color="white")


def draw_layouts(path: Path) -> None:
    """Both orders of a sequence, the shards of the balanced one, and the pages of a cache, over four ranks."""
    ranks, length = 4, 16.0
    figure, axes = plt.subplots(figsize=(7.2, 3.6))
    balanced, contiguous = Layout(16, ranks), Layout(16, ranks, "contiguous")
    for height, layout in ((5, contiguous), (4, balanced)):
        pieces = [(*layout.chunk(rank, part, 16), rank, f"rank {rank}") for rank in range(ranks) for part in range(layout.parts)]
        strip(axes, height, pieces)
    for rank in range(ranks):
        begin = rank * length / ranks
        halves = [f"tokens {first},\n{last - 1}" for first, last in (balanced.chunk(rank, part, 16) for part in range(2))]
        strip(axes, 2.6, [(begin + 0.05, begin + 2, rank, halves[0]), (begin + 2, begin + 3.95, rank, halves[1])])
    strip(axes, 1.2, [(page * 1.6, (page + 1) * 1.6, page % ranks, f"page {page}") for page in range(10)])
    axes.set_yticks([5, 4, 2.6, 1.2], ["contiguous", "balanced", "balanced:\nshards", "cache"])
    axes.set_xlim(0, length)
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    save(figure, path)


def panel(axes: plt.Axes, title: str, lines: dict[str, tuple[str, list[float]]]) -> None:
    for name, (colour, values) in lines.items():
        axes.plot(RANKS, values, marker="o", markersize=3, label=name, color=colour)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(RANKS, [str(ranks) for ranks in RANKS], fontsize=6)
    axes.minorticks_off()
    axes.axvline(GPUS_OF_A_NODE * 1.4, color=GRID, linewidth=1)
    axes.set_title(title, fontsize=8, loc="left")
    axes.grid(color=GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=6, frameon=False)


def seconds(way: str, tokens: int, backward: bool) -> list[float]:
    """Milliseconds of a layer by ranks; nothing where heads cannot be dealt, or where one node has all ranks."""
    found = []
    for ranks in RANKS:
        problem = cost.Problem.causal(tokens, ranks, backward=backward)
        if way == "two_level":
            allowed = ranks > GPUS_OF_A_NODE
            total = cost.two_level(problem, min(ranks, GPUS_OF_A_NODE), cost.HOPPER_NVLINK, cost.HOPPER_INFINIBAND).total
        else:
            allowed = way != "heads" or 32 % ranks == 0
            total = cost.estimate(way, problem, machine(ranks)).total if allowed else 0.0
        found.append(1e3 * total if allowed else float("nan"))
    return found


def decode(bytes_of_token: int, heads: int, dim_qk: int, dim_v: int) -> Callable[[int], list[float]]:
    """Milliseconds of a layer of one sequence, by ranks."""
    result, flops = heads * (dim_v * 2 + 4), 2.0 * heads * (dim_qk + dim_v)
    return lambda tokens: [
        1e3 * cost.decode_seconds(tokens * bytes_of_token, result, ranks, machine(ranks), tokens * flops) for ranks in RANKS
    ]


def draw_model(path: Path) -> None:
    figure, grid = plt.subplots(2, 3, figsize=(10, 5.4))
    for axes, (tokens, name) in zip(grid[0], list(TOKENS.items())[1:], strict=True):
        lines = {way: (WAY_COLOURS[way], seconds(way, tokens, False)) for way in WAY_COLOURS}
        panel(axes, f"forward, {name} tokens, causal", lines)
    lines = {way: (WAY_COLOURS[way], seconds(way, 1 << 20, True)) for way in WAY_COLOURS}
    panel(grid[1][0], "backward, 1M tokens, causal", lines)
    gqa, latent = decode(2 * 8 * 128 * 2, 32, 128, 128), decode(576 * 2, 128, 576, 512)
    for axes, title, times in ((grid[1][1], "decode, 8 kv heads of 128", gqa), (grid[1][2], "decode, latent rows of 576", latent)):
        panel(axes, title, {name: (RANK_COLOURS[at], times(tokens)) for at, (tokens, name) in enumerate(TOKENS.items())})
    for axes in grid[:, 0]:
        axes.set_ylabel("milliseconds of a layer (model)", fontsize=8)
    for axes in grid[1]:
        axes.set_xlabel("ranks", fontsize=8)
    figure.tight_layout()
    save(figure, path)


if __name__ == "__main__":
    draw_layouts(DOCS / "distributed-layout.svg")
    draw_model(DOCS / "distributed-model.svg")
