# SPDX-License-Identifier: Apache-2.0
"""The backend for SGLang, driven by SGLang's own classes: passes with prefixes, windows, sinks, drafts and graphs."""

import logging
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import fovea.integrations.sglang
import sglang_package

if not sglang_package.installed():
    pytest.skip("needs the files of sglang", allow_module_level=True)

from sglang_server import E4M3, SGL, Server

DECODE, EXTEND, MIXED, VERIFY = (getattr(SGL.ForwardMode, name) for name in ("DECODE", "EXTEND", "MIXED", "TARGET_VERIFY"))
LAYERS = {
    "plain": {},
    "heads": {"num_heads": 4, "num_kv_heads": 4, "head_dim": 128},
    "window": {"sliding_window_size": 7},
    "softcap": {"logit_cap": 5.0},
    "both": {"sliding_window_size": 20, "logit_cap": 3.0},
}
SERVERS = {"page 1": {"page": 1}, "page 16": {"page": 16}, "windows": {"page": 16, "window_pool": True}, "latent": {"latent": True}}


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.inference_mode():
        yield


def passes(server, **extras):
    """Prompts, a prompt over a prefix, single tokens, and a batch of both."""
    server.step(EXTEND, [0, 1, 2], [37, 1, 90], **extras)
    server.step(EXTEND, [3, 1, 4], [5, 63, 17], **extras)
    for _ in range(2):
        server.step(DECODE, [4, 0, 2, 1], [1, 1, 1, 1], **extras)
    server.step(MIXED, [0, 3, 5], [1, 9, 33], **extras)
    server.step(DECODE, [5], [1], **extras)


@pytest.mark.parametrize(
    ("name", "page"), [("plain", 1), ("plain", 64), ("heads", 1), ("window", 16), ("softcap", 1), ("both", 64)]
)
def test_passes(name, page, paged_attention_device):
    passes(Server(paged_attention_device, page, **LAYERS[name]))


@pytest.mark.parametrize("page", [1, 16])
def test_sinks(page, paged_attention_device):
    server = Server(paged_attention_device, page, sliding_window_size=11)
    passes(server, sinks=torch.randn(8, device=paged_attention_device, dtype=server.dtype))


def test_layers_with_and_without_sinks(paged_attention_device):
    server = Server(paged_attention_device, 16)
    sinks = [torch.full((8,), 3.0, device=server.device), None]
    for mode, new in ((EXTEND, [37, 1]), (EXTEND, [5, 9]), (DECODE, [1, 1])):
        forward_batch = server.batch(mode, [0, 1], new)
        server.backend.init_forward_metadata(forward_batch)
        for layer, sink in zip(server.layers, sinks, strict=True):
            qkv = server.values(sum(new), layer)
            server.remember(layer, [0, 1], new, *qkv[1:])
            server.assert_close(
                server.forward(forward_batch, layer, qkv, sinks=sink), server.want(layer, [0, 1], new, qkv[0], sink)
            )
        server.count([0, 1], new)


@pytest.mark.parametrize("page", [1, 16])
def test_pool_of_windows(page, paged_attention_device):
    server = Server(paged_attention_device, page, window_pool=True)
    server.layers[1].sliding_window_size = 13
    passes(server)
    server.step(EXTEND, [0, 1], [8, 4])
    server.step(EXTEND, [3, 2], [8, 7])  # more new tokens, and as many at most


def test_padded_slots(paged_attention_device):
    """SGLang's graphs of prefill pad the batch before the backend sees it, and leave the padding out when a layer runs."""
    server = Server(paged_attention_device, 16, window_pool=True)
    server.layers[1].sliding_window_size = 13
    server.step(EXTEND, [0], [10])
    padded = server.batch(EXTEND, [0, 1], [9, 5])
    padded.input_ids, padded.out_cache_loc = (
        torch.nn.functional.pad(row, (0, 18)) for row in (padded.input_ids, padded.out_cache_loc)
    )
    server.backend.init_forward_metadata(padded)
    padded.out_cache_loc = padded.out_cache_loc[:14]
    for layer in server.layers:
        qkv = server.values(14, layer)
        server.remember(layer, [0, 1], [9, 5], *qkv[1:])
        server.assert_close(server.forward(padded, layer, qkv), server.want(layer, [0, 1], [9, 5], qkv[0]))


