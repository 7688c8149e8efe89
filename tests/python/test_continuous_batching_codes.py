# SPDX-License-Identifier: Apache-2.0
"""transformers' continuous batching over pages of codes: against generate() over a cache of the same codes."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5.23")
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import cache as cache_module
from transformers.generation.continuous_batching import continuous_api, model_runner

import fovea.integrations.transformers
from fovea.integrations import _paged_codes
from fovea.integrations.transformers import KvCache
from rounded_cache import FORMATS
from tiny_models import MODELS

PAGES = {"page_size": 8, "num_blocks": 64, "max_batch_tokens": 24, "return_logprobs": True}
PAIRS = [*((name, name) for name in FORMATS), ("int8_token", "int4_token"), ("nvfp4", "e5m2")]


@pytest.fixture(scope="module", autouse=True)
def registered():
    fovea.integrations.transformers.register()
    for k_format, v_format in PAIRS:
        fovea.integrations.transformers.register(f"fovea_{k_format}_{v_format}", k_format=k_format, v_format=v_format)


def prompts(*lengths):
    return [torch.randint(3, 97, (length,)).tolist() for length in lengths]


def greedy(**options):
    return GenerationConfig(**{"max_new_tokens": 12, "do_sample": False, "eos_token_id": 2, "pad_token_id": 0, **options})


def alone(model, tokens, formats):
    """New tokens of a sequence by itself, and their log-probabilities."""
    model.set_attn_implementation("fovea")
    options = {"output_logits": True, "return_dict_in_generate": True, "past_key_values": KvCache(*formats)}
    out = model.generate(torch.tensor([tokens]), generation_config=greedy(), **options)
    new = out.sequences[0, len(tokens) :]
    scores = torch.stack(out.logits).log_softmax(-1)[:, 0]
    return new.tolist(), scores.gather(1, new[:, None])[:, 0]


def batched(model, asked, formats, generation=None, **options):
    model.set_attn_implementation("fovea_{}_{}".format(*formats))
    batching = ContinuousBatchingConfig(**{**PAGES, **options})
    options = {"generation_config": generation or greedy(), "continuous_batching_config": batching, "warmup": False}
    return list(model.generate_batch(asked, **options).values())


def check(model, asked, formats, **options):
    results = batched(model, asked, formats, **options)
    assert [result.error for result in results] == [None] * len(asked)
    for result, tokens in zip(results, asked, strict=True):
        want, scores = alone(model, tokens, formats)
        assert result.generated_tokens == want
        torch.testing.assert_close(torch.tensor(result.logprobs), scores, atol=2e-5, rtol=1e-4)


@pytest.fixture(autouse=True)
def caches(monkeypatch):
    """Every cache of codes that is made, full of NaN: codes and scales that nobody wrote."""
    made, real = [], _paged_codes.CodesCache.__init__

    def watched(cache, *args, **kwargs):
        real(cache, *args, **kwargs)
        cache.cache_tensor.fill_(255)
        made.append(cache)

    monkeypatch.setattr(_paged_codes.CodesCache, "__init__", watched)
    return made


@pytest.fixture
def steps(monkeypatch):
    """Query lengths of a step's sequences, of each call."""
    seen, real = [], fovea.paged_attention

    def watched(q, k_cache, v_cache, block_table, kv_len, cu_seqlens_q=None, **options):
        seen.append(kv_len.clamp(max=1).tolist() if cu_seqlens_q is None else cu_seqlens_q.diff().tolist())
        return real(q, k_cache, v_cache, block_table, kv_len, cu_seqlens_q, **options)

    monkeypatch.setattr(fovea, "paged_attention", watched)
    return seen


class OneRank:
    tp_size = 1


def new_cache(model, **options):
    """The cache that the manager makes for a model."""
    batching = ContinuousBatchingConfig(**{**PAGES, "max_memory_percent": 1.0, **options})
    return continuous_api.PagedAttentionCache(
        config=model.config.get_text_config(),
        continuous_batching_config=batching,
        device=torch.device("cpu"),
        distributed_helper=OneRank(),
        dtype=torch.float32,
    )


@pytest.mark.parametrize("formats", PAIRS)
def test_the_tokens_of_generate(formats, caches):
    """Prompts longer than a step, and sequences of several blocks."""
    check(MODELS["llama"]().eval(), prompts(5, 17, 1, 40), formats)
    assert len(caches) == 1 and caches[0].cache_tensor.dtype == torch.uint8


@pytest.mark.parametrize("name", ["qwen3", "phi3"])
def test_other_models(name):
    check(MODELS[name]().eval(), prompts(9, 3), ("int8_token", "int8_token"))


@pytest.mark.parametrize("blocks_per_request", [None, 0])
def test_sequences_join_and_leave(blocks_per_request, steps):
    """More of them than a batch holds. Without block tables, decode steps list the slots, too."""
    asked = prompts(3, 30, 8, 1, 16, 9, 25)
    check(
        MODELS["llama"]().eval(),
        asked,
        ("int8_token", "int8_token"),
        max_requests_per_batch=3,
        max_blocks_per_request=blocks_per_request,
    )
    assert any(min(lengths) == 1 < max(lengths) for lengths in steps)
    assert any(lengths == [1, 1, 1] for lengths in steps)


def test_a_prefix_is_shared(monkeypatch):
    found, real = [], cache_module.PagedAttentionCache.search_prefix_match

    def watched(cache, *args):
        found.append(real(cache, *args))
        return found[-1]

    monkeypatch.setattr(cache_module.PagedAttentionCache, "search_prefix_match", watched)
    first = prompts(24)[0]
    asked = [first, first[:19] + prompts(6)[0], first[:16] + prompts(1)[0]]
    check(MODELS["llama"]().eval(), asked, ("int4_token", "int4_token"), max_requests_per_batch=1)
    assert found == [0, 16, 16]


