#!/usr/bin/env bash
# Measures what FarGPU costs, on the software device: calls that wait, launches, copies; beside what
# the machine itself can do and beside the same program without the network. And the software device
# itself: kernels beside the same loops on the bare CPU.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
source "$(dirname "${BASH_SOURCE[0]}")/bench_figures.sh"

usage() {
  cat <<'TXT'
scripts/bench.sh [--preset NAME] [--output FILE] [--quick]
  --preset NAME   the build to measure (default: dev)
  --output FILE   where the figures go as JSON (default: build/NAME/bench.json)
  --quick         few calls and small copies, only to see that it works
TXT
}

preset=dev
output=
while (($#)); do
  case "$1" in
    --preset) preset="${2:?--preset needs a name}" && shift ;;
    --output) output="${2:?--output needs a file}" && shift ;;
    --quick) bench_arguments=(--quick) ;; # read by bench_measure
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
  shift
done
build="$FARGPU_ROOT/build/$preset"
output="${output:-$build/bench.json}"
# Built already when the tests call it.
[[ -n "${FARGPU_BENCH_NO_BUILD:-}" ]] || "$FARGPU_ROOT/scripts/build.sh" "$preset" >&2

FARGPU_HOME="$(mktemp -d "${TMPDIR:-/tmp}/fargpu-bench.XXXXXX")"
export FARGPU_HOME
fargpu="$build/bin/fargpu"
finish() {
  "$fargpu" down >/dev/null 2>&1 || true
  rm -rf "$FARGPU_HOME"
}
trap finish EXIT
export FARGPU_SOFTGPU="${FARGPU_SOFTGPU:-memory=2GiB}"
"$fargpu" up >&2
mkdir "$FARGPU_HOME/figures"
bench_measure "$FARGPU_HOME/figures" "$build/perf" "$build/softgpu" "$fargpu" tcp shm
bench_measure_softgpu "$FARGPU_HOME/figures" "$build/perf" "$build/softgpu"
bench_print "$FARGPU_HOME/figures" tcp shm
bench_print_softgpu "$FARGPU_HOME/figures"
bench_json "$FARGPU_HOME/figures" tcp shm softgpu >"$output"
echo
echo "written to ${output#"$FARGPU_ROOT/"}"
