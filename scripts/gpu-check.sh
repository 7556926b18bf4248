#!/usr/bin/env bash
# Checks FarGPU against the card of this machine. Belongs into an unpacked bundle and needs nothing
# else but an NVIDIA driver: starts broker and daemon on loopback, runs test programs on the driver
# directly and through FarGPU, says where the two differ, and measures. Leaves nothing running.
set -uo pipefail

usage() {
  cat <<'TXT'
gpu-check.sh [--driver nvidia|softgpu] [--quick] [--no-bench] [--output FOLDER]
  --driver NAME     nvidia (default), or softgpu where the software device is unpacked too
  --quick           bench with few calls and small copies
  --no-bench        only compare
  --output FOLDER   keep the programs' outputs, the figures and the logs there
TXT
}

driver=nvidia
bench=yes
output=
quick=()
while (($#)); do
  case "$1" in
    --driver) driver="${2:?--driver needs a name}" && shift ;;
    --quick) quick=(--quick) ;;
    --no-bench) bench=no ;;
    --output) output="${2:?--output needs a folder}" && shift ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
  shift
done

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
fargpu="$here/bin/fargpu"
programs="$here/share/fargpu/programs"
if [[ ! -x "$fargpu" ]]; then
  echo "gpu-check.sh: no $fargpu; run it from an unpacked bundle (scripts/bundle.sh makes one)" >&2
  exit 2
fi
source "$here/share/fargpu/bench_figures.sh"
bench_arguments=("${quick[@]}")

# What the loader finds when a program runs on the driver directly.
direct=
if [[ "$driver" == softgpu ]]; then
  direct="$here/lib/fargpu/softgpu"
  export FARGPU_SOFTGPU="${FARGPU_SOFTGPU:-memory=2GiB}"
fi

FARGPU_HOME="$(mktemp -d "${TMPDIR:-/tmp}/fargpu-check.XXXXXX")"
export FARGPU_HOME
work="$FARGPU_HOME/check"
mkdir -p "$work"
finish() {
  "$fargpu" down >/dev/null 2>&1
  if [[ -n "$output" ]]; then
    mkdir -p "$output" && cp -r "$work"/. "$output"/ && cp "$FARGPU_HOME"/*.log "$output"/
  fi
  rm -rf "$FARGPU_HOME"
}
trap finish EXIT
trap 'exit 130' INT TERM

"$fargpu" --version
if ! "$fargpu" up --driver "$driver"; then
  echo "gpu-check.sh: broker and daemon did not start on driver $driver" >&2
  exit 1
fi
"$fargpu" pool
echo

# run WHERE NAME ARGUMENT...: output and status into $work; no program may take longer than 2 minutes.
run() {
  local where="$1" name="$2"
  shift 2
  if [[ "$where" == direct ]]; then
    LD_LIBRARY_PATH="$direct" timeout -k 5 120 "$programs/$name" "$@"
  else
    FARGPU_TRANSPORT="$where" timeout -k 5 120 "$fargpu" run --memory 1GiB --cores 100 -- \
      "$programs/$name" "$@"
  fi >"$work/$name.$where.out" 2>"$work/$name.$where.err" </dev/null
  echo $? >"$work/$name.$where.status"
}

same=0
different=0
printf '%-24s%-14s%-14s%-14s\n' PROGRAM DIRECT TCP SHM
while read -r name expected kind arguments; do
  case "$kind" in
    acceptance | behaviour | wider) ;;
    *) continue ;;
  esac
  printf '%-24s' "$name"
  # shellcheck disable=SC2086  # one word per argument
  run direct "$name" $arguments
  status="$(cat "$work/$name.direct.status")"
  if [[ "$status" == "$expected" ]]; then
    printf '%-14s' ok
  else
    printf '%-14s' "status $status"
  fi
  for where in tcp shm; do
    # shellcheck disable=SC2086
    run "$where" "$name" $arguments
    if cmp -s "$work/$name.direct.out" "$work/$name.$where.out" &&
      cmp -s "$work/$name.direct.status" "$work/$name.$where.status"; then
      same=$((same + 1))
      printf '%-14s' same
    else
      different=$((different + 1))
      printf '%-14s' DIFFERENT
    fi
  done
  echo
  for where in direct tcp shm; do
    [[ "$(cat "$work/$name.$where.status")" == "$expected" ]] ||
      sed "s/^/    $where: /" "$work/$name.$where.err" | head -n 5
  done
done < <(grep '^[a-z]' "$here/share/fargpu/programs.txt")
echo
echo "$same same, $different different"

status=0
((different == 0 && same > 0)) || status=1
if [[ "$bench" == yes ]]; then
  mkdir -p "$work/figures"
  if bench_measure "$work/figures" "$programs" "$direct" "$fargpu" tcp shm; then
    bench_print "$work/figures" tcp shm
    bench_json "$work/figures" tcp shm >"$work/bench.json"
  else
    echo "gpu-check.sh: the bench did not run through" >&2
    status=1
  fi
fi
exit "$status"
