# SPDX-License-Identifier: Apache-2.0
"""bench/plot.py over GPU results: none, the least that a file holds, and all of it."""

import importlib.util
import json
import re
import subprocess
import sys
import unittest

from tool import ROOT, Repository

PROGRAM = (
    "plot.py",
    "plot_context.py",
    "plot_conversion.py",
    "plot_dense.py",
    "plot_latent.py",
    "plot_peers.py",
    "plot_ranks.py",
    "plotting.py",
)


def case(batch: int, milliseconds: float, **more: object) -> dict:
    """At a matrix rate of 500 TFLOP/s and a copy rate of 4 TB/s; the arithmetic takes 1 ms, the bytes take half of that."""
    flops, moved = 500e12 / milliseconds, 2e12 / milliseconds
    rates = {"flops": flops, "bytes": moved, "of_matrix_rate": flops / 500e12, "of_copy_rate": moved / 4e12, "matrix_rate": 500e12}
    sizes = {"name": f"case {batch}", "batch": batch, "kv_len": 4096, "heads": 128}
    return sizes | rates | {"milliseconds": milliseconds} | more


LEAST = {
    "date": "2026-11-21T09:11:53+00:00",
    "commit": "abc",
    "device": "Some GPU",
    "driver": "1.2",
    "clocks_max": "1 MHz, 2 W",
    "torch": "2.11.0",
    "copy_rate": 4e12,
    "cases": [case(8, 1.25)],
}
MOST = LEAST | {
    "peers": {"FlashMLA": "1.0.0", "cuDNN": "91900"},
    "cases": [case(8, 1.25, peers={"FlashMLA": 1.5}), case(16, 2.0)],
    "sweeps": {"batch": [case(1, 4.0), case(2, 2.0, peers={"FlashMLA": 2.5})], "heads": [case(1, 4.0)]},
    "latency": [{"batch": 1, "kv_len": 4096, "heads": 128, "alone_us": 21.5, "chained_us": 12.25, "chain": 32}],
    "host": {"case": "a/b", "python_us": 14.0, "native_us": 5.5},
    "formats": [case(32, 1.25)],
    "missing": [{"name": "case 64", "why": "RuntimeError: no\nmemory"}],
}


def context(sparse: bool, cache: str, *times: float) -> list[dict]:
    """Rows of one sequence of 1024, 2048 and so on tokens."""
    row = {"batch": 1, "heads": 128, "topk": 2048, "sparse": sparse, "cache": cache}
    return [row | {"kv_len": 1024 << step, "milliseconds": time} for step, time in enumerate(times)]


# At 2k the dense one takes half as long, at 4k the sparse one does: they meet in the middle of the logarithms.
CONTEXT = LEAST | {
    "rows": context(False, "rows", 0.5, 1, 4)
    + context(True, "rows", 1, 2, 2)
    + context(False, "e4m3", 1, 2, 4)
    + context(False, "v32_fp8", 2, 4, 8)
    + context(True, "v32_fp8", 1, 1, 1)
}


