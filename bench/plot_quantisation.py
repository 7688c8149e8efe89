# SPDX-License-Identifier: Apache-2.0
"""Makes docs/quantisation-error.svg: what each packed cache format costs, measured by the library's own quantisers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import matplotlib.pyplot as plt
import torch
from plotting import DOCS, save
from torch import Tensor

import fovea

PICTURE = DOCS / "quantisation-error.svg"
TOKENS, PAGE = 1024, 64
COLOURS = ["#1f6f8b", "#e0a458", "#b8b8b8"]


def normal(width: int) -> Tensor:
    return torch.randn(TOKENS, width)


def outliers(width: int) -> Tensor:
    """One channel in 64 is 20 times as large, the same ones in every token, as trained models have them."""
    rows = normal(width)
    rows[:, ::64] *= 20
    return rows


def heavy_tails(width: int) -> Tensor:
    return torch.distributions.StudentT(3.0).sample((TOKENS, width))


VALUES = {"normal": normal, "outlier channels": outliers, "heavy tails (Student t, 3)": heavy_tails}


def error(got: Tensor, rows: Tensor) -> float:
    """Root mean square of the error over that of the values, of the channels that are no outliers: what a large neighbour costs."""
    ordinary = rows.abs().median(dim=0).values < 5
    return ((got - rows)[:, ordinary].norm() / rows[:, ordinary].norm()).item()


@dataclass(frozen=True)
class Method:
    name: str
    width: int  # of a row
    codes: int  # its quantised values
    convert: Callable[[Tensor], Tensor]  # there and back

    def error(self, values: Callable[[int], Tensor]) -> float:
        torch.manual_seed(0)
        rows = values(self.width)
        return error(self.convert(rows)[:, : self.codes], rows[:, : self.codes])


def one_scale(rows: Tensor) -> Tensor:
    scale = rows.abs().max() / torch.finfo(torch.float8_e4m3fn).max
    return (rows / scale).to(torch.float8_e4m3fn).float() * scale


def through_cache(rows: Tensor, format: fovea.CacheFormat, exact: bool) -> Tensor:
    cache, slots = format.empty(TOKENS // PAGE, PAGE), torch.arange(TOKENS)
    fovea.quantize_latent_cache(rows, cache, slots, format=format.name, exact_scale=exact)
    return fovea.dequantize_latent_cache(cache, slots, format=format.name, dtype=torch.float32)


def packed(format: fovea.CacheFormat) -> list[Method]:
    """The ways to write a format: only f32 scales leave a choice."""
    scales = {"f32": ["scales of 2^n", "exact scales"], "ue8m0": ["scales of 2^n"], "e4m3": ["e4m3 scales"]}[format.scale_type]
    bits = 8 * (format.bytes - 2 * format.rope) / format.codes
    return [
        Method(
            f"{format.name}, {name}\n{bits:.3g} bits a value, groups of {format.group}",
            format.row,
            format.codes,
            partial(through_cache, format=format, exact=name.startswith("exact")),
        )
        for name in scales
    ]


def methods() -> list[Method]:
    found = [
        Method("bf16 rows\n16 bits a value", 512, 512, lambda rows: rows.bfloat16().float()),
        Method("e4m3 rows, one scale\n8 bits a value", 512, 512, one_scale),
    ]
    for format in fovea.cache_formats().values():
        if not format.name.endswith("_planar"):  # the same numbers in another order
            found += packed(format)
    return found


def main() -> None:
    rows = [(method.name, [100 * method.error(values) for values in VALUES.values()]) for method in methods()]
    figure, axes = plt.subplots(figsize=(9, 0.75 * len(rows) + 1.2))
    height = 0.8 / len(VALUES)
    for kind, name in enumerate(VALUES):
        places = [row - 0.4 + height * (kind + 0.5) for row in range(len(rows))]
        errors = [row[1][kind] for row in rows]
        axes.barh(places, errors, height=0.9 * height, color=COLOURS[kind], label=name)
        for place, value in zip(places, errors, strict=True):
            axes.text(value * 1.05, place, f"{value:.2g} %", va="center", fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xticks([0.1, 1, 10, 100], ["0.1 %", "1 %", "10 %", "100 %"])
    axes.set_yticks(range(len(rows)), [row[0] for row in rows], fontsize=8)
    axes.set_xlabel("root mean square error of the ordinary channels, over their root mean square")
    axes.legend(fontsize=8, loc="upper right")
    axes.grid(axis="x", color="#e4e4e4")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    save(figure, PICTURE)
    for name, errors in rows:
        print(name.replace("\n", ", ").ljust(60), *(f"{value:8.3f} %" for value in errors))


if __name__ == "__main__":
    main()
