# SPDX-License-Identifier: Apache-2.0
import contextlib
import io
import unittest

from tool import ROOT, Repository, load

check_words = load("check_words")
GLOSSARY = """# Glossary

| term | meaning | not | refused |
|---|---|---|---|
| signal | To count at a barrier. | announce | tells; told |
| issue | To start a copy. | request | asked for |

| in code | meaning | refused in code |
|---|---|---|
| TileScheduler | Which tiles a CTA takes. | WorkList; by_turns |

| instead of | write |
|---|---|
| gone | here |
"""


def findings(name: str, text: str) -> list[tuple[int, str]]:
    """(line, phrase) of what is refused in a file."""
    prose = check_words.prose_of(check_words.Path(name), text)
    if prose is None:
        return []
    return [
        (line, what.split('"')[1]) for line, what in check_words.check_prose(check_words.refused_in(GLOSSARY, "refused"), prose)
    ]


class CheckWords(unittest.TestCase):
    def test_glossary(self):
        refused = check_words.refused_in(GLOSSARY, "refused")
        self.assertEqual(refused, {"tells": "signal", "told": "signal", "asked for": "issue"})
        real = check_words.refused_in((ROOT / check_words.GLOSSARY).read_text(encoding="utf-8"), "refused")
        for phrase in ("that there is not", "tells", "asked for", "brings", "bringer", "job"):
            self.assertIn(phrase, real)

    def test_c_comments(self):
        self.assertEqual(
            findings("src/a.cpp", "// It tells.\nint a;  ///< Told\n/* x\n * asked for */\n"),
            [(1, "tells"), (2, "told"), (4, "asked for")],
        )
        self.assertEqual(findings("src/a.cpp", "\n/// is asked\n  /// for now\n"), [(2, "asked for")])
        self.assertEqual(findings("src/a.h", "/*\n *\n *\n * told\n */\n"), [(4, "told")])

    def test_c_code(self):
        self.assertEqual(findings("src/a.cpp", 'int tells = 1;\nauto b = "http://told";  // `told`\nauto c = R"(// told)";\n'), [])
        self.assertEqual(findings("src/a.cpp", "int a;  // asked\nint b;  // for\n"), [])
        self.assertEqual(findings("src/a.cpp", "int a = 1'000;  // untold, asked forth\n"), [])

    def test_beginnings(self):
        def lines(name: str, text: str) -> list[int]:
            file = check_words.Path(name)
            return [line for line, _ in check_words.check_beginnings(file, check_words.prose_of(file, text))]

        self.assertEqual(lines("src/a.cpp", "/// Of a row.\n// It is so. What\n//  follows.\nint a;  ///< That of b\n"), [1, 2, 4])
        self.assertEqual(lines("bench/a.py", '"""What it does."""\n\nx = "Of text"  # the sum of a row\n'), [1])
        self.assertEqual(lines("src/a.cpp", "// Offsets of a row. Whatever is left.\n"), [])

    def test_names_in_code(self):
        names = check_words.refused_in(GLOSSARY, "refused in code")
        self.assertEqual(names, dict.fromkeys(("WorkList", "by_turns"), "TileScheduler"))

        def found(file: str, text: str) -> list[tuple[int, str]]:
            at = check_words.check_names(names, check_words.Path(file), text)
            return [(line, what.split('"')[1]) for line, what in at]

        text = 'WorkList a;\nint b_by_turns = kWorkListSize;  // WorkList\nauto c = "by_turns";\n'
        self.assertEqual(found("src/a.cu", text), [(1, "WorkList"), (2, "WorkList"), (2, "by_turns")])
        self.assertEqual(found("src/by_turns/a.cu", ""), [(1, "by_turns")])
        self.assertEqual(found("src/a.cu", "int myWorkList, WorkListed, standby_turns;"), [])
        self.assertEqual(found("tests/a.cpp", "WorkList a;"), [])

    def test_python(self):
        text = '"""The module.\n\n\nIt tells."""\nx = "told"  # told\n\n\ndef f(told=1):\n    """told"""\n'
        text += '    return {"told": """told"""}\n'
        self.assertEqual(findings("python/a.py", text), [(4, "tells"), (5, "told"), (9, "told")])

    def test_cmake(self):
        self.assertEqual(findings("src/CMakeLists.txt", 'set(told "# told")\n# told\n'), [(2, "told")])

    def test_documents(self):
        text = "It tells.\n\n```cpp\n// told\n```\n\n`told` <!-- told -->\n| asked\nfor |\n"
        self.assertEqual(findings("docs/a.md", text), [(1, "tells"), (8, "asked for")])

    def test_where(self):
        for name in ("docs/glossary.md", "tools/a.py", "src/a.json"):
            self.assertEqual(findings(name, "// told\n# told\n"), [])
        self.assertEqual(findings("src/gpu/cuda/sm90/a.cu", "// told\n"), [(1, "told")])

    def test_exit_status(self):
        cases = (("// fine\n", GLOSSARY, 0), ("// told\n", GLOSSARY, 1), ("// fine\n", "no table\n", 1))
        for text, glossary, status in cases:
            with Repository({"docs/glossary.md": glossary, "src/a.cpp": text}) as root, contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(check_words.main(["--root", str(root)]), status)


if __name__ == "__main__":
    unittest.main()
