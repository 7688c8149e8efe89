# SPDX-License-Identifier: Apache-2.0
"""The ``fovea`` command: ``python -m fovea --help``. It is the C++ program, which the extension holds beside the operators."""

import ctypes
import os
import signal
import sys

from fovea._library import EXTENSION


def main() -> int:
    try:
        program = ctypes.CDLL(str(EXTENSION)).fovea_program
    except AttributeError:
        print("fovea: built without its program; it needs CLI11, fmt and nlohmann_json when the wheel is made", file=sys.stderr)
        return 2
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would wait for the program's end
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python has it ignored
    arguments = [b"fovea", *map(os.fsencode, sys.argv[1:])]
    return program(len(arguments), (ctypes.c_char_p * len(arguments))(*arguments))


if __name__ == "__main__":
    sys.exit(main())
