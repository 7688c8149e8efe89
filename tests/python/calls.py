# SPDX-License-Identifier: Apache-2.0
"""Which of Fovea's operators run."""

from torch.utils._python_dispatch import TorchDispatchMode


class Calls(TorchDispatchMode):
    """Within it, the names of Fovea's operators are noted in `names`."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "fovea":
            self.names.append(func._schema.name.removeprefix("fovea::"))
        return func(*args, **(kwargs or {}))
