# SPDX-License-Identifier: Apache-2.0
"""A small server in the place of SGLang's: requests, pools and passes of one layer, against eager formulas in float64."""

import math
from inspect import signature
from types import SimpleNamespace

import torch
from torch import Tensor

import sglang_package

SGL = sglang_package.load()
E4M3 = torch.float8_e4m3fn
CONTEXT = 256  # tokens of a request at most
REQUESTS = 6


class Server:
    """Requests whose tokens lie anywhere in the pool. Slots of nobody hold NaN, and the ends of their rows any numbers."""

    def __init__(self, device="cpu", page=1, dtype=None, cache=None, *, latent=False, window_pool=False, arguments=None, **layer):
        self.device, self.page, self.latent = device, page, latent
        self.dtype = dtype or (torch.bfloat16 if device == "cuda" else torch.float32)
        self.cache_dtype = cache or self.dtype
        self.options = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 64} | layer
        if latent:
            self.options |= {"num_heads": 16, "num_kv_heads": 1, "head_dim": 576, "v_head_dim": 512}
        self.layer = SGL.RadixAttention(scaling=self.options["head_dim"] ** -0.5 * 1.1, layer_id=0, **self.options)
        self.layers = [self.layer, SGL.RadixAttention(scaling=self.layer.scaling, layer_id=1, **self.options)]
        tokens = 2 * REQUESTS * CONTEXT
        self.requests = SGL.ReqToTokenPool(REQUESTS + 1, CONTEXT, device, enable_memory_saver=False)
        self.pool = self._pool(tokens, window_pool)
        for layer_id in range(2):
            for buffer in self.pool.get_kv_buffer(layer_id):
                buffer.copy_(torch.full_like(buffer, torch.nan, dtype=torch.float32))
        blocks = 1 + torch.randperm(tokens // page)[: REQUESTS * CONTEXT // page].view(REQUESTS, -1)
        self.slots = (blocks[:, :, None] * page + torch.arange(page)).flatten(1).to(device)
        self.requests.req_to_token.random_(0, tokens)
        self.used, self.filled = self.slots.new_zeros(REQUESTS), [0] * REQUESTS
        self.history = [[[] for _ in range(REQUESTS)] for _ in range(2)]
        self.runner = SimpleNamespace(
            token_to_kv_pool=self.pool,
            req_to_token_pool=self.requests,
            page_size=page,
            kv_cache_dtype=self.cache_dtype,
            device=device,
            model_config=SimpleNamespace(is_encoder_decoder=False, is_local_attention_model=False, context_len=CONTEXT),
            server_args=SimpleNamespace(**(arguments or {})),
        )
        from fovea.integrations.sglang import _create

        self.backend = _create(self.runner)

    def _pool(self, tokens, window_pool):
        common = {"dtype": self.cache_dtype, "device": self.device, "page_size": self.page, "enable_memory_saver": False}
        if self.latent:
            return SGL.MLATokenToKVPool(tokens, kv_lora_rank=512, qk_rope_head_dim=64, layer_num=2, **common)
        heads = {"head_num": self.options["num_kv_heads"], "head_dim": self.options["head_dim"], "enable_alt_stream": False}
        if not window_pool:
            return SGL.MHATokenToKVPool(tokens, layer_num=2, **common, **heads)
        if "enable_kvcache_transpose" in signature(SGL.SWAKVPool).parameters:
            common["enable_kvcache_transpose"] = False  # until 0.5.15
        pool = SGL.SWAKVPool(tokens, tokens, swa_attention_layer_ids=[1], full_attention_layer_ids=[0], **common, **heads)
        blocks = torch.randperm(tokens // self.page) + 1
        mapping = (blocks[:, None] * self.page + torch.arange(self.page)).flatten()
        pool.full_to_swa_index_mapping = torch.cat([torch.arange(self.page), mapping, torch.tensor([-1])]).to(self.device)
        return pool

    def batch(self, mode, who, new, before=None):
        """A ForwardBatch of a pass in which the requests ``who`` get ``new`` tokens each."""
        before = [self.filled[request] for request in who] if before is None else before
        lengths = [a + b for a, b in zip(before, new, strict=True)]
        for request, length in zip(who, lengths, strict=True):
            self.requests.req_to_token[request, :length] = self.slots[request, :length].int()
        slots = [self.slots[request, a:b] for request, a, b in zip(who, before, lengths, strict=True)]
        verify = mode == SGL.ForwardMode.TARGET_VERIFY
        seq_lens = torch.tensor(before if verify else lengths)
        extend = {}
        if mode in (SGL.ForwardMode.EXTEND, SGL.ForwardMode.MIXED):
            extend = {"extend_num_tokens": sum(new), "extend_seq_lens_cpu": list(new), "extend_prefix_lens_cpu": list(before)}
            extend |= {"extend_seq_lens": torch.tensor(new, dtype=torch.int32, device=self.device)}
        return SGL.ForwardBatch(
            forward_mode=mode,
            batch_size=len(who),
            input_ids=torch.zeros(sum(new), dtype=torch.int64, device=self.device),
            req_pool_indices=torch.tensor(who, device=self.device),
            seq_lens=seq_lens.to(self.device),
            seq_lens_cpu=seq_lens,
            seq_lens_sum=sum(lengths),
            out_cache_loc=torch.cat(slots),
            spec_info=SimpleNamespace(draft_token_num=new[0], custom_mask=None) if verify else None,
            **extend,
        )

    def values(self, rows, layer):
        """Random q, k and v of a layer, views of one tensor as models have them."""
        widths = [layer.tp_q_head_num * layer.qk_head_dim, layer.tp_k_head_num * layer.qk_head_dim]
        if self.latent:
            q, k = (torch.randn(rows, width, device=self.device, dtype=self.dtype) for width in widths)
            return q, k.view(rows, 1, -1), k.view(rows, 1, -1)[..., :512]
        widths.append(layer.tp_v_head_num * layer.v_head_dim)
        return torch.randn(rows, sum(widths), device=self.device, dtype=self.dtype).split(widths, dim=-1)

    def remember(self, layer, who, new, k, v):
        """Adds the rows that the cache holds after a pass to the history."""
        k = k.reshape(-1, layer.tp_k_head_num, layer.qk_head_dim)
        v = v.reshape(-1, layer.tp_v_head_num, layer.v_head_dim)
        begin = 0
        for request, count in zip(who, new, strict=True):
            rows = slice(begin, begin + count)
            self.history[layer.layer_id][request].append((self.stored(k[rows], layer.k_scale), self.stored(v[rows], layer.v_scale)))
            begin += count

    def stored(self, rows, scale):
        if self.cache_dtype != E4M3:
            return rows.double()
        scale = 1.0 if scale is None else scale
        return (rows.float() / scale).clamp(-448, 448).to(E4M3).double() * scale

    def want(self, layer, who, new, q, sinks=None, causal=True):
        """Attention of each request's last rows over all that it has, and how far float64 allows results to lie."""
        outs, begin = [], 0
        for request, count in zip(who, new, strict=True):
            k, v = (torch.cat(rows) for rows in zip(*self.history[layer.layer_id][request], strict=True))
            rows = q[begin : begin + count].reshape(count, layer.tp_q_head_num, layer.qk_head_dim)
            outs.append(eager(rows.double(), k, v, layer, sinks, causal))
            begin += count
        return torch.cat(outs).flatten(1)

    def forward(self, forward_batch, layer, qkv, **extras):
        return self.backend.forward(*qkv, layer, forward_batch, **extras)

    def step(self, mode, who, new, **extras):
        """A pass of both layers outside of graphs, judged."""
        forward_batch = self.batch(mode, who, new)
        self.backend.init_forward_metadata(forward_batch)
        for layer in self.layers:
            qkv = self.values(sum(new), layer)
            self.remember(layer, who, new, *qkv[1:])
            want = self.want(layer, who, new, qkv[0], extras.get("sinks"), layer.attn_type.value == "decoder")
            self.assert_close(self.forward(forward_batch, layer, qkv, **extras), want)
        self.count(who, new)

    def count(self, who, new):
        for request, count in zip(who, new, strict=True):
            self.filled[request] += count

    def prefill_unjudged(self, new):
        who = list(range(len(new)))
        forward_batch = self.batch(SGL.ForwardMode.EXTEND, who, new)
        self.backend.init_forward_metadata(forward_batch)
        for layer in self.layers:
            qkv = self.values(sum(new), layer)
            self.remember(layer, who, new, *qkv[1:])
            self.forward(forward_batch, layer, qkv)
        self.count(who, new)

    def assert_close(self, got, want):
        assert got.dtype == self.dtype
        tolerance = 2e-5 if self.dtype == torch.float32 else 2e-2
        torch.testing.assert_close(got.double(), want, rtol=tolerance, atol=tolerance)


def eager(q: Tensor, k: Tensor, v: Tensor, layer, sinks=None, causal=True) -> Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = (tensor.repeat_interleave(group, 1) for tensor in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * layer.scaling
    if layer.logit_cap:
        scores = layer.logit_cap * (scores / layer.logit_cap).tanh()
    rows, keys = scores.shape[1:]
    distance = (torch.arange(keys)[None] - (torch.arange(rows) + keys - rows)[:, None]).to(q.device)
    left = math.inf if layer.sliding_window_size < 0 else layer.sliding_window_size
    hidden = (distance < -left) | (distance > (0 if causal else left))
    scores = scores.masked_fill(hidden, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, rows, 1)], -1)
    weights = scores.softmax(-1)[..., :keys]
    return torch.einsum("hqk,khd->qhd", weights, v)
