# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md says what to do about every reason to decline that the source has, and about no other."""

import importlib.util
import re
import unittest

from tool import ROOT

spec = importlib.util.spec_from_file_location("declines", ROOT / "tools" / "declines.py")
declines = importlib.util.module_from_spec(spec)
spec.loader.exec_module(declines)

ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \|$", re.MULTILINE)


def pattern(reason: str) -> re.Pattern:
    return re.compile(".*".join(map(re.escape, reason.split("*"))))


class DeclinesTest(unittest.TestCase):
    def test_what_a_call_reads_as(self):
        one = 'return declined(std::string(name) + ".dtype", name_of(a, b), fits ? "bf16 or f16" : "f16");'
        self.assertEqual(declines.declines_in(one), {"*.dtype: got *, want bf16 or f16", "*.dtype: got *, want f16"})
        two = 'return detail::declined("keys", f({1, 2}),\n  "fewer: " + std::to_string(k) + " in all");  // declined("no")'
        self.assertEqual(declines.declines_in(two), {"keys: got *, want fewer: * in all"})
        self.assertEqual(declines.declines_in('return "needs avx2";'), {"needs avx2"})
        three = 'raise NotImplementedError(f"{name}: got {x}, want 0")\nraise ValueError("no")'
        self.assertEqual(declines.refusals_in(three), {"*: got *, want 0"})

    def test_the_page_has_every_reason(self):
        reasons = declines.declines(ROOT)
        self.assertGreater(len(reasons), 60)
        rows = [row[0] for row in ROW.findall((ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"))]
        for reason, path in reasons.items():
            with self.subTest(reason):
                matching = any(pattern(row).fullmatch(reason) for row in rows)
                self.assertTrue(matching, f"{path.relative_to(ROOT)} declines with this; docs/troubleshooting.md has no row for it")
        for row in rows:
            with self.subTest(row):
                self.assertTrue(
                    any(pattern(row).fullmatch(reason) for reason in reasons), "nothing in the source declines with this"
                )


if __name__ == "__main__":
    unittest.main()
