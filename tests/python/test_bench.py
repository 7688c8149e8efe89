# SPDX-License-Identifier: Apache-2.0
"""Which cases ./dev bench measures, and a dry run of the benchmarks that need a GPU: every case is computed and checked on the
CPU, at tiny sizes."""

import importlib.machinery
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fovea

BENCH = Path(__file__).resolve().parents[2] / "bench"
SCRIPTS = {
    "latent_decode": ("cases", "latency", "formats"),
    "sparse_latent": ("cases", "formats", "latency"),
    "latent_context": ("rows",),
    "cache_conversion": ("cases",),
    "quantized_attention": ("quantisers", "cases"),
    "portable_attention": ("forward", "backward"),
    "portable_latent": ("dense", "sparse"),
    "paged_decode": ("decode", "pages", "head_dims", "prefill", "mixed", "append", "merge"),
    "kv_formats": ("decode", "pairs", "inline", "append", "append_inline"),
    "continuous_batching": ("cases",),
    "indexer": ("logits", "lists"),
}


def dry_run(script: str, out: Path, *arguments: str) -> tuple[int, dict]:
    command = [sys.executable, "-B", BENCH / f"{script}.py", "--dry-run", "--commit", "abc", "--out", out, *arguments]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # more threads cost more than they save
    done = subprocess.run(command, capture_output=True, text=True, env=one_thread)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(out.read_text())


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_row(script, tmp_path):
    if script == "continuous_batching":
        pytest.importorskip("transformers", minversion="5.23")
    status, results = dry_run(script, tmp_path / "x.json")
    assert status == 0 and "missing" not in results
    assert results["commit"] == "abc" and results["copy_rate"] > 0
    shared = script in ("latent_decode", "sparse_latent")
    most = {"quantized_attention": 8e-2, "portable_attention": 1.2e-2, "continuous_batching": 0.2}.get(script, 6e-3)
    for part in SCRIPTS[script]:
        assert results[part]
        for row in results[part]:
            assert row["name"] and (row["milliseconds"] > 0 if "milliseconds" in row else row["alone_us"] > 0)
            assert row.get("error", 0) < most and row.get("shared_error", 0) < most
            assert ("shared_milliseconds" in row) == (shared and "milliseconds" in row and "prefill" not in row["name"])
            assert ("shared_us" in row) == ("alone_us" in row)


@pytest.mark.parametrize("cache", ["bf16", "e4m3"])
@pytest.mark.parametrize(("seq_q", "prefill"), [(1, 0), (3, 0), (12, 0), (1, 50)])
def test_peers_of_paged_attention_are_asked_for_the_same(monkeypatch, seq_q, prefill, cache):
    """By Fovea's own modules of their names, which take the same calls and check them."""
    from fovea.compat import flash_attn_interface, flashinfer

    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setitem(sys.modules, "flashinfer", flashinfer)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", flash_attn_interface)
    import paged_decode
    import paged_peers

    subject = paged_decode.Paged(paged_decode.Case(3, 70, 16, 8, 2, 128, seq_q, cache, prefill))
    subject.check(paged_peers.flashinfer(subject))
    if subject.uniform:
        subject.check(paged_peers.flash_attention(subject))
    assert paged_peers.wanted(subject).keys() <= {"PyTorch, copied out of its pages"}  # those are none


def test_a_peer_that_cannot_run_is_skipped_with_a_line(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(BENCH))
    import paged_decode
    import paged_peers

    monkeypatch.setattr(paged_peers, "importable", lambda module: True)
    for module in ("flashinfer", "flash_attn_interface"):
        monkeypatch.setitem(sys.modules, module, None)
    subject = paged_decode.Paged(paged_decode.Case(3, 70, 16, 8, 2))
    assert paged_peers.wanted(subject).keys() == {"PyTorch, copied out of its pages"}
    printed = capsys.readouterr().out
    assert all(f"{name} skipped: ModuleNotFoundError" in printed for name in ("FlashAttention-3", "FlashInfer", "FlashInfer XQA"))


@pytest.mark.parametrize("causal", [False, True])
def test_peers_of_dense_attention_are_asked_for_the_same(monkeypatch, causal):
    from fovea.compat import flash_attn, flash_attn_interface

    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setitem(sys.modules, "flash_attn", flash_attn)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", flash_attn_interface)
    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", flash_attn_interface)
    import dense_attention

    subject = dense_attention.Dense(dense_attention.Case(40, causal, heads=4, kv_heads=2, batch=2))
    assert all(subject.can(peer) for peer in (subject.flash_attn, subject.flash_attention_3, subject.fa3_fwd))


