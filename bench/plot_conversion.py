# SPDX-License-Identifier: Apache-2.0
"""The section on cache conversions, from a file that bench/cache_conversion.py wrote."""

from pathlib import Path

from plotting import milliseconds, missing, provenance, text_table

CONVERSIONS = ("quantize", "append", "dequantize")


def by_format(cases: list[dict]) -> dict[str, dict[str, list[dict]]]:
    """The rows by format and conversion, the largest first."""
    found: dict[str, dict[str, list[dict]]] = {}
    for case in sorted(cases, key=lambda case: -case["tokens"]):
        if not case["exact"]:
            found.setdefault(case["cache_format"], {}).setdefault(case["does"], []).append(case)
    return found


def share(rows: list[dict]) -> str:
    return f"{rows[0]['of_copy_rate']:.0%}" if rows else ""


def time_of_few(rows: list[dict]) -> str:
    return milliseconds(rows[-1]["milliseconds"] / 1e3) if len(rows) > 1 else ""


def section(path: Path, results: dict) -> str:
    header = ["format", *(f"{name}, many tokens" for name in CONVERSIONS), *(f"{name}, few" for name in CONVERSIONS[1:])]
    lines = []
    for cache_format, does in by_format(results["cases"]).items():
        large = [share(does.get(name, [])) for name in CONVERSIONS]
        lines.append([f"`{cache_format}`", *large, *(time_of_few(does.get(name, [])) for name in CONVERSIONS[1:])])
    sizes = sorted({case["tokens"] for case in results["cases"]})
    return f"""## Packed caches, written and read

{provenance(path, results, "cache_conversion.py")}

Shares of the rate at which this device copies as many bytes, for up to {sizes[-1]} tokens, and times for {sizes[0]}.
`append` puts tokens into the slots of a paged cache that a list names.

{text_table(header, lines, range(1, len(header)))}
{missing(results)}"""
