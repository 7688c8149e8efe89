# SPDX-License-Identifier: Apache-2.0
"""FlashMLA's Python interface (its releases with Hopper kernels, 2025 to September 2026) over Fovea's latent and dense attention.

Shapes, argument order, results and errors are FlashMLA's. Differences:

* Tensors may be on the CPU as well. Any number of heads, any page size, any top-k, rows of 512 as well as of 576, and packed caches
  read densely, as far as the device's kernels go.
* The metadata object keeps its schedule out of sight: ``tile_scheduler_metadata`` and ``num_splits`` stay None. Calls share it if
  they get the same tensors of lengths, as the layers of a step do; FlashMLA's rule, one object for calls with equal lengths, is all
  that code has to keep. Where FlashMLA would keep a schedule that may be out of date, a new one is computed: when the lengths
  come in other tensors, or torch has written to them since; when strides, dtypes or optional arguments differ; and when the capture
  of a graph has begun or ended since, so that an object from outside of a capture does no harm within. Changes that
  only a wait for the device would show fall under FlashMLA's rule: lengths in inference tensors, lengths written by a graph's
  replay or by a kernel that torch does not know, and two graphs captured one after the other. Compiled functions share nothing.
* ``lse`` and ``max_logits`` are natural logarithms, as in FlashMLA since its sparse prefill takes ``attn_sink``. The first release
  of sparse prefill (September 2025) gave both to base 2, and -inf for a query that sees no key: code written for that one
  multiplies both by ``log2(e)``.
* Features of other branches are not here: ``indexer_topk`` of sparse prefill. Copies of FlashMLA inside of vLLM and SGLang have
  names of their own, which :func:`fovea.compat.install` does not replace.
* ``flash_attn_varlen_func`` and its packed forms have a gradient for grouped-query heads too.
  A query that sees no key has the lse -inf in these three.
* A call that cannot be computed raises an exception; it never ends the process. Gradients of latent attention are refused too
  (NotImplementedError): FlashMLA gives results that autograd knows nothing of.
"""

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from fovea._calls import adapted
from fovea._latent import latent_attention, sparse_latent_attention
from fovea._latent_cache import cache_formats
from fovea._latent_schedule import LatentSchedule
from fovea.compat._arguments import check, checked_scale
from fovea.compat._dense_mla import flash_attn_varlen_func, flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func

__all__ = [
    "FlashMLASchedMeta",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_mla_sparse_fwd",
    "flash_mla_with_kvcache",
    "get_mla_metadata",
]

_LATENT_DIM = 512
_BYTES = (torch.uint8, torch.int8, torch.float8_e4m3fn)
# FlashMLA distinguishes formats by the bytes of a token. Those it added later share their size with a second layout: not here.
_PACKED = {cache_formats()[name].bytes: name for name in ("v32_fp8", "v4_fp8")}


class _Schedule(LatentSchedule):
    """A new one is computed where the old one refuses, and where lengths may have changed."""

    def reset(self) -> None:
        super().reset()
        self._lengths: tuple[Tensor | None, ...] = ()
        self._versions: list[int] = []

    def _fits(self, call: tuple[Any, ...]) -> bool:
        return call == self._call

    def bind(self, *lengths: Tensor | None) -> None:
        """Notes the lengths of a call before it runs. Keeps the tensors, so that no other can take their memory."""
        versions = [0 if tensor is None or tensor.is_inference() else tensor._version for tensor in lengths]
        if versions != self._versions or any(now is not known for now, known in zip(lengths, self._lengths, strict=True)):
            self.reset()
            self._lengths, self._versions = lengths, versions


# By Fovea's names of what the caller hands over.
_NAMES = {
    "cache": "k_cache",
    "kv_len": "cache_seqlens",
    "scale": "softmax_scale",
    "sink": "attn_sink",
    "extra_cache": "extra_k_cache",
    "extra_indices": "extra_indices_in_kvcache",
}
_PREFILL_NAMES = {"cache": "kv", "scale": "sm_scale", "sink": "attn_sink"}


