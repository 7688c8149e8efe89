# SPDX-License-Identifier: Apache-2.0
"""The fuzzer of Python calls: good random calls of public functions with up to three changes each.

    python tests/python/fuzz.py --calls 100000 --seed 3      # as many calls as wanted, on two processes
    python tests/python/fuzz.py --seed 3 --call 1234         # one of them, in this process

Each call must end in a right result, or in a refusal in the library's words that has changed nothing. The calls run in processes of
their own: one that crashes or hangs is a finding, and the next call gets a new process.
"""

import argparse
import ast
import faulthandler
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from definitions import Undecided
from fuzz_draw import Draw
from fuzz_mutations import mutate, show
from fuzz_rules import Memory, complaint, has_no_data, must_be_refused
from fuzz_targets import TARGETS, Target
from public_calls import copied

SECONDS_EACH = 20
MEMORY = 24 << 30


@dataclass
class Case:
    target: Target
    call: dict[str, Any]
    changes: list[str]

    def __str__(self) -> str:
        said = ", ".join(f"{name}={show(value)}" for name, value in self.call.items())
        return f"{self.target.name}({said})\n  changes: {'; '.join(self.changes) or 'none'}"


def case(seed: int, number: int) -> Case:
    """The call of a number. FOVEA_FUZZ_ONLY, a part of names, restricts the functions."""
    draw = Draw(f"{seed} {number}")
    torch.manual_seed(zlib.crc32(f"{seed} {number}".encode()))
    target = draw.choice([target for target in TARGETS if os.environ.get("FOVEA_FUZZ_ONLY", "") in target.name])
    call = target.make(draw)
    return Case(target, call, [mutate(draw, call, target.without) for _ in range(draw.choice((0, 1, 1, 1, 2, 3)))])


def judge(case: Case) -> str | None:
    """Makes the call. The finding, if there is one."""
    target, call = case.target, case.call
    impossible, empty = must_be_refused(call), has_no_data(call)
    before = None if impossible or empty else copied(call)
    memory = Memory(call, target.writes)
    try:
        result = target.function(**call)
    except Exception as error:
        wrong = complaint(error, target.names, target.raises) or (None if case.changes else "is refused, and is good")
        wrong = wrong or memory.changed(accepted=False)
        return wrong and f"{wrong}: {type(error).__name__}: {error}"
    if impossible:
        return "accepts a tensor without its memory"
    if empty:  # of a tensor that is not looked at, or of nothing
        return None
    try:
        target.check(call, result, before)
    except Undecided as why:
        if not case.changes:  # a formula that leaves good calls open judges nothing
            return f"is good, and left open: {why}"
    except Exception as error:
        return f"gives a wrong result, or should be refused: {type(error).__name__}: {error}"
    return memory.changed(accepted=True)


def set_up() -> None:
    """Memory that nobody has written is NaN; what takes too much memory or time ends the process."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def work(seed: int, first: int, last: int, step: int) -> None:
    """In a process of its own: says each call's number before it, and what was found after it."""
    set_up()
    for number in range(first, last, step):
        made = case(seed, number)
        print(f"call {(number, str(made))!r}", flush=True)
        faulthandler.dump_traceback_later(SECONDS_EACH, exit=True)
        found = judge(made)
        faulthandler.cancel_dump_traceback_later()
        if found:
            print(f"found {found!r}", flush=True)


def run(seed: int, first: int, last: int, step: int) -> Iterator[tuple[int, str]]:
    """Runs each ``step``-th call from first on, in as many processes as it takes."""
    while first < last:
        command = [sys.executable, __file__, "--seed", str(seed), "--work", str(first), str(last), str(step)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        number, made = first - step, "(making a call)"
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            kind, _, rest = line.partition(" ")
            if kind == "call":
                number, made = ast.literal_eval(rest)
            elif kind == "found":
                yield number, f"{ast.literal_eval(rest)}\n  {made}"
        words = process.stderr.read()
        if process.wait() == 0:
            return
        ended = signal.Signals(-process.returncode).name if process.returncode < 0 else f"exit code {process.returncode}"
        yield number, f"ends the process ({ended}): {words[-1500:]}\n  {made}"
        first = max(number, first) + step


def findings(seed: int, calls: int, processes: int = 2) -> list[str]:
    """All findings of so many calls, each with the line that makes its call again."""
    with ThreadPoolExecutor(processes) as pool:
        found = [one for part in pool.map(lambda first: list(run(seed, first, calls, processes)), range(processes)) for one in part]
    return [f"{text}\n  again: python tests/python/fuzz.py --seed {seed} --call {number}" for number, text in sorted(found)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--call", type=int, help="make this one alone")
    parser.add_argument("--work", type=int, nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.seed, *given.work)
        return 0
    if given.call is not None:
        set_up()
        made = case(given.seed, given.call)
        print(made, flush=True)
        print(judge(made) or "nothing is wrong")
        return 0
    start = time.perf_counter()
    found = findings(given.seed, given.calls, given.processes)
    print("\n\n".join([*found, f"{given.calls} calls, {len(found)} findings, {time.perf_counter() - start:.0f} s"]))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
