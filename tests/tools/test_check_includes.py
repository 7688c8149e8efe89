# SPDX-License-Identifier: Apache-2.0
import unittest

from tool import Repository, load

check_includes = load("check_includes")
SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


def findings(files: dict[str, str], path: str) -> list[str]:
    with Repository({name: SPDX + text for name, text in files.items()}) as root:
        return check_includes.check_file(root, check_includes.Path(path))


FILES = {
    "include/fovea/tensor.hpp": "#include <vector>\n",
    "src/op/common/band.hpp": '#include "fovea/tensor.hpp"\n',
    "src/plan/select.hpp": "",
    "src/cpu/isa/avx2.hpp": "",
    "src/gpu/cuda/sm80/mma.cuh": "",
    "src/gpu/cuda/sm90/mma.cuh": "",
}


class CheckIncludes(unittest.TestCase):
    def one(self, path: str, text: str) -> list[str]:
        return findings({**FILES, path: text}, path)

    def test_allowed(self):
        self.assertEqual(
            self.one("src/cpu/attention.cpp", '#include "op/common/band.hpp"\n#include <vector>\n#include "isa/avx2.hpp"\n'), []
        )
        self.assertEqual(self.one("src/plan/implementations.cpp", '#include "cpu/isa/avx2.hpp"\n'), [])
        self.assertEqual(self.one("src/gpu/cuda/sm90/plan.cu", '#include "mma.cuh"\n#include <cuda_runtime.h>\n'), [])
        self.assertEqual(self.one("tests/unit/a.cpp", '#include "cpu/isa/avx2.hpp"\n#include <gtest/gtest.h>\n'), [])

    def test_upwards(self):
        self.assertIn("src/plan/select.hpp is outside", self.one("src/op/a.cpp", '#include "plan/select.hpp"\n')[0])
        self.assertIn("src/cpu/isa/avx2.hpp is outside", self.one("src/plan/select.cpp", '#include "cpu/isa/avx2.hpp"\n')[0])
        self.assertIn("outside", self.one("examples/a.cpp", '#include "op/common/band.hpp"\n')[0])

    def test_backend_to_backend(self):
        self.assertIn("outside", self.one("src/gpu/cuda/sm90/a.cu", '#include "gpu/cuda/sm80/mma.cuh"\n')[0])
        self.assertIn("outside", self.one("src/gpu/cuda/sm90/a.cu", '#include "../sm80/mma.cuh"\n')[0])
        self.assertIn("outside", self.one("src/reference/a.cpp", '#include "cpu/isa/avx2.hpp"\n')[0])

    def test_reference_shares_no_mask(self):
        self.assertIn("must not share", self.one("src/reference/a.cpp", '#include "op/common/band.hpp"\n')[0])

    def test_public_headers_stand_alone(self):
        for header in ("torch/all.h", "cuda_runtime.h", "fmt/core.h", "stdint.h", "sys/mman.h"):
            self.assertEqual(len(self.one("include/fovea/a.hpp", f"#include <{header}>\n")), 1, header)
        self.assertEqual(self.one("include/fovea/c.h", "#include <stdint.h>\n"), [])

    def test_third_party_in_its_place(self):
        self.assertIn("torch headers", self.one("src/cpu/a.cpp", "#include <torch/all.h>\n")[0])
        self.assertIn("CUDA headers", self.one("src/cpu/a.cpp", "#include <cuda_runtime.h>\n")[0])
        self.assertEqual(self.one("src/torch/operators/a.cpp", "#include <torch/csrc/stable/library.h>\n"), [])

    def test_line_and_missing_file(self):
        self.assertIn(
            "src/op/a.cpp:3: #include op/none.hpp: no such file", self.one("src/op/a.cpp", '\n#include "op/none.hpp"\n')[0]
        )

    def test_instances_include_no_results(self):
        files = {
            "include/fovea/result.hpp": "#include <string>\n",
            "src/gpu/cuda/sm90/a/config.hpp": '#include "fovea/result.hpp"\n',
            "src/gpu/cuda/sm90/a/kernel.cuh": '#include "gpu/cuda/sm90/a/config.hpp"\n',
            "src/gpu/cuda/sm90/a/instance.cu.in": '#include "gpu/cuda/sm90/a/kernel.cuh"\n',
            "src/gpu/cuda/sm90/b/instance.cu.in": "#include <cuda_fp16.h>\n",
        }
        self.assertEqual(
            findings(files, "src/gpu/cuda/sm90/a/instance.cu.in"),
            [
                "src/gpu/cuda/sm90/a/instance.cu.in: instances include include/fovea/result.hpp, by way of "
                "src/gpu/cuda/sm90/a/kernel.cuh, src/gpu/cuda/sm90/a/config.hpp"
            ],
        )
        self.assertEqual(findings(files, "src/gpu/cuda/sm90/b/instance.cu.in"), [])

    def test_comments_name_what_is_there(self):
        there = "/// See tensor.hpp, op/common/band.hpp and iree/GPU/Attrs.cpp.\n"
        self.assertEqual(self.one("src/op/a.cpp", there), [])
        self.assertEqual(
            self.one("src/op/a.cpp", '\nint x;  // op/common/bond.hpp\nconst char* text = "none.hpp";\n'),
            ["src/op/a.cpp:3: names op/common/bond.hpp: no such file or folder"],
        )

    def test_cmake_names_folders_that_are_there(self):
        text = "add_subdirectory(op)\nfovea_cuda_folder(sm70 70)\nadd_subdirectory(${elsewhere})\n"
        self.assertEqual(self.one("src/CMakeLists.txt", text), ["src/CMakeLists.txt:3: names sm70: no such file or folder"])

    def test_rules_name_what_is_there(self):
        self.assertEqual(check_includes.missing_rules(check_includes.repository.ROOT), [])
        with Repository({"src/op/a.cpp": SPDX}) as root:
            self.assertIn(
                "tools/check_includes: names src/op/common/band.hpp: no such file or folder", check_includes.missing_rules(root)
            )

    def test_spdx(self):
        self.assertTrue(check_includes.has_spdx("#!/bin/bash\n# SPDX-License-Identifier: Apache-2.0\n"))
        self.assertFalse(check_includes.has_spdx("\n// SPDX-License-Identifier: Apache-2.0\n"))
        self.assertFalse(check_includes.has_spdx("// SPDX-License-Identifier: MIT\n"))

    def test_exit_status(self):
        with Repository({"src/op/a.cpp": SPDX}) as root:
            self.assertEqual(check_includes.main(["--root", str(root)]), 0)
        with Repository({"src/op/a.cpp": "int x;\n"}) as root:
            self.assertEqual(check_includes.main(["--root", str(root)]), 1)


if __name__ == "__main__":
    unittest.main()