@dataclass
class FlashMLASchedMeta:
    """The result of :func:`get_mla_metadata`: empty at first, then bound to the shapes of the first call that it is passed to."""

    @dataclass
    class Config:
        """The shapes and options in which calls with one object must agree."""

        b: int
        s_q: int
        h_q: int
        page_block_size: int
        h_k: int
        causal: bool
        is_fp8_kvcache: bool
        topk: int | None
        extra_page_block_size: int | None
        extra_topk: int | None

    have_initialized: bool = False
    config: Config | None = None
    tile_scheduler_metadata: Tensor | None = None
    num_splits: Tensor | None = None
    schedule: _Schedule | None = field(default=None, repr=False, compare=False)

    def _shared(self, *lengths: Tensor | None) -> _Schedule | None:
        """The schedule of calls with these lengths."""
        if torch.compiler.is_compiling():
            return None
        self.schedule = self.schedule or _Schedule()
        self.schedule.bind(*lengths)
        return self.schedule


def get_mla_metadata(*args: Any, **kwargs: Any) -> tuple[FlashMLASchedMeta, None]:
    """A new metadata object, for the calls of one decode step, and None where older versions gave a second tensor.

    Arguments are those of any version of FlashMLA, and are ignored.
    """
    return FlashMLASchedMeta(), None


