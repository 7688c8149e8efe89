# SPDX-License-Identifier: Apache-2.0
"""The sections on dense and paged attention on a GPU, from files of their benchmarks."""

from collections.abc import Callable
from pathlib import Path

from plot_latent import case_table, ceilings, peers, plot_ceilings
from plotting import DOCS, heading, missing, provenance

DENSE = """A case says the head dims, the heads (on how many kv heads), the sequences, the query tokens (q, where fewer than keys),
the keys and the mask. A causal call counts the FLOPs of half of the scores. cuDNN and FlashAttention-2 are PyTorch's. """
ABOUT = {
    "dense-attention": (
        "dense attention, forward",
        "dense_attention.py",
        DENSE + "Calls of Fovea and of FlashAttention-3 compute lse; PyTorch's may leave it out.",
    ),
    "dense-backward": (
        "dense attention, gradient",
        "dense_backward.py",
        DENSE
        + "A call is autograd's, without the forward pass. Fovea's results have the same bits from run to run in rows that say "
        "deterministic, and in all that were measured before 2026-11-27; those of the peers do not.",
    ),
    "paged-decode": (
        "paged attention",
        "paged_decode.py",
        "A case says the sequences, the query tokens of each (sq), the tokens of its cache, the heads (on how many kv heads), the "
        "head dim and the tokens of a page. A decode whose launch could outlast its kernels runs as a CUDA graph; L2 is flushed "
        "before each run. FlashInfer's plans are made before; its XQA kernel rounds queries to e4m3 beside such a cache.",
    ),
    "quantized-attention": (
        "8-bit attention",
        "quantized_attention.py",
        DENSE
        + '"attend" is the kernel on quantised tensors, "whole" is the call that quantises too. A quantiser is held against the '
        "copy rate, with each tensor counted once, also where means and scales need a second look. 16 bits are products of a warp "
        "on every device.",
    ),
}


def section_of(kind: str) -> Callable[[Path, dict], str]:
    what, program, about = ABOUT[kind]

    def section(path: Path, results: dict) -> str:
        device, title = path.parent.name, f"{results['device']}: {what}"
        lists = ("quantisers", "cases", "decode", "pages", "head_dims", "prefill", "mixed", "append", "merge")
        results = results | {"cases": [row for name in lists for row in results.get(name, [])]}
        picture = f"performance-{device}-{kind}-ceilings.svg"
        plot_ceilings(results, title, DOCS / picture)
        others = peers(results["cases"])
        beside = f" {', '.join(others)} ran on the same inputs in the same process, by turns." if others else ""
        results["peers"] = {name: version for name, version in results.get("peers", {}).items() if name in others}
        return f"""## {heading(what)}

{provenance(path, results, program)}

{about}{beside}

{ceilings(results)}

![Fraction of the ceilings]({picture})

{case_table(results["cases"])}
{missing(results)}"""

    return section
