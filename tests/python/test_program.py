# SPDX-License-Identifier: Apache-2.0
"""``python -m fovea``: the program inside the extension, whose streams and arguments Python must not change."""

import os
import signal
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-m", "fovea"]
pytestmark = pytest.mark.skipif(
    subprocess.run([*COMMAND, "--version"], capture_output=True, check=False).returncode != 0, reason="built without the program"
)


def run(*arguments, **options):
    return subprocess.run([*COMMAND, *arguments], stderr=subprocess.PIPE, check=False, timeout=60, **options)


@pytest.mark.parametrize("argument", [b"\xff", b"\xed\xa0\x80", "é".encode(), b"\x1b[31m"])
def test_any_bytes_are_an_argument(argument):
    ran = run("explain", b"--batch=" + argument)
    shown = (
        argument.decode()
        if argument == "é".encode()
        else "".join(f"\\x{byte:02x}" if byte > 126 or byte < 32 else chr(byte) for byte in argument)
    )
    assert ran.returncode == 2
    assert ran.stderr.decode().startswith(f"--batch: got {shown}, want a whole number")


def test_a_reader_who_has_enough_ends_it_in_silence():
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        ran = run("info", stdout=pipe)
    assert (ran.returncode, ran.stderr) == (-signal.SIGPIPE, b"")


def test_lost_output_fails():
    with open("/dev/full", "wb") as full:
        ran = run("explain", stdout=full)
    assert (ran.returncode, ran.stderr) == (2, b"fovea: standard output: No space left on device\n")
