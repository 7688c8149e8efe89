# SPDX-License-Identifier: Apache-2.0
"""The C module that runs plans (``src/torch/plans/python``), with all that it needs of torch."""

from contextlib import suppress
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fovea import _library  # noqa: F401 (loads the operators)


def _module() -> Any:
    """None where Python has no limited API, or this torch lacks something."""
    with suppress(ImportError, AttributeError):
        module = import_module("fovea._plans")
        parts = SimpleNamespace(
            table=torch.ops.fovea.plan_table(),
            exchange=torch.Tensor.__dlpack_c_exchange_api__,
            tensor_type=Tensor,
            parameter_type=torch.nn.Parameter,
            modes=(
                torch._C._len_torch_dispatch_stack,
                torch._C._len_torch_function_stack,
                torch._C._get_tracing_state,
            ),
            forward_ad=forward_ad,
            is_grad_enabled=torch.is_grad_enabled,
            is_negative=Tensor.is_neg,
            increment_version=torch._C._increment_version,
            storage=Tensor.untyped_storage,
            storage_offset=Tensor.storage_offset,
        )
        module.setup(parts)
        return module
    return None


C_PLANS = _module()
