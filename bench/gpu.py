# SPDX-License-Identifier: Apache-2.0
"""Parts that the benchmarks of a GPU share: arguments, current ceilings, timing, and a result file that grows case by case.

A case that fails is noted with its error, and the others continue. A dry run takes tiny shapes, on the CPU if there is no GPU. It
runs every line of a benchmark and its checks, and its times mean nothing."""

import argparse
import importlib.util
import json
import re
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import peers
import torch
from host_time import host_native, host_python
from torch import Tensor

import fovea

ROOT = Path(__file__).resolve().parent.parent
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CHAIN = 32  # calls in one graph, each with tensors of its own, as the layers of a decode step
SETTLE = 0.5  # seconds of the same calls before they are timed


class Case(Protocol):
    """A dataclass too: its fields go into the result."""

    @property
    def name(self) -> str: ...

    def tiny(self) -> "Case":
        """The same kind of work in no time, for a dry run."""


class Subject(Protocol):
    flops: int
    bytes: int  # each that is read or written once
    graph: bool  # whether to time it as a graph
    layers: bool  # whether there are others with the same schedule: all of decode

    def run(self, schedule: fovea.LatentSchedule | None = None) -> Tensor: ...

    def check(self, call: Callable[[], Tensor] | None = None) -> float:
        """The relative error of a run or of another call; raises when it is too large."""

    def peers(self, shared: bool) -> dict[str, Callable[[], Tensor]]:
        """Others that compute the same, checked. shared: with the schedule of a call before."""


def median_ms(call: Callable[[], object], settle: float = SETTLE, measure: int = 200) -> float:
    """L2 is flushed before each call, and `settle` seconds of the same calls come first. The clock of a GPU at its power limit
    follows the power of the last tenths of a second, so calls after lighter work begin too fast, and then are too slow.
    Without a GPU: one call."""
    if DEVICE == "cpu":
        start = time.perf_counter()
        call()
        return (time.perf_counter() - start) * 1e3
    from triton.testing import do_bench

    until = time.perf_counter() + settle
    while time.perf_counter() < until:
        for _ in range(10):
            call()
        torch.cuda.synchronize()
    return do_bench(call, warmup=1, rep=measure, return_mode="median")


def clean_median_ms(call: Callable[[], object], runs: int = 50) -> float:
    """The same after a flush that ends with reads: nothing of what L2 holds has to be stored first, as in a step of a model, whose
    weights were only read."""
    if DEVICE == "cpu":
        return median_ms(call)
    memory = torch.empty(1 << 29, dtype=torch.uint8, device=DEVICE)
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for start, end in pairs:
        memory[: 1 << 28].zero_()
        memory.view(torch.int64).amax()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs)


def gpu_id() -> str:
    """The UUID of the GPU in use. An index would count hidden GPUs too."""
    return f"GPU-{torch.cuda.get_device_properties().uuid}"


