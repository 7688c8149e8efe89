# SPDX-License-Identifier: Apache-2.0
"""The program that `./dev wheel --aarch64` runs under qemu: Fovea's results beside PyTorch's, forward, paged and backward."""

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

import fovea


def largest_difference(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.float() - want.float()).abs().max())


def dense(dtype: torch.dtype, causal: bool) -> float:
    q, k, v = (torch.randn(2, heads, 50, 64).to(dtype) for heads in (8, 2, 2))
    got = fovea.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    return largest_difference(got, sdpa(q, k, v, is_causal=causal, enable_gqa=True))


def gradient() -> float:
    tensors = [torch.randn(1, 4, 33, 64, requires_grad=True) for _ in range(3)]
    got = torch.autograd.grad(fovea.scaled_dot_product_attention(*tensors, is_causal=True).square().sum(), tensors)
    want = torch.autograd.grad(sdpa(*tensors, is_causal=True).square().sum(), tensors)
    return max(map(largest_difference, got, want))


def paged() -> float:
    q, cache = torch.randn(3, 8, 64), torch.randn(2, 12, 16, 2, 64)
    table = torch.randperm(12, dtype=torch.int32).view(3, 4)
    got = fovea.paged_attention(q, cache[0], cache[1], table, torch.full((3,), 64, dtype=torch.int32))
    k, v = (cache[side][table.long()].flatten(1, 2).transpose(1, 2) for side in range(2))
    return largest_difference(got, sdpa(q[:, :, None], k, v, enable_gqa=True)[:, :, 0])


def main() -> None:
    torch.manual_seed(0)
    here = {row.name for row in fovea.implementations() if row.available}
    assert {"cpu.neon.attention", "cpu.neon.paged_attention", "cpu.neon.attention_backward"} <= here, sorted(here)
    differences = {
        f"dense, {str(dtype).removeprefix('torch.')}{', causal' if causal else ''}": (dense(dtype, causal), bound)
        for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2))
        for causal in (False, True)
    }
    differences |= {"paged": (paged(), 1e-5), "gradient": (gradient(), 1e-4)}
    for what, (difference, bound) in differences.items():
        print(f"{what}: {difference:.2g} from PyTorch's, of {bound:.0e}")
        assert difference <= bound, what


if __name__ == "__main__":
    main()