def test_lengths_that_the_host_does_not_know(paged_attention_device):
    server = Server(paged_attention_device, 16)
    server.step(EXTEND, [0, 1], [40, 3])
    batch = server.batch

    def unknown(*arguments):
        forward_batch = batch(*arguments)
        forward_batch.seq_lens_cpu = None
        return forward_batch

    server.batch = unknown
    server.step(DECODE, [1, 0], [1, 1])
    server.step(EXTEND, [0, 2], [9, 30])


@pytest.mark.parametrize("scaled", [False, True])
def test_e4m3(scaled, paged_attention_device):
    """Prompts see their own keys and values as they are; all others see those of the cache."""
    server = Server(paged_attention_device, 16, dtype=torch.bfloat16, cache=E4M3)
    for layer in server.layers if scaled else ():
        layer.k_scale, layer.v_scale = torch.tensor([0.03, 0.05], device=paged_attention_device).unbind()
    server.prefill_unjudged([40, 3])
    server.step(EXTEND, [0, 1], [20, 30])
    server.step(DECODE, [1, 0], [1, 1])


def test_layers_with_and_without_scales(paged_attention_device):
    server = Server(paged_attention_device, 16, dtype=torch.bfloat16, cache=E4M3)
    server.layer.k_scale, server.layer.v_scale = torch.tensor([0.03, 0.05], device=paged_attention_device).unbind()
    server.prefill_unjudged([40, 3])
    server.step(EXTEND, [0, 1], [20, 30])
    server.step(DECODE, [1, 0], [1, 1])


def test_prepared_layers_that_lie_otherwise(latent_attention_device):
    """Each description has a plan of its own, which every later pass prepares."""
    server = Server(latent_attention_device, latent=True, dtype=torch.bfloat16)
    server.backend.init_cuda_graph_state(2, 2)
    whole = server.values

    def strided(rows, layer):
        q, k, v = whole(rows, layer)
        return (q if layer is server.layer else torch.nn.functional.pad(q, (0, 64))[:, : q.shape[1]]), k, v

    server.values = strided
    graph = Graph(server, DECODE, 2)
    graph.replay([1, 0])
    (plans,) = (plans for (kind, *_), plans in server.backend.forward_metadata._plans.items() if kind.startswith("paged"))
    assert len(plans) == 2
    for _ in range(3):
        graph.replay([0, 1])
    assert len(plans) == 2


@pytest.mark.parametrize("latent", [False, True])
def test_a_pass_keeps_no_tensor_of_its_layers(latent):
    """A prompt's queries are larger than all else that the backend has."""
    server = Server(page=16, latent=latent)
    values, gone = server.values, []

    def watched(rows, layer):
        qkv = tuple(each.clone() for each in values(rows, layer))
        gone.extend(StorageWeakRef(each.untyped_storage()) for each in qkv)
        return qkv

    server.values = watched
    server.step(EXTEND, [0, 1], [37, 5])
    server.step(EXTEND, [0, 1], [9, 4])
    server.step(DECODE, [0, 1], [1, 1])
    server.history = None
    assert gone and all(ref.expired() for ref in gone)


@pytest.mark.parametrize("cache", [None, E4M3], ids=["rows", "e4m3"])
@pytest.mark.parametrize("page", [1, 64])
def test_latent(page, cache, latent_attention_device):
    server = Server(latent_attention_device, page, latent=True, dtype=torch.bfloat16, cache=cache)
    passes(server)


def test_prompts_of_a_latent_model(attention_device):
    """Unabsorbed, over keys that the model wrote itself."""
    server = Server(attention_device, latent=True)
    layer = SGL.RadixAttention(num_heads=4, head_dim=192, scaling=0.07, num_kv_heads=4, layer_id=0, v_head_dim=128)
    forward_batch = server.batch(EXTEND, [0, 1], [12, 30])
    server.backend.init_forward_metadata(forward_batch)
    q, k = (torch.randn(42, 4, 192, device=attention_device, dtype=server.dtype) for _ in range(2))
    v = torch.randn(42, 4, 128, device=attention_device, dtype=server.dtype)
    server.remember(layer, [0, 1], [12, 30], k, v)
    out = server.forward(forward_batch, layer, (q, k, v), save_kv_cache=False)
    server.assert_close(out, server.want(layer, [0, 1], [12, 30], q))


def test_encoders(attention_device):
    server = Server(attention_device, attn_type=SGL.AttentionType.ENCODER_ONLY)
    server.step(EXTEND, [0, 1], [12, 30])


