# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="fovea" against eager attention, on tiny models with random weights."""

import itertools

import pytest
import torch

pytest.importorskip("transformers")
from transformers import AttentionInterface, AttentionMaskInterface, BertConfig, BertModel

import fovea.integrations.transformers
from fovea.integrations._row_bands import MaskRefused, row_bands
from fovea.integrations._segments import Segments
from tiny_models import LENGTH, MODELS, assert_same, assert_same_gradients, build, padded, positions


@pytest.fixture(autouse=True, scope="module")
def registered():
    fovea.integrations.transformers.register()


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", MODELS)
def test_prefill(name):
    model, eager = build(name)
    ids = torch.randint(3, 97, (2, LENGTH))
    assert_same(model(ids).logits, eager(ids).logits)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", MODELS)
def test_padding(name, side):
    model, eager = build(name)
    ids, mask = padded([LENGTH, 5, 11, 1], side)
    inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions(mask)}
    assert_same(model(**inputs).logits, eager(**inputs).logits, mask)


@pytest.mark.parametrize("name", MODELS)
def test_padding_does_not_matter(name):
    """The result of a sequence must not depend on the padding beside it: alone, left- and right-padded."""
    model, _ = build(name)
    ids, mask = padded([9], "left")
    alone = model(ids[:, LENGTH - 9 :]).logits
    left = model(ids, attention_mask=mask, position_ids=positions(mask)).logits
    assert_same(left[:, LENGTH - 9 :], alone)
    right = model(ids.roll(9, dims=1), attention_mask=mask.flip(1)).logits
    assert_same(right[:, :9], alone)


def test_decode_after_right_padding_sees_around_the_hole():
    model, eager = build("llama")
    ids, mask = padded([LENGTH, 5], "right")
    results = []
    for each in (model, eager):
        first = each(ids, attention_mask=mask, use_cache=True)
        longer = torch.cat([mask, torch.ones(2, 1, dtype=torch.long)], dim=1)
        next_positions = mask.sum(-1, keepdim=True)
        results.append(
            each(ids[:, :1], attention_mask=longer, position_ids=next_positions, past_key_values=first.past_key_values).logits
        )
    assert_same(*results)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    model, eager = (each.to(dtype) for each in build("llama"))
    ids, mask = padded([LENGTH, 6], "left")
    inputs = {"input_ids": ids, "attention_mask": mask}
    assert_same(model(**inputs).logits.float(), eager(**inputs).logits.float(), mask, atol=2e-2)


