# SPDX-License-Identifier: Apache-2.0
"""A tiny Llama of transformers on a CUDA device: training, torch.compile, packed sequences, and decoding over paged caches."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers", minversion="5.23")
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.input_outputs import ContinuousBatchingAsyncIOs
from transformers.generation.continuous_batching.offloading_manager import OffloadingManager

import fovea.integrations.transformers
from conftest import available
from examples_as_modules import load
from fovea.integrations.transformers import KvCache
from rounded_cache import FORMATS, Rounded, pieces

pytestmark = pytest.mark.skipif(not available("attention", "cuda"), reason="needs a CUDA device")
needs_pages = pytest.mark.skipif(not available("paged_attention", "cuda"), reason="needs paged attention on a CUDA device")
SIZES = {
    "vocab_size": 199,
    "hidden_size": 256,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LOGIT_TOLERANCE = 0.05  # of logits of about 1, in bfloat16; eager's choice may change places with what is this near


@pytest.fixture(scope="module", autouse=True)
def registered():
    fovea.integrations.transformers.register()


@pytest.fixture(autouse=True)
def inputs_are_reset_before_they_are_copied(monkeypatch):
    """transformers zeroes the inputs of a manager on one stream and copies new ones on another, which does not wait for it."""

    def waits(method):
        def waiting(ios, *args, **kwargs):
            method(ios, *args, **kwargs)
            torch.cuda.synchronize()

        return waiting

    for method in (ContinuousBatchingAsyncIOs.__init__, ContinuousBatchingAsyncIOs.reset):
        monkeypatch.setattr(ContinuousBatchingAsyncIOs, method.__name__, waits(method))


def build(attention, dtype=torch.bfloat16, window=None):
    torch.manual_seed(1)
    kind = (
        LlamaForCausalLM(LlamaConfig(**SIZES))
        if window is None
        else MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window))
    )
    model = kind.to("cuda", dtype)
    model.set_attn_implementation(attention)
    return model


def tokens(*shape):
    return torch.randint(3, SIZES["vocab_size"], shape, generator=torch.Generator().manual_seed(2)).cuda()


def train(attention, steps=8):
    """Weights in float32, products in bfloat16; the last third of one row is padding."""
    model, ids = build(attention, torch.float32).train(), tokens(2, 300)
    mask = torch.ones_like(ids)
    mask[1, 200:] = 0
    labels = ids.masked_fill(mask == 0, -100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(ids, attention_mask=mask, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training_is_eagers():
    got, want = train("fovea"), train("eager")
    assert want[-1] < 0.9 * want[0]
    assert got == pytest.approx(want, rel=1e-2)


def test_compiles_without_a_break():
    model, ids = build("fovea"), tokens(2, 130)
    want = model(ids).logits
    loss = want.float().logsumexp(-1).mean()
    of_want = torch.autograd.grad(loss, model.model.layers[0].self_attn.k_proj.weight)[0]
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True)
    logits = compiled(ids).logits
    torch.testing.assert_close(logits, want, rtol=0, atol=LOGIT_TOLERANCE)
    of_got = torch.autograd.grad(logits.float().logsumexp(-1).mean(), model.model.layers[0].self_attn.k_proj.weight)[0]
    assert (of_got - of_want).norm() < 0.05 * of_want.norm()


@pytest.mark.parametrize("compiled", [False, True])
def test_decoding_over_a_static_cache(compiled):
    """transformers compiles the steps by itself on a GPU. One prompt has padding on the left."""
    torch._dynamo.reset()
    model, ids = build("fovea").eval(), tokens(2, 30)
    mask = torch.ones_like(ids)
    mask[1, :11] = 0
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "cache_implementation": "static"}
    with torch.no_grad():
        rows = model.generate(ids, attention_mask=mask, disable_compile=not compiled, **options)[:, 30:].tolist()
    check_greedy(model, ids[0].tolist(), rows[0])
    check_greedy(model, ids[1, 11:].tolist(), rows[1])


@torch.inference_mode()
def test_packed_sequences_are_their_own():
    model, lengths = build("fovea"), [5, 200, 1, 94]
    ids = tokens(1, sum(lengths))
    positions = torch.cat([torch.arange(length) for length in lengths])[None].cuda()
    got = model(ids, position_ids=positions, use_cache=False).logits[0].split(lengths)
    for row, part in zip(got, ids[0].split(lengths), strict=True):
        torch.testing.assert_close(row, model(part[None]).logits[0], rtol=0, atol=LOGIT_TOLERANCE)


@torch.inference_mode()
def check_greedy(model, prompt, generated, logits=None, format=None):
    """Every token is eager attention's choice after those before it, or a near tie. With a format: over a cache of codes."""
    model.set_attn_implementation("eager" if format is None else "fovea")
    cache = {} if format is None else {"past_key_values": KvCache(format)}
    scores = model(torch.tensor([prompt + generated[:-1]], device="cuda"), **cache).logits[0, len(prompt) - 1 :].float()
    chosen = scores.gather(1, torch.tensor(generated, device="cuda")[:, None])[:, 0]
    assert (scores.max(-1).values - chosen).max() <= LOGIT_TOLERANCE
    if logits is not None:
        torch.testing.assert_close(logits.float(), scores, rtol=0, atol=LOGIT_TOLERANCE)