@pytest.mark.parametrize("latent", [False, True])
def test_drafts(latent, paged_attention_device):
    """The target model verifies a chain of drafts: their rows see each other, and are kept as far as they are accepted."""
    server = Server(paged_attention_device, 1, latent=latent, dtype=torch.bfloat16)
    server.step(EXTEND, [0, 1, 2], [37, 1, 90])
    server.step(VERIFY, [2, 0, 1], [4, 4, 4])
    server.step(DECODE, [2, 0, 1], [1, 1, 1])


def test_same_bits_in_every_batch(paged_attention_device):
    alone, among = (Server(paged_attention_device, arguments={"enable_deterministic_inference": True}) for _ in range(2))
    results = []
    for server, who in ((alone, [0]), (among, [0, 1, 2])):
        torch.manual_seed(1)
        q, k, v = (torch.randn(3, heads * 64, device=server.device, dtype=server.dtype) for heads in (8, 2, 2))
        for _ in range(20):
            batch = server.batch(DECODE, who, [1] * len(who))
            server.backend.init_forward_metadata(batch)
            out = server.forward(batch, server.layer, (q[: len(who)], k[: len(who)], v[: len(who)]))
            server.count(who, [1] * len(who))
        results.append(out[0])
    assert torch.equal(*results)


class Graph:
    """A pass in tensors that stay where they are, as SGLang's runner captures it; on the CPU the pass runs again instead."""

    def __init__(self, server, mode, batch, each=1):
        self.server, self.mode, self.rows = server, mode, batch * each
        self.fixed = server.batch(mode, [0] * batch, [each] * batch, before=[0] * batch)
        self.fixed.seq_lens.fill_(server.backend.get_cuda_graph_seq_len_fill_value())
        self.fixed.out_cache_loc.zero_()
        server.backend.init_forward_metadata_out_graph(self.fixed, in_capture=True)
        self.inputs = [server.values(self.rows, layer) for layer in server.layers]
        self._run()
        self.graph = None
        if server.device == "cuda":
            self._run()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._run()

    def _run(self):
        self.outs = [
            self.server.forward(self.fixed, layer, qkv) for layer, qkv in zip(self.server.layers, self.inputs, strict=True)
        ]

    def replay(self, who, each=1):
        """As SGLang does: padded requests are those of row 0, and new slots are not padded before the pass is prepared."""
        server, count, new = self.server, len(who), [each] * len(who)
        live = server.batch(self.mode, who, new)
        for name in ("req_pool_indices", "seq_lens"):
            getattr(self.fixed, name)[:count].copy_(getattr(live, name))
        self.fixed.req_pool_indices[count:].zero_()
        self.fixed.seq_lens[count:].fill_(server.backend.get_cuda_graph_seq_len_fill_value())
        self.fixed.seq_lens_cpu = torch.ones_like(self.fixed.seq_lens_cpu)  # stale, as some releases have them
        slots = self.fixed.out_cache_loc
        slots[: count * each].copy_(live.out_cache_loc)
        slots[count * each :].zero_()
        self.fixed.out_cache_loc = live.out_cache_loc
        server.backend.init_forward_metadata_out_graph(self.fixed)
        self.fixed.out_cache_loc = slots
        for layer, (q, k, v) in zip(server.layers, self.inputs, strict=True):
            for tensor in (q, k) if server.latent else (q, k, v):
                tensor.normal_()
            server.remember(layer, who, new, k[: count * each], v[: count * each])
        self.graph.replay() if self.graph else self._run()
        for layer, (q, _, _), out in zip(server.layers, self.inputs, self.outs, strict=True):
            server.assert_close(out[: count * each], server.want(layer, who, new, q))
        server.count(who, new)


@pytest.mark.parametrize("kind", SERVERS)
def test_graphs(kind, paged_attention_device):
    server = Server(paged_attention_device, dtype=torch.bfloat16, **SERVERS[kind])
    if kind == "windows":
        server.layers[1].sliding_window_size = 9
    server.backend.init_cuda_graph_state(4, 4)
    graphs = {size: Graph(server, DECODE, size) for size in (4, 2)}
    server.step(EXTEND, [0, 1, 2], [37, 1, 90])
    graphs[4].replay([2, 0, 1])
    graphs[2].replay([1, 2])
    server.step(EXTEND, [1, 4], [50, 21])
    server.step(DECODE, [4, 0], [1, 1])
    for _ in range(3):
        graphs[4].replay([0, 4, 1, 2])
    graphs[2].replay([4])


