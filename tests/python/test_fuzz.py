# SPDX-License-Identifier: Apache-2.0
"""The fuzzer of Python calls (fuzz.py), and whether it notices what it looks for."""

import os

import pytest
import torch

import fovea
import fuzz
from fuzz_draw import Draw
from fuzz_mutations import OF_TENSORS, mutate, paths, put
from fuzz_rules import Memory, complaint
from fuzz_targets import TARGETS

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of what torch calls a beta
CALLS = int(os.environ.get("FOVEA_FUZZ_CALLS", "2000"))
SEED = int(os.environ.get("FOVEA_FUZZ_SEED", "0"))


def test_no_call_of_many_has_a_finding():
    found = list(fuzz.findings(SEED, CALLS))
    assert not found, "\n\n".join([*found, f"{len(found)} of {CALLS} calls"])


def test_good_calls_of_every_target_are_right():
    for index, target in enumerate(TARGETS):
        torch.manual_seed(index)
        assert fuzz.judge(fuzz.Case(target, target.make(Draw(index)), [])) is None, target.name


def test_a_number_is_the_same_call_again():
    for number in range(20):
        assert str(fuzz.case(3, number)) == str(fuzz.case(3, number))
    assert len({str(fuzz.case(3, number)) for number in range(20)}) == 20


# ---- what it must notice -------------------------------------------------------------------------------------------------------


def dense():
    return {name: torch.randn(1, 3, 2, 8) for name in "qkv"} | {"out": torch.zeros(1, 5, 2, 8)[:, 1:4]}


def target(function):
    of = next(target for target in TARGETS if target.name == "fovea.attention")
    return of._replace(function=function)


def finding(function, changes=("changed",)):
    call = dense()
    return fuzz.judge(fuzz.Case(target(lambda **given: function(call, **given)), call, list(changes)))


def raising(error):
    def function(call, **given):
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (IndexError("index out of range"), "raises IndexError"),
        (AttributeError("no attribute"), "raises AttributeError"),
        (RuntimeError("q.shape: got 1, want 2"), "raises RuntimeError"),
        (ValueError("the size of tensor a must match"), "does not read"),
        (ValueError("k_cache.shape[1]: got 1, want 2"), "names k_cache"),
        (ValueError("attention(): got q float32[3], want arguments that go together (IndexError: x)"), "is not in words"),
        (TypeError("fovea::attention() is missing value for argument 'v'"), "is not in words"),
    ],
)
def test_refusals_in_other_words_are_findings(error, words):
    assert finding(raising(error)).startswith(words)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("q.shape[1] (seq_q): got 1, want 2"),
        ValueError("q (address modulo 4): got 1, want 0"),
        ValueError("q.shape[-2:] (heads, head_dim): got (2, 3), want (2, 4)"),
        TypeError("attention() missing a required argument: 'v'"),
        TypeError("attention() got softmax_scale; here it is scale"),
        NotImplementedError("q.dtype: got f64, want f32; no implementation on this device accepts the call\n  a: q.dtype"),
    ],
)
def test_refusals_in_the_right_words_are_none(error):
    assert finding(raising(error)) is None
    assert finding(raising(error), changes=()).startswith("is refused, and is good")


def test_wrong_results_are_findings():
    assert finding(lambda call, **given: fovea.attention(**given)) is None
    assert "wrong result" in finding(lambda call, **given: fovea.attention(**given).add_(0.01))
    assert "wrong result" in finding(lambda call, **given: fovea.attention(**given | {"out": None}))


def test_writing_elsewhere_is_a_finding():
    def beside(call, **given):
        call["out"]._base[:, 0] = 1
        return fovea.attention(**given)

    def into_an_input(call, **given):
        result = fovea.attention(**given)
        call["k"][0, 0, 0, 0] += 1
        return result

    def before_a_refusal(call, **given):
        call["out"].fill_(1)
        raise ValueError("q.shape: got 1, want 2")

    assert finding(beside) == finding(into_an_input) == "wrote beside its outputs"
    assert finding(before_a_refusal).startswith("was refused and has written")


def test_crashes_and_hangs_are_findings(monkeypatch, tmp_path):
    """A worker that ends by itself, in the place of the fuzzer's own."""
    worker = tmp_path / "worker.py"
    worker.write_text(
        "import os, sys\nfirst = int(sys.argv[-3])\nprint('call', (first, 'a call'), flush=True)\nif first < 2: os.abort()\n"
    )
    monkeypatch.setattr(fuzz, "__file__", str(worker))
    found = list(fuzz.run(0, 0, 4, 1))
    assert [number for number, _ in found] == [0, 1]
    assert all("ends the process (SIGABRT)" in text and "a call" in text for _, text in found)


def test_every_change_of_a_tensor_is_made():
    draw, made = Draw(5), set()
    for _ in range(1500):
        call = {name: draw.rows(2, 3, 4) for name in "qkv"} | {"cu_seqlens_q": draw.int32([0, 1, 2])}
        made |= {change for change in (mutate(draw, call),) if "stays" not in change}
    assert {name for name in OF_TENSORS if not any(change.endswith(f": {name}") for change in made)} == set()


def test_entries_are_changed_in_their_places():
    qk = fovea.quantize_qk_int8(torch.randn(1, 3, 2, 64), torch.randn(1, 3, 2, 64))
    call = {"qk": qk, "outs": [1, 2]}
    for path in list(paths(call)):
        if path[1] is not None:
            put(call, path, "new")
    assert all(part == "new" for part in call["qk"]) and type(call["qk"]) is type(qk) and call["outs"] == ["new", "new"]


def test_memory_sees_a_byte():
    call = {"x": torch.zeros(4, 4), "out": torch.zeros(4, 8)[:, :4]}
    memory = Memory(call, {"out"})
    call["out"].fill_(1)
    assert memory.changed(accepted=True) is None and memory.changed(accepted=False) is not None
    call["out"]._base[0, 5] = 1
    assert memory.changed(accepted=True) == "wrote beside its outputs"


def test_a_complaint_needs_a_reason():
    assert complaint(ValueError("q and k: got one of them, want both or none"), {"q", "k"}, (ValueError,)) is None
    assert "names z" in complaint(ValueError("q and z: got one of them, want both or none"), {"q", "k"}, (ValueError,))