@needs_pages
def test_decoding_through_a_graph():
    """The engine of examples/generate.py. Sequences end at different times, so the graph runs with padding too."""
    generate, model = load("generate"), build("eager").eval()
    options = SimpleNamespace(implementation=None, blocks=128, page=16, max_new_tokens=40)
    prompts = [row.tolist() for row in tokens(1, 300)[0].split([150, 1, 16, 133])]
    sequences = [generate.Sequence(str(row), list(prompt), len(prompt)) for row, prompt in enumerate(prompts)]
    engine, running = generate.Engine(model, sequences, options), list(sequences)
    while running:
        for sequence, row in zip(list(running), engine.logits(running), strict=True):
            sequence.cached = len(sequence.tokens)
            sequence.tokens.append(int(row.argmax()))
            sequence.logits.append(row)
            if len(sequence.logits) == 40 - 9 * int(sequence.name):
                running.remove(sequence)
                engine.cache.release(sequence)
    assert engine.graph is not None
    for sequence, prompt in zip(sequences, prompts, strict=True):
        check_greedy(model, prompt, sequence.tokens[len(prompt) :], torch.stack(sequence.logits))


@needs_pages
@pytest.mark.parametrize("graphs", [False, True])
def test_continuous_batching(graphs):
    model = build("fovea").eval()
    prompts = [row.tolist() for row in tokens(1, 300)[0].split([150, 1, 16, 133])]
    greedy = GenerationConfig(max_new_tokens=24, do_sample=False, eos_token_id=-1, pad_token_id=0)
    paged = ContinuousBatchingConfig(
        page_size=16, num_blocks=128, max_batch_tokens=128, max_blocks_per_request=16, use_cuda_graph=graphs
    )
    results = model.generate_batch(prompts, generation_config=greedy, continuous_batching_config=paged, warmup=graphs)
    for prompt, result in zip(prompts, results.values(), strict=True):
        assert len(result.generated_tokens) == 24
        check_greedy(model, prompt, result.generated_tokens)


def over_codes(format, prompts, window=None, **options):
    """Through pages of codes: tokens of a KvCache in the same format, or near ties."""
    fovea.integrations.transformers.register("fovea_codes", k_format=format)
    model = build("fovea_codes", window=window).eval()
    greedy = GenerationConfig(max_new_tokens=24, do_sample=False, eos_token_id=-1, pad_token_id=0)
    paged = ContinuousBatchingConfig(page_size=16, max_batch_tokens=128, max_blocks_per_request=16, **options)
    warmup = bool(options.get("use_cuda_graph"))
    results = model.generate_batch(prompts, generation_config=greedy, continuous_batching_config=paged, warmup=warmup)
    for prompt, result in zip(prompts, results.values(), strict=True):
        assert result.error is None and len(result.generated_tokens) == 24
        check_greedy(model, prompt, result.generated_tokens, format=format)


@needs_pages
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("format", [*FORMATS, "mxfp4"])
def test_continuous_batching_over_codes(format, graphs):
    over_codes(format, [row.tolist() for row in tokens(1, 300)[0].split([150, 1, 16, 133])], num_blocks=128, use_cuda_graph=graphs)


@needs_pages
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("window", [16, 40])
def test_continuous_batching_over_rings_of_codes(window, graphs):
    prompts = [row.tolist() for row in tokens(1, 300)[0].split([150, 1, 16, 133])]
    over_codes("int8_token", prompts, window, num_blocks=64, use_cuda_graph=graphs)


@needs_pages
def test_codes_move_to_the_host(monkeypatch):
    """Room for two of four sequences: the others wait in pinned memory, byte for byte."""
    moved, real = [], OffloadingManager._offload_to_cpu
    monkeypatch.setattr(OffloadingManager, "_offload_to_cpu", lambda *args: moved.append(real(*args)) or moved[-1])
    prompts = [row.tolist() for row in tokens(1, 400)[0].split(100)]
    over_codes("int8_token", prompts, num_blocks=28, use_cuda_graph=False, cpu_offload_space=0.05)
    assert any(moved)


@needs_pages
@pytest.mark.parametrize("format", FORMATS)
def test_a_cache_of_codes(format):
    ids = tokens(2, 21)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    logits = []
    for attention, cache in (("fovea", KvCache(format)), ("eager", Rounded(format, format))):
        model = build(attention).eval()
        with torch.no_grad():
            parts = [model(part, attention_mask=mask[:, :end], past_key_values=cache).logits for part, end in pieces(ids)]
        logits.append(torch.cat(parts, 1)[mask.bool()])
    torch.testing.assert_close(*logits, atol=LOGIT_TOLERANCE, rtol=0)


@needs_pages
def test_generation_over_codes():
    ids, options = tokens(2, 9), {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    got, want = (build("fovea").eval().generate(ids, past_key_values=KvCache("int8_token"), **options) for _ in range(2))
    assert got.shape == (2, 21) and torch.equal(got, want)