@unittest.skipUnless(importlib.util.find_spec("matplotlib"), "needs matplotlib")
class PlotTest(unittest.TestCase):
    def made(self, results: dict[str, dict], kind: str = "latent-decode") -> tuple[str, set[str]]:
        """The text, with one space for many, and the names of the pictures. results: by the beginning of a file's name."""
        files = {f"bench/{name}": (ROOT / "bench" / name).read_text(encoding="utf-8") for name in PROGRAM} | {"docs/x": ""}
        for date, content in results.items():
            files[f"bench/results/gpu/{date}-{kind}.json"] = json.dumps(content)
        with Repository(files) as root:
            subprocess.run([sys.executable, "-B", root / "bench/plot.py"], check=True, capture_output=True)
            pages = (root / f"docs/{name}.md" for name in ("performance", "peers", "performance-gpu"))
            text = "\n".join(page.read_text(encoding="utf-8") for page in pages if page.exists())
            pictures = list(root.glob("docs/*.svg"))
            self.labels = {label for path in pictures for label in re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())}
            return re.sub(" +", " ", text), {path.name for path in pictures}

    def test_the_fastest_peer_of_each_row(self):
        """The newest measurement counts, whatever the file's name ends with; other ways of Fovea are no peers."""
        old = LEAST | {"cases": [case(1, 2.0, by_turns={"cuDNN": 1.5, "FlashAttention-3": 0.9}), case(2, 2.0)]}
        new = old | {"date": "2026-11-22", "cases": [case(1, 2.0, by_turns={"cuDNN": 1.25, "Fovea-bf16": 0.5})]}
        text, _ = self.made({"2026-11-21": old, "2026-11-22-alone": old}, "dense-backward")
        self.assertIn("1 rows: 0 ahead, 0 level, 1 behind.", text)
        self.assertIn("| case 1 | 2 ms | FlashAttention-3 | 1.8 ms | **0.90** | Some, 2026-11-21 |", text)
        text, _ = self.made({"2026-11-21": old, "2026-11-22": new}, "dense-backward")
        self.assertIn("1 rows: 1 ahead, 0 level, 0 behind.", text)
        self.assertIn("| case 1 | 2 ms | cuDNN | 2.5 ms | 1.25 | Some, 2026-11-22 |", text)
        self.assertEqual(text.count("| dense attention, gradient | 1 | 0 | 0 | 1.25 | 1.25 | 1.25 | cuDNN | Some |"), 2)

    def test_a_peer_in_another_process_is_said(self):
        row = case(1, 2.0, by_turns={"cuDNN": 1.25}, two_processes=True)
        text, _ = self.made({"2026-11-21": LEAST | {"cases": [row, case(2, 2.0, by_turns={"cuDNN": 1.5})]}}, "dense-backward")
        self.assertIn("| case 1 | 2 ms | cuDNN | 2.5 ms | 1.25 | Some, 2026-11-21, two processes |", text)
        self.assertIn("| case 2 | 2 ms | cuDNN | 3 ms | 1.50 | Some, 2026-11-21 |", text)

    def test_a_shared_schedule_is_said(self):
        row = case(1, 2.0, by_turns={"FlashMLA": 0.5}, shared_by_turns={"FlashMLA": 1.01}, shared_milliseconds=1.5)
        text, _ = self.made({"2026-11-21": LEAST | {"cases": [row]}}, "latent-decode-long")
        self.assertIn("| case 1, shared schedule | 1.5 ms | FlashMLA | 1.515 ms | 1.01 | Some, 2026-11-21 |", text)

    def test_pages_by_device(self):
        cpu = {"cpu": "Some CPU", "features": ["avx2"], "torch": "2.11.0", "torch_capability": "AVX2", "note": "", "versus": []}
        cpu |= {"date": "2026-11-21", "commit": "abc", "rows": [], "python_one_token_s": 1.0}
        rates = dict.fromkeys(("read_bandwidth", "f32_peak", "bf16_peak"), 1e9)
        cpu["ceilings"] = rates | {"threads": 2, "f32_instruction": "a", "bf16_instruction": "b"}
        cpu["versus"] = [{"case": "work", "fovea_s": 1.0, "torch_s": 2.0, "torch_does": "so"}]
        programs = {f"bench/{name}": (ROOT / "bench" / name).read_text(encoding="utf-8") for name in PROGRAM}
        readme = "# Title\n\n<!-- made: bench/plot.py -->\nold\n<!-- /made -->\n\nend\n"
        files = programs | {"docs/x": "", "README.md": readme, "bench/results/a/2026-11-21-cpu.json": json.dumps(cpu)}
        rows = LEAST | {"cases": [case(1, 2.0, by_turns={"cuDNN": 1.5})]}
        files["bench/results/gpu/2026-11-21-dense-attention.json"] = json.dumps(rows)
        with Repository(files) as root:
            subprocess.run([sys.executable, "-B", root / "bench/plot.py"], check=True, capture_output=True)
            text = (root / "docs/performance.md").read_text(encoding="utf-8")
            readme = (root / "README.md").read_text(encoding="utf-8")
            titles = [(root / f"docs/performance-{name}.md").read_text(encoding="utf-8").splitlines()[0] for name in ("gpu", "a")]
        self.assertEqual(titles, ["# Some GPU", "# Some CPU (avx2)"])
        self.assertIn("[Dense attention, forward](performance-gpu.md#dense-attention-forward)", text)
        self.assertLess(text.index("performance-gpu.md"), text.index("performance-a.md"))
        self.assertNotIn("old", readme)
        self.assertIn("| dense attention, forward |", readme)
        self.assertTrue(readme.endswith("<!-- /made -->\n\nend\n"))

    def test_times_of_another_timer(self):
        rows = [
            {
                "name": name,
                "ours_us": 2000,
                "peers_us": {"A": 3000},
                "ratio": {"A": 1.5},
                "flops": 4e9,
                "bytes": 2e6,
                "matrix": 5e12,
            }
            for name in ("fwd d128 b4 s4096 h16 causal e4m3", "bwd d64 b4 s4096 h32 full", "mla b8 sq1 len=8192 h128")
        ]
        given = {"device": "Some GPU", "torch": "2.11.0", "versions": {"A": "1"}, "rows": rows}
        files = {"bench/convert_turns.py": (ROOT / "bench/convert_turns.py").read_text(encoding="utf-8"), "x": json.dumps(given)}
        with Repository(files | {"watts": "100, 90.5\n1700, 600.0\n1800, 700.0\n"}) as root:
            command = [sys.executable, "-B", root / "bench/convert_turns.py", root / "x", "--watch", root / "watts"]
            subprocess.run([*command, "--date", "2026-11-27", "--commit", "abc"], check=True, capture_output=True)
            made = {path.name: json.loads(path.read_text()) for path in (root / "bench/results/some-gpu").iterdir()}
        self.assertEqual(
            {name: results["cases"][0]["name"] for name, results in made.items()},
            {
                "2026-11-27-dense-attention-by-turns.json": "d128 h16 b4 s4096 causal float8_e4m3fn",
                "2026-11-27-dense-backward-by-turns.json": "d64 h32 b4 s4096 full",
                "2026-11-27-latent-decode-by-turns.json": "b8 sq1 len=8192 h128",
            },
        )
        results = made["2026-11-27-dense-backward-by-turns.json"]
        self.assertEqual(results["mean"], {"sm_mhz": 1750, "watts": 650})
        row = results["cases"][0]
        self.assertEqual((row["milliseconds"], row["peers"], row["by_turns"], row["flops"]), (2, {"A": 3}, {"A": 1.5}, 2e12))

    def test_no_results(self):
        text, pictures = self.made({})
        self.assertTrue(text.startswith("# Performance\n"))
        self.assertNotIn("##", text)
        self.assertEqual(pictures, set())

    def test_the_newest_file_with_no_more_than_cases(self):
        text, pictures = self.made({"2026-01-01": MOST, "2026-11-21": LEAST})
        self.assertIn("## Dense MLA decode", text)
        self.assertIn("| case 8 | 1.250 ms | 400 | 1600 | 80 % (compute) |\n", text)
        self.assertIn("4.00 TB/s", text)
        for absent in ("FlashMLA", "graph", "host", "sweeps"):
            self.assertNotIn(absent, text)
        self.assertEqual(pictures, {"performance-gpu-latent-ceilings.svg"})

    def test_the_date_inside_decides(self):
        """A name that sorts last is not what was measured last; a day without a time is its beginning."""
        old = LEAST | {"cases": [case(8, 2.0)]}
        for later in ("2026-11-21T09:11:54+00:00", "2026-11-22"):
            text, _ = self.made({"2026-11-20": LEAST | {"date": later}, "2026-11-21-zzz": old})
            self.assertIn("| case 8 | 1.250 ms |", text)
            self.assertNotIn("2.000 ms", text)

    def test_text_stays_text(self):
        self.made({"2026-11-21": LEAST})
        self.assertIn("case 8", self.labels)

    def test_everything(self):
        text, pictures = self.made({"2026-11-21": MOST})
        self.assertIn("| case 8 | 1.250 ms | 400 | 1600 | 80 % (compute) | 1.500 ms | 1.20 x |\n", text)
        self.assertIn("| case 16 | 2.000 ms | 250 | 1000 | 50 % (compute) | | |\n", text)
        self.assertIn("21.5 us for one call, 12.2 us for each of 32 calls", text)
        self.assertIn(
            "of the sizes of `a/b` takes the host 14.0 us from Python (the whole call, planning included) and 5.5 us from C++", text
        )
        self.assertIn("| case 32 | 1.250 ms |", text)
        self.assertIn("PyTorch 2.11.0, FlashMLA 1.0.0, cuDNN 91900. From", text)
        self.assertIn("* Not measured: case 64 (RuntimeError: no).\n", text)
        self.assertEqual(pictures, {"performance-gpu-latent-ceilings.svg", "performance-gpu-latent-sweeps.svg"})
        for picture in pictures:
            self.assertIn(f"({picture})", text)

    def test_dense_attention(self):
        text, pictures = self.made({"2026-11-21": MOST}, "dense-attention")
        self.assertIn("## Dense attention, forward", text)
        self.assertIn("| case 8 | 1.250 ms | 400 | 1600 | 80 % (compute) | 1.500 ms | 1.20 x |\n", text)
        self.assertEqual(pictures, {"performance-gpu-dense-attention-ceilings.svg"})

    def test_overview(self):
        """A mark for each row, also for one far behind, in either scheme of the reader."""
        rows = [case(at, 2.0, by_turns={"cuDNN": ratio}) for at, ratio in enumerate((0.3, 0.99, 1.01, 1.5))]
        programs = ("plot_overview.py", "plot_peers.py", "plotting.py")
        files = {f"bench/{name}": (ROOT / "bench" / name).read_text(encoding="utf-8") for name in programs} | {"docs/x": ""}
        files["bench/results/gpu/2026-11-21-dense-attention.json"] = json.dumps(LEAST | {"cases": rows})
        with Repository(files) as root:
            subprocess.run([sys.executable, "-B", root / "bench/plot_overview.py"], check=True, capture_output=True)
            picture = (root / "docs/speed.svg").read_text(encoding="utf-8")
        texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
        self.assertIn("Dense attention, forward", texts)
        self.assertIn("1 ahead, 2 level, 1 behind", texts)
        box = [float(number) for number in re.search(r'viewBox="0 0 (\S+) (\S+)"', picture).groups()]
        marks = [float(x) for x in re.findall(r'<use [^>]*x="([^"]+)" y="[^"]+" style="fill: #(?:1f6f8b|8a8a8a|d9822b)', picture)]
        self.assertEqual(len(marks), 4)
        self.assertTrue(all(0 < x < box[0] for x in marks))
        self.assertIn("prefers-color-scheme: dark", picture)

    def test_shared_schedules(self):
        both = case(8, 1.25, peers={"FlashMLA": 1.5}, shared_milliseconds=1.125, shared_peers={"FlashMLA": 1.375})
        latency = [row | {"shared_us": 11.5} for row in MOST["latency"]]
        text, _ = self.made({"2026-11-21": MOST | {"cases": [both, case(16, 2.0)], "latency": latency}})
        self.assertIn("| Fovea, shared schedule | FlashMLA, shared |\n", text)
        self.assertIn("| case 8 | 1.250 ms | 400 | 1600 | 80 % (compute) | 1.500 ms | 1.20 x | 1.125 ms | 1.375 ms |\n", text)
        self.assertIn("| case 16 | 2.000 ms | 250 | 1000 | 50 % (compute) | | | | |\n", text)
        self.assertIn("each with tensors of its own; 11.5 us where these share a schedule.\n", text)
        self.assertIn('"Shared" is the time', text)

    def test_context(self):
        text, pictures = self.made({"2026-11-21": CONTEXT}, "latent-context")
        self.assertIn("* bf16 rows, batch 1: sparse is faster from 2.83k tokens on; at 4k it is 2.00 x as fast.\n", text)
        self.assertIn("* v32_fp8, batch 1: sparse is faster at every length; at 4k it is 8.00 x as fast.\n", text)
        self.assertIn("| 1 | 2k | 1.000 ms | 2.000 ms | 4.000 ms | 2.000 ms | 1.000 ms |\n", text)
        self.assertEqual(pictures, {"performance-gpu-context.svg"})

    def test_context_where_dense_stays_ahead(self):
        rows = context(False, "rows", 1, 1) + context(True, "rows", 2, 2)
        text, _ = self.made({"2026-11-21": LEAST | {"rows": rows}}, "latent-context")
        self.assertIn("* bf16 rows, batch 1: dense is faster at the longest; at 2k it is 2.00 x as fast.\n", text)

    def test_context_without_rows(self):
        text, pictures = self.made({"2026-11-21": LEAST | {"rows": []}}, "latent-context")
        self.assertNotIn("##", text)
        self.assertEqual(pictures, set())


if __name__ == "__main__":
    unittest.main()
