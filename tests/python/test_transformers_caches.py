# SPDX-License-Identifier: Apache-2.0
"""The ways in which people run a model of transformers: over caches of every kind, compiled, in autocast, with checkpoints.

Each is held against eager attention, on several architectures.
"""

import itertools

import pytest
import torch

pytest.importorskip("transformers")
from transformers import DynamicCache, StaticCache
from transformers.generation.configuration_utils import CompileConfig

import fovea.integrations.transformers
from tiny_models import LENGTH, MODELS, assert_same, assert_same_gradients, build, padded, positions

CACHES = {
    "dynamic": lambda config: DynamicCache(config=config),  # layers with a window keep that many keys
    "growing": lambda config: DynamicCache(),  # no layer forgets a key
    "static": lambda config: StaticCache(config=config, max_cache_len=LENGTH + 3),
}
GREEDY = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
BATCH = (LENGTH, 9, 12)


@pytest.fixture(autouse=True, scope="module")
def registered():
    fovea.integrations.transformers.register()


def inputs(left_padded, begin=0, end=LENGTH):
    """Tokens of a batch, and where it is padded, what says so."""
    ids, mask = padded(BATCH, "left")
    if not left_padded:
        return {"input_ids": ids[:, begin:end]}
    return {"input_ids": ids[:, begin:end], "attention_mask": mask[:, :end], "position_ids": positions(mask)[:, begin:end]}


def tokens(left_padded):
    return padded(BATCH, "left")[1] if left_padded else None


def in_steps(model, cache, cuts, left_padded):
    """The logits of a prompt that a model gets in pieces."""
    logits = []
    for begin, end in itertools.pairwise(cuts):
        torch.manual_seed(0)
        logits.append(model(**inputs(left_padded, begin, end), past_key_values=cache).logits)
    return torch.cat(logits, 1)


@pytest.mark.parametrize("left_padded", [False, True])
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_prompt_in_pieces(name, cache, left_padded):
    """Prefill within a window and past it, and single tokens: before a cache is full, when it fills, and after."""
    for cuts in ((0, 10, 14, 15, 16, 17), (0, 3, 5, 6, 12, 17)):
        got, want = (in_steps(model, CACHES[cache](model.config), cuts, left_padded) for model in build(name))
        assert_same(got, want, tokens(left_padded))


def generated(model, left_padded, **options):
    torch.manual_seed(0)
    batch = inputs(left_padded)
    return model.generate(batch["input_ids"], attention_mask=batch.get("attention_mask"), **GREEDY, **options)


@pytest.mark.parametrize("left_padded", [False, True])
@pytest.mark.parametrize("cache", ["dynamic", "static", "sliding_window", "hybrid"])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_generate(name, cache, left_padded):
    got, want = (generated(model, left_padded, cache_implementation=cache) for model in build(name))
    assert torch.equal(got.sequences, want.sequences)
    assert_same(torch.stack(got.logits), torch.stack(want.logits))


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss"])
@torch.no_grad()
def test_generate_compiled(name):
    """As generate() compiles the steps over a static cache on a GPU: one graph for all of them."""
    model, eager = build(name)
    torch._dynamo.reset()
    config = CompileConfig(backend="aot_eager", mode=None, fullgraph=True)
    config._compile_all_devices = True
    got = generated(model, True, cache_implementation="static", compile_config=config)
    want = generated(eager, True, cache_implementation="static")
    assert torch.equal(got.sequences, want.sequences)
    assert_same(torch.stack(got.logits), torch.stack(want.logits))


@pytest.mark.parametrize("left_padded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_autocast(name, left_padded):
    """Weights in float32, products in bfloat16: with gradients, without, and without over a cache."""
    model, eager = build(name)
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(0)
        batch = inputs(left_padded)
        for enabled in (True, False):
            with torch.set_grad_enabled(enabled):
                got, want = (each(**batch, use_cache=False).logits for each in (model, eager))
            assert got.dtype == want.dtype
            assert_same(got.float(), want.float(), tokens(left_padded), atol=3e-2)
        with torch.no_grad():
            got, want = (in_steps(each, CACHES["dynamic"](each.config), (0, 10, 16, 17), left_padded) for each in (model, eager))
        assert_same(got.float(), want.float(), tokens(left_padded), atol=3e-2)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_gradient_checkpointing(name, reentrant):
    """Layers run again in the backward pass; their masks are the same."""
    model, eager = (each.train() for each in build(name))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    torch.manual_seed(0)
    batch = inputs(True)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    labels = labels.masked_fill(positions(batch["attention_mask"]) == 0, -100)  # predicted by padding, which is other numbers
    for each in (model, eager):
        each(**batch, labels=labels, use_cache=False).loss.backward()
    assert_same_gradients(model, eager)
