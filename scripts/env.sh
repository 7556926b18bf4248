# shellcheck shell=bash
# Sourced by every script here: where things are. Sets nothing that the caller has set.
#
#   FARGPU_ROOT   the source tree
#   FARGPU_DEPS   what scripts/setup.sh makes and is not a Debian package
#   CUDA_HOME     CUDA toolkit 13.0: the caller's, the system's, or the one of setup.sh
FARGPU_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
FARGPU_DEPS="${FARGPU_DEPS:-${XDG_CACHE_HOME:-$HOME/.cache}/fargpu}"
export FARGPU_ROOT FARGPU_DEPS

# True if $1 holds a CUDA toolkit that we can use.
fargpu_is_cuda_home() {
  [[ -x "$1/bin/nvcc" && -f "$1/include/cuda.h" ]] &&
    grep -q '^#define CUDA_VERSION 130[0-9][0-9]' "$1/include/cuda.h"
}

# FARGPU_CUDA_FROM_PYPI=1 passes over the system's toolkit.
if [[ -z "${CUDA_HOME:-}" ]] || ! fargpu_is_cuda_home "$CUDA_HOME"; then
  CUDA_HOME="$FARGPU_DEPS/cuda-13.0"
  if [[ -z "${FARGPU_CUDA_FROM_PYPI:-}" ]] && fargpu_is_cuda_home /usr/local/cuda; then
    CUDA_HOME=/usr/local/cuda
  fi
fi
export CUDA_HOME
export PATH="$CUDA_HOME/bin:$PATH"

# Objects are shared between build folders and between clones of the tree.
export CCACHE_BASEDIR="${CCACHE_BASEDIR:-$FARGPU_ROOT}"
export CCACHE_NOHASHDIR="${CCACHE_NOHASHDIR:-1}"

# For cmake --preset.
FARGPU_CMAKE_ARGUMENTS=(-DFARGPU_ABSEIL_PIC="$FARGPU_DEPS/abseil-pic" -DCMAKE_MESSAGE_LOG_LEVEL=WARNING)

# What fargpu_die says goes to stderr and ends the script.
fargpu_die() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}