class Watch:
    """Means of the SM clock and of power over a `with` block, sampled every 10 ms. None without NVML's Python package."""

    def __init__(self) -> None:
        self.samples: list[tuple[int, float]] = []
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.sample, daemon=True)

    def sample(self) -> None:
        if DEVICE == "cpu" or not importlib.util.find_spec("pynvml"):
            return
        import pynvml

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByUUID(gpu_id())
        while not self.done.wait(0.01):
            clock = pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM)
            self.samples.append((clock, pynvml.nvmlDeviceGetPowerUsage(device) / 1e3))

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    def row(self) -> dict:
        names = ("sm_mhz", "watts")
        late = self.samples[len(self.samples) // 2 :]  # once clock and power have settled
        return {name: round(statistics.mean(of)) for name, of in zip(names, zip(*late, strict=True), strict=False)}


def recorded(*calls: Callable[[], object], shared: bool = False) -> Callable[[], None]:
    """One after another as a CUDA graph. shared: with the schedule of another graph before it."""

    def all_calls() -> None:
        for call in calls:
            call()

    all_calls()
    if DEVICE == "cpu":
        return all_calls
    torch.cuda.synchronize()
    graphs = []
    for _ in range(2 if shared else 1):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            all_calls()
        graphs[-1].replay()
    return lambda: graphs[-1].replay()  # the memory of all of them is in use


def matrix_rate(size: int = 8192, median: Callable[[Callable[[], object]], float] = median_ms) -> float:
    """FLOP/s of a bf16 product of two square matrices of random numbers, timed as the rows beside it are."""
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    return 2 * size**3 / median(lambda: a @ b) * 1e3


def copy_rate(size: int = 1 << 32, median: Callable[[Callable[[], object]], float] = median_ms) -> float:
    """Bytes read and written a second."""
    source = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * size / median(lambda: target.copy_(source)) * 1e3


def smi(query: str) -> str:
    if not shutil.which("nvidia-smi"):
        return ""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", *(["--id", gpu_id()] if DEVICE == "cuda" else [])]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def revision() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def device_name() -> str:
    return torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"


def result_file(kind: str, now: datetime) -> Path:
    folder = re.sub(r"[^a-z0-9]+", "-", device_name().lower()).strip("-")
    return ROOT / "bench/results" / folder / f"{now.date()}-{kind}.json"


def write(results: dict, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")


def arguments(kind: str, about: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--out", type=Path, help=f"file to write (default: bench/results/DEVICE/DATE-{kind}.json)")
    parser.add_argument("--commit", help="revision measured (default: git's)")
    parser.add_argument("--only", default="", metavar="PATTERN", help="only rows in whose name this regular expression is found")
    parser.add_argument("--peer", default="", metavar="PATTERN", help="only peers in whose name it is found")
    parser.add_argument(
        "--settle", type=float, default=SETTLE, help="seconds of the same calls before each timing (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=200, help="begin no row after this time (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=4, help="of this library and a peer (default: %(default)s)")
    parser.add_argument("--program", type=Path, help="the fovea program, to measure the host time of a call from C++ too")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes; writes a file only where --out says so")
    args = parser.parse_args()
    if args.turns < 1 or not args.seconds >= 0:
        parser.error("--turns must be at least 1, and --seconds at least 0")
    if DEVICE == "cpu" and not args.dry_run:
        parser.error("no NVIDIA GPU here; --dry-run does without")
    return args


class Bench:
    """One result file. Beside each row goes the rate of a matrix product at that moment; the rate of a copy is taken once."""

    def __init__(self, kind: str, about: str | None) -> None:
        self.started, now = time.monotonic(), datetime.now(UTC)
        self.args = arguments(kind, about)
        self.out = self.args.out or (None if self.args.dry_run else result_file(kind, now))
        self.missing: list[dict] = []
        self.known: dict[str, dict | None] = {}
        torch.manual_seed(1)
        self.results: dict[str, Any] = {
            "date": now.isoformat(timespec="seconds"),
            "commit": self.args.commit or revision(),
            "device": device_name(),
            "driver": smi("driver_version"),
            "clocks_max": smi("clocks.max.sm,power.limit"),
            "torch": torch.__version__,
            "peers": peers.versions(),
            "copy_rate": copy_rate(1 << (20 if self.args.dry_run else 32), self.median),
        }

    def median(self, call: Callable[[], object]) -> float:
        settle = self.args.settle
        return median_ms(call, 0, 1) if self.args.dry_run else median_ms(call, settle, max(12, int(400 * settle)))

    def save(self) -> None:
        if self.out:
            write(self.results | ({"missing": self.missing} if self.missing else {}), self.out)

    def miss(self, name: str, why: str) -> None:
        self.missing.append({"name": name, "why": why})
        print(f"{name}: NOT MEASURED: {why}", flush=True)

    def attempt(self, name: str, measure: Callable[[], dict]) -> dict | None:
        """The measurement. None if it was not wanted, or if `missing` says why it failed."""
        if not re.search(self.args.only, name):
            return None
        if time.monotonic() - self.started > self.args.seconds:
            return self.miss(name, f"the {self.args.seconds:.0f} s were over")
        try:
            if DEVICE == "cuda":
                torch.cuda.empty_cache()  # caches of all sizes would not fit side by side
            return measure()
        except Exception as error:  # whatever it is, the other rows can do without this one
            return self.miss(name, f"{type(error).__name__}: {error}")

    def rows(self, cases: Iterable[Case], measure: Callable[[Any], dict], into: list[dict], what: str = "") -> None:
        """Measures each case that was not measured before, and keeps the file up to date."""
        for case in cases:
            name = what + case.name
            if name not in self.known:
                small = case.tiny() if self.args.dry_run else case
                measured = self.attempt(name, lambda small=small: measure(small))
                self.known[name] = measured and asdict(case) | {"name": case.name} | measured
                if measured:
                    print(f"{name:56} {self.line(measured)}", flush=True)
            if row := self.known[name]:
                into.append(row)
            self.save()

    def line(self, row: dict) -> str:
        if "chain" in row:
            shared = f", with a shared schedule {row['shared_us']:.1f} us"
            return f"alone {row['alone_us']:.1f} us, one of {row['chain']} {row['chained_us']:.1f} us{shared}"
        text = f"{row['milliseconds']:8.4f} ms"
        if "flops" in row:
            text += f" {row['flops'] / 1e12:5.0f} TFLOP/s {row['of_matrix_rate']:5.2f} of the matrix rate"
        if "bytes" in row:
            text += f" {row['bytes'] / 1e9:5.0f} GB/s {row['of_copy_rate']:5.2f} of the copy rate"
        text += "".join(f"  {peer} {ms:.4f} ms, {row['by_turns'][peer]:.3f}" for peer, ms in row.get("peers", {}).items())
        if "clean_milliseconds" in row:
            text += f"  after a flush that reads {row['clean_milliseconds']:.4f} ms"
            text += "".join(f", {peer} {ms:.4f} ms" for peer, ms in row.get("clean_peers", {}).items())
        if "watts" in row:
            text += f"  {row['sm_mhz']} MHz {row['watts']} W"
        if "shared_milliseconds" in row:
            text += f"  shared schedule {row['shared_milliseconds']:.4f} ms"
        return text + "".join(
            f"  {peer} {ms:.4f} ms, {row['shared_by_turns'][peer]:.3f}" for peer, ms in row.get("shared_peers", {}).items()
        )

    def milliseconds(self, subject: Subject, call: Callable[[], object], shared: bool = False) -> float:
        return self.median(recorded(call, shared=shared) if subject.graph else call)

    def time(self, subject: Subject) -> dict:
        """Checked, then timed."""
        error = subject.check()
        with Watch() as watch:
            milliseconds = self.milliseconds(subject, subject.run)
        return {"milliseconds": milliseconds, "error": error} | watch.row()

    def by_turns(self, subject: Subject, own: Callable[[], object], peers: dict, shared: bool) -> tuple[dict, dict]:
        """Milliseconds of each peer, and its time relative to this library's: medians over turns, whose order alternates."""
        times, ratios = {}, {}
        calls = {name: recorded(call, shared=shared) if subject.graph else call for name, call in {"": own, **peers}.items()}
        for peer in peers:
            pairs = []
            for turn in range(1 if self.args.dry_run else self.args.turns):
                order = ("", peer) if turn % 2 == 0 else (peer, "")
                pairs.append({name: self.median(calls[name]) for name in order})
            times[peer] = statistics.median(pair[peer] for pair in pairs)
            ratios[peer] = statistics.median(pair[peer] / pair[""] for pair in pairs)
        return times, ratios

    def wanted(self, peers: dict) -> dict:
        return {name: call for name, call in peers.items() if re.search(self.args.peer, name)}

    def row(self, subject: Subject) -> dict:
        """Checked, then timed beside the ceilings and the peers."""
        ceiling, row = matrix_rate(256 if self.args.dry_run else 8192, self.median), self.time(subject)
        flops, moved = (work / row["milliseconds"] * 1e3 for work in (subject.flops, subject.bytes))
        row |= {"flops": flops, "bytes": moved, "of_matrix_rate": flops / ceiling}
        row |= {"of_copy_rate": moved / self.results["copy_rate"], "matrix_rate": ceiling}
        peers, clean = self.wanted(subject.peers(shared=False)), getattr(subject, "clean", False)
        if peers:
            row["peers"], row["by_turns"] = self.by_turns(subject, subject.run, peers, shared=False)
        if errors := getattr(subject, "peer_errors", {}):
            row["peer_errors"] = errors
        if clean:
            row["clean_milliseconds"] = clean_median_ms(recorded(subject.run))
        if clean and peers:
            row["clean_peers"] = {name: clean_median_ms(recorded(call)) for name, call in peers.items()}
        return row | self.shared(subject)

    def shared(self, subject: Subject) -> dict:
        """The same for a layer that runs with the schedule of one before."""
        if not subject.layers:
            return {}
        call = partial(subject.run, fovea.LatentSchedule())
        call()
        error = subject.check(call)
        row: dict[str, Any] = {"shared_milliseconds": self.milliseconds(subject, call, shared=True), "shared_error": error}
        if peers := self.wanted(subject.peers(shared=True)):
            row["shared_peers"], row["shared_by_turns"] = self.by_turns(subject, call, peers, shared=True)
        return row

    def latency(self, cases: Iterable[Case], make: Callable[[Any], Subject]) -> None:
        """Microseconds of a graph of one call, and of each call in a graph of many, that share a schedule or do not."""

        def measure(case: Case) -> dict:
            layers, schedule = [make(case) for _ in range(CHAIN)], fovea.LatentSchedule()
            calls, sharing = ([partial(layer.run, shared) for layer in layers] for shared in (None, schedule))
            for layer, call, shared in zip(layers, calls, sharing, strict=True):
                layer.check(call)
                layer.check(shared)
            alone, chained, together = (self.median(recorded(*some)) * 1e3 for some in (calls[:1], calls, sharing))
            return {"alone_us": alone, "chained_us": chained / CHAIN, "shared_us": together / CHAIN, "chain": CHAIN}

        self.rows(cases, measure, self.results.setdefault("latency", []), "graph: ")

    def host(self, case: Case, make: Callable[[Any], Subject], native_case: str) -> None:
        """Host time of a call of the same sizes, from Python and from C++, without waiting for the device."""

        def python() -> dict:
            subject = make(case.tiny() if self.args.dry_run else case)
            subject.check()
            return {"python_us": host_python(subject.run, 1 if self.args.dry_run else 30)}

        measured = self.attempt("host python", python) or {}
        if self.args.program:
            measured |= self.attempt("host native", lambda: {"native_us": host_native(self.args.program, native_case)}) or {}
        if measured:
            self.results["host"] = {"case": native_case} | measured
            self.save()
            print("host time of a call: " + ", ".join(f"{name[:-3]} {us:.1f} us" for name, us in measured.items()), flush=True)

    def finish(self) -> None:
        self.results["clocks_after"] = smi("clocks.sm,power.draw")
        self.save()
        seconds = time.monotonic() - self.started
        print(
            f"copy {self.results['copy_rate'] / 1e9:.0f} GB/s; {seconds:.0f} s; {len(self.missing)} rows missing; wrote {self.out}"
        )
        if self.missing:
            raise SystemExit(1)
