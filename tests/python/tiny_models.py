# SPDX-License-Identifier: Apache-2.0
"""Models of transformers with two small layers and random weights, in pairs: with Fovea's attention, and with eager attention."""

import pytest
import torch

pytest.importorskip("transformers")
from transformers import (
    Cohere2Config,
    Cohere2ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    Llama4ForCausalLM,
    Llama4TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

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
WINDOW, CHUNK = 6, 5
SLIDING_AND_FULL = ["sliding_attention", "full_attention"]
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=WINDOW)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, sliding_window=WINDOW, attn_logit_softcapping=5.0, query_pre_attn_scalar=16)
    ),
    "gpt_oss": lambda: GptOssForCausalLM(
        GptOssConfig(
            **SIZES,
            sliding_window=WINDOW,
            num_local_experts=2,
            num_experts_per_tok=1,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        )
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
    "gemma3": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**SIZES, sliding_window=WINDOW, query_pre_attn_scalar=16, layer_types=SLIDING_AND_FULL)
    ),
    "phi3": lambda: Phi3ForCausalLM(Phi3Config(**{name: size for name, size in SIZES.items() if name != "head_dim"})),
    "cohere2": lambda: Cohere2ForCausalLM(
        Cohere2Config(**SIZES, sliding_window=WINDOW, layer_types=SLIDING_AND_FULL, logit_scale=1.0)
    ),
    "llama4": lambda: Llama4ForCausalLM(
        Llama4TextConfig(
            **SIZES,
            attention_chunk_size=CHUNK,
            intermediate_size_mlp=96,
            num_local_experts=2,
            num_experts_per_tok=1,
            interleave_moe_layer_step=2,
            layer_types=["chunked_attention", "full_attention"],
        )
    ),
}
LENGTH = 17


def build(name):
    """The same random weights twice: with Fovea's attention, and with eager attention."""
    pair = []
    for implementation in ("fovea", "eager"):
        torch.manual_seed(3)
        model = MODELS[name]().eval()
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("sinks"):
                torch.nn.init.normal_(parameter)
        model.set_attn_implementation(implementation)
        pair.append(model)
    return pair


def padded(lengths, side):
    """Token ids and their mask, padded on one side to LENGTH; a pad token holds a valid id, as generate() has it."""
    ids, mask = torch.randint(3, 97, (len(lengths), LENGTH)), torch.zeros(len(lengths), LENGTH, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, LENGTH - length :] = 1 if side == "left" else 0
        if side == "right":
            mask[row, :length] = 1
    return ids, mask


def positions(mask):
    return (mask.cumsum(-1) - 1).clamp(min=0)


def assert_same(got, want, mask=None, atol=2e-5):
    """Equal, where the mask has tokens."""
    if mask is not None:
        got, want = got[mask.bool()], want[mask.bool()]
    assert not got.isnan().any()
    torch.testing.assert_close(got, want, atol=atol, rtol=1e-4)


def assert_same_gradients(got, want, rtol=1e-3, atol=1e-5):
    for (path, ours), theirs in zip(got.named_parameters(), want.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=rtol, atol=atol, msg=lambda text, path=path: f"{path}: {text}")