def test_encoder():
    sizes = {"vocab_size": 97, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    torch.manual_seed(3)
    model = BertModel(BertConfig(**sizes)).eval()
    ids, mask = padded([LENGTH, 8], "right")
    results = []
    for implementation in ("fovea", "eager"):
        model.set_attn_implementation(implementation)
        results.append(model(ids, attention_mask=mask).last_hidden_state)
    assert_same(*results, mask)


def test_mask_of_four_dimensions():
    model, eager = build("llama")
    ids = torch.randint(3, 97, (1, LENGTH))
    visible = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().triu(-4)
    for mask in (visible[None, None], torch.where(visible, 0.0, torch.finfo(torch.float32).min)[None, None]):
        additive = mask if mask.dtype != torch.bool else torch.where(mask, 0.0, torch.finfo(torch.float32).min)
        assert_same(model(ids, attention_mask=mask).logits, eager(ids, attention_mask=additive).logits)
    for refused in (torch.randn(1, 1, LENGTH, LENGTH), torch.zeros(1, 4, LENGTH, LENGTH), visible.roll(1, 0)[None, None]):
        with pytest.raises(NotImplementedError, match="attention_mask"):
            model(ids, attention_mask=refused)


def test_a_mask_that_is_written_to_is_read_again():
    model, eager = build("llama")
    ids = torch.randint(3, 97, (1, LENGTH))
    mask = torch.full((1, 1, LENGTH, LENGTH), torch.finfo(torch.float32).min).triu(1)
    before = model(ids, attention_mask=mask).logits
    mask[:, :, :, :3] = torch.finfo(torch.float32).min
    mask[:, :, :3, 0] = 0.0
    after = model(ids, attention_mask=mask).logits
    assert_same(after, eager(ids, attention_mask=mask).logits)
    assert not torch.allclose(before, after)


def test_refusals():
    model, _ = build("llama")
    forward = AttentionInterface()["fovea"]
    q, k = torch.randn(1, 4, 8, 16), torch.randn(1, 2, 8, 16)
    for word, option in (
        ("output_attentions", True),
        ("position_bias", torch.zeros(1)),
    ):
        with pytest.raises(NotImplementedError, match=word):
            forward(model, q, k, k, None, **{word: option})
    with pytest.raises(NotImplementedError, match="a mask that says where"):
        forward(model, q, torch.randn(1, 2, 11, 16), torch.randn(1, 2, 11, 16), None, is_causal=True)
    lost = AttentionMaskInterface()["fovea"](batch_size=1, q_length=8, kv_length=8).clone()
    with pytest.raises(NotImplementedError, match="attention_mask"):
        forward(model, q, k, k, lost)


def test_dropout_follows_torchs_generator():
    model, _ = build("llama")
    ids, mask = torch.randint(3, 97, (2, 12)), torch.ones(2, 12, dtype=torch.long)
    mask[0, :5] = 0
    model.train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5

    def drawn(seed):
        torch.manual_seed(seed)
        return model(ids, attention_mask=mask).logits

    assert torch.equal(drawn(1), drawn(1)) and not torch.equal(drawn(1), drawn(2))


@pytest.mark.parametrize("name", MODELS)
def test_gradients(name):
    """The gradient of every weight, for a batch padded on the left."""
    ids, mask = torch.randint(3, 97, (2, LENGTH)), torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, :5] = 0
    labels = ids.masked_fill(mask == 0, -100)
    labels[0, 5] = -100  # what the last padding token would predict: eager attention gives padding other numbers
    models = build(name)
    for model in models:
        with torch.enable_grad():
            model(ids, attention_mask=mask, labels=labels).loss.backward()
    assert_same_gradients(*models)


