# SPDX-License-Identifier: Apache-2.0
"""Masks on their way from a model to its attention: nothing of the caller's is read late, and each fits the call it is used in."""

import pytest
import torch

pytest.importorskip("transformers")
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache, MistralConfig, MistralForCausalLM
from transformers.masking_utils import and_masks, causal_mask_function, chunked_overlay, packed_sequence_mask_function

import fovea.integrations.transformers as integration
from tiny_models import SIZES, assert_same

MODULE = torch.nn.Module()


@pytest.fixture(autouse=True, scope="module")
def registered():
    integration.register()


def mask_of(**options):
    return AttentionMaskInterface()["fovea"](**options)


def attention(q, k, v, mask, **options):
    return AttentionInterface()["fovea"](MODULE, q, k, v, mask, **options)[0]


def tensors(batch, seq_q, seq_k):
    return torch.randn(batch, 4, seq_q, 16), torch.randn(batch, 2, seq_k, 16), torch.randn(batch, 2, seq_k, 16)


def under(seen, q, k, v):
    """The formula, where ``seen`` [batch, seq_q, seq_k] says which keys a query sees."""
    k, v = (tensor.repeat_interleave(2, 1) for tensor in (k, v))
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~seen[:, None], -torch.inf)
    return (scores.softmax(-1).nan_to_num() @ v).transpose(1, 2)


# ---- what is kept of a caller ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q_length", [1, 3])
def test_an_offset_that_advances_afterwards(q_length):
    """A static cache hands over its length, and adds to it before the attention."""
    length = torch.tensor(4)
    mask = mask_of(batch_size=2, q_length=q_length, kv_length=12, q_offset=length, allow_is_causal_skip=False)
    length += q_length
    q, k, v = tensors(2, q_length, 12)
    seen = torch.arange(12)[None] <= torch.arange(q_length)[:, None] + 4
    assert_same(attention(q, k, v, mask), under(seen.expand(2, -1, -1), q, k, v))


def test_padding_and_sequences_that_are_written_to_afterwards():
    q, k, v = tensors(2, 6, 6)
    padding, sequences = torch.ones(2, 6, dtype=torch.long), torch.tensor([[0, 0, 1, 1, 1, 2]]).repeat(2, 1)
    padding[1, :2] = 0
    seen = (sequences[:, None] == sequences[:, :, None]) & padding[:, None].bool() & torch.ones(6, 6, dtype=torch.bool).tril()
    function = and_masks(causal_mask_function, packed_sequence_mask_function(sequences))
    mask = mask_of(batch_size=2, q_length=6, kv_length=6, mask_function=function, attention_mask=padding)
    padding.fill_(1)
    sequences.zero_()
    assert_same(attention(q, k, v, mask), under(seen, q, k, v))


@torch.inference_mode()
def test_a_mask_of_inference_mode_that_is_written_to():
    """Such tensors do not count what is written to them."""
    q, k, v = tensors(1, 6, 6)
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    for _ in range(2):
        assert_same(attention(q, k, v, mask), under(mask[:, 0], q, k, v))
        mask[..., :2] = False
    assert_same(attention(q, k, v, mask), under(mask[:, 0], q, k, v))


# ---- masks of another call ------------------------------------------------------------------------------------------------------

KINDS = {
    "band": (causal_mask_function, 7),
    "sequences": (and_masks(causal_mask_function, chunked_overlay(3, torch.zeros(8, dtype=torch.long))), 7),
    "lengths": (causal_mask_function, 1),
}


def of_kind(kind, batch, seq_k=7):
    function, seq_q = KINDS[kind]
    return mask_of(
        batch_size=batch,
        q_length=seq_q,
        kv_length=seq_k,
        q_offset=seq_k - seq_q,
        mask_function=function,
        allow_is_causal_skip=kind != "lengths",
    )


def seen_of(kind):
    function, seq_q = KINDS[kind]
    return function(torch.tensor(0), torch.tensor(0), torch.arange(7)[:, None] + 7 - seq_q, torch.arange(7))[:seq_q]


@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_of_one_row_is_that_of_every_row(kind):
    q, k, v = tensors(3, KINDS[kind][1], 7)
    want = under(seen_of(kind).expand(3, -1, -1), q, k, v)
    assert_same(attention(q, k, v, of_kind(kind, 1)), want)
    assert_same(attention(q, k, v, seen_of(kind)[None, None]), want)


@pytest.mark.parametrize("keys", [5, 12])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mask_for_another_call_is_refused(kind, keys):
    seq_q, mask = KINDS[kind][1], of_kind(kind, 3)
    with pytest.raises(
        ValueError, match=rf"^attention_mask: got .* {seq_q} queries and 7 keys, want .* {seq_q} queries and {keys} keys$"
    ):
        attention(*tensors(3, seq_q, keys), mask)
    with pytest.raises(ValueError, match=r"^attention_mask: got one for 3 rows of .*, want one for 2 rows"):
        attention(*tensors(2, seq_q, 7), mask)
    with pytest.raises(ValueError, match=rf"^attention_mask.shape: got .*7\], want \[2, 1, {seq_q}, {keys}\]"):
        attention(*tensors(2, seq_q, keys), seen_of(kind)[None, None])


