# SPDX-License-Identifier: Apache-2.0
"""Questions to ./dev are answered without setting anything up."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from tool import ROOT

# Programs that ./dev needs to answer. It finds no compiler, no git and no package manager.
PROGRAMS = ["bash", "cat", "dirname", "nproc"]
WITH_USAGE = ["build", "test", "lint"]


class Dev(unittest.TestCase):
    def run_dev(self, *arguments: str) -> subprocess.CompletedProcess:
        with tempfile.TemporaryDirectory() as folder:
            for name in PROGRAMS:
                os.symlink(Path(shutil.which(name)).resolve(), Path(folder) / name)
            os.symlink(sys.executable, Path(folder) / "python3")
            command = ["bash", str(ROOT / "dev"), *arguments]
            return subprocess.run(command, env={"PATH": folder}, capture_output=True, text=True, timeout=30, check=False)

    def test_help_of_every_command(self):
        text = self.run_dev("--help").stdout
        self.assertTrue(text.startswith("usage: ./dev COMMAND"))
        for command in (*WITH_USAGE, "gpu", "torch", "wheel", "hub", "package", "compilers", "aarch64", "docs", "setup"):
            for option in ("--help", "-h"):
                with self.subTest(command=command, option=option):
                    ran = self.run_dev(command, option)
                    self.assertEqual((ran.returncode, ran.stdout), (0, text), ran.stderr)
        for command in ("bench", "demo"):
            self.assertIn("--threads", self.run_dev(command, "--help").stdout)

    def test_arguments_that_a_command_does_not_take(self):
        for command in ("setup", "package", "aarch64", "test", "docs", "lint"):
            with self.subTest(command):
                ran = self.run_dev(command, "--no-such")
                self.assertNotEqual(ran.returncode, 0)
                self.assertRegex(ran.stderr + ran.stdout, f"{command} takes .*; got: --no-such")


if __name__ == "__main__":
    unittest.main()
