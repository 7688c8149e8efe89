# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ./dev docs: what documents show, and the documentation site.

readonly SITE=build/docs

# Doxygen, and a virtual environment apart from that of everything else. False where Doxygen cannot be installed.
setup_site() {
  if ! command -v doxygen >/dev/null; then
    ((EUID == 0)) || return 1
    step "Installing doxygen" install_packages doxygen || return 1
  fi
  local want
  want=$(cat tools/requirements-docs.txt; python3 --version)
  if [[ -f $SITE/venv/complete && $(<"$SITE/venv/complete") == "$want" ]]; then return; fi
  step "Making the virtual environment $SITE/venv" install_site_python || die "the virtual environment could not be made"
  printf '%s\n' "$want" >"$SITE/venv/complete"
}

install_site_python() {
  rm -rf "$SITE/venv"
  python3 -m venv "$SITE/venv" && "$SITE/venv/bin/pip" install --disable-pip-version-check --no-input -r tools/requirements-docs.txt
}

# Warnings are errors; links are followed, into the C++ reference too.
build_site() {
  rm -rf "$SITE/doxygen"
  mkdir -p "$SITE"
  doxygen tools/site/Doxyfile && NO_MKDOCS_2_WARNING=1 "$SITE/venv/bin/mkdocs" build --strict
}

make_site() {
  setup_site || die "doxygen is missing: sudo apt-get install doxygen"
  step "Making the documentation site" build_site && say "$SITE/site/index.html"
}

# docs: what the documents show of examples, of the program and of measured results.
docs() {
  local plot
  step "Building the program and the PyTorch binding" build_release fovea_cli fovea_torch || die "the build failed"
  for plot in plot plot_overview plot_quantisation plot_distributed; do
    PYTHONPATH="$BUILD/python" "$VENV/bin/python" "bench/$plot.py"
  done
  tools/check_docs --fix --program "$BUILD/cli/fovea"
}

test_site() {
  if setup_site; then
    check "Documentation site" build_site
  else
    say "Documentation site: doxygen is not here, so it is not built"
    skipped=$((skipped + 1))
  fi
}
