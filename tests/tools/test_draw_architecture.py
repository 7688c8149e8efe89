# SPDX-License-Identifier: Apache-2.0
"""The picture of the architecture has the arrows of the tree."""

import importlib.util
import sys
import unittest

from tool import ROOT, Repository

sys.path.insert(0, str(ROOT / "tools"))
spec = importlib.util.spec_from_file_location("draw_architecture", ROOT / "tools" / "draw_architecture.py")
draw_architecture = importlib.util.module_from_spec(spec)
spec.loader.exec_module(draw_architecture)

FILES = {
    "include/fovea/plan.hpp": "#pragma once\n",
    "src/op/check.hpp": '#include "fovea/plan.hpp"\n',
    "src/cpu/plan.cpp": '#include "op/check.hpp"\n#include "fovea/plan.hpp"\n#include "own.hpp"\n',
    "src/gpu/cuda/sm90/a.cu": '#include "op/check.hpp"\n',
    "src/torch/a.cpp": "#include <fovea/plan.hpp>\n",
    "python/fovea/a.py": "torch.ops.fovea.attention()\n",
}


class DrawArchitecture(unittest.TestCase):
    def test_arrows_of_a_tree(self):
        with Repository(FILES) as root:
            edges = draw_architecture.uses(root)
        self.assertIn(("src/cpu", "include/fovea"), edges)
        left = {("src/op", "include/fovea"), ("src/cpu", "src/op"), ("src/gpu/cuda/sm90", "src/op"), ("src/torch", "include/fovea")}
        self.assertEqual(draw_architecture.reduced(edges), left | {("python/fovea", "src/torch")})

    def test_the_picture_is_that_of_this_tree(self):
        svg = (ROOT / draw_architecture.PICTURE).read_text(encoding="utf-8")
        tree = draw_architecture.reduced(draw_architecture.uses(ROOT))
        self.assertGreater(len(tree), 15)
        self.assertEqual(draw_architecture.drawn(svg), tree, "run tools/draw_architecture.py")

    def test_the_picture_follows_the_readers_scheme(self):
        svg = draw_architecture.on_any_paper('<svg width="1pt"\n viewBox="0 0 1 1">\n<g fill="white"/></svg>')
        self.assertTrue(svg.startswith('<svg width="1pt"\n viewBox="0 0 1 1">\n<style>@media (prefers-color-scheme: dark)'))
        for picture in sorted((ROOT / "docs").glob("*.svg")):
            with self.subTest(picture.name):
                self.assertIn("prefers-color-scheme: dark", picture.read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
