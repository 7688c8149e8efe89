# SPDX-License-Identifier: Apache-2.0
"""The section of docs/performance.md on dense attention on a GPU, from a file that bench/dense_attention.py wrote."""

from pathlib import Path

from plot_latent import case_table, ceilings, peers, plot_ceilings
from plotting import DOCS, missing, provenance


def section(path: Path, results: dict) -> str:
    device, title = path.parent.name, f"{results['device']}: dense attention, forward"
    plot_ceilings(results, title, DOCS / f"performance-{device}-dense-ceilings.svg")
    others = ", ".join(peers(results["cases"]))
    beside = f" {others} ran on the same inputs in the same process, by turns." if others else ""
    return f"""## {title}

{provenance(path, results, "dense_attention.py")}

A case says the head dims, the heads (on how many kv heads), the sequences, the query tokens (q, where fewer than keys), the
keys and the mask. Calls of Fovea and of FlashAttention-3 compute lse; PyTorch's
may leave it out. A causal call counts the FLOPs of half of the scores.{beside}
cuDNN and FlashAttention-2 are PyTorch's.

{ceilings(results)}

![Fraction of the ceilings](performance-{device}-dense-ceilings.svg)

{case_table(results["cases"])}
{missing(results)}"""
