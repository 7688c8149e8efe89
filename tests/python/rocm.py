# SPDX-License-Identifier: Apache-2.0
"""A program: custom_paged_attn on the tensors of a device that torch calls cuda, as ROCm's build does.

The device's memory is the host's. torch wraps it as it wraps the memory of other libraries (DLPack), and the few operators that a
call needs of the device are defined here. Prints the name of the device and what each case gives, or why it is declined.

    python rocm.py libtorch_hip.so
"""

import ctypes
import sys

import torch

ctypes.CDLL(sys.argv[1])

# The binding looks for torch's library when it is first used.
import fovea  # noqa: E402
from fovea.compat.custom_attn import custom_paged_attn  # noqa: E402


class Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class ElementType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Managed(ctypes.Structure):
    """DLManagedTensor, of DLPack's first version."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("rank", ctypes.c_int32),
        ("dtype", ElementType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


CPU, CUDA = 1, 2
CODES = {torch.float16: 2, torch.bfloat16: 4, torch.float32: 2, torch.int32: 0, torch.int64: 0, torch.uint8: 1}
kept = []  # what capsules point to

capsule = ctypes.pythonapi.PyCapsule_New
capsule.restype, capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


def wrapped(address: int, shape, strides, dtype: torch.dtype, device: int) -> torch.Tensor:
    axes = ctypes.c_int64 * max(1, len(shape))
    element = ElementType(CODES[dtype], 8 * dtype.itemsize, 1)
    managed = Managed(address, Device(device, 0), len(shape), element, axes(*shape), axes(*strides), 0, None, None)
    kept.append(managed)
    return torch.utils.dlpack.from_dlpack(capsule(ctypes.addressof(managed), b"dltensor", None))


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_cuda:
        return tensor
    return wrapped(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, CPU)


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    kept.append(tensor)
    return wrapped(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, CUDA)


def empty(size, dtype=None, **_):
    return on_device(torch.full(size, 99, dtype=dtype or torch.float32))


def empty_strided(size, stride, dtype=None, **_):
    return on_device(torch.empty_strided(size, stride, dtype=dtype or torch.float32).fill_(99))


def copy(to, source, non_blocking=False):
    on_host(to).copy_(on_host(source))
    return to


torch.cuda._lazy_init = lambda: None
library = torch.library.Library("aten", "IMPL")
for name, function in (("empty.memory_format", empty), ("empty_strided", empty_strided), ("copy_", copy)):
    library.impl(name, function, "CUDA")


def case(dtype: torch.dtype, page: int, query_lens: list[int], kv_lens: list[int], soft_cap: float) -> str:
    torch.manual_seed(page)
    heads, kv_heads, dim, blocks = 6, 2, 64, -(-max(kv_lens) // page)
    q = torch.randn(sum(query_lens), heads, dim).to(dtype)
    caches = [torch.randn(len(kv_lens) * blocks, page, kv_heads, dim).to(dtype) for _ in range(2)]
    table = torch.randperm(len(kv_lens) * blocks).to(torch.int32).view(len(kv_lens), blocks)
    arguments = (query_lens, kv_lens)
    want = custom_paged_attn(q, *caches, *arguments, table, 0.2, soft_cap)
    try:
        got = custom_paged_attn(on_device(q), *map(on_device, caches), *arguments, on_device(table), 0.2, soft_cap)
    except RuntimeError as error:
        return str(error)
    if not got.is_cuda:
        return "not on the device"
    difference = (on_host(got).double() - want.double()).abs().max().item()
    return "right" if difference < 4 * torch.finfo(dtype).eps * want.double().abs().max().item() else f"off by {difference}"


print([device.name for device in fovea.devices() if device.backend == "hip"])
print(case(torch.float16, 16, [1, 1, 1], [5, 40, 1], -1.0))
print(case(torch.bfloat16, 3, [1, 9, 40], [7, 20, 40], 3.0))
