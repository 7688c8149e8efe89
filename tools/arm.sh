# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./dev aarch64 and ./dev wheel --aarch64: for 64-bit Arm, from a machine of another kind, tried under qemu.

readonly ARM_PACKAGES=(g++-aarch64-linux-gnu qemu-user)
readonly ARM_BUILD=build/wheel-aarch64
# Grace Hopper, and PTX for later devices, which is that of 8.0. Own kernels of 10.0; 12.1 runs those of 12.0.
readonly ARM_CUDA='80;90a;100a;120'

aarch64() {
  need_packages "${ARM_PACKAGES[@]}"
  tested "aarch64-linux-gnu-g++" build/aarch64 "-DCMAKE_TOOLCHAIN_FILE=$PWD/cmake/aarch64-linux-gnu.cmake"
  summary
}

# ---- the wheel ------------------------------------------------------------------------------------------------------------

torch_of_here() { echo "$PWD/$VENV"/lib/python*/site-packages/torch; }

# The extension is linked with the names of torch's stable ABI alone, as this machine's torch has them.
arm_torch_names() {
  python3 tools/stub_libraries.py --out "$ARM_BUILD/names" exports "$(torch_of_here)/lib/libtorch_cpu.so" '(aoti_)?torch_'
}

# arm_cuda RELEASE: the static runtime of CUDA for Arm. Headers and compiler are this machine's.
arm_cuda() {
  "$VENV/bin/pip" install --disable-pip-version-check --quiet --no-deps --upgrade --only-binary=:all: --target "$ARM_BUILD/cuda" \
    --platform manylinux2014_aarch64 "nvidia-cuda-runtime==$1.*"
}

# arm_cuda_options STUBS: of CMake, a line each.
arm_cuda_options() {
  local toolkit runtime=$PWD/$ARM_BUILD/cuda/nvidia/cu13/lib
  toolkit=$(nvcc --dryrun nothing.cu 2>&1 | sed -n 's/^#$ TOP=//p')
  printf '%s\n' FOVEA_CUDA=ON "FOVEA_CUDA_ARCHITECTURES=$ARM_CUDA" CMAKE_CUDA_HOST_COMPILER=aarch64-linux-gnu-g++ \
    "CMAKE_CUDA_FLAGS=-I$toolkit/include -isystem $toolkit/include/cccl -L$runtime" \
    "CUDA_cudart_static_LIBRARY=$runtime/libcudart_static.a" "CUDAToolkit_rt_LIBRARY=$1/librt.so.1"
}

# make_arm_wheel STUBS OPTION...: from the unpacked sdist, like this machine's.
make_arm_wheel() {
  _PYTHON_HOST_PLATFORM=linux-aarch64 make_wheel "$ARM_BUILD/older" \
    "CMAKE_TOOLCHAIN_FILE=$PWD/cmake/aarch64-linux-gnu.cmake" "FOVEA_TORCH_CPU=$PWD/$ARM_BUILD/names/libtorch_cpu.so" \
    FOVEA_HIP=OFF "FOVEA_OLDER_GLIBC=$1" "${@:2}"
}

