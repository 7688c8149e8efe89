# SPDX-License-Identifier: Apache-2.0
"""Finds the tests that a name means, for `./dev test NAME`: run_test.py BUILD NAME [ARG..] builds and runs tests in C++,
run_test.py --python NAME prints the file of tests in Python, or fails.

NAME is a test of ctest (`unit`, `conformance` for all of them), a program of tests (`unit_test`) or a googletest filter (`Band`,
`Band.KvTiles*`, `attention.head_dim/*`).
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ADD_TEST = re.compile(r"^add_test\((?:\[=*\[)?([^\]\s]+?)(?:\]=*\])? (.*)\)$", re.MULTILINE)


def python_tests(root: Path, name: str) -> str | None:
    """`test_paged.py::case` as pytest wants it: `tests/python/test_paged.py::case`."""
    file, mark, case = name.partition("::")
    file = file.removesuffix(".py") + ".py"
    found = [root / file, *sorted(root.glob(f"tests/*/{Path(file).name}"))]
    paths = [path for path in found if path.is_file() and path.name.startswith("test_")]
    return paths[0].relative_to(root).as_posix() + mark + case if paths else None


def registered(build: Path) -> dict[str, list[str]]:
    """The command of each test that ctest knows; ctest itself only shows those of programs that are built."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(build.glob("**/CTestTestfile.cmake"))]
    return {name: re.findall(r'"([^"]*)"', command) for text in texts for name, command in ADD_TEST.findall(text)}


def with_suite(root: Path, suite: str) -> set[str]:
    """Folders of tests/ that have a suite of googletest."""
    declares = re.compile(r"\bTEST\w*\(\s*" + suite.replace("*", r"\w*") + r"\s*,")
    return {path.parent.name for path in root.glob("tests/*/*.cpp") if declares.search(path.read_text(encoding="utf-8"))}


def commands(root: Path, build: Path, name: str) -> list[list[str]]:
    """The commands to run for a name."""
    tests = registered(build)
    named = [command for test, command in tests.items() if test == name or test.startswith(name + ".")]
    named = named or [command for command in tests.values() if Path(command[0]).name == name]
    if named:
        return named
    suite = name.partition(".")[0].split("/")[-1]
    gtest = {command[0] for command in tests.values() if "--gtest_brief=1" in command}
    folders = with_suite(root, suite) or {"conformance"} & {test.partition(".")[0] for test in tests if test.endswith("." + suite)}
    name = name.replace("-", "?")  # a hyphen would begin what the filter leaves out
    picked = f"--gtest_filter={name}" if "." in name else f"--gtest_filter={name}.*"
    return [[program, picked] for program in sorted(gtest) if Path(program).parent.name in folders]


def targets(build: Path, runs: list[list[str]]) -> list[str]:
    """The targets that the commands need, as Ninja calls them. A script of CMake needs the whole build."""
    made = {Path(word) for run in runs for word in run if Path(word).is_relative_to(build)}
    return ["all"] if any(path.suffix == ".cmake" for path in made) else sorted(str(path.relative_to(build)) for path in made)


def has_tests(run: list[str], build: Path) -> bool:
    """Whether a program of googletest has a test that passes the filter."""
    if not run[-1].startswith("--gtest_filter="):
        return True
    listed = subprocess.run([*run, "--gtest_list_tests"], cwd=build, capture_output=True, text=True, check=True).stdout
    return "\n  " in listed


def main(arguments: list[str]) -> int:
    if arguments[0] == "--python":
        found = python_tests(ROOT, arguments[1])
        print(found or "")
        return 0 if found else 1
    build, name, more = Path(arguments[0]).resolve(), arguments[1], arguments[2:]
    runs = commands(ROOT, build, name)
    if runs and subprocess.run(["cmake", "--build", str(build), "--target", *targets(build, runs)], check=False).returncode:
        return 1
    runs = [run for run in runs if has_tests(run, build)]
    if not runs:
        print(f"dev: no test is called {name}; `ctest --test-dir {build} -N` lists those of ctest", file=sys.stderr)
        return 1
    return int(any([subprocess.run(run + more, cwd=build, check=False).returncode != 0 for run in runs]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
