# shellcheck shell=bash
# Sourced by bench.sh and gpu-check.sh: runs the bench programs and puts their figures side by side.
# Needs bash and awk only, because gpu-check.sh runs on machines that have nothing else.
#
# The bench programs print one line per figure: name median lowest highest unit.

# bench_measure FOLDER PROGRAMS DIRECT_LIBRARIES FARGPU TRANSPORT...
# Runs raw_bench and cuda_bench of folder PROGRAMS: on the driver in DIRECT_LIBRARIES (a value for
# LD_LIBRARY_PATH), and by `FARGPU run` over each TRANSPORT. The figures go into FOLDER/raw,
# FOLDER/direct and FOLDER/TRANSPORT. Arguments for cuda_bench stand in the array bench_arguments.
bench_arguments=()
bench_measure() {
  local folder="$1" programs="$2" direct="$3" fargpu="$4" transport
  shift 4
  echo "measuring the machine itself" >&2
  "$programs/raw_bench" >"$folder/raw" || return
  echo "measuring the driver without the network" >&2
  LD_LIBRARY_PATH="$direct" "$programs/cuda_bench" "${bench_arguments[@]}" >"$folder/direct" || return
  for transport in "$@"; do
    echo "measuring FarGPU over $transport" >&2
    FARGPU_TRANSPORT="$transport" "$fargpu" run --memory 1GiB --cores 100 -- \
      "$programs/cuda_bench" "${bench_arguments[@]}" >"$folder/$transport" || return
  done
}

# bench_measure_softgpu FOLDER PROGRAMS LIBRARIES: the software device beside the bare CPU, into
# FOLDER/softgpu. Where softgpu_bench was not built (no clang with OpenMP) it says so.
bench_measure_softgpu() {
  local folder="$1" programs="$2" libraries="$3"
  if [[ ! -x "$programs/softgpu_bench" ]]; then
    echo "no softgpu_bench: the software device is not compared with the CPU" >&2
    : >"$folder/softgpu"
    return
  fi
  echo "measuring the software device beside the bare CPU" >&2
  # The caller's path as well: cuBLAS is measured where it is found.
  LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    "$programs/softgpu_bench" "${bench_arguments[@]}" >"$folder/softgpu"
}

# bench_print_softgpu FOLDER: its table.
bench_print_softgpu() {
  awk '
    function cell(name) {
      if (!(name in median)) return "missing"
      return sprintf("%.3g (%.3g .. %.3g) %s", median[name], lowest[name], highest[name], unit[name])
    }
    { median[$1] = $2; lowest[$1] = $3; highest[$1] = $4; unit[$1] = $5 }
    BEGIN {
      split("saxpy 0.7 black_scholes 0.7 sgemm_tile16 0.35 sgemm_tile32 0.35 sgemm_cublas 0.3 " \
            "reduction 0.5 nbody 0.6", words, " ")
      for (i = 1; i in words; i += 2) goal[words[i]] = words[i + 1]
    }
    /_device / { name = $1; sub(/_device$/, "", name); order[++pairs] = name }
    END {
      if (!NR) exit
      printf "\n%-16s%32s%32s%32s%32s%8s\n", "Software device", "device", "CPU", "CPU / device",
             "by CPU time", "goal"
      for (i = 1; i <= pairs; ++i) {
        printf "%-16s%32s%32s%32s%32s%8s\n", order[i], cell(order[i] "_device"),
               cell(order[i] "_baseline"), cell(order[i] "_ratio"), cell(order[i] "_cpu_ratio"),
               goal[order[i]]
      }
      printf "empty launch %s (goal: 2 us), with wait %s\n", cell("empty_launch"), cell("empty_launch_and_wait")
      printf "first launch of a kernel of 210 instructions %s, in a second process %s\n",
             cell("first_launch"), cell("first_launch_cached")
    }' "$1/softgpu"
}

# bench_print FOLDER TRANSPORT...: the table.
bench_print() {
  local folder="$1"
  shift
  (cd "$folder" && awk '
    function short(value) {
      if (value >= 10000) return sprintf("%.0fk", value / 1000)
      return sprintf(value >= 100 ? "%.0f" : value >= 10 ? "%.1f" : "%.2f", value)
    }
    function cell(where, name) {
      if (!((where, name) in median)) return "-"
      return short(median[where, name]) " (" short(lowest[where, name]) " .. " \
             short(highest[where, name]) ")"
    }
    function row(title, name,   i) {
      printf "%-34s", title
      for (i = 1; i <= places; ++i) printf "%26s", cell(place[i], name)
      printf "\n"
    }
    function head(title,   i) {
      printf "\n%-34s", title
      for (i = 1; i <= places; ++i) printf "%26s", place[i]
      printf "\n"
    }
    FNR == 1 { place[++places] = FILENAME }
    {
      median[FILENAME, $1] = $2; lowest[FILENAME, $1] = $3; highest[FILENAME, $1] = $4
      if (!($1 in seen)) { seen[$1] = 1; order[++figures] = $1 }
    }
    END {
      print "Each figure: median of 5 rounds (lowest .. highest). raw: the machine itself;"
      print "direct: the program on the driver without a network; then FarGPU by transport."
      head("Calls that wait, microseconds")
      row("TCP ping-pong 64 B, blocking", "tcp_pingpong_blocking")
      row("TCP ping-pong 64 B, busy", "tcp_pingpong_busy")
      row("cudaMemcpy of 4 bytes back", "copy_4_bytes_back")
      row("cudaDeviceSynchronize, idle", "synchronize_idle")
      row("launch + cudaDeviceSynchronize", "launch_and_synchronize")
      head("Launches per second")
      row("empty kernel, one sync at the end", "launches")
      head("First call, milliseconds")
      row("cudaFree(0)", "first_call")
      head("Copies, GB/s")
      for (i = 1; i <= figures; ++i) {
        if (order[i] !~ /^memcpy_/) continue
        size = order[i]
        sub(/.*_/, "", size)
        row(size " memcpy", "memcpy_" size)
        row(size " TCP stream", "tcp_stream_" size)
        row(size " to the device", "h2d_" size)
        row(size " to the host", "d2h_" size)
        row(size " to the device, pinned", "h2d_pinned_" size)
        row(size " to the host, pinned", "d2h_pinned_" size)
      }
    }' raw direct "$@")
}

# bench_json FOLDER TRANSPORT...: the same figures for programs.
bench_json() {
  local folder="$1"
  shift
  (cd "$folder" && awk '
    BEGIN { printf "{\"rounds\": 5, \"figures\": [" }
    {
      printf "%s\n  {\"where\": \"%s\", \"name\": \"%s\", \"median\": %s, \"lowest\": %s, \"highest\": %s, \"unit\": \"%s\"}",
             (NR > 1 ? "," : ""), FILENAME, $1, $2, $3, $4, $5
    }
    END { printf "\n]}\n" }' raw direct "$@")
}
