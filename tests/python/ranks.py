# SPDX-License-Identifier: Apache-2.0
"""Runs functions on the ranks of a group: processes start once for each number of ranks, and run all cases of a module."""

import importlib
import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

TIMEOUT = timedelta(seconds=120)


def run_all(module: str, ranks: int, folder: Path, backend: str = "gloo") -> dict[str, list[str | None]]:
    """For each case of a module (``cases(ranks)``: name to function), what went wrong on each rank."""
    torch.multiprocessing.start_processes(_serve, (module, ranks, str(folder), backend), nprocs=ranks, start_method="spawn")
    said = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    return {name: [of_rank[name] for of_rank in said] for name in said[0]}


def _serve(rank: int, module: str, ranks: int, folder: str, backend: str) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(backend, init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks, timeout=TIMEOUT)
    said: dict[str, str | None] = {}
    for name, case in importlib.import_module(module).cases(ranks).items():
        torch.manual_seed(0)
        try:
            case(rank, ranks)
            said[name] = None
        except Exception:
            said[name] = traceback.format_exc()
    Path(folder, f"rank{rank}.json").write_text(json.dumps(said))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # a case that compiles makes torch keep the group: its threads may abort while the interpreter ends
