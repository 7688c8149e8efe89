# SPDX-License-Identifier: Apache-2.0
"""Models of transformers over a cache of codes: against eager attention over what the codes hold."""

import pytest
import torch

pytest.importorskip("transformers", minversion="5.0")
import fovea.integrations.transformers
from fovea.integrations.transformers import KvCache
from rounded_cache import FORMATS, Rounded, pieces
from tiny_models import MODELS


@pytest.fixture(scope="module", autouse=True)
def registered():
    fovea.integrations.transformers.register()


def pair(name="llama"):
    model = MODELS[name]().eval()
    tokens = torch.randint(3, 97, (3, 21))
    mask = torch.ones_like(tokens)
    mask[0, :4] = 0
    mask[2, :9] = 0
    return model, tokens, mask


def generated(model, attention, cache, tokens, mask, **options):
    model.set_attn_implementation(attention)
    options = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "eos_token_id": None, "output_logits": True, **options}
    return model.generate(tokens, attention_mask=mask, past_key_values=cache, return_dict_in_generate=True, **options)


def check(model, formats, tokens, mask, **options):
    want = generated(model, "eager", Rounded(*formats), tokens, mask, **options)
    got = generated(model, "fovea", KvCache(*formats), tokens, mask, **options)
    assert torch.equal(got.sequences, want.sequences)
    for own, other in zip(got.logits, want.logits, strict=True):
        torch.testing.assert_close(own, other, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("padded", [False, True])
def test_generates_the_tokens_of_eager_attention(format, padded):
    model, tokens, mask = pair()
    check(model, (format, format), tokens, mask if padded else torch.ones_like(mask))


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gpt_oss", "qwen3"])
def test_windows_softcap_and_sinks(name):
    model, tokens, mask = pair(name)
    cache = KvCache("int8_token")
    with torch.no_grad():
        model.set_attn_implementation("fovea")
        got = [model(part, attention_mask=mask[:, :end], past_key_values=cache).logits for part, end in pieces(tokens)]
        model.set_attn_implementation("eager")
        plain = Rounded("int8_token", "int8_token")
        want = [model(part, attention_mask=mask[:, :end], past_key_values=plain).logits for part, end in pieces(tokens)]
    for own, other, (_, end) in zip(got, want, pieces(tokens), strict=True):
        real = mask[:, end - own.shape[1] : end].bool()
        torch.testing.assert_close(own[real], other[real], atol=2e-4, rtol=2e-4)


def test_keys_and_values_of_different_formats():
    check(pair()[0], ("int8_token", "int4_token"), *pair()[1:])


def test_beams_reorder_the_codes():
    model, tokens, mask = pair()
    model.set_attn_implementation("fovea")
    options = {"num_beams": 3, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    got = model.generate(tokens, attention_mask=mask, past_key_values=KvCache("int8_token"), **options)
    model.set_attn_implementation("eager")
    want = model.generate(tokens, attention_mask=mask, past_key_values=Rounded("int8_token", "int8_token"), **options)
    assert torch.equal(got, want)


def test_it_takes_the_memory_of_its_codes():
    model, tokens, mask = pair()
    cache = KvCache("int8_token")
    generated(model, "fovea", cache, tokens, mask)
    assert cache.get_seq_length() == 40 and cache.layers[0].sides[0][0].dtype == torch.int8
    cache.crop(-30)
    assert cache.get_seq_length() == 10
    cache.reset()
    assert cache.get_seq_length() == 0 and not cache.layers[0].sides


def test_another_attention_cannot_miss_that_the_keys_are_codes():
    model, tokens, mask = pair()
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        assert model(tokens, attention_mask=mask, past_key_values=KvCache("int8_token")).logits.isnan().any()


def test_bad_input():
    with pytest.raises(ValueError, match="k_format: got 'int8', want one of int8_token, "):
        KvCache("int8")
    with pytest.raises(ValueError, match="v_format: got 'rows', want one of"):
        KvCache("int8_token", "rows")
    model, tokens, mask = pair()
    model.set_attn_implementation("fovea")
    with pytest.raises(ValueError, match="head_dim: got 16, want a multiple of 32"):
        model(tokens, attention_mask=mask, past_key_values=KvCache("mxfp4"))
    cache = KvCache("int8_token")
    with torch.no_grad():
        model(tokens, past_key_values=cache)
        with pytest.raises(ValueError, match=r"batch\): got 1, want 3"):
            model(tokens[:1], past_key_values=cache)
    several = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)).tril().bool()[None, None]
    with pytest.raises(NotImplementedError, match="several sequences"), torch.no_grad():
        model(tokens[:1, :6], attention_mask=several, past_key_values=KvCache("int8_token"))
