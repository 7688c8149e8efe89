# SPDX-License-Identifier: Apache-2.0
"""transformers' continuous batching over its paged cache, and examples/generate.py: against eager attention, with tiny models."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers", minversion="5.23")
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig

import fovea.integrations.transformers
from examples_as_modules import load

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=6)),
}
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

    def watched(q, k_cache, v_cache, block_table, kv_len, **options):
        seen.append(kv_len.tolist())
        return real(q, k_cache, v_cache, block_table, kv_len, **options)

    monkeypatch.setattr(fovea, "paged_attention", watched)
    return seen


@pytest.mark.parametrize("attention", ["fovea", "paged|fovea"])
@pytest.mark.parametrize("name", MODELS)
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
    assert any(len(lengths) == 4 for lengths in decode_steps) == (name == "llama")


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
    from fovea.integrations._continuous_batching import _decode

    cache = torch.full((3, 2, 4, 2, 16), torch.nan).unbind(1)
    q, k, v = torch.randn(3, 4, 16), torch.randn(3, 2, 16), torch.randn(3, 2, 16)
    table = torch.tensor([[2, -1], [-1, -1], [-1, -1]], dtype=torch.int32)
    options = {"window": (None, 0), "scale": None, "softcap": 0.0, "sink": None}
    out = _decode(q, (k, v), cache, table, torch.tensor([1, 0, 0], dtype=torch.int32), options)
    torch.testing.assert_close(out[0], v[0].repeat_interleave(2, 0))
    assert not out[1:].any()
    stored = ~cache[0].isnan().all(-1).all(-1)
    assert stored.sum() == 1 and stored[2, 0]


def test_other_caches_are_refused():
    model = MODELS["llama"]()
    model.set_attn_implementation("fovea")
    with pytest.raises(NotImplementedError, match=r"^cache: got object, want a PagedAttentionCache"):
        model(torch.randint(3, 97, (1, 4)), cache=object())


def decode(generate, model, asked, steps, implementation=None):
    """Through the engine of examples/generate.py; a sequence ends two steps before its neighbour does."""
    options = SimpleNamespace(implementation=implementation, blocks=32, page=4, max_new_tokens=steps)
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
    assert decode(load("generate"), model, asked, 12) == [tokens[: 12 - 2 * row] for row, tokens in enumerate(want)]


def test_padded_steps_of_the_example():
    """What its CUDA graph runs: more rows than sequences, a wider block table than they need."""
    generate, model = load("generate"), MODELS["llama"]().eval()
    sequences = [generate.Sequence(str(row), tokens, len(tokens)) for row, tokens in enumerate(prompts(6, 3))]
    caches = [generate.BlockCache(model, 8, 4) for _ in "ab"]
    for cache in caches:
        cache.k.fill_(torch.nan)
        cache.v.fill_(torch.nan)
    plain, padded = (
        generate.Step.of(sequences, cache, **more) for cache, more in zip(caches, ({}, {"rows": 5, "width": 7}), strict=True)
    )
    assert padded.kv_len.tolist() == [6, 3, 0, 0, 0] and padded.block_table.shape == (5, 7)
    want, got = (generate.forward(model, step, cache, None) for step, cache in zip((plain, padded), caches, strict=True))
    torch.testing.assert_close(got[:2], want)
    assert got.isfinite().all()
