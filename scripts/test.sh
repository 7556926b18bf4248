#!/usr/bin/env bash
# Builds and runs every test, then the parts that sanitizers watch. The README's test command.
# Ends with one line "N passed, N failed" and a matching exit status; -h for what it can leave out.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
unset CUDA_VISIBLE_DEVICES  # some tests want two software cards

usage() {
  cat <<'TXT'
scripts/test.sh [--quick] [--preset NAME]...
  --quick         only the dev build's tests, without the sanitizers
  --preset NAME   only that build: dev, asan, tsan, fuzz, or clang, which is only built (may be
                  repeated; without it dev, asan, tsan and fuzz)
TXT
}

presets=()
while (($#)); do
  case "$1" in
    --quick) presets=(dev) ;;
    --preset) presets+=("${2:?--preset needs a name}") && shift ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
  shift
done
((${#presets[@]})) || presets=(dev asan tsan fuzz)

"$FARGPU_ROOT/scripts/setup.sh"
cd "$FARGPU_ROOT"
jobs="$(nproc)"
results=()

# run_tests PRESET CTEST_ARGUMENT...: what fails is counted, not fatal; a build that fails is fatal.
run_tests() {
  local preset="$1" report="$FARGPU_ROOT/build/$1/ctest.xml"
  shift
  rm -f "$report"
  ctest --preset "$preset" --parallel "$jobs" --output-junit "$report" "$@" </dev/null || true
  [[ -s "$report" ]] || fargpu_die "ctest wrote no report for preset $preset"
  results+=("$report")
}

for preset in "${presets[@]}"; do
  echo "== $preset"
  case "$preset" in
    dev)
      cmake --preset dev "${FARGPU_CMAKE_ARGUMENTS[@]}"
      ninja -C build/dev --quiet
      # Without them the test of NVIDIA's libraries is skipped.
      scripts/test-libraries.sh --install --quick ||
        echo "test: NVIDIA's libraries cannot be installed here"
      run_tests dev
      ;;
    clang)
      # The other compiler: its warnings, and the thread-safety analysis that only it has.
      cmake --preset clang "${FARGPU_CMAKE_ARGUMENTS[@]}"
      ninja -C build/clang --quiet
      ;;
    asan)
      cmake --preset asan "${FARGPU_CMAKE_ARGUMENTS[@]}"
      ninja -C build/asan --quiet
      run_tests asan --label-regex '^(unit|wire|e2e)$'
      ;;
    tsan)
      # Where our threads meet: the transport, the ledger and allocator, a worker's session, the
      # daemon, the software device's queues, grids and streams.
      cmake --preset tsan "${FARGPU_CMAKE_ARGUMENTS[@]}" \
        -DFARGPU_PARTS="common;protocol;transport;memory;server;softgpu"
      tests=(transport_link_test transport_spin_test transport_connection_conformance_test
             transport_ucx_link_test transport_control_test memory_lease_ledger_test
             memory_device_allocator_test memory_address_space_test server_session_test
             server_handlers_test server_worker_pool_test server_lease_table_test
             softgpu_work_queue_test softgpu_grid_test softgpu_meeting_test softgpu_stream_test
             softgpu_capture_test)
      ninja -C build/tsan --quiet "${tests[@]}"
      run_tests tsan --tests-regex "^($(IFS='|' && echo "${tests[*]}"))\$"
      ;;
    fuzz)
      # The front end of the software device, a minute for each of its fuzzers. The others' inputs
      # are replayed above.
      cmake --preset fuzz "${FARGPU_CMAKE_ARGUMENTS[@]}" -DFARGPU_PARTS="common;softgpu;tests" \
        -DFARGPU_FUZZ_SECONDS=60
      ninja -C build/fuzz --quiet fuzz_ptx_link fuzz_ptx_compile fargpu_fuzz_nvcc_seeds
      run_tests fuzz --tests-regex '^fuzz_ptx_(link|compile)$'
      ;;
    *) fargpu_die "no tests are defined for preset $preset" ;;
  esac
done

/usr/bin/python3 - "${results[@]}" <<'PY'
import sys
import xml.etree.ElementTree as xml

passed, failed, skipped = 0, [], 0
for path in sys.argv[1:]:
    for case in xml.parse(path).getroot().iter('testcase'):
        status = case.get('status')
        if status == 'run':
            passed += 1
        elif status in ('notrun', 'disabled') and case.find('failure') is None:
            skipped += 1
        else:
            failed.append(f"{path.split('/')[-2]}: {case.get('name')}")
for name in failed:
    print('FAILED', name)
print(f'{passed} passed, {len(failed)} failed' + (f', {skipped} skipped' if skipped else ''))
sys.exit(1 if failed or not passed else 0)
PY