@pytest.mark.parametrize("case", ["flat", "causal", "paged", "two queries", "lengths"])
def test_peers_of_the_indexer_are_asked_for_the_same(monkeypatch, case):
    """By another module with the functions of Fovea's, which is asked as DeepGEMM is."""
    from fovea.compat import deep_gemm

    monkeypatch.syspath_prepend(str(BENCH))
    library = type(sys)("deep_gemm")
    library.__dict__.update({name: getattr(deep_gemm, name) for name in deep_gemm.__all__})
    library.__spec__ = importlib.machinery.ModuleSpec("deep_gemm", None)
    monkeypatch.setitem(sys.modules, "deep_gemm", library)
    import indexer

    cases = {
        "flat": indexer.Flat(20, 90, 8),
        "causal": indexer.Flat(20, 90, 8, causal=True),
        "paged": indexer.Paged(3, 1, 150, 8),
        "two queries": indexer.Paged(3, 2, 150, 8),
        "lengths": indexer.Paged(3, 2, 150, 8, least_len=70, columns=400),
    }
    subject = indexer.subject_of(cases[case])
    assert subject.peers(shared=False).keys() == {"DeepGEMM"}
    subject.k.view(torch.uint8)[:] = 0x7F  # NaN: the next check cannot pass
    with pytest.raises(ArithmeticError):
        subject.check()


def test_versions_of_peers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import peers

    assert peers.versions() == {
        name: peers.version_of(module) for module, (name, _) in peers.PACKAGES.items() if peers.importable(module)
    }
    module = type(sys)("sageattention")
    module.__spec__, module.__version__ = importlib.machinery.ModuleSpec("sageattention", None), "2.2.0"
    monkeypatch.setitem(sys.modules, "sageattention", module)
    assert peers.versions()["SageAttention"] == "2.2.0"


def test_quantised_accuracy(tmp_path):
    """Its gates hold, and K's bias is what smoothing takes away."""
    out = tmp_path / "x.json"
    done = subprocess.run([sys.executable, "-B", BENCH / "quantised_accuracy.py", "--out", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    errors = {
        (row["data"], row["smooth_k"]): row["relative_l1"] for row in json.loads(out.read_text())["rows"] if row["values"] == "f16"
    }
    assert errors["K biased", False] > 2 * errors["K biased", True] and errors["outliers, 8 x", True] > errors["normal", True]


def on_ranks(count: int, *command: str | Path) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*launcher, *command], capture_output=True, text=True, env=one_thread)


def test_context_parallel(tmp_path):
    """On four ranks over gloo, and subgroups of one and two of them."""
    out = tmp_path / "x.json"
    done = on_ranks(4, BENCH / "context_parallel.py", "--dry-run", "--out", out, "--commit", "abc")
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    rows = {name: [row for row in results["rows"] if row["name"] == name] for name in {row["name"] for row in results["rows"]}}
    assert results["ranks"] == 4 and results["failed"] == []
    assert [row["way"] for row in rows["check dense"]] == ["ring", "gathered", "heads", "two_level"]
    assert all(row["good"] for name, of in rows.items() for row in of if name.startswith("check "))
    assert rows.keys() >= {"forward", "backward", "merge", "link", "all-gather", "check decode mla", "check decode gqa"}
    for name in ("forward", "backward", "decode gqa", "decode mla"):
        assert sorted({row["ranks"] for row in rows[name]}) == [1, 2, 4]
    assert all(row["error"] < 2**-6 for name in ("decode gqa", "decode mla") for row in rows[name])


FAILS_ON_TWO_RANKS = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import context_parallel

run = context_parallel.Decode.run

def fails(self, merge):
    if merge == "scatter" and context_parallel.dist.get_world_size(self.group) == 2:
        raise RuntimeError("no memory is left")
    return run(self, merge)