@adapted(
    _NAMES,
    axes={
        "q": "b, s_q, h_q, d",
        "k_cache": "blocks, page, h_k, d or bytes",
        "indices": "b, s_q, topk",
        "extra_k_cache": "blocks, page, h_k, bytes",
        "extra_indices_in_kvcache": "b, s_q, topk",
    },
    error=RuntimeError,
)
def flash_mla_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor | None,
    cache_seqlens: Tensor | None,
    head_dim_v: int,
    tile_scheduler_metadata: Any,
    num_splits: Any = None,
    softmax_scale: Tensor | float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: Tensor | None = None,
    attn_sink: Tensor | None = None,
    extra_k_cache: Tensor | None = None,
    extra_indices_in_kvcache: Tensor | None = None,
    topk_length: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Latent attention of a decode step over a block-table cache: dense, or with ``indices`` over the tokens that each query lists.

    Args:
        q: ``[b, s_q, h_q, d]``; bfloat16 over a packed cache.
        k_cache: ``[blocks, page, h_k, d]`` in q's dtype; or packed, ``[blocks, page, 1, bytes]`` of uint8, int8 or
            float8_e4m3fn with 656 bytes for a token (d = 576) or 584 (d = 512), in the dense mode too.
        block_table: int32 ``[b, max_blocks]``. Not looked at with ``indices``.
        cache_seqlens: int32 ``[b]``. Not looked at with ``indices``.
        head_dim_v: 512.
        tile_scheduler_metadata: From :func:`get_mla_metadata`.
        num_splits: None.
        softmax_scale: Multiplies the scores; None is ``d ** -0.5``.
        causal: Whether a query sees the keys up to its own position only; the last query is the last token. Dense mode.
        is_fp8_kvcache: Whether the cache is packed.
        indices: int32 ``[b, s_q, topk]``: ``block * page + slot`` of each token. Entries outside of the cache are ignored.
        attn_sink: float32 ``[h_q]``, a logit that joins the softmax's denominator only. With ``indices``, as all that follow.
        extra_k_cache: A second packed cache, with a page size of its own, that joins the same softmax.
        extra_indices_in_kvcache: As ``indices``, for the second cache.
        topk_length: int32 ``[b]``: entries of ``indices`` from here on are ignored.
        extra_topk_length: As ``topk_length``, for the second cache.

    Returns:
        out ``[b, s_q, h_q, 512]`` in q's dtype, and the log-sum-exp of the scores, float32 ``[b, h_q, s_q]`` (natural logarithm,
        without the sink). A query that sees no key gives 0 and **+inf**.

    Raises:
        AssertionError: Arguments that exclude each other, or a metadata object used with other shapes before.
        RuntimeError: Shapes, dtypes, strides, or nothing here can compute it.
    """
    meta = tile_scheduler_metadata
    _assert(isinstance(meta, FlashMLASchedMeta), "tile_scheduler_metadata", type(meta).__name__, "what get_mla_metadata() gives")
    _assert(num_splits is None, "num_splits", type(num_splits).__name__, "None")
    config = FlashMLASchedMeta.Config(
        *q.shape[:3],
        *k_cache.shape[1:3],
        causal=causal,
        is_fp8_kvcache=is_fp8_kvcache,
        topk=None if indices is None else indices.shape[-1],
        extra_page_block_size=None if extra_k_cache is None else extra_k_cache.shape[1],
        extra_topk=None if extra_indices_in_kvcache is None else extra_indices_in_kvcache.shape[-1],
    )
    if meta.have_initialized:
        _check_same(meta.config, config)
    check(head_dim_v == _LATENT_DIM, "head_dim_v", head_dim_v, _LATENT_DIM)
    scale = checked_scale("softmax_scale", softmax_scale)
    sparse = {
        "attn_sink": attn_sink,
        "extra_k_cache": extra_k_cache,
        "extra_indices_in_kvcache": extra_indices_in_kvcache,
        "topk_length": topk_length,
        "extra_topk_length": extra_topk_length,
    }
    if indices is None:
        for name, tensor in sparse.items():
            _assert(tensor is None, name, "a tensor", "None (without indices)")
        _assert(block_table is not None, "block_table", None, "a tensor (without indices)")
        _assert(cache_seqlens is not None, "cache_seqlens", None, "a tensor (without indices)")
        cache, format = _dense_cache(k_cache, is_fp8_kvcache)
        options = {"format": format, "scale": scale, "causal": causal, "return_lse": True, "schedule": meta._shared(cache_seqlens)}
        out, lse = latent_attention(q, cache, block_table, cache_seqlens, **options)
    else:
        _assert(not causal, "causal", causal, "False (with indices)")
        _assert(is_fp8_kvcache, "is_fp8_kvcache", is_fp8_kvcache, "True (with indices)")
        sparse["schedule"] = meta._shared(topk_length, extra_topk_length)
        out, lse = _sparse_decode(q, k_cache, indices, scale, **sparse)
    meta.have_initialized, meta.config = True, config
    return out, _empty_rows_to_infinity(lse)


@adapted(_PREFILL_NAMES, axes={"q": "s_q, h_q, d", "kv": "s_kv, h_kv, d", "indices": "s_q, h_kv, topk"}, error=RuntimeError)
def flash_mla_sparse_fwd(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    sm_scale: Tensor | float,
    d_v: int = 512,
    attn_sink: Tensor | None = None,
    topk_length: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Latent attention of a prefill in which each query lists the tokens that it reads.

    Args:
        q: ``[s_q, h_q, d]``.
        kv: ``[s_kv, 1, d]`` in q's dtype.
        indices: int32 ``[s_q, 1, topk]``. Entries outside of kv, negative or too large, are ignored.
        sm_scale: Multiplies the scores.
        d_v: 512.
        attn_sink: float32 ``[h_q]``, a logit that joins the softmax's denominator only.
        topk_length: int32 ``[s_q]``: entries of a list from here on are ignored, whatever they hold.

    Returns:
        out ``[s_q, h_q, 512]`` in q's dtype; the largest score and the log-sum-exp of the scores (natural logarithm, without the
        sink), float32 ``[s_q, h_q]``. A query that sees no key gives 0, -inf and **+inf**.

    Raises:
        RuntimeError: Shapes, dtypes, strides, or nothing here can compute it.
    """
    check(kv.size(1) == 1, "kv.shape[1] (h_kv)", kv.size(1), 1)
    check(indices.size(1) == 1, "indices.shape[1] (h_kv)", indices.size(1), 1)
    check(kv.dtype == q.dtype, "kv.dtype", kv.dtype, f"{q.dtype} (the dtype of q)")
    check(d_v == _LATENT_DIM, "d_v", d_v, _LATENT_DIM)
    scale = checked_scale("sm_scale", sm_scale)
    out, lse, max_logits = sparse_latent_attention(
        q,
        kv,
        indices[:, 0],
        topk_length,
        scale=scale,
        sink=attn_sink,
        return_lse=True,
        return_max_logits=True,
    )
    return out, max_logits, _empty_rows_to_infinity(lse)


