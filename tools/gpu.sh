# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./dev gpu: builds for NVIDIA GPUs, and what is checked and measured on one.

readonly GPU_BUILD=build/gpu
# Tools that watch every access are slow: one case of each kind.
readonly SANITIZED_KINDS=(tiles layout split ragged empty decode _latent_cache v4)
# Racecheck of CUDA 13.0 reports reads past a named barrier at which others only arrive.
# Version 2026.4 does not.
readonly SANITIZER=${COMPUTE_SANITIZER:-compute-sanitizer}

# The GPUs of this machine, and 80: the driver compiles its portable kernels for other devices.
gpu_architectures() {
  nvidia-smi --query-gpu=compute_cap --format=csv,noheader \
    | tr -d . | sed 's/^90$/90a/; s/^100$/100a/; s/^12.$/120/; $a 80' | sort -u
}

# build_gpu [ARCHITECTURE...]
build_gpu() {
  if (($# == 0)); then mapfile -t found < <(gpu_architectures) && set -- "${found[@]}"; fi
  build "$GPU_BUILD" gpu fovea_conformance fovea_device_test fovea_cli -- \
    "-DFOVEA_CUDA_ARCHITECTURES=$(IFS=';' && echo "$*")"
}

# gpu_sanitizer TOOL IMPLEMENTATION [COMMAND...]: of implementations so named, behind a command.
gpu_sanitizer() {
  local filter
  filter=$(printf "*%s*$2*:" "${SANITIZED_KINDS[@]}")
  "${@:3}" "$SANITIZER" --tool "$1" --error-exitcode 9 \
    "$GPU_BUILD/tests/conformance/fovea_conformance" --tier quick --gtest_brief=1 \
    --gtest_filter="${filter%:}"
}

gpu() {
  local programs=$GPU_BUILD python=python3 tool
  nvidia-smi -L || die "no NVIDIA GPU here"
  if [[ -d /usr/include/CLI && -d /usr/include/gtest ]]; then
    step "Building for this machine's GPU" build_gpu || die "the build failed"
  elif [[ ! -x $programs/cli/fovea ]]; then
    die "the libraries of the tests are not installed here; bring the programs in $programs \
from a machine that has them: ./dev gpu --build"
  fi
  if has_blackwell; then blackwell; fi
  suite "Conformance of the CUDA kernels" build/gpu.xml \
    "$programs/tests/conformance/fovea_conformance" --tier full --gtest_brief=1 \
    '--gtest_filter=*cuda.*' --gtest_output=xml:build/gpu.xml
  suite "Graphs, streams, other lengths" build/device.xml \
    "$programs/tests/gpu/fovea_device_test" --gtest_brief=1 --gtest_output=xml:build/device.xml
  for tool in memcheck racecheck synccheck initcheck; do
    check "compute-sanitizer $tool" gpu_sanitizer "$tool" cuda.
  done
  "$python" -c 'import torch' 2>/dev/null || python=$VENV/bin/python
  check "Benchmarks" "$python" bench/device.py --program "$programs/cli/fovea" "$@"
  summary
}
