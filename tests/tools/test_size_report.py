# SPDX-License-Identifier: Apache-2.0
import unittest

from tool import Repository, load

size_report = load("size_report")

SOURCE = """// int comment(int a) {
#include <x>
#define MACRO(a, b) \\
  { a b }
namespace n {
struct S {
  S(int a, int b = f(1, 2)) : a_(a), b_{b} {}
  std::vector<std::pair<int, int>> values{};
  void method(const std::map<int, int>& a, int b[2]) const noexcept override {
    if (a) { g("{"); }
  }
 public:
  int operator()(int x) { return x; }
};
enum class E : int { a, b };
constexpr std::array<int, 2> kTable{1, 2};
constexpr auto kLambda = [](int a, int b) { return a; };
template <class T, int N = 3>
Result<T> seven(int a, int b, int c, int d, int e, int f,
                int g = {}) {
  for (;;) { }
}
extern "C" {
int last(void) { return 0; }
}
}
"""


def long_function(name: str, lines: int) -> str:
    return f"void {name}() {{\n" + "  x();\n" * (lines - 2) + "}\n"


class SizeReport(unittest.TestCase):
    def test_c_functions(self):
        found = {f.name: (f.lines, f.parameters) for f in size_report.c_functions(SOURCE)}
        self.assertEqual(found["S"][1], 2)
        self.assertEqual(found["method"], (3, 2))
        self.assertEqual(found["seven"], (5, 7))  # with its template line
        self.assertEqual(found["last"], (1, 0))
        self.assertTrue({"comment", "MACRO", "E", "kTable", "if", "for"}.isdisjoint(found))

    def test_limits(self):
        def over(path: str, text: str) -> list[tuple[str, str, int, int]]:
            return size_report.findings_of(path, text)

        self.assertEqual(over("a.cpp", long_function("f", 60)), [])
        self.assertEqual(over("a.cpp", long_function("f", 61)), [("a.cpp:f", "lines", 61, 60)])
        self.assertEqual(over("a.cpp", long_function("load_role", 100)), [])
        self.assertEqual(over("a.cpp", long_function("load_role", 101)), [("a.cpp:load_role", "lines", 101, 100)])
        self.assertEqual(over("a.cpp", "//\n" * 401), [("a.cpp", "lines", 401, 400)])
        self.assertEqual(over("a.cpp", SOURCE), [("a.cpp:seven", "parameters", 7, 6)])

    def test_python_and_shell(self):
        text = "def f(self, a, b, c, d, e, g, *, h, i):\n" + "    x = 1\n" * 60
        self.assertEqual(size_report.findings_of("a.py", text), [("a.py:f", "lines", 61, 60)])
        text = 'def f():\n    """' + "text\n" * 60 + '    """\n'
        self.assertEqual(size_report.findings_of("a.py", text), [])
        text = "def f(a, b, c, d, e, g, h):\n    pass\n"
        self.assertEqual(size_report.findings_of("a.py", text), [("a.py:f", "parameters", 7, 6)])
        text = "#!/bin/bash\nrun() {\n" + "  x\n" * 60 + "}\n"
        self.assertEqual(size_report.findings_of("dev", text), [("dev:run", "lines", 62, 60)])

    def test_exceptions(self):
        files = {"a.cpp": long_function("f", 70)}
        for exceptions, status in (
            ("", 1),
            ("a.cpp:f lines 70 one state machine\n", 0),
            ("a.cpp:f lines 69 one state machine\n", 1),
            ("a.cpp:f lines 70 one state machine\nb.cpp lines 500 gone\n", 1),
        ):
            with Repository({**files, "tools/size_exceptions.txt": exceptions}) as root:
                self.assertEqual(size_report.main(["--root", str(root)]), status, exceptions)


if __name__ == "__main__":
    unittest.main()
