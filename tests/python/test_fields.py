# SPDX-License-Identifier: Apache-2.0
"""Arguments of functions and the program, against the operators: the schemas of most follow from the library's tables of fields."""

import inspect
import subprocess
import typing
from pathlib import Path

import pytest
import torch

import fovea
from fovea._dispatch import OPERATORS

PROGRAM = Path(fovea.__file__).parents[2] / "cli" / "fovea"

# Arguments of operators that functions offer under another name.
RENAMED = {"window_left": "window", "window_right": "window", "top_left": "anchor", "fill_out": "out", "fill_lse": "lse"}
_LISTS = ("full_block_counts", "full_block_indices", "partial_block_counts", "partial_block_indices", "partial_block_bits")
RENAMED |= dict.fromkeys((*_LISTS, "block_q", "block_k"), "block_mask")
# Arguments that functions have besides, all of them and some.
BESIDES = {"causal", "return_lse", "return_max_logits"}
BESIDES_OF = {
    "attention": {"deterministic"},  # of its gradient
    "attention_backward": {"bias_gradient"},
    "dequantize_latent_cache": {"dtype"},
    "index_logits": {"dtype"},
    "quantize_qk_int8": {"out", "smooth_k"},
    "quantize_v": {"out", "smooth_v", "dtype"},
    "topk_rows": {"k"},
}

# How `fovea explain` asks for what a call may leave out, where that is not an option of its name; "" where it does not.
ASKED_BY = {
    "cache_scale": "--cache-dtype",
    "dbias": "--bias",
    "dlse": "--lse",
    "dropout_state": "--dropout-p",
    "dsink": "--sink",
    "extra_cache": "--extra-format",
    "extra_indices": "--extra-topk",
    "k_format": "--kv-format",
    "k_mean": "",
    "k_scale": "--cache-dtype",
    "k_scale_cache": "--kv-format",
    "lse_shift": "--lse",
    "mask_indptr": "",
    "max_kv_len": "--seq-k",
    "max_logits": "",
    "max_seqlen_k": "--seq-k",
    "max_seqlen_q": "--seq-q",
    "packed_mask": "--mask-tail",
    "q_scale": "--dtype",
    "v_dtype": "--cache-dtype",
    "v_format": "--kv-format",
    "v_mean": "",
    "v_scale": "--cache-dtype",
    "v_scale_cache": "--kv-format",
    "window_left": "--window",
    "window_right": "--causal",
    # Tensors that change no plan by being there.
    **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k", "extra_topk_length", "schedule", "topk_length"), ""),
    # The program leaves these as they are without being asked.
    **dict.fromkeys(("fill_lse", "fill_out"), ""),  # a function's own outputs
    **dict.fromkeys(("first", "keep_outside", "last", "offset", "sorted"), ""),
    **dict.fromkeys((*_LISTS, "block_q", "block_k"), ""),  # the program makes no lists
    "block_table": "--page",
    "kv_len": "",
    **dict.fromkeys(("exact_scale", "granularity", "scale", "smooth_k", "smooth_v", "top_left", "warp_rows"), ""),
}


def arguments(operator):
    return OPERATORS[operator].overload._schema.arguments


def is_written(argument):
    return argument.alias_info is not None and argument.alias_info.is_write


def is_optional(argument):
    return isinstance(argument.type, torch.OptionalType)


@pytest.mark.parametrize("operator", [name for name in OPERATORS if name != "quantized_attention"])  # which takes named tuples
def test_a_function_offers_what_its_operator_takes(operator):
    function = getattr(fovea, operator)
    offered, hints = set(inspect.signature(function).parameters), typing.get_type_hints(function)
    taken = {RENAMED.get(argument.name, argument.name): argument for argument in arguments(operator)}
    assert {name for name in taken if not is_written(taken[name])} <= offered
    assert offered - taken.keys() <= BESIDES | BESIDES_OF.get(operator, set())
    for name in offered & taken.keys() - set(RENAMED.values()):
        kinds = typing.get_args(hints[name]) or (hints[name],)
        if "Tensor" not in str(taken[name].type):
            assert torch.Tensor not in kinds, name
        elif not is_written(taken[name]) and "List" not in str(taken[name].type):
            assert torch.Tensor in kinds and (type(None) not in kinds or is_optional(taken[name])), name


@pytest.mark.skipif(not PROGRAM.exists(), reason="the program is not built here")
def test_the_program_asks_for_what_operators_may_be_given():
    text = subprocess.run([PROGRAM, "explain", "--help"], capture_output=True, text=True, check=True).stdout
    given = {a.name for name in OPERATORS for a in arguments(name) if is_optional(a) or "Tensor" not in str(a.type)}
    assert given > ASKED_BY.keys()
    options = {ASKED_BY.get(name, "--" + name.replace("_", "-")) for name in given}
    assert options - {""} <= {word.rstrip(",") for word in text.split()}
