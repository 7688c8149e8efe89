# SPDX-License-Identifier: Apache-2.0
"""transformers' continuous batching over its paged cache, and examples/generate.py: against eager attention, with tiny models."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers", minversion="5.23")
from transformers import AttentionInterface, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

import fovea.integrations.transformers
from examples_as_modules import load
from fovea.integrations._continuous_batching import decode
from tiny_models import MODELS

GREEDY = GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=2, pad_token_id=0)
PAGES = {"page_size": 8, "num_blocks": 64, "max_batch_tokens": 24}


@pytest.fixture(scope="module", autouse=True)
def registered():
    fovea.integrations.transformers.register()


def prompts(*lengths):
    return [torch.randint(3, 97, (length,)).tolist() for length in lengths]


def eager_tokens(model, prompts):
    model.set_attn_implementation("eager")
    return [model.generate(torch.tensor([tokens]), generation_config=GREEDY)[0, len(tokens) :].tolist() for tokens in prompts]


@pytest.fixture
def decode_steps(monkeypatch):
    """The lengths that paged attention was called with."""
    seen, real = [], fovea.paged_attention

    def watched(q, k_cache, v_cache, block_table, kv_len, cu_seqlens_q, **options):
        seen.append(kv_len.tolist())
        return real(q, k_cache, v_cache, block_table, kv_len, cu_seqlens_q, **options)

    monkeypatch.setattr(fovea, "paged_attention", watched)
    return seen


@pytest.mark.parametrize("attention", ["fovea", "paged|fovea"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral", "gemma3", "gpt_oss"])
@pytest.mark.filterwarnings("ignore:The `paged:FutureWarning")
def test_continuous_batching(name, attention, decode_steps):
    """Prompts longer than a step, so that prefill is cut, mixed with decode, then decode alone: there over block tables."""
    model = MODELS[name]().eval()
    asked = prompts(5, 17, 1, 40)
    want = eager_tokens(model, asked)
    model.set_attn_implementation(attention)
    results = model.generate_batch(
        asked, generation_config=GREEDY, continuous_batching_config=ContinuousBatchingConfig(**PAGES), warmup=False
    )
    assert [result.generated_tokens for result in results.values()] == want
    assert model.config._attn_implementation == "fovea"
    assert any(len(lengths) == 4 for lengths in decode_steps) == (name in ("llama", "qwen3"))


def test_block_tables_can_be_turned_off(decode_steps):
    model = MODELS["llama"]().eval()
    asked = prompts(5, 9)
    want = eager_tokens(model, asked)
    model.set_attn_implementation("fovea")
    config = ContinuousBatchingConfig(**PAGES, max_blocks_per_request=0)
    results = model.generate_batch(asked, generation_config=GREEDY, continuous_batching_config=config, warmup=False)
    assert [result.generated_tokens for result in results.values()] == want and not decode_steps


def test_padding_sequences_of_a_decode_step():
    """Sequences of length 0 fill a batch for a CUDA graph; their block table names no block."""
    cache = torch.full((3, 2, 4, 2, 16), torch.nan).unbind(1)
    q, k, v = torch.randn(1, 3, 4, 16), torch.randn(1, 3, 2, 16), torch.randn(1, 3, 2, 16)
    call = {
        "k_cache": cache[0],
        "v_cache": cache[1],
        "block_table": torch.tensor([[2, -1], [-1, -1], [-1, -1]], dtype=torch.int32),
        "cu_seq_lens_k": torch.tensor([0, 1, 1, 1], dtype=torch.int32),
        "cu_seq_lens_q": torch.tensor([0, 1, 1, 1], dtype=torch.int32),
    }
    out = decode(q, (k, v), call, {"window": (None, 0), "scale": None, "softcap": 0.0, "sink": None})[0]
    torch.testing.assert_close(out[0], v[0, 0].repeat_interleave(2, 0))
    assert not out[1:].any()
    stored = ~cache[0].isnan().all(-1).all(-1)
    assert stored.sum() == 1 and stored[2, 0]


def test_other_caches_are_refused():
    q, model = torch.randn(1, 4, 1, 16), MODELS["llama"]()
    with pytest.raises(TypeError, match=r"^cache: got object, want a transformers.PagedAttentionCache"):
        AttentionInterface()["fovea"](model, q, q, q, None, cache=object())
    with pytest.raises(NotImplementedError, match=r"^block_table: got one without k_cache and v_cache"):
        AttentionInterface()["fovea"](model, q, q, q, None, block_table=torch.zeros(1, 1, dtype=torch.int32))


def through_engine(generate, model, asked, steps, implementation=None):
    """Through the engine of examples/generate.py; a sequence ends two steps before its neighbour does."""
    options = SimpleNamespace(implementation=implementation, blocks=32, page=4, max_new_tokens=steps, kv="rows")
    sequences = [generate.Sequence(str(row), list(tokens), len(tokens)) for row, tokens in enumerate(asked)]
    engine, running = generate.Engine(model, sequences, options), list(sequences)
    while running:
        logits = engine.logits(running)
        for row, sequence in enumerate(list(running)):
            sequence.cached = len(sequence.tokens)
            sequence.tokens.append(int(logits[row].argmax()))
            if len(sequence.tokens) - sequence.prompt_length == steps - 2 * int(sequence.name):
                running.remove(sequence)
                engine.cache.release(sequence)
    return [sequence.tokens[sequence.prompt_length :] for sequence in sequences]


def test_the_engine_of_the_example():
    model = MODELS["llama"]().eval()
    asked = prompts(9, 1, 4)
    want = eager_tokens(model, asked)
    assert through_engine(load("generate"), model, asked, 12) == [tokens[: 12 - 2 * row] for row, tokens in enumerate(want)]


def test_padded_steps_of_the_example():
    """The steps that its CUDA graph runs: more rows than sequences, a wider block table than they need."""
    generate, model = load("generate"), MODELS["llama"]().eval()
    sequences = [generate.Sequence(str(row), tokens, len(tokens)) for row, tokens in enumerate(prompts(6, 3))]
    caches = [generate.BlockCache(model, SimpleNamespace(blocks=8, page=4, kv="rows")) for _ in "ab"]
    for k, v, _ in (layer for cache in caches for layer in cache.layers):
        k.fill_(torch.nan)
        v.fill_(torch.nan)
    plain, padded = (
        generate.Step.of(sequences, cache, **more) for cache, more in zip(caches, ({}, {"rows": 5, "width": 7}), strict=True)
    )
    assert padded.kv_len.tolist() == [6, 3, 0, 0, 0] and padded.block_table.shape == (5, 7)
    want, got = (generate.forward(model, step, cache, None) for step, cache in zip((plain, padded), caches, strict=True))
    torch.testing.assert_close(got[:2], want)
    assert got.isfinite().all()
