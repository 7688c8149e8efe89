# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Installations of ./dev before it works: Debian packages, as root, and virtual environments.

readonly DEMO_PACKAGES=(g++ cmake ninja-build python3 python3-venv)
readonly PACKAGES=(
  "${DEMO_PACKAGES[@]}" ccache git pkgconf clang-format-14
  libfmt-dev libcli11-dev nlohmann-json3-dev libgtest-dev
)
# For the HIP kernels: their compiler, what reads its objects, and fibers for emulation.
readonly HIP_PACKAGES=(clang-19 lld-19 llvm-19 libboost-context-dev)
readonly VENV=.venv

# missing_packages PACKAGE...
missing_packages() {
  local package
  for package; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -qx 'install ok installed' \
      || printf '%s ' "$package"
  done
}

install_packages() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q && apt-get install -y -q --no-install-recommends "$@"
}

# need_packages PACKAGE...: installs those that are missing, as root.
need_packages() {
  local -a missing
  if ! command -v dpkg-query >/dev/null; then
    say "No Debian here: make sure that you have what these packages hold: $*"
    return
  fi
  read -r -a missing <<<"$(missing_packages "$@")"
  if ((${#missing[@]} == 0)); then return; fi
  if ((EUID != 0)); then
    die "these packages are missing; install them and try again:
  sudo apt-get install --no-install-recommends ${missing[*]}"
  fi
  step "Installing ${missing[*]}" install_packages "${missing[@]}" \
    || die "apt-get could not install the packages"
}

# setup_system: the packages of every command but the demo. HIP is left out where it is missing.
setup_system() {
  if ((EUID == 0)); then (need_packages "${HIP_PACKAGES[@]}") || say "  continuing without HIP"; fi
  need_packages "${PACKAGES[@]}"
}

# install_python FOLDER REQUIREMENTS: keeps what a folder has, unless its interpreter is another.
install_python() {
  local -a clear=() pip=("$1/bin/pip" install --disable-pip-version-check --no-input)
  local real='import os, sys; print(os.path.realpath(sys.executable))'
  if [[ $(realpath -q "$1/bin/python3") != $(python3 -c "$real") ]]; then clear=(--clear); fi
  python3 -m venv "${clear[@]}" "$1" \
    && "${pip[@]}" -r <(printf '%s\n' "$2") \
    && "${pip[@]}" --no-deps -r tools/requirements-no-deps.txt
}

# setup_environment FOLDER REQUIREMENTS MARK: the file MARK says what the folder has.
setup_environment() {
  local want
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
    || die "python3: got $(python3 --version), want 3.11 or newer"
  want=$(cat tools/requirements-no-deps.txt; printf '%s\n' "$2"; python3 --version)
  if [[ -f $1/$3 && $(<"$1/$3") == "$want" ]]; then return; fi
  if [[ -L $1 ]]; then die "$1 is a link to an environment for something else; set that up where it lies, or remove the link"; fi
  rm -f "$1"/{complete,demo}
  step "Making the virtual environment $1" install_python "$1" "$2" \
    || die "the virtual environment could not be made"
  printf '%s\n' "$want" >"$1/$3"
}

# setup_python [FOLDER [TORCH]]: with another version of PyTorch than the pinned one.
setup_python() {
  local requirements
  requirements=$(cat tools/requirements-demo.txt tools/requirements.txt \
    | sed "s/^torch==.*/${2:+torch==}${2:-&}/")
  setup_environment "${1:-$VENV}" "$requirements" complete
}

# The demo needs no tools of the tests.
setup_demo() {
  need_packages "${DEMO_PACKAGES[@]}"
  if [[ -f $VENV/complete ]]; then return; fi
  setup_environment "$VENV" "$(<tools/requirements-demo.txt)" demo
}

setup() {
  setup_system
  setup_python
}