def test_graphs_of_drafts(paged_attention_device):
    server = Server(paged_attention_device, dtype=torch.bfloat16)
    server.backend.init_cuda_graph_state(2, 6)
    graph = Graph(server, VERIFY, 2, each=3)
    server.step(EXTEND, [0, 1, 2], [37, 1, 90])
    graph.replay([2, 1], each=3)
    graph.replay([0], each=3)


def test_whole_graphs_of_prompts_are_refused():
    """SGLang captures one for each number of tokens, with sequences of any lengths in it."""
    server = Server()
    server.backend.init_cuda_graph_state(2, 8)
    with pytest.raises(NotImplementedError) as error:
        server.backend.init_forward_metadata_out_graph(server.batch(EXTEND, [0, 1], [5, 3]), in_capture=True)
    want = "cuda_graph_config.prefill.backend: got full, want breakable or disabled (--attention-backend fovea)"
    assert str(error.value) == want


@pytest.fixture
def choices(monkeypatch):
    """The lists of names that SGLang's arguments take."""
    lists = {name: ["triton"] for name in ("attention", "deterministic_attention", "radix_supported_deterministic_attention")}
    adders = {f"add_{name}_backend_choices": names.extend for name, names in lists.items()}
    monkeypatch.setitem(sys.modules, "sglang.srt.server_args", SimpleNamespace(**adders))
    monkeypatch.setattr(sys.modules["sglang.srt"], "server_args", SimpleNamespace(**adders), raising=False)
    monkeypatch.setattr(SGL, "ATTENTION_BACKENDS", SGL.ATTENTION_BACKENDS)
    yield lists
    SGL.ATTENTION_BACKENDS.pop("fovea", None)


def test_plugin(choices, monkeypatch):
    """SGLang finds the backend by the entry point that the package declares."""
    declared = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    _, _, rest = declared.partition('[project.entry-points."sglang.srt.plugins"]\nfovea = "')
    point = EntryPoint("fovea", rest.partition('"')[0], "sglang.srt.plugins")
    plugins = sys.modules["sglang.srt.plugins"]
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == point.group else [])
    monkeypatch.setattr(plugins, "_plugins_loaded", False)
    plugins.load_plugins()
    assert all(names == ["triton", "fovea"] for names in choices.values())
    assert type(SGL.ATTENTION_BACKENDS["fovea"](Server().runner)).__name__ == "Backend"


@pytest.mark.parametrize("version", ["0.5.12.post1", "0.6.0", None])
def test_unknown_version(version, choices, monkeypatch, caplog):
    monkeypatch.setattr(fovea.integrations.sglang, "_version", lambda: version)
    with caplog.at_level(logging.WARNING):
        fovea.integrations.sglang.register()
    assert [record.getMessage() for record in caplog.records] == [
        f"fovea: got SGLang {version}, want 0.5.13 to 0.5.23; SGLang continues without --attention-backend fovea"
    ]
    assert "fovea" not in choices["attention"] and "fovea" not in SGL.ATTENTION_BACKENDS


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"cache": torch.float8_e5m2}, "kv_cache_dtype: got torch.float8_e5m2, want bfloat16, float16, float32, float8_e4m3fn"),
        ({"arguments": {"speculative_eagle_topk": 4}}, "speculative_eagle_topk: got 4, want 1 (no tree of drafts)"),
        ({"arguments": {"dcp_size": 2}}, "dcp_size: got 2, want 1"),
    ],
)
def test_server_refused(change, text):
    with pytest.raises(NotImplementedError) as error:
        Server(**change)
    assert str(error.value) == f"{text} (--attention-backend fovea)"


@pytest.mark.parametrize(
    ("layer", "extras", "text"),
    [
        ({"is_cross_attention": True}, {}, "layer.is_cross_attention: got True, want False"),
        ({"use_irope": True}, {}, "layer.use_irope: got True, want False"),
        ({}, {"rel_bias": 1}, "rel_bias: got int, want None"),
    ],
)
def test_layer_refused(layer, extras, text):
    server = Server(**layer)
    with pytest.raises(NotImplementedError) as error:
        server.step(EXTEND, [0], [3], **extras)
    assert str(error.value) == f"{text} (--attention-backend fovea)"
