# SPDX-License-Identifier: Apache-2.0
"""Measures this machine: `fovea bench` with its ceilings, then Fovea beside PyTorch and beside itself. Writes a JSON file."""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, required=True, help="the fovea program")
    parser.add_argument("--threads", type=int, default=2, help="threads of both libraries (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each case (default: %(default)s)")
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--out", type=Path, help="file to write (default: bench/results/DEVICE/DATE-cpu.json, with --case none)")
    parser.add_argument("--note", default="", help="kept with the results, e.g. what else ran on the machine")
    parser.add_argument("--commit", help="revision measured (default: git's)")
    args = parser.parse_args()
    if args.threads < 1 or not 0 < args.seconds < float("inf"):
        parser.error("--threads must be at least 1, and --seconds above 0")
    return args


def native_names(args: argparse.Namespace) -> list[str]:
    """The requested cases of `fovea bench`."""
    command = [args.program, "bench", "--list", "--case", args.case]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def native_rows(args: argparse.Namespace, names: list[str]) -> dict:
    """Runs `fovea bench`. Measures the ceilings alone if the requested case is a comparison."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [args.program, "bench", "--threads", str(args.threads), "--seconds", str(args.seconds), "--json", file.name]
        subprocess.run(command + (["--case", args.case] if names else ["--ceilings"]), check=True)
        return json.loads(Path(file.name).read_text())


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turn(args: argparse.Namespace, cases: dict, other: str) -> list[dict]:
    """Runs both sides in turn, so that they meet the same state of the machine. The ratio is that of the medians. `other` names the
    other side in the results."""
    rows = []
    for name, make in cases.items():
        if args.case not in name:
            continue
        duel = make(name)
        duel.check()
        ours, theirs, begin = [], [], time.perf_counter()
        while len(ours) < 5 or time.perf_counter() - begin < 2 * args.seconds:
            ours.append(seconds(duel.fovea))
            theirs.append(seconds(duel.other))
        row = {
            "case": name,
            "fovea_s": statistics.median(ours),
            f"{other}_s": statistics.median(theirs),
            "fovea_spread": [min(ours), max(ours)],
            f"{other}_spread": [min(theirs), max(theirs)],
            "runs": len(ours),
            f"{other}_does": duel.other_does,
        }
        rows.append(row)
        print(f"{name:70s} Fovea {1e3 * row['fovea_s']:9.3f} ms  {other} {1e3 * row[f'{other}_s']:9.3f} ms", flush=True)
    return rows


def python_call_seconds() -> float:
    from torch_cases import one_token

    call = one_token()
    samples = []
    for _ in range(50):
        start = time.perf_counter()
        for _ in range(200):
            call()
        samples.append((time.perf_counter() - start) / 200)
    return statistics.median(samples)


def git_commit() -> str:
    done = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def clock_mhz() -> list[float]:
    info = Path("/proc/cpuinfo")
    return [float(value) for value in re.findall(r"cpu MHz\s*:\s*([\d.]+)", info.read_text())] if info.exists() else []


def main() -> int:
    args = arguments()
    import torch
    from torch_cases import CASES, OWN_CASES

    names = native_names(args)
    if not names and not any(args.case in name for name in (*CASES, *OWN_CASES)):
        print(f'bench: no case matches "{args.case}"; these are:', *CASES, *OWN_CASES, sep="\n  ", file=sys.stderr)
        print(f"  and those of {args.program} bench --list", file=sys.stderr)
        return 2
    results = native_rows(args, names)
    import fovea

    torch.set_num_threads(args.threads)
    fovea.set_num_threads(args.threads)
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"\nPyTorch {torch.__version__} ({capability}) in one process with Fovea, {args.threads} threads")
    with torch.no_grad():
        results["versus"] = in_turn(args, CASES, "torch")
        results["own"] = in_turn(args, OWN_CASES, "other")
        results["python_one_token_s"] = python_call_seconds()
    print(f"one token from Python: {results['python_one_token_s'] * 1e6:.1f} us")
    results |= {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": args.commit or git_commit(),
        "torch": torch.__version__,
        "torch_capability": capability,
        "clock_mhz": clock_mhz(),
        "load": list(os.getloadavg()),
        "note": args.note,
    }
    device = "-".join(
        re.findall(r"[a-z0-9]+", f"{results['cpu']} {results['features'][-1] if results['features'] else ''}".lower())
    )
    if args.case and not args.out:
        print("not written: with --case, --out FILE keeps the results")
        return 0
    out = args.out or ROOT / "bench" / "results" / device / f"{results['date'][:10]}-cpu.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"wrote {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