# An Arm Python of this Debian in $ARM_BUILD/root: packages that are unpacked and not installed, by lists of apt's of their own.
arm_python() {
  local apt=$PWD/$ARM_BUILD/apt root=$ARM_BUILD/root package
  [[ -f $root/complete ]] && return
  rm -rf "$apt" "$root"
  mkdir -p "$apt"/{lists,archives}/partial "$root/proc"
  touch "$apt/status"
  cat >"$apt/apt.conf" <<TEXT
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::Cache "$apt";
Debug::NoLocking "true";
TEXT
  APT_CONFIG=$apt/apt.conf apt-get update -q \
    && APT_CONFIG=$apt/apt.conf apt-get install -y -q --download-only --no-install-recommends python3 libstdc++6 || return
  for package in "$apt"/archives/*.deb; do dpkg-deb --extract "$package" "$root" || return; done
  # torch reads it, and fails on this machine's. Emulated programs see this one.
  printf '%s\n' 'processor : 0' 'Features : fp asimd crc32 atomics fphp asimdhp asimddp' 'CPU implementer : 0x41' 'CPU architecture: 8' \
    'CPU variant : 0x3' 'CPU part : 0xd0c' 'CPU revision : 1' '' >"$root/proc/cpuinfo"
  touch "$root/complete"
}

# arm_torch VERSION: for that Python, and libraries without code for those of CUDA that it asks for and that a CPU does not call.
arm_torch() {
  local site=$ARM_BUILD/site root=$ARM_BUILD/root python
  [[ -f $site/complete && $(<"$site/complete") == "$1" ]] && return
  rm -rf "$site" "$ARM_BUILD/absent"
  python=$(readlink "$root/usr/bin/python3")
  "$VENV/bin/pip" install --disable-pip-version-check --quiet --no-deps --only-binary=:all: --target "$site" --python-version "${python#python}" \
    --platform manylinux_2_28_aarch64 "torch==$1" typing_extensions \
    && python3 tools/stub_libraries.py --out "$ARM_BUILD/absent" absent --found "$site/torch/lib" --found "$root/lib" \
      --found "$root/lib/aarch64-linux-gnu" --found "$root/usr/lib/aarch64-linux-gnu" "$site"/torch/lib/*.so* \
    && printf '%s\n' "$1" >"$site/complete"
}

# under_qemu ARG...: that Python with ARG, which sees torch and the wheel.
under_qemu() {
  qemu-aarch64 -L "$PWD/$ARM_BUILD/root" -E "LD_LIBRARY_PATH=$PWD/$ARM_BUILD/absent" -E PYTHONDONTWRITEBYTECODE=1 \
    -E "PYTHONPATH=$PWD/$ARM_BUILD/fovea:$PWD/$ARM_BUILD/site" "$ARM_BUILD/root/usr/bin/python3" "$@"
}

# try_arm_wheel WHEEL: installed by pip for the platform in its name, and called.
try_arm_wheel() {
  local platform=${1##*-}
  rm -rf "$ARM_BUILD/fovea"
  "$VENV/bin/pip" install --disable-pip-version-check --no-index --no-deps --only-binary=:all: --target "$ARM_BUILD/fovea" \
    --platform "${platform%.whl}" "$1" \
    && under_qemu tests/python/wheel_on_arm.py \
    && under_qemu -m fovea explain --operation paged_attention
}

# arm_wheel [--cuda]
arm_wheel() {
  local made release version stubs=$PWD/$ARM_BUILD/glibc-$OLDEST_GLIBC options=(FOVEA_CUDA=OFF)
  need_packages "${ARM_PACKAGES[@]}"
  step "Installing ${WHEEL_TOOLS[*]}" wheel_tools || die "the tools could not be installed"
  step "Symbols of glibc $OLDEST_GLIBC for Arm" older_glibc aarch64 "$stubs" || die "zig could not make them"
  step "Names of torch's stable ABI for Arm" arm_torch_names || die "the linker's library could not be made"
  if [[ ${1:-} == --cuda ]]; then
    release=$(nvcc --version | sed -nE 's/.*release ([0-9.]+),.*/\1/p')
    step "CUDA's runtime $release for Arm" arm_cuda "$release" || die "no runtime of CUDA"
    mapfile -t options < <(arm_cuda_options "$stubs")
  fi
  step "Making the source archive" make_sdist || die "no source archive"
  step "Building the wheel for Arm" make_arm_wheel "$stubs" "${options[@]}" || die "the build failed"
  step "Repairing it" repair_wheel "$ARM_BUILD/older" aarch64 || die "auditwheel did not grant a tag"
  made=$(echo "$DIST/$DISTRIBUTION"-*_aarch64.whl)
  say "$made: $(stat -c %s "$made") bytes"
  check "The wheel's size" small_enough "$made"
  check "Its libraries" python3 tools/check_wheel.py "$made" aarch64 "$OLDEST_GLIBC"
  version=$("$VENV/bin/python" -c 'import torch; print(torch.__version__.partition("+")[0])')
  step "An Arm Python" arm_python || die "no Python for Arm"
  step "PyTorch $version for Arm" arm_torch "$version" || die "no PyTorch for Arm"
  check "The wheel under qemu" try_arm_wheel "$made"
  summary
}
