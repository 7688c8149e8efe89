# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="fovea" where a row of the batch holds several sequences, where a model is traced, and in training."""

import itertools

import pytest
import torch

pytest.importorskip("transformers")
from transformers import AttentionInterface, LlamaForCausalLM, StaticCache

import fovea.integrations.transformers
from fovea.integrations._row_bands import MaskRefused
from tiny_models import LENGTH, assert_same, assert_same_gradients, build, padded, positions


@pytest.fixture(autouse=True, scope="module")
def registered():
    fovea.integrations.transformers.register()


def packed(*counts):
    """Token ids of one row of several sequences, and their positions."""
    return torch.randint(3, 97, (1, sum(counts))), torch.cat([torch.arange(count) for count in counts])[None]


def lengths(counts):
    return torch.tensor([0, *counts]).cumsum(0).int()


# ---- packed sequences --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "llama4"])
@torch.no_grad()
def test_positions_that_restart(name):
    """As eager attention; a second row of the batch holds other lengths."""
    model, eager = build(name)
    rows = [packed(4, 9, 1, 3), packed(10, 7)]
    ids, places = (torch.cat(each) for each in zip(*rows, strict=True))
    got = model(ids, position_ids=places, use_cache=False).logits
    assert_same(got, eager(ids, position_ids=places, use_cache=False).logits)


@torch.no_grad()
def test_each_sequence_is_as_if_alone():
    model, _ = build("mistral")
    ids, places = packed(4, 9, 1, 3)
    got = model(ids, position_ids=places, use_cache=False).logits
    for begin, end in itertools.pairwise((0, 4, 13, 14, 17)):
        assert_same(got[:, begin:end], model(ids[:, begin:end]).logits)


@pytest.mark.parametrize("name", ["llama", "mistral"])
@torch.no_grad()
def test_lengths_that_are_given(name):
    """As transformers passes them on to flash-attn; no mask is read then."""
    model, eager = build(name)
    counts = (4, 9, 1, 3)
    ids, places = packed(*counts)
    given = {
        "cu_seq_lens_q": lengths(counts),
        "cu_seq_lens_k": lengths(counts).long(),
        "max_length_q": 9,
        "max_length_k": torch.tensor(9),
    }
    want = eager(ids, position_ids=places, use_cache=False).logits
    assert_same(model(ids, position_ids=places, use_cache=False, **given).logits, want)
    with pytest.raises(ValueError, match=r"^cu_seq_lens_k: got None, want a tensor"):
        model(ids, position_ids=places, use_cache=False, cu_seq_lens_q=lengths(counts))


def test_gradients_of_packed_sequences():
    ids, places = packed(4, 9, 1, 3)
    models = build("mistral")
    for model in models:
        model(ids, position_ids=places, use_cache=False, labels=ids).loss.backward()
    assert_same_gradients(*models)


# ---- chunked attention ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_prefill_that_continues_across_a_chunk():
    ids = torch.randint(3, 97, (2, 12))
    results = []
    for model in build("llama4"):
        first = model(ids[:, :3], use_cache=True)
        results.append(model(ids[:, 3:], past_key_values=first.past_key_values).logits)
    assert_same(*results)


# ---- torch.compile and torch.export --------------------------------------------------------------------------------------------


def compiled(model):
    torch._dynamo.reset()
    return torch.compile(model, fullgraph=True, backend="aot_eager")


@pytest.mark.parametrize(("name", "cache"), [("llama", False), ("gpt_oss", True), ("llama4", False), ("llama4", True)])
@torch.no_grad()
def test_compiled_prefill(name, cache):
    model, eager = build(name)
    ids = torch.randint(3, 97, (2, LENGTH))
    assert_same(compiled(model)(ids, use_cache=cache).logits, eager(ids).logits)


@torch.no_grad()
def test_compiled_by_inductor():
    """At one length, and at another with symbols for its sizes."""
    model, eager = build("llama")
    torch._dynamo.reset()
    run = torch.compile(model, fullgraph=True)
    for length in (LENGTH, 9):
        ids, mask = padded([LENGTH, LENGTH + 2 - length], "left")
        ids, mask = ids[:, LENGTH - length :], mask[:, LENGTH - length :]
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions(mask)}
        assert_same(run(**inputs).logits, eager(**inputs).logits, mask)


