#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: fuzz.py PROGRAM [COUNT [SEED]]: random command lines of the fovea program.

Each ends by itself, with status 0, or with status 2 and a complaint on standard error. The output is UTF-8 without control
characters, and no number in it comes from an overflow.
"""

import random
import re
import resource
import subprocess
import sys
import time

OPERATIONS = [
    *("attention", "attention_backward", "paged_attention", "paged_cache_append", "merge_states", "latent_attention"),
    *("sparse_latent_attention", "quantize_latent_cache", "dequantize_latent_cache", "index_logits", "topk_rows"),
    *("quantize_qk_int8", "quantize_v", "quantized_attention", "quantize_and_attend"),
]
NUMBERS = [
    "0",
    "1",
    "2",
    "3",
    "7",
    "8",
    "64",
    "96",
    "128",
    "192",
    "576",
    "4096",
    "65537",
    "2147483647",
    "2147483648",
    "-1",
    "1.5",
    "",
]
FLOATS = ["0", "1", "30", "1e-30", "4e37", "3.4e38", "1e39", "-2", "nan", "inf", "1e-400", "x"]
DTYPES = ["f32", "f16", "bf16", "e4m3", "f64", "half", "i8", "fp17", ""]
FORMATS = ["rows", "v32_fp8", "v4_fp8", "v41_fp8", "v41_fp4", "v5", "1"]
DEVICES = ["cpu", "cuda", "cuda:7", "hip", "sm75", "sm90", "sm77", "gfx90a", "gfx942", "sm", "cpu:1", "cuda:-1", "cuda:99999999999"]
RUBBISH = ["", "\udcff", "\x1b[31m", "é", "a" * 5000, "--", "-", "%s%n", "\n", "--page=", "--no-such", "@file", "1e3"]
COUNTS = [
    "--batch",
    "--seq-q",
    "--seq-k",
    "--heads",
    "--kv-heads",
    "--head-dim",
    "--head-dim-v",
    "--page",
    "--topk",
    "--extra-topk",
    "--parts",
]
VALUES = {
    **dict.fromkeys([*COUNTS, "--window"], NUMBERS),
    "--softcap": FLOATS,
    **dict.fromkeys(("--dtype", "--cache-dtype"), DTYPES),
    **dict.fromkeys(("--format", "--extra-format"), FORMATS),
    "--device": DEVICES,
    "--implementation": ["reference", "reference.attention", "cpu.scalar.attention", "none", ""],
}
FLAGS = ["--causal", "--sink", "--lse", "--flat", "--batch-invariant"]
# Those that measure or test run elsewhere: here their lines name no case.
OTHERS = [
    *(
        ["info"],
        ["info", "--json"],
        ["info", "--markdown"],
        ["info", "--matrix", "--json"],
        ["info", "--all"],
        ["info", "--types"],
        ["check", "--list", "--quick"],
    ),
    *(["check", "--case", "no-such"], ["check", "--quick", "--case", "no-such"], ["check", "--operation", "no-such", "--list"]),
    *(
        ["bench", "--list"],
        ["bench", "--case", "no-such"],
        ["bench", "--list", "--threads", "2"],
        ["bench", "--ceilings", "--case", "no-such"],
    ),
    *([], ["--help"], ["--version"], ["explain", "--help"], ["frobnicate"], ["bench", "--threads", "99999999", "--list"]),
]
SECONDS, MEMORY = 20, 2 << 30


def command_line(rng: random.Random) -> list[str]:
    if rng.random() < 0.15:
        line = list(rng.choice(OTHERS))
    else:
        line = ["explain"] + (["--operation", rng.choice(OPERATIONS)] if rng.random() < 0.9 else [])
        for option in rng.sample([*VALUES], rng.randrange(6)):
            line += [option, rng.choice(VALUES[option] if rng.random() < 0.9 else RUBBISH)]
        line += rng.sample(FLAGS, rng.choice([0, 0, 1, 2]))
    if rng.random() < 0.15:
        line.insert(rng.randrange(len(line) + 1), rng.choice(RUBBISH))
    return line


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def fault(program: str, line: list[str]) -> str | None:
    """The fault in the program's answer, or None."""
    arguments = [argument.encode(errors="surrogateescape") for argument in line]
    try:
        ran = subprocess.run(
            [program.encode(), *arguments], capture_output=True, timeout=SECONDS, preexec_fn=limit_memory, check=False
        )
    except subprocess.TimeoutExpired:
        return "does not end"
    try:
        out, err = ran.stdout.decode(), ran.stderr.decode()
    except UnicodeDecodeError as error:
        return f"prints {error.object[max(error.start - 20, 0) : error.end]!r}"
    if ran.returncode not in (0, 2):
        return f"exit status {ran.returncode}: {err}"
    if (ran.returncode == 2) != bool(err):
        return f"exit status {ran.returncode}, and complains {err!r}"
    if re.search(r"[^\n -~é-]|Traceback|terminate called|std::|bad_alloc|vector::", out + err):
        return f"prints {(out + err)!r}"
    # The only negative numbers are those that were given.
    negative = set(re.findall(r"(?<![\w.-])-\d{4,}", out + err)) - set(line)
    return f"prints {negative}" if negative else None


def main() -> int:
    program, count, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 400, int(sys.argv[3]) if len(sys.argv) > 3 else 1
    rng = random.Random(seed)
    lines, begin = [command_line(rng) for _ in range(count)], time.monotonic()
    faults = [(line, wrong) for line in lines if (wrong := fault(program, line))]
    for line, wrong in faults:
        print(f"fovea {line}: {wrong[:500]}")
    print(f"{count} command lines, {len(faults)} with a fault, in {time.monotonic() - begin:.1f} s")
    return len(faults) > 0


if __name__ == "__main__":
    sys.exit(main())