def test_a_mask_of_the_caller_is_broadcast():
    """As torch broadcasts it, and at its own shape each time."""
    mask = torch.tensor([1, 1, 0, 1, 0, 0, 0]).bool()[None, None, None]
    for batch, seq_q in ((1, 1), (3, 4), (2, 1)):
        q, k, v = tensors(batch, seq_q, 7)
        assert_same(attention(q, k, v, mask), under(mask[:, 0].expand(batch, seq_q, 7), q, k, v))


def test_a_window_of_one_key():
    """transformers then makes masks for other keys than its cache returns. Its sdpa refuses them, too."""
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=1)).eval()
    model.set_attn_implementation("fovea")
    ids, cache = torch.randint(3, 97, (1, 6)), DynamicCache(config=model.config)
    model(ids[:, :5], past_key_values=cache)
    with pytest.raises(ValueError, match=r"^attention_mask: got one for 1 rows of 1 queries and 1 keys, want .* 6 keys"):
        model(ids[:, 5:], past_key_values=cache)


@pytest.mark.parametrize(("batch", "seq_q", "seq_k"), [(0, 3, 5), (2, 0, 5), (2, 3, 0), (0, 1, 5)])
def test_nothing_to_attend_to(batch, seq_q, seq_k):
    q, k, v = (tensor.requires_grad_() for tensor in tensors(batch, seq_q, seq_k))
    mask = mask_of(batch_size=batch, q_length=seq_q, kv_length=seq_k, allow_is_causal_skip=False)
    for given in (mask, torch.ones(batch, 1, seq_q, seq_k, dtype=torch.bool)):
        out = attention(q, k, v, given)
        assert out.shape == (batch, seq_q, 4, 16) and not out.any()
        with torch.no_grad():
            assert torch.equal(attention(q, k, v, given), out)


# ---- arguments that make no sense -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "error", "text"),
    [
        ({"q_length": 2**31}, ValueError, "q_length: got 2147483648, want 0 to 16777216"),
        ({"kv_length": 2**31}, ValueError, "kv_length: got 2147483648, want 0 to"),
        ({"batch_size": 2**40}, ValueError, "batch_size: got 1099511627776, want 0 to"),
        ({"batch_size": -1}, ValueError, "batch_size: got -1, want 0 to"),
        ({"q_length": -4}, ValueError, "q_length: got -4, want 0 to"),
        ({"kv_offset": -1}, ValueError, "kv_offset: got -1, want 0 to"),
        (
            {"q_length": 2**22, "kv_length": 2**22},
            ValueError,
            r"batch_size \* q_length \* kv_length: got 35184372088832, want at most",
        ),
        ({"q_length": 2**70}, ValueError, "q_length: got 1180591620717411303424, want"),
        ({"q_length": 1.5}, TypeError, "q_length: got 1.5, want an int"),
        ({"batch_size": None}, TypeError, "batch_size: got None, want an int"),
        ({"attention_mask": torch.ones(2, 7)}, ValueError, "attention_mask.dtype: got torch.float32, want torch.bool"),
        ({"attention_mask": torch.ones(7, dtype=torch.long)}, ValueError, r"attention_mask.shape: got \[7\], want \[2, keys\]"),
        ({"attention_mask": torch.ones(1, 7).bool()}, ValueError, r"attention_mask.shape: got \[1, 7\], want \[2, keys\]"),
    ],
)
def test_sizes_of_a_mask(sizes, error, text):
    with pytest.raises(error, match="^" + text):
        mask_of(**{"batch_size": 2, "q_length": 7, "kv_length": 7} | sizes)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"query": torch.randn(4, 7, 16)}, ValueError, r"query.rank: got 3, want 4 \(\[batch, head, seq, head_dim\]\)"),
        ({"key": torch.randn(1, 2, 7, 24)}, ValueError, r"key.shape: got \[1, 2, 7, 24\], want \[1, kv_head, seq, 16\]"),
        ({"value": torch.randn(1, 2, 9, 16)}, ValueError, r"value.shape: got \[1, 2, 9, 16\], want \[1, 2, 7, head_dim\], as key"),
        ({"key": torch.randn(1, 3, 7, 16), "value": torch.randn(1, 3, 7, 16)}, ValueError, r"key.shape\[1\] \(kv_head\): got 3"),
        ({"value": torch.randn(1, 2, 7, 16).half()}, ValueError, "value.dtype: got torch.float16, want torch.float32"),
        ({"scaling": 0.0}, ValueError, "scaling: got 0"),
        ({"scaling": "1"}, TypeError, "scaling: got '1', want a number or None"),
        ({"sliding_window": 0}, ValueError, "sliding_window: got 0, want 1 or more"),
        ({"s_aux": torch.zeros(3)}, ValueError, "s_aux.shape"),
        ({"query": None}, TypeError, "query: got None, want a torch.Tensor"),
    ],
)
def test_arguments_of_attention(change, error, text):
    given = dict(zip(("query", "key", "value"), tensors(1, 7, 7), strict=True)) | {"attention_mask": None} | change
    with pytest.raises(error, match="^" + text):
        AttentionInterface()["fovea"](MODULE, **given)


def test_arguments_of_register():
    with pytest.raises(TypeError, match=r"^name: got 3, want a str"):
        integration.register(3)