def _sparse_decode(
    q: Tensor,
    k_cache: Tensor,
    indices: Tensor,
    scale: float | None,
    *,
    attn_sink: Tensor | None,
    extra_k_cache: Tensor | None,
    extra_indices_in_kvcache: Tensor | None,
    topk_length: Tensor | None,
    extra_topk_length: Tensor | None,
    schedule: LatentSchedule | None,
) -> tuple[Tensor, Tensor]:
    cache, format = _packed_cache("k_cache", k_cache)
    extra, extra_format = (None, "rows") if extra_k_cache is None else _packed_cache("extra_k_cache", extra_k_cache)
    return sparse_latent_attention(
        q,
        cache,
        indices,
        topk_length,
        format=format,
        extra_cache=extra,
        extra_indices=extra_indices_in_kvcache,
        extra_topk_length=extra_topk_length,
        extra_format=extra_format,
        scale=scale,
        sink=attn_sink,
        return_lse=True,
        schedule=schedule,
    )


def _assert(ok: bool, subject: str, got: object, want: object) -> None:
    """Makes an assertion of FlashMLA's; not an assert statement, since those vanish under python -O."""
    if not ok:
        raise AssertionError(f"{subject}: got {got}, want {want}")


def _check_same(bound: FlashMLASchedMeta.Config | None, config: FlashMLASchedMeta.Config) -> None:
    if bound == config:  # far quicker than the loop, which only names what differs
        return
    for entry in fields(config):
        want, got = getattr(bound, entry.name), getattr(config, entry.name)
        _assert(got == want, f"tile_scheduler_metadata.config.{entry.name}", got, f"{want}, as in the first call with this object")


def _packed_cache(name: str, cache: Tensor) -> tuple[Tensor, str]:
    """A packed cache as Fovea wants it, and the name of its format."""
    check(cache.dtype in _BYTES, f"{name}.dtype", cache.dtype, f"one of {', '.join(map(str, _BYTES))} (is_fp8_kvcache)")
    formats = " or ".join(f"{size} ({format})" for size, format in _PACKED.items())
    bytes_per_token = cache.size(3)
    check(cache.size(2) == 1, f"{name}.shape[2] (h_k)", cache.size(2), "1 (packed)")
    check(
        bytes_per_token in _PACKED,
        f"{name}.shape[3] (bytes of a token)",
        bytes_per_token,
        f"{formats}; fovea.sparse_latent_attention takes more formats, by name",
    )
    return cache[:, :, 0].view(torch.uint8), _PACKED[bytes_per_token]


def _dense_cache(cache: Tensor, is_fp8_kvcache: bool) -> tuple[Tensor, str]:
    if cache.dtype not in _BYTES:
        return cache, "rows"
    check(is_fp8_kvcache, "is_fp8_kvcache", is_fp8_kvcache, f"True, as k_cache.dtype is {cache.dtype}")
    return _packed_cache("k_cache", cache)


def _empty_rows_to_infinity(lse: Tensor) -> Tensor:
    """-inf, Fovea's number for a row without keys, becomes +inf, in one kernel on a GPU."""
    return lse.nan_to_num_(nan=torch.nan, posinf=torch.inf, neginf=torch.inf)
