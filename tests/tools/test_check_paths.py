# SPDX-License-Identifier: Apache-2.0
import unittest

from tool import Repository, load

check_paths = load("check_paths")
FILES = {"src/op/a.hpp": "", "src/cpu/avx2/plan.cpp": "", "docs/numerics.md": "", "dev": "", "README.md": ""}


def missing(text: str, document: str = "README.md") -> list[tuple[int, str]]:
    with Repository(FILES) as root:
        return check_paths.check_text(root, check_paths.Path(document), text)


class CheckPaths(unittest.TestCase):
    def test_spans(self):
        self.assertEqual(missing("`src/op/a.hpp` `src/op/` `a.hpp` `./dev test` `./dev` `src/*/a.hpp` `src/{op,cpu}`"), [])
        self.assertEqual(missing("x\n`src/op/b.hpp`"), [(2, "src/op/b.hpp")])
        self.assertEqual(missing("`b.hpp`"), [(1, "b.hpp")])
        self.assertEqual(missing("`src/{op,gpu}`"), [(1, "src/{op,gpu}")])
        self.assertEqual(missing("`src/cpu/<isa>/plan.cpp` `src/gpu/<isa>/plan.cpp`"), [(1, "src/gpu/<isa>/plan.cpp")])
        self.assertEqual(missing("`./gone`"), [(1, "./gone")])

    def test_other_spans(self):
        self.assertEqual(missing("`a / b` `GB/s` `fovea::Plan` `q.shape[3]` `and/or` `--help`"), [])

    def test_links(self):
        self.assertEqual(missing("[a](docs/numerics.md#masks) [b](https://example.org/x) [c](#here)"), [])
        self.assertEqual(missing("[a](numerics.md)", "docs/architecture.md"), [])
        self.assertEqual(missing("[a](docs/none.md)"), [(1, "docs/none.md")])

    def test_tree(self):
        tree = "```tree\nsrc/\n  op/       meaning\n    a.hpp\n  cpu/avx2/\n    plan.cpp  a\ndev       script\n```\n"
        self.assertEqual(missing(tree), [])
        self.assertEqual(missing(tree.replace("plan.cpp", "math.cpp")), [(6, "src/cpu/avx2/math.cpp")])

    def test_other_fences_and_off(self):
        self.assertEqual(missing("```sh\n`src/none.cpp`\n```\n"), [])
        text = "<!-- check_paths: off -->\n`src/none.cpp`\n<!-- check_paths: on -->\n`src/none2.cpp`"
        self.assertEqual(missing(text), [(4, "src/none2.cpp")])

    def test_exit_status(self):
        for text, status in (("`src/op/a.hpp`", 0), ("`src/op/b.hpp`", 1)):
            with Repository({**FILES, "README.md": text}) as root:
                self.assertEqual(check_paths.main(["--root", str(root)]), status)


if __name__ == "__main__":
    unittest.main()
