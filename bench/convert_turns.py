# SPDX-License-Identifier: Apache-2.0
"""Times by turns that another timer measured, as result files of this folder: DATE-KIND-by-turns.json, one for each kind of rows.

Its file has "rows", each with "name", "ours_us", "peers_us" and "ratio" (by peer). A row may have "flops", "bytes", "matrix" (the
rate of a matrix product beside it), "of_copy", "sm_mhz" and "watts". Names become those of this folder's benchmarks."""

import argparse
import json
import re
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
_DENSE = r"(?P<dims>d\S+) (?P<batch>b\d+) (?P<seq>s\d+) (?P<heads>h\S+) (?P<rest>.*)"
# By the name of a row there: the kind of results, and its name here.
NAMES = (
    (r"fwd varlen (.*)", "dense-attention", r"ragged \1"),
    (rf"fwd {_DENSE}", "dense-attention", r"\g<dims> \g<heads> \g<batch> \g<seq> \g<rest>"),
    (rf"bwd {_DENSE}", "dense-backward", r"\g<dims> \g<heads> \g<batch> \g<seq> \g<rest>"),
    (rf"eight_bit whole {_DENSE}", "quantized-attention", r"whole \g<dims> \g<heads> \g<batch> \g<seq> \g<rest>"),
    (r"paged (b\d+) (sq\d+) len(\d+) (\S+) page(\d+)(.*)", "paged-decode", r"\1 \2 len=\3 h\4 d128 page \5\6"),
    (r"paged (b\d+) (sq\d+) mix (\S+) (\S+) page(\d+)(.*)", "paged-decode", r"\1 \2 len=\3 h\4 d128 page \5\6"),
    (r"mla (.*)", "latent-decode", r"\1"),
    (r"sparse (\S+) (b\d+ sq\d+) (h\d+) (topk\d+)", "sparse-latent", r"\2 kv32768 \3 \4 \1"),
    (r"(prefill .*)", "sparse-latent", r"\1"),
)

PEERS = {"FA3": "FlashAttention-3", "FA3-vLLM": "FlashAttention-3 (vLLM)"}


def renamed(name: str) -> tuple[str, str]:
    """Kind and name."""
    for pattern, kind, here in NAMES:
        match = re.fullmatch(pattern, name)
        if match:
            words = match.expand(here).split(" ")
            e4m3 = "float8_e4m3fn" if kind in ("dense-attention", "quantized-attention") else "e4m3"
            return kind, " ".join({"e4m3": e4m3, "f16": "float16"}.get(word, word) for word in words)
    raise SystemExit(f"no kind of results for the row {name!r}")


def converted(row: dict) -> dict:
    found = {"milliseconds": row["ours_us"] / 1e3}
    found["peers"] = {PEERS.get(peer, peer): us / 1e3 for peer, us in row["peers_us"].items()}
    found["by_turns"] = {PEERS.get(peer, peer): ratio for peer, ratio in row["ratio"].items()}
    if "flops" in row and "bytes" in row:
        found |= {name: row[name] / row["ours_us"] * 1e6 for name in ("flops", "bytes")}
    same = {"matrix": "matrix_rate", "of_matrix": "of_matrix_rate", "of_copy": "of_copy_rate", "graph": "graph"}
    same |= {name: name for name in ("sm_mhz", "watts", "notes")}
    return found | {here: row[there] for there, here in same.items() if row.get(there)}


def watched(path: Path) -> dict[str, int]:
    """Means of "clock, watts" lines, without those of an idle device: below half of the most power."""
    samples = [tuple(map(float, re.findall(r"[\d.]+", line)[-2:])) for line in path.read_text().splitlines() if line.strip()]
    most = max(watts for _, watts in samples)
    busy = [sample for sample in samples if sample[1] > most / 2]
    return {name: round(sum(values) / len(busy)) for name, values in zip(("sm_mhz", "watts"), zip(*busy, strict=True), strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("turns", type=Path, nargs="+", help="files of the other timer; of a row in several the last one counts")
    parser.add_argument("--date", required=True, help="2026-11-27, or with a time")
    parser.add_argument("--commit", required=True, help="what was measured")
    parser.add_argument("--driver", default="", help="its version")
    parser.add_argument("--clocks-max", default="", help='"1980 MHz, 700.00 W"')
    parser.add_argument("--watch", type=Path, help="nvidia-smi --query-gpu=clocks.sm,power.draw --format=csv,noheader -lms 100")
    parser.add_argument("--note", default="", help="a sentence about the measurement")
    parser.add_argument("--into", type=Path, help="folder (default: bench/results/DEVICE)")
    args = parser.parse_args()
    kinds: dict[str, dict[str, dict]] = {}
    for path in args.turns:
        given = json.loads(path.read_text())
        for row in given["rows"]:
            kind, name = renamed(row["name"])
            if row["peers_us"]:
                kinds.setdefault(kind, {})[name] = {"name": name} | converted(row)
    into = args.into or RESULTS / re.sub(r"[^a-z0-9]+", "-", given["device"].lower()).strip("-").removesuffix("-80gb-hbm3")
    head = {"date": args.date, "commit": args.commit, "device": given["device"], "driver": args.driver}
    head |= {"clocks_max": args.clocks_max, "torch": given["torch"], "peers": given["versions"]}
    head |= {"note": args.note} if args.note else {}
    head |= {"mean": watched(args.watch)} if args.watch else {}
    for kind, rows in kinds.items():
        path = into / f"{args.date[:10]}-{kind}-by-turns.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(head | {"cases": list(rows.values())}, indent=2) + "\n")
        print(f"{path}: {len(rows)} rows")


if __name__ == "__main__":
    main()
