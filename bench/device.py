# SPDX-License-Identifier: Apache-2.0
"""Measures this machine's GPU: the bf16 matrix product of PyTorch's library, then `fovea bench` beside it. Writes a JSON file."""

import argparse
import json
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import torch
from gpu import matrix_rate, result_file, revision, write

SIZE = 8192


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, required=True, help="the fovea program")
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each case (default: %(default)s)")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--out", type=Path, help="file to write (default: bench/results/DEVICE/DATE-cuda.json)")
    parser.add_argument("--note", default="", help="kept with the results, e.g. what else ran on the machine")
    parser.add_argument("--commit", help="revision measured (default: git's)")
    args = parser.parse_args()
    if not 0 < args.seconds < float("inf"):
        parser.error("--seconds must be above 0")
    return args


def main() -> None:
    args = arguments()
    before = matrix_rate(SIZE)
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [args.program, "bench", "--implementation", "cuda.", "--device-peak", str(before), "--seconds", str(args.seconds)]
        command += ["--json", file.name] + (["--case", args.case] if args.case else [])
        subprocess.run(command, check=True)
        results = json.loads(Path(file.name).read_text())
    now = datetime.now(UTC)
    results |= {
        "date": now.isoformat(timespec="seconds"),
        "commit": args.commit or revision(),
        "note": args.note,
        "matrix_product": {"before": before, "after": matrix_rate(SIZE), "size": SIZE, "torch": torch.__version__},
    }
    out = args.out or result_file("cuda", now)
    write(results, out)
    print(f"matrix product {before / 1e12:.0f} TFLOP/s before, {results['matrix_product']['after'] / 1e12:.0f} after; wrote {out}")


if __name__ == "__main__":
    main()
