# SPDX-License-Identifier: Apache-2.0
"""Limits of a server and of its layers. Others are refused by name: by the backend's constructor, or in the first pass."""

from typing import Any

import torch

_CACHES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn)
_LATENT = 512  # values of a latent row that are V too


def check_server(runner: Any) -> None:
    """Raises NotImplementedError for a server that the backend does not serve."""
    config, arguments = runner.model_config, resolved_arguments(runner)
    if runner.kv_cache_dtype not in _CACHES:
        want = ", ".join(str(dtype).removeprefix("torch.") for dtype in _CACHES)
        _refuse("kv_cache_dtype", runner.kv_cache_dtype, want)
    if getattr(runner.token_to_kv_pool, "is_quantized_kv_cache", False) or getattr(runner, "kv_cache_dtype_str", "") == "mxfp8":
        _refuse("kv_cache_dtype", getattr(runner, "kv_cache_dtype_str", "a format"), "numbers without scales of their own")
    for flag in ("is_encoder_decoder", "is_local_attention_model"):
        if getattr(config, flag, False):
            _refuse(f"model_config.{flag}", True, "False")
    if (getattr(arguments, "speculative_eagle_topk", None) or 1) > 1:
        _refuse("speculative_eagle_topk", arguments.speculative_eagle_topk, "1 (no tree of drafts)")
    if getattr(arguments, "speculative_algorithm", None) == "NGRAM" and arguments.speculative_ngram_max_bfs_breadth > 1:
        _refuse("speculative_ngram_max_bfs_breadth", arguments.speculative_ngram_max_bfs_breadth, "1 (no tree of drafts)")
    for size in ("dcp_size", "attn_cp_size"):
        if (getattr(arguments, size, None) or 1) > 1:
            _refuse(size, getattr(arguments, size), "1")
    if getattr(getattr(runner, "kv_index_translator", None), "is_translating", False):
        _refuse("enable_unified_memory", True, "False")


def resolved_arguments(runner: Any) -> Any:
    """The server's arguments with SGLang's choices where the user made none: from 0.5.15 on these are kept beside them."""
    try:
        from sglang.srt.arg_groups.overrides import resolved_view
    except ImportError:
        return runner.server_args
    return resolved_view(runner.server_args)


def check_pass(forward_batch: Any) -> None:
    """Raises NotImplementedError for a pass whose mask is not one of causal sequences."""
    if forward_batch.forward_mode.is_dllm_extend():
        _refuse("forward_mode", "DLLM_EXTEND", "a causal model")
    if forward_batch.forward_mode.is_target_verify() and getattr(forward_batch.spec_info, "topk", 1) > 1:
        _refuse("topk", forward_batch.spec_info.topk, "1 (no tree of drafts)")
    if getattr(forward_batch.spec_info, "ragged_verify_layout", None) is not None:
        _refuse("ragged_verify_layout", "a layout", "as many drafts in every request")


def check_captured(mode: Any) -> None:
    """Raises NotImplementedError for a graph whose sequences have any number of new tokens."""
    if mode.is_extend() and not mode.is_target_verify():
        _refuse("cuda_graph_config.prefill.backend", "full", "breakable or disabled")


def check_layer(layer: Any, latent: bool) -> None:
    """Raises NotImplementedError for a layer whose scores the backend does not compute."""
    wanted = {
        "is_cross_attention": False,
        "use_irope": False,
        "pos_encoding_mode": "NONE",
        "logit_capping_method": "tanh",
        "xai_temperature_len": -1,
    }
    for name, want in wanted.items():
        if getattr(layer, name, want) != want:
            _refuse(f"layer.{name}", getattr(layer, name), str(want))
    if latent and layer.v_head_dim != _LATENT:
        _refuse("kv_lora_rank", layer.v_head_dim, str(_LATENT))
    if latent and layer.logit_cap:
        _refuse("layer.logit_cap", layer.logit_cap, "0 in a latent model")


def check_extras(extras: dict[str, Any]) -> None:
    """Raises NotImplementedError for what a model hands its attention and the backend does not compute."""
    for name, value in extras.items():
        if value is not None and value is not False:
            _refuse(name, type(value).__name__, "None")


def _refuse(name: str, got: Any, want: str) -> None:
    raise NotImplementedError(f"{name}: got {got}, want {want} (--attention-backend fovea)")


def check_call(possible: bool, named: dict[str, Any]) -> None:
    """Raises NotImplementedError for a call over the cache that the operations have no form of."""
    if not possible:
        _refuse("q", "a prompt over a cached prefix with keys that are not latent", "latent ones")
    for name in named:
        _refuse(name, "a tensor", "None in a latent model")


def check_rows(buffer: Any) -> None:
    """Raises NotImplementedError for a cache that is not one of rows of numbers."""
    if buffer.dim() != 3 or not buffer.is_floating_point():
        _refuse("token_to_kv_pool", f"{buffer.dtype} {list(buffer.shape)}", "floats [token, head, dim] or [block, head, page, dim]")
