# SPDX-License-Identifier: Apache-2.0
"""The check of a wheel's libraries, and libraries of names without code."""

import contextlib
import io
import platform
import shutil
import subprocess
import tempfile
import unittest
import zipfile
from pathlib import Path

from tool import load

stubs = load("stub_libraries.py")
check = load("check_wheel.py")
ARM = "aarch64-linux-gnu-gcc"
HIDDEN = '__attribute__((visibility("hidden"))) '


class CheckWheel(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)

    def library(self, name: str, code: str, *options: str, compiler: str = "cc") -> Path:
        source = self.root / "code.c"
        source.write_text(code)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", self.root / name, source, *options], check=True)
        return self.root / name

    def said(self, code: str, *options: str, machine: str = platform.machine(), glibc: str = "2.28") -> tuple[int, str]:
        library = self.library("_fovea.so", code, *options)
        with zipfile.ZipFile(self.root / "some.whl", "w") as wheel:
            wheel.write(library, "fovea/_fovea.so")
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = check.main(str(self.root / "some.whl"), machine, glibc)
        return status, output.getvalue()

    def test_a_good_library(self):
        self.assertEqual(self.said("int fovea_program(void) { return 0; }"), (0, "check_wheel: 1 libraries, 0 faults\n"))

    def test_another_processor(self):
        status, text = self.said(
            "int fovea_program(void) { return 0; }", machine="aarch64" if platform.machine() == "x86_64" else "x86_64"
        )
        self.assertEqual(status, 1)
        self.assertIn(f"got a library for {platform.machine()}, want ", text)

    def test_an_export_that_nobody_asks_for(self):
        self.assertIn("_fovea.so exports: leaked\n", self.said("int leaked(void) { return 0; }")[1])
        self.assertEqual(self.said(f"{HIDDEN}int leaked(void) {{ return 0; }}")[0], 0)

    def test_a_newer_glibc(self):
        code = f"#include <sys/random.h>\n{HIDDEN}long read_one(void* to) {{ return getrandom(to, 1, 0); }}"
        self.assertEqual(self.said(code)[0], 0)
        self.assertIn("needs more than glibc 2.24: getrandom@GLIBC_2.25", self.said(code, glibc="2.24")[1])

    def test_a_library_that_torch_does_not_bring(self):
        other = self.library("libother.so", "int other(void) { return 0; }", "-Wl,-soname,libother.so.1")
        text = self.said(f"int other(void);\n{HIDDEN}int use(void) {{ return other(); }}", str(other))[1]
        self.assertIn("_fovea.so needs: libother.so.1\n", text)

    def test_a_wheel_without_libraries(self):
        zipfile.ZipFile(self.root / "some.whl", "w").close()
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(check.main(str(self.root / "some.whl"), "x86_64", "2.28"), 1)

    @unittest.skipUnless(shutil.which(ARM), f"{ARM} is not installed")
    def test_absent_libraries_have_the_names_and_versions_that_are_asked_of_them(self):
        (self.root / "map").write_text("V { global: *; };")
        options = ("-nostdlib", "-Wl,-soname,libgone.so.2", f"-Wl,--version-script={self.root / 'map'}")
        gone = self.library("libgone.so", "int gone(void) { return 0; } int kept(void) { return 0; }", *options, compiler=ARM)
        user = self.library("libuser.so", "int gone(void); int use(void) { return gone(); }", str(gone), "-nostdlib", compiler=ARM)
        with contextlib.redirect_stdout(io.StringIO()):
            stubs.main(["--out", str(self.root / "out"), "absent", str(user)])
        made = stubs.read(self.root / "out" / "libgone.so.2")
        self.assertEqual(made.soname, "libgone.so.2")
        self.assertEqual([name for name in made.defined if name != "V"], ["gone"])
        shown = subprocess.run(["readelf", "-W", "--dyn-syms", self.root / "out" / "libgone.so.2"], capture_output=True, text=True)
        self.assertIn(" gone@@V", shown.stdout)
        self.assertEqual(sorted(path.name for path in (self.root / "out").iterdir()), ["libgone.so.2"])


if __name__ == "__main__":
    unittest.main()
