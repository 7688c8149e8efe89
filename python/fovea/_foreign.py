# SPDX-License-Identifier: Apache-2.0
"""Keywords of other packages, and what a function of this one says to them."""

from collections.abc import Collection, Iterable

_SAME = (
    ("scale", "softmax_scale", "sm_scale", "scaling"),
    ("causal", "is_causal"),
    ("window", "window_size", "sliding_window", "window_left"),
    ("softcap", "logits_soft_cap", "logit_cap", "softcapping"),
    ("sink", "sinks", "attn_sink", "s_aux", "learnable_sink"),
    ("kv_len", "cache_seqlens", "seq_lens", "context_lens", "seqused_k", "kv_lens"),
    ("block_table", "block_tables", "page_table"),
    ("slot_mapping", "slots", "slot_indices"),
    ("indices", "topk_indices", "indices_in_kvcache"),
    ("cu_seqlens_q", "cu_seqlens_qo", "cu_seq_lens_q", "qo_indptr", "cu_seqlens"),
    ("cu_seqlens_k", "cu_seqlens_kv", "cu_seq_lens_k", "kv_indptr"),
    ("max_seqlen_q", "max_seqlen_qo", "max_length_q", "max_seqlen"),
    ("max_seqlen_k", "max_seqlen_kv", "max_length_k"),
    ("max_kv_len", "max_seqlen_k", "max_seqlen_kv", "max_length_k", "max_seq_len", "max_context_len"),
    ("q_scale", "q_descale", "scale_q"),
    ("k_scale", "k_descale", "scale_k"),
    ("v_scale", "v_descale", "scale_v"),
    ("q", "query"),
    ("k", "key"),
    ("v", "value"),
    ("k_cache", "key_cache"),
    ("v_cache", "value_cache"),
    ("cache", "kv_cache", "k_cache", "kv"),
    ("out", "output"),
    ("return_lse", "return_softmax_lse", "return_attn_probs"),
    ("implementation", "backend"),
    ("bias", "attn_bias"),
    ("dropout_p", "dropout"),
)
"""Names of one meaning, ours first."""

_OTHERWISE = {
    ("window_size", "window"): "where None is no bound",
    ("sliding_window", "window"): "as (sliding_window - 1, None), with causal=True",
    ("window_left", "window"): "as (window_left, None)",
    ("causal", "is_causal"): "counted from the first query and key",
}
"""By a keyword and what it is called here: how its values differ."""

_MASK = "a mask is causal or a window, and padding is a ragged batch (cu_seqlens_q, cu_seqlens_k)"
_POSITIONS = "no positions are applied: rotate q and k first"
_LAYOUT = "tensors are [batch, seq, head, head_dim]: transpose(1, 2) of another order"
_NOT_HERE = {
    **dict.fromkeys(("attn_mask", "attention_mask", "key_padding_mask", "custom_mask", "mask"), _MASK),
    **dict.fromkeys(("rotary_cos", "rotary_sin", "rope_theta", "rope_scale", "pos_encoding_mode"), _POSITIONS),
    **dict.fromkeys(("tensor_layout", "kv_layout"), _LAYOUT),
    **dict.fromkeys(("num_splits", "num_kv_splits"), "the library chooses the splits (batch_invariant=True fixes them)"),
    "enable_gqa": "head may be any multiple of kv_head",
    "deterministic": "results have the same bits from run to run",
}


def lesson(given: Iterable[str], taken: Collection[str]) -> str | None:
    """Advice on the first keyword that is not taken and that another package has; None if there is no such keyword."""
    for keyword in given:
        if keyword in taken:
            continue
        here = next((name for names in _SAME if keyword in names for name in names if name in taken), None)
        if here is not None:
            how = _OTHERWISE.get((keyword, here))
            return f"got {keyword}; here it is {here}" + (f", {how}" if how else "")
        if keyword in _NOT_HERE:
            return f"got {keyword}; here {_NOT_HERE[keyword]}"
    return None