def test_forks_copy_codes(monkeypatch):
    copied, real = [], _paged_codes.CodesAllocator.copy_blocks

    def watched(allocator, sources, targets):
        copied.extend(sources)
        return real(allocator, sources, targets)

    monkeypatch.setattr(_paged_codes.CodesAllocator, "copy_blocks", watched)
    model, tokens, formats = MODELS["llama"]().eval(), prompts(21)[0], ("nvfp4", "nvfp4")
    results = batched(model, [tokens], formats, greedy(num_return_sequences=3, do_sample=True, top_k=1))
    want, _ = alone(model, tokens, formats)
    assert [result.generated_tokens for result in results] == [want] * 3
    assert copied


def test_a_full_cache_starts_a_sequence_again(monkeypatch):
    """Nine blocks of eight tokens: four sequences of up to 36 do not fit together."""
    freed, real = [], cache_module.PagedAttentionCache.free_blocks

    def watched(cache, request, no_cache=False):
        freed.append(no_cache)
        return real(cache, request, no_cache)

    monkeypatch.setattr(cache_module.PagedAttentionCache, "free_blocks", watched)
    check(MODELS["llama"]().eval(), prompts(17, 20, 24, 13), ("int8_token", "int8_token"), num_blocks=9)
    assert any(freed)


def test_blocks_fill_the_memory_with_codes(monkeypatch, caches):
    monkeypatch.setattr(cache_module.PagedAttentionMemoryHandler, "get_available_memory", lambda handler: 6 << 20)
    model, formats = MODELS["llama"]().eval(), ("int4_token", "int4_token")
    check(model, prompts(5, 9), formats, num_blocks=None)
    (cache,) = caches
    blocks = cache.cache_tensor.numel() // cache.cache_allocators["full_attention"].bytes_per_block
    page = 8 * 2 * 2 * (16 // 2 + 4)  # tokens, K and V, heads, codes and a scale
    assert cache.num_blocks == blocks - 2 and cache.cache_tensor.numel() == blocks * 2 * page
    assert 5 << 20 < cache.cache_tensor.numel() < 6 << 20
    model.set_attn_implementation("fovea")
    plain = new_cache(model, num_blocks=None)
    assert cache.num_blocks > 7 * plain.num_blocks  # 64 bytes by 12, and nothing is gathered beside them


@pytest.mark.parametrize(("page", "formats"), [(4, ("int8_token", "int8_token")), (8, ("nvfp4", "e5m2"))])
@pytest.mark.parametrize("name", ["mistral", "gemma3", "gpt_oss"])
def test_rings_of_windows(name, page, formats, steps):
    """Pages beside the window's size; prompts within it, longer, and cut; sequences that leave and join."""
    asked = prompts(5, 17, 1, 40, 6, 23)
    check(MODELS[name]().eval(), asked, formats, page_size=page, num_blocks=40, max_requests_per_batch=3)
    assert any(min(lengths) == 1 < max(lengths) for lengths in steps)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
def test_padded_batches(name, monkeypatch, steps):
    """As for CUDA graphs: sequences without tokens, and rows, slots and lengths that no sequence has."""
    real = model_runner.ModelRunner.__init__

    def padding(runner, *args, **kwargs):
        real(runner, *args, **kwargs)
        runner.pad_inputs = True

    monkeypatch.setattr(model_runner.ModelRunner, "__init__", padding)
    options = {"max_requests_per_batch": 8, "q_padding_interval_size": 16, "kv_padding_interval_size": 32}
    check(MODELS[name]().eval(), prompts(5, 17, 1, 40, 6), ("int8_token", "int8_token"), **options)
    assert any(0 in lengths for lengths in steps)


def test_layers_of_other_kinds_are_refused(monkeypatch):
    """Those of later releases: this one has no others."""
    monkeypatch.setattr(_paged_codes, "group_layers_by_attn_type", lambda config: {"full_attention": [0], "new": [1]})
    with pytest.raises(
        NotImplementedError, match=r"^layer_types: got 'new', want one of \['full_attention', 'sliding_attention'\]"
    ):
        batched(MODELS["llama"]().eval(), prompts(3), ("int8_token", "int8_token"))


def test_head_dims_that_a_format_does_not_have():
    fovea.integrations.transformers.register("fovea_mxfp4", k_format="mxfp4")
    model = MODELS["llama"]().eval()
    model.set_attn_implementation("fovea_mxfp4")
    with pytest.raises(ValueError, match="head_dim: got 16, want a multiple of 32"):
        model.generate_batch(prompts(3), generation_config=greedy())


def test_another_attention_does_not_get_the_codes():
    model = MODELS["llama"]().eval()
    model.set_attn_implementation("fovea_int8_token_int8_token")
    cache = new_cache(model)
    assert isinstance(cache, _paged_codes.CodesCache)
    model.set_attn_implementation("eager")
    rows = torch.zeros(1, 2, 1, 16)
    with pytest.raises(NotImplementedError, match=r"attn_implementation: got 'eager', want 'fovea_int8_token_int8_token', which"):
        cache.update(rows, rows, 0, {})
    assert type(new_cache(model)) is cache_module.PagedAttentionCache


def test_bad_formats():
    register = fovea.integrations.transformers.register
    with pytest.raises(ValueError, match=r"^k_format: got 'int8', want one of int8_token, "):
        register("x", k_format="int8")
    with pytest.raises(ValueError, match=r"^v_format: got 'rows', want one of"):
        register("x", k_format="int8_token", v_format="rows")
    with pytest.raises(ValueError, match=r"^k_format: got None, want a format, as v_format is 'int8_token'"):
        register("x", v_format="int8_token")
