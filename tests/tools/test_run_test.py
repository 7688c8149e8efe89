# SPDX-License-Identifier: Apache-2.0
import unittest

from tool import Repository, load

run_test = load("run_test.py")

CTEST = """
add_test([=[unit]=] "BUILD/tests/unit/unit_test" "--gtest_brief=1")
add_test([=[conformance.attention]=] "BUILD/tests/conformance/table" "--gtest_brief=1" "--gtest_filter=attention.*")
add_test([=[conformance.merge]=] "BUILD/tests/conformance/table" "--gtest_brief=1" "--gtest_filter=merge.*")
add_test(cli "ROOT/tests/cli/cli_test" "BUILD/cli/fovea")
add_test([=[consumer]=] "cmake" "-P" "BUILD/tests/consumer/run.cmake")
set_tests_properties([=[unit]=] PROPERTIES LABELS "add_test")
"""
FILES = {"tests/unit/band_test.cpp": "TEST(Band, Tiles) {\n", "tests/python/test_paged.py": "", "tests/tools/test_dev.py": ""}


class RunTest(unittest.TestCase):
    def runs(self, name: str) -> tuple[list[str], list[list[str]]]:
        """Targets and commands of a name, with paths from the build folder."""
        with Repository(FILES) as root:
            build = root / "build"
            build.mkdir()
            (build / "CTestTestfile.cmake").write_text(CTEST.replace("BUILD", str(build)).replace("ROOT", str(root)))
            runs = run_test.commands(root, build, name)
            short = [[word.replace(f"{build}/", "").replace(f"{root}/", "") for word in run] for run in runs]
            return run_test.targets(build, runs), short

    def test_names_of_ctest(self):
        unit = (["tests/unit/unit_test"], [["tests/unit/unit_test", "--gtest_brief=1"]])
        self.assertEqual(self.runs("unit"), unit)
        self.assertEqual(self.runs("unit_test"), unit)
        self.assertEqual(self.runs("cli"), (["cli/fovea"], [["tests/cli/cli_test", "cli/fovea"]]))
        self.assertEqual([run[-1] for run in self.runs("conformance")[1]], ["--gtest_filter=attention.*", "--gtest_filter=merge.*"])
        self.assertEqual(self.runs("consumer")[0], ["all"])

    def test_cases_of_googletest(self):
        self.assertEqual(self.runs("Band")[1], [["tests/unit/unit_test", "--gtest_filter=Band.*"]])
        self.assertEqual(self.runs("Ba*.Tiles")[1], [["tests/unit/unit_test", "--gtest_filter=Ba*.Tiles"]])
        self.assertEqual(self.runs("attention.f32-8")[1], [["tests/conformance/table", "--gtest_filter=attention.f32?8"]])
        self.assertEqual(self.runs("Nothing"), ([], []))

    def test_files_in_python(self):
        with Repository(FILES) as root:
            for name in ("test_paged", "test_paged.py", "tests/python/test_paged.py"):
                self.assertEqual(run_test.python_tests(root, name), "tests/python/test_paged.py")
            self.assertEqual(run_test.python_tests(root, "test_dev::Dev"), "tests/tools/test_dev.py::Dev")
            for name in ("unit", "paged", "Band.Tiles", "."):
                self.assertIsNone(run_test.python_tests(root, name))


if __name__ == "__main__":
    unittest.main()
