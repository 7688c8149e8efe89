# SPDX-License-Identifier: Apache-2.0
import unittest

from tool import Repository, load

count_tests = load("count_tests")

CTEST = """<?xml version="1.0"?><testsuite tests="4">
<testcase name="a" status="run"/>
<testcase name="b" status="fail"><failure message=""/></testcase>
<testcase name="c" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>
<testcase name="d" status="disabled"/></testsuite>"""
PYTEST = """<testsuites><testsuite><testcase name="a"/><testcase name="b"><error/></testcase>
<testcase name="c"><skipped/></testcase>
</testsuite></testsuites>"""


class CountTests(unittest.TestCase):
    def count(self, text: str) -> tuple[int, int, int]:
        with Repository({"report.xml": text}) as root:
            return count_tests.count(str(root / "report.xml"))

    def test_reports(self):
        self.assertEqual(self.count(CTEST), (1, 1, 2))
        self.assertEqual(self.count(PYTEST), (1, 1, 1))

    def test_nothing_ran(self):
        self.assertEqual(self.count("<testsuite/>"), (0, 1, 0))
        self.assertEqual(self.count("<testsuite"), (0, 1, 0))
        self.assertEqual(count_tests.count("/nowhere.xml"), (0, 1, 0))


if __name__ == "__main__":
    unittest.main()
