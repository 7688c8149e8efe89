# SPDX-License-Identifier: Apache-2.0
"""./dev gpu on Blackwell, with programs in the place of the driver's, the tests' and the sanitizer's."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from tool import ROOT

ACCEPT = f"""
source {ROOT}/tools/steps.sh; source {ROOT}/tools/gpu.sh; source {ROOT}/tools/blackwell.sh
if has_blackwell; then blackwell; fi
echo "unset outside: ${{FOVEA_UNTESTED_BLACKWELL:-yes}}"
summary
"""
SMI = """case $* in *compute_cap*) echo {capability};; *) echo "NVIDIA B200, 590.1, 1965 MHz, 1000 W";; esac"""
REPORT = """echo "$FOVEA_UNTESTED_BLACKWELL conformance $*" >>calls
for option; do case $option in --gtest_output=xml:*) printf '%s' '{xml}' >"${{option#*xml:}}";; esac; done; {end}"""
ROW = '{"case": "attention/bench/prefill-bf16-d128-h32x8-s4096-full", "flops": 1e12, "median_s": 0.001}'
BENCH = f"""echo "$FOVEA_UNTESTED_BLACKWELL fovea $*" >>calls
while (($# > 1)); do shift; done; echo '{{"rows": [{ROW}]}}' >"$1" """
SANITIZER = """echo "$FOVEA_UNTESTED_BLACKWELL sanitizer $*" >>calls"""
PASSES = '<testsuites tests="3"><testsuite name="attention" tests="3" failures="0" skipped="1"></testsuite></testsuites>'
SKIPS = '<testsuites tests="3"><testsuite name="attention" tests="3" failures="0" skipped="3"></testsuite></testsuites>'


class Blackwell(unittest.TestCase):
    def accept(self, capability: str = "10.0", xml: str = PASSES, end: str = "true") -> tuple[int, str, list[str]]:
        """Status, output and the programs called."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            (root / "tools").symlink_to(ROOT / "tools")
            programs = {
                "bin/nvidia-smi": SMI.format(capability=capability),
                "bin/timeout": f'exec {shutil.which("timeout")} "$1" 2 "${{@:3}}"',  # nothing here takes as long
                "bin/compute-sanitizer": SANITIZER,
                "build/gpu/cli/fovea": BENCH,
                "build/gpu/tests/conformance/fovea_conformance": REPORT.format(xml=xml, end=end),
            }
            for name, text in programs.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
                (root / name).chmod(0o755)
            environment = {name: value for name, value in os.environ.items() if name != "FOVEA_UNTESTED_BLACKWELL"}
            environment["PATH"] = f"{root}/bin:{environment['PATH']}"
            ran = subprocess.run(
                ["bash", "-uo", "pipefail", "-c", ACCEPT],
                cwd=root,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            calls = root / "calls"
            return ran.returncode, ran.stdout + ran.stderr, calls.read_text("utf-8").splitlines() if calls.exists() else []

    def test_everything_runs_and_is_reported(self):
        status, text, calls = self.accept()
        self.assertEqual(status, 0, text)
        self.assertEqual([call.split()[1] for call in calls], ["conformance"] * 2 + ["sanitizer"] * 4 + ["fovea"])
        self.assertTrue(all(call.startswith("1 ") and "cuda.sm100." in call for call in calls), calls)
        self.assertIn("unset outside: yes", text)
        self.assertIn("NVIDIA B200", text)
        self.assertIn("Blackwell: accepted; 9 passed, 0 failed", text)
        self.assertRegex(text, r"prefill-bf16-d128-h32x8-s4096-full \| 1000 \| \d+ to \d+")

    def test_wrong_rows_end_it(self):
        status, text, calls = self.accept(xml=PASSES.replace('failures="0"', 'failures="1"'), end="exit 1")
        self.assertNotEqual(status, 0)
        self.assertEqual(len(calls), 1, "no sanitizer and no figures of a kernel that is wrong")
        self.assertIn("Blackwell: not accepted; 1 passed, 1 failed", text)

    def test_a_kernel_that_hangs_ends_its_step(self):
        status, text, calls = self.accept(end="sleep 100")
        self.assertNotEqual(status, 0)
        self.assertEqual(len(calls), 1)
        self.assertIn("Blackwell: not accepted", text)

    def test_rows_that_are_all_skipped_are_no_acceptance(self):
        status, text, calls = self.accept(xml=SKIPS)
        self.assertNotEqual(status, 0)
        self.assertEqual(len(calls), 1)
        self.assertIn("Blackwell: not accepted; 0 passed, 1 failed", text)

    def test_other_devices_do_not_run_it(self):
        for capability in ("9.0", "12.0", "10.3"):
            _, text, calls = self.accept(capability=capability)
            self.assertEqual(calls, [])
            self.assertNotIn("Blackwell", text)


if __name__ == "__main__":
    unittest.main()