@pytest.mark.parametrize(("name", "side"), [("llama", "left"), ("mistral", "right"), ("llama4", "left"), ("llama4", "right")])
@torch.no_grad()
def test_compiled_padding(name, side):
    """Padding gives what it gives without torch.compile, too."""
    model, eager = build(name)
    ids, mask = padded([LENGTH, 5, 11, 1], side)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions(mask)}
    got = compiled(model)(**inputs).logits
    assert_same(got, eager(**inputs).logits, mask)
    if side == "left":
        assert_same(got, model(**inputs).logits)


@pytest.mark.parametrize("given", [False, True])
@torch.no_grad()
def test_compiled_packed_sequences(given):
    model, eager = build("mistral")
    counts = (4, 9, 1, 3)
    ids, places = packed(*counts)
    options = (
        {"cu_seq_lens_q": lengths(counts), "cu_seq_lens_k": lengths(counts), "max_length_q": 9, "max_length_k": 9} if given else {}
    )
    run = compiled(model)
    want = eager(ids, position_ids=places, use_cache=False).logits
    assert_same(run(ids, position_ids=places, use_cache=False, **options).logits, want)


@pytest.mark.parametrize(("name", "static"), [("llama", True), ("mistral", False)])
@torch.no_grad()
def test_compiled_steps_over_a_cache(name, static):
    """A prefill, more of the prompt, and single tokens, beside padding on the left."""
    ids, mask = padded([LENGTH, 9], "left")
    results = []
    for model, run in zip(build(name), (compiled, lambda model: model), strict=True):
        step, cache = run(model), StaticCache(model.config, 24) if static else None
        logits = []
        for begin, end in ((0, 11), (11, 16), (16, 17)):
            inputs = {
                "input_ids": ids[:, begin:end],
                "attention_mask": mask[:, :end],
                "position_ids": positions(mask)[:, begin:end],
            }
            result = step(**inputs, past_key_values=cache, use_cache=True)
            cache = result.past_key_values
            logits.append(result.logits)
        results.append(torch.cat(logits, 1))
    assert_same(*results, mask)


@torch.no_grad()
def test_compiled_with_padding_between_tokens_is_refused():
    model, _ = build("llama")
    ids, mask = padded([LENGTH], "left")
    mask[0, 5] = 0
    with pytest.raises(RuntimeError, match="attention_mask: got tokens with padding between them"):
        compiled(model)(ids, attention_mask=mask)


@torch.no_grad()
def test_a_compiled_prefill_that_continues_across_a_chunk_is_refused():
    model, _ = build("llama4")
    ids = torch.randint(3, 97, (1, 12))
    first = model(ids[:, :3], use_cache=True)
    with pytest.raises(Exception, match="attention_mask: got 9 queries over 12 keys"):
        compiled(model)(ids[:, 3:], past_key_values=first.past_key_values)


@pytest.mark.parametrize("length", [LENGTH, 9])
@torch.no_grad()
def test_export(length):
    model, eager = build("llama")
    exported = torch.export.export(model, (), {"input_ids": torch.randint(3, 97, (2, length)), "use_cache": False})
    ids = torch.randint(3, 97, (2, length))
    assert_same(exported.module()(input_ids=ids, use_cache=False).logits, eager(ids).logits)


# ---- training -------------------------------------------------------------------------------------------------------------------


def train(model, ids, places, steps=6):
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = model(input_ids=ids, position_ids=places, labels=ids, use_cache=False).loss
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return torch.tensor(losses)


@pytest.mark.parametrize("how", ["plain", "checkpointing", "compiled"])
def test_a_llama_trains_to_the_losses_of_eager(how):
    """From the same weights on the same packed batch; with gradient checkpointing and compiled, too."""
    model, eager = (each.train() for each in build("llama"))
    ids, places = packed(20, 5, 12)
    want = train(eager, ids, places)
    if how == "checkpointing":
        model.gradient_checkpointing_enable()
    got = train(compiled(model) if how == "compiled" else model, ids, places)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert want[-1] < want[0] - 0.5


def test_bfloat16_autocast_trains():
    model, eager = (each.train() for each in build("llama"))
    ids, places = packed(20, 5, 12)
    with torch.autocast("cpu", torch.bfloat16):
        got, want = (train(each, ids, places) for each in (model, eager))
    torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)


def test_no_mask_and_lengths_of_one_side_only():
    forward, model = AttentionInterface()["fovea"], LlamaForCausalLM(build("llama")[0].config)
    q, k = torch.randn(1, 4, 8, 16), torch.randn(1, 2, 8, 16)
    with pytest.raises(MaskRefused, match="sliding_window: got 4 without a mask"):
        forward(model, q, k, k, None, is_causal=False, sliding_window=4)