def test_lists_of_an_indexer():
    """deepseek_v32 says in `indices` alone which keys a query may read. Lists of all keys leave none out."""
    sparse = pytest.importorskip("transformers.models.deepseek_v32")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 97, "num_hidden_layers": 2, "mlp_layer_types": ["dense"] * 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "v_head_dim": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32}
    indexer = {"index_topk": 8, "index_head_dim": 64, "index_n_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 64}
    config = sparse.DeepseekV32Config(**sizes, **heads, **indexer, initializer_range=0.1)
    model = sparse.DeepseekV32ForCausalLM._from_config(config, attn_implementation="eager").eval()
    ids = torch.randint(3, 97, (2, 12))
    want = model(ids[:, :8]).logits
    model.set_attn_implementation("fovea")
    assert_same(model(ids[:, :8]).logits, want)
    with pytest.raises(NotImplementedError, match="indices: got lists of 8 of 12 keys, want all keys"):
        model(ids)


def test_lists_of_blocks():
    """minimax_m3_vl says in `block_indices` alone which blocks of keys a query may read."""
    module = torch.nn.Module()
    module.indexer = torch.nn.Module()
    module.indexer.block_size = 4
    q, k = torch.randn(1, 2, 9, 64), torch.randn(1, 2, 9, 64)
    blocks = torch.zeros(1, 1, 9, 3, dtype=torch.long)
    attend = fovea.integrations.transformers.attention_forward
    assert torch.equal(attend(module, q, k, k, None, block_indices=blocks)[0], attend(module, q, k, k, None)[0])
    with pytest.raises(NotImplementedError, match="block_indices: got lists of 8 of 9 keys, want all keys"):
        attend(module, q, k, k, None, block_indices=blocks[..., :2])


def test_output_attentions_is_refused():
    model, _ = build("llama")
    with pytest.raises((NotImplementedError, ValueError)):
        model(torch.randint(3, 97, (1, 8)), output_attentions=True)


def test_forced_implementation():
    fovea.integrations.transformers.register("fovea-reference", implementation="reference.attention")
    model, eager = build("llama")
    model.set_attn_implementation("fovea-reference")
    ids = torch.randint(3, 97, (1, 8))
    assert_same(model(ids).logits, eager(ids).logits)


def test_bands_are_exact_for_every_small_mask():
    """Every mask of these shapes: either the bands or the sequences give it back, or it is refused."""
    kinds = {"refused": 0, "bands": 0, "segments": 0}
    for seq_q, seq_k in ((3, 3), (2, 4), (1, 5), (4, 2)):
        for bits in range(1 << (seq_q * seq_k)):
            flat = torch.tensor([bits >> place & 1 for place in range(seq_q * seq_k)], dtype=torch.bool)
            mask = flat.view(1, seq_q, seq_k)
            try:
                found = row_bands(lambda begin, end, mask=mask: mask[:, begin:end], (1, seq_q, seq_k))
            except MaskRefused:
                kinds["refused"] += 1
                continue
            kinds["segments" if isinstance(found, Segments) else "bands"] += 1
            got = visible_of_segments(found, seq_q, seq_k) if isinstance(found, Segments) else visible(found[0], seq_q, seq_k)
            assert torch.equal(got, mask[0])
    assert 0 < kinds["refused"] < 900 and kinds["segments"] > 10, kinds


def visible_of_segments(segments, seq_q, seq_k):
    """The mask that sequences of one row of a batch describe, pair by pair."""
    mask = torch.zeros(seq_q, seq_k, dtype=torch.bool)
    queries, keys = (
        list(range(seq)) if tokens is None else tokens.tolist()
        for tokens, seq in ((segments.queries, seq_q), (segments.keys, seq_k))
    )
    ranges = zip(*(itertools.pairwise(cu.tolist()) for cu in (segments.cu_seqlens_q, segments.cu_seqlens_k)), strict=True)
    for (q_begin, q_end), (k_begin, k_end) in ranges:
        assert q_end - q_begin <= segments.longest[0] and k_end - k_begin <= segments.longest[1]
        offset = k_end - k_begin - (q_end - q_begin) if segments.anchor == "bottom_right" else 0
        for i, query in enumerate(queries[q_begin:q_end]):
            for j, key in enumerate(keys[k_begin:k_end]):
                left, right = segments.window
                mask[query, key] = (left is None or j - i - offset >= -left) and (right is None or j - i - offset <= right)
    return mask


def test_bands_beside_padding_are_never_refused():
    for _ in range(300):
        seq_q, seq_k, offset, left, right, before, after = torch.randint(0, 9, (7,)).tolist()
        seq_q, seq_k = seq_q + 1, seq_k + 1
        distance = torch.arange(seq_k)[None] - torch.arange(seq_q)[:, None] - offset % (seq_k + 1)
        mask = (distance <= right) & (distance >= -left)
        mask[:, :before] = False
        mask[:, max(seq_k - after, 0) :] = False
        (band,) = row_bands(lambda begin, end, mask=mask: mask[None, begin:end], (1, seq_q, seq_k))
        assert torch.equal(visible(band, seq_q, seq_k), mask)


def visible(band, seq_q, seq_k):
    """The mask that a band describes, pair by pair."""
    mask = torch.zeros(seq_q, seq_k, dtype=torch.bool)
    keys = range(seq_k)[band.keys] if isinstance(band.keys, slice) else band.keys
    for i, query in enumerate(range(seq_q)[band.queries]):
        for j, key in enumerate(keys):
            mask[query, key] = (band.left is None or -band.left <= j - i) and (band.right is None or j - i <= band.right)
    return mask