context_parallel.Decode.run = fails
sys.exit(context_parallel.main())
"""


def test_context_parallel_goes_on(tmp_path):
    """A failure of a subgroup is noted. The ranks beside it wait no longer, and the rest is measured."""
    out, script = tmp_path / "x.json", tmp_path / "fails.py"
    script.write_text(FAILS_ON_TWO_RANKS)
    done = on_ranks(3, script, BENCH, "--dry-run", "--out", out, "--commit", "abc", "--only", "decode-gqa", "merges")
    results = json.loads(out.read_text())
    (failed,) = results["failed"]
    assert done.returncode != 0 and (failed["ranks"], failed["merge"]) == (2, "scatter")
    assert failed["faults"] == ["RuntimeError: no memory is left"] * 2 + [None]
    assert [(row["name"], row["merge"]) for row in results["rows"]][:3] == [
        ("decode gqa", "gather"),
        ("decode gqa", "gather"),
        ("merge", "gather"),
    ]


def test_time_that_is_up(tmp_path):
    status, results = dry_run("latent_context", tmp_path / "x.json", "--seconds", "0", "--only", "b1 kv1024 sparse")
    assert status == 1 and results["rows"] == []
    assert [row["name"] for row in results["missing"]] == ["b1 kv1024 sparse rows", "b1 kv1024 sparse v32_fp8"]


def test_a_row_that_fails_is_noted_and_the_others_go_on(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(BENCH)
    monkeypatch.setattr(sys, "argv", ["bench", "--dry-run", "--only", "b1 kv1024 dense", "--out", str(tmp_path / "x.json")])
    import gpu
    import latent_context

    def time(case):
        if case.cache == "e4m3":
            raise ArithmeticError("far off")
        return {"milliseconds": 1.0, "error": 0.0}

    bench = gpu.Bench("test", "")
    bench.rows(latent_context.CASES, time, rows := [])
    with pytest.raises(SystemExit):
        bench.finish()
    assert [row["cache"] for row in rows] == ["rows", "v32_fp8"]
    assert bench.missing == [{"name": "b1 kv1024 dense e4m3", "why": "ArithmeticError: far off"}]


# Stands for the fovea program: names one case, and notes how it was called.
PROGRAM = """#!{python}
import json, pathlib, sys
arguments = sys.argv[1:]
wanted = arguments[arguments.index("--case") + 1] if "--case" in arguments else "/"
names = [name for name in ["attention/bench/native"] if wanted in name and "--ceilings" not in arguments]
if "--list" in arguments:
    print("\\n".join(names), end="")
else:
    pathlib.Path(arguments[arguments.index("--json") + 1]).write_text(
        json.dumps({{"cpu": "test", "features": [], "rows": names, "called": arguments}}))
"""


@pytest.fixture
def bench_run(monkeypatch, tmp_path):
    """./dev bench --case NAME on one native case, one against PyTorch and one against ourselves: status and results."""
    monkeypatch.syspath_prepend(BENCH)
    import run
    import torch_cases

    def duel(case):
        return torch_cases.Duel(case, lambda: torch.ones(1), lambda: torch.ones(1), "ones")

    monkeypatch.setattr(torch_cases, "CASES", {"beside torch": duel})
    monkeypatch.setattr(torch_cases, "OWN_CASES", {"beside ourselves": duel})
    monkeypatch.setattr(run, "python_call_seconds", lambda: 1e-6)
    program, out = tmp_path / "program", tmp_path / "out.json"
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)

    def measure(name):
        command = [
            "run",
            "--program",
            program,
            "--case",
            name,
            "--out",
            out,
            "--commit",
            "abc",
            "--seconds",
            "1e-9",
            "--threads",
            "1",
        ]
        monkeypatch.setattr(sys, "argv", [str(word) for word in command])
        return run.main(), json.loads(out.read_text()) if out.exists() else None

    threads = torch.get_num_threads()
    yield measure
    torch.set_num_threads(threads)
    fovea.set_num_threads(0)


@pytest.mark.parametrize(
    ("name", "rows", "versus", "own"),
    [("native", 1, 0, 0), ("beside torch", 0, 1, 0), ("beside ourselves", 0, 0, 1), ("beside", 0, 1, 1)],
)
def test_a_case_of_any_kind_can_be_named(bench_run, name, rows, versus, own):
    status, results = bench_run(name)
    assert status == 0
    assert [len(results[part]) for part in ("rows", "versus", "own")] == [rows, versus, own]
    assert ("--ceilings" in results["called"]) == (rows == 0)


@pytest.mark.parametrize("words", ["--threads 0", "--threads -2", "--seconds 0", "--seconds nan", "--seconds inf"])
def test_numbers_that_cannot_be_measured_with(monkeypatch, capsys, words):
    monkeypatch.syspath_prepend(BENCH)
    import run

    monkeypatch.setattr(sys, "argv", ["run", "--program", "fovea", *words.split()])
    with pytest.raises(SystemExit, match="2"):
        run.arguments()
    assert "--threads must be at least 1, and --seconds above 0" in capsys.readouterr().err


def test_a_case_that_is_none(bench_run, capsys):
    assert bench_run("nothing of the kind") == (2, None)
    assert "beside ourselves" in capsys.readouterr().err
