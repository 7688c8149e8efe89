# SPDX-License-Identifier: Apache-2.0
import shutil
import unittest

from tool import Repository, load

repository = load("repository.py")

NINJA = """
rule copy
  command = cp $in $out
build src/gpu/a.cu.o: copy a.cu
build src/gpu/later.cu.o: copy a.cu
build src/cpu/b.cu.o: copy a.cu
build src/gpu/a.cpp.o: copy a.cu
"""
OBJECTS = ["src/gpu/a.cu.o", "src/gpu/gone.cu.o", "src/cpu/b.cu.o", "src/gpu/a.cpp.o"]


@unittest.skipUnless(shutil.which("ninja"), "needs ninja")
class Built(unittest.TestCase):
    def test_leaves_out_what_the_build_no_longer_makes_or_has_not_made(self):
        with Repository({"build.ninja": NINJA} | dict.fromkeys(OBJECTS, "")) as build:
            self.assertEqual(repository.built(build, "src/gpu", ".cu.o"), [(build / "src/gpu/a.cu.o").resolve()])
            self.assertEqual(repository.built(build, "src/hip", ".co"), [])


if __name__ == "__main__":
    unittest.main()
