#!/usr/bin/env bash
# NVIDIA's libraries, unmodified, on the software device, against a CPU reference (tests/libraries).
# Prints a table of cases; exit status 0 if all are right, 77 if the libraries are not there.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

usage() {
  cat <<'TXT'
scripts/test-libraries.sh [OPTION]... [NAME...]
  NAME            a library, or a part of a case's name in it: cufft, cusparse:spmv
  --remote        through a broker and daemon of its own instead of directly
  --quick         a few cases of short kernels, in seconds
  --limit S       seconds for one case (60)
  --install       only install the libraries: --quick those of the quick cases
  --installed     install nothing; status 77 where something is missing
  --build FOLDER  the build to test (build/dev)
TXT
}

# What is tested; docs/compatibility.md names these versions.
QUICK_WHEELS=(
  nvidia-cufft==12.0.0.61 nvidia-curand==10.4.0.35 nvidia-cusparse==12.6.3.3 nvidia-nvjitlink==13.0.88
)
MORE_WHEELS=(
  nvidia-cublas==13.0.2.14 nvidia-cusolver==12.0.9.81 nvidia-cuda-nvrtc==13.0.88
  nvidia-cudnn-cu13==9.14.0.64
)

build="$FARGPU_ROOT/build/dev"
quick=0 install=1 run=1
arguments=()
while (($#)); do
  case "$1" in
    --quick) quick=1 && arguments+=("$1") ;;
    --remote) arguments+=("$1") ;;
    --limit) arguments+=("$1" "${2:?--limit needs seconds}") && shift ;;
    --install) run=0 ;;
    --installed) install=0 ;;
    --build) build="$(cd "${2:?--build needs a folder}" && pwd)" && shift ;;
    -h | --help) usage && exit 0 ;;
    -*) usage >&2 && exit 2 ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

wheels=("${QUICK_WHEELS[@]}")
((quick)) || wheels+=("${MORE_WHEELS[@]}")
venv="$FARGPU_DEPS/libraries-venv"

# install_wheels WHEEL...: those that the virtual environment lacks.
install_wheels() {
  local wheel missing=()
  for wheel in "$@"; do
    grep -qxF "$wheel" "$venv/installed" 2>/dev/null || missing+=("$wheel")
  done
  ((${#missing[@]})) || return 0
  ((install)) || return 77
  echo "test-libraries: installing ${missing[*]}"
  mkdir -p "$FARGPU_DEPS"
  exec 9>"$FARGPU_DEPS/libraries-lock"
  flock 9
  [[ -x "$venv/bin/pip" ]] || /usr/bin/python3 -m venv "$venv" || return 77
  # Nothing is kept twice: the wheels are large.
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps \
    "${missing[@]}" || return 77
  printf '%s\n' "${missing[@]}" >>"$venv/installed"
  exec 9>&-
}

install_wheels "${wheels[@]}" || {
  echo "test-libraries: NVIDIA's libraries are not installed; scripts/test-libraries.sh --install" >&2
  exit 77
}
((run)) || exit 0
fargpu_is_cuda_home "$CUDA_HOME" || fargpu_die "no CUDA toolkit; run scripts/setup.sh"
[[ -e "$build/softgpu/libcuda.so.1" ]] || fargpu_die "$build holds no software device; build it first"

tree="$(echo "$venv"/lib/python3*/site-packages/nvidia)"
programs="$build/libraries"
mkdir -p "$programs"
include=()
for folder in cu13 cudnn; do
  [[ ! -d "$tree/$folder/include" ]] || include+=("-I$tree/$folder/include")
done
runner=(/usr/bin/python3 -B "$FARGPU_ROOT/tests/libraries/run.py" --programs "$programs")
wanted="$("${runner[@]}" --print-libraries "${arguments[@]}")"
for library in $wanted; do
  source="$FARGPU_ROOT/tests/libraries/${library}_test.cu"
  program="$programs/${library}_test"
  if [[ ! -e "$program" || "$source" -nt "$program" ||
    "$FARGPU_ROOT/tests/libraries/library_test.h" -nt "$program" ]]; then
    nvcc -std=c++17 -O2 --extended-lambda -arch=compute_90 "${include[@]}" "$source" -o "$program"
  fi
done

export FARGPU_E2E_BIN="$build/bin" FARGPU_E2E_SOFTGPU="$build/softgpu" FARGPU_E2E_PROGRAMS="$programs"
export FARGPU_E2E_CUDA_LIBRARIES="$CUDA_HOME/lib64"
"${runner[@]}" --library-path "$tree/cu13/lib" --library-path "$tree/cudnn/lib" "${arguments[@]}"
