#!/usr/bin/env bash
# Shows FarGPU at work on this machine alone: starts a pool with a software card, runs a CUDA program
# on it as on a far card, shows the pool, and leaves nothing running. Needs no GPU.
set -euo pipefail
if (($#)); then
  sed -n '2,/^set/s/^# //p' "${BASH_SOURCE[0]}"
  [[ "$1" == -h || "$1" == --help ]] && exit 0
  exit 2
fi
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

"$FARGPU_ROOT/scripts/build.sh" dev >&2
fargpu="$FARGPU_ROOT/build/dev/bin/fargpu"
program="$FARGPU_ROOT/build/dev/programs/matmul_tiled"

FARGPU_HOME="$(mktemp -d "${TMPDIR:-/tmp}/fargpu-demo.XXXXXX")"
export FARGPU_HOME
finish() {
  local status=$?
  "$fargpu" down >&2 || true
  ((status == 0)) || tail -n 20 "$FARGPU_HOME"/*.log >&2 || true
  rm -rf "$FARGPU_HOME"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"$fargpu" up >&2
echo '$ fargpu run --memory 1GiB --cores 30 -- matmul_tiled'
# shellcheck disable=SC2016  # for the shell inside the lease
"$fargpu" run --memory 1GiB --cores 30 -- sh -c '"$1" && echo && echo "$ fargpu pool" && "$2" pool' \
  sh "$program" "$fargpu"
