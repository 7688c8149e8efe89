# SPDX-License-Identifier: Apache-2.0
"""The section on several GPUs, from a file that bench/context_parallel.py wrote."""

from pathlib import Path

from plotting import milliseconds, provenance, text_table


def what(row: dict) -> str:
    tokens = f"{row['tokens']} tokens"
    kinds = {"forward": "prefill", "backward": "gradient", "decode mla": "latent decode", "decode gqa": "decode"}
    return f"{kinds[row['name']]}, {tokens}"


def timed(rows: list[dict]) -> str:
    """Prefill, gradient and decoding, the model's time beside each."""
    lines = []
    for row in rows:
        if "tokens" not in row:
            continue
        way = row.get("way") or row["merge"]
        model = milliseconds(row["model_ms"] / 1e3)
        speedup = f"{row['speedup']:.2f} x"
        clock = f"{row['sm_mhz']} MHz, {row['watts']} W"
        lines.append([what(row), str(row["ranks"]), f"`{way}`", milliseconds(row["milliseconds"] / 1e3), speedup, model, clock])
    return text_table(["work", "GPUs", "way", "time", "speed-up", "model", "clock and power"], lines, (1, 3, 4, 5))


def merged(rows: list[dict]) -> str:
    lines: dict[tuple, dict[str, str]] = {}
    for row in rows:
        if row["name"] == "merge":
            key = (str(row["ranks"]), str(row["rows"]), f"{row['heads']} of {row['dim']}")
            lines.setdefault(key, {})[row["merge"]] = f"{row['microseconds']:.1f} us"
    table = [[*key, times["gather"], times["scatter"]] for key, times in lines.items()]
    return text_table(["GPUs", "rows", "heads", "all-gather", "each merges a share"], table, (0, 1, 3, 4))


STATED = """The model took stated rates then: see [context parallelism](distributed.md). `heads` and `gathered` fall behind it,
since links reach two thirds of their stated rate and copies run beside products."""
MEASURED = "[Context parallelism](distributed.md#the-model) says what the model adds up."


def section(path: Path, results: dict) -> str:
    rates = ", ".join(
        f"{row['name']} {row['bytes_per_second'] / 1e9:.0f} GB/s" for row in results["rows"] if "bytes_per_second" in row
    )
    checks = [row for row in results["rows"] if row["name"] == "check dense"]
    worst = max(max(row["errors"]) for row in checks)
    has_auto = any(
        row.get("way") == "auto" for row in results["rows"]
    )  # since then the model has measured rates, and layers a step
    auto = "`auto` is the way that the model prefers. A decode is one of 20\nlayers of a step. " if has_auto else ""
    return f"""## Context parallelism on {results["ranks"]} GPUs

{provenance(path, results, "context_parallel.py")}

32 query heads over 8 kv heads of 128, causal, bf16; latent decode has 128 heads over rows of 576. One sequence.
`plain` is the call without ranks, `ring` on one GPU the layer around it. {auto}Times are the slowest rank's. Measured:
{rates} each way, of the stated 450. Results and gradients of each way differ from one GPU's by {worst:.1e} of the
largest element at most, and are the same bits when repeated.

{timed(results["rows"])}
{MEASURED if has_auto else STATED} Merging results of all ranks, `out` and `lse`:

{merged(results["rows"])}"""
