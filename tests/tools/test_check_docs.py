# SPDX-License-Identifier: Apache-2.0
import unittest

from tool import Repository, load

check_docs = load("check_docs")

EXAMPLE = "int main() {\n  // [readme]\n  f();\n  if (x) {\n    g();\n  }\n  // [/readme]\n}\n"
CUT = "# A\n\n<!-- cut: examples/a.cpp readme -->\n```cpp\n{}```\n\nmore\n"
RUN = "<!-- run: fovea info -->\n{}<!-- /run -->\n"
PROGRAM = "#!/bin/sh\necho '| a |'\necho \"| $1 |\"\n"


class CheckDocs(unittest.TestCase):
    def check(self, readme: str, *options: str) -> tuple[int, str]:
        with Repository({"examples/a.cpp": EXAMPLE, "README.md": readme, "fovea": PROGRAM, "tools/roof": PROGRAM}) as root:
            for program in ("fovea", "tools/roof"):
                (root / program).chmod(0o755)
            status = check_docs.main(["--root", str(root), *[option.replace("ROOT", str(root)) for option in options]])
            return status, (root / "README.md").read_text(encoding="utf-8")

    def test_cut(self):
        right = CUT.replace("{}", "f();\nif (x) {\n  g();\n}\n")
        self.assertEqual(self.check(right), (0, right))
        self.assertEqual(self.check(CUT.replace("{}", "f();\n"))[0], 1)
        self.assertEqual(self.check(CUT.replace("{}", ""), "--fix"), (0, right))

    def test_missing_region(self):
        with self.assertRaisesRegex(SystemExit, "examples/a.cpp: has no region"):
            self.check(CUT.replace("{}", "").replace(" readme ", " other "))

    def test_run(self):
        right = RUN.replace("{}", "\n| a |\n| info |\n\n")
        self.assertEqual(self.check(right, "--program", "ROOT/fovea"), (0, right))
        self.assertEqual(self.check(RUN.replace("{}", "\n| b |\n\n"), "--program", "ROOT/fovea")[0], 1)
        self.assertEqual(self.check(RUN.replace("{}", ""), "--program", "ROOT/fovea", "--fix"), (0, right))
        self.assertEqual(self.check(RUN.replace("{}", ""))[0], 0)

    def test_run_of_a_tool(self):
        mark = "<!-- run: tools/roof high -->\n{}<!-- /run -->\n"
        right = mark.replace("{}", "\n| a |\n| high |\n\n")
        self.assertEqual(self.check(right), (0, right))
        self.assertEqual(self.check(mark.replace("{}", ""))[0], 1)
        self.assertEqual(self.check(mark.replace("{}", ""), "--fix"), (0, right))


if __name__ == "__main__":
    unittest.main()
