#!/usr/bin/env bash
# Builds everything: scripts/build.sh [PRESET [CMAKE_ARGUMENT...]]
# PRESET is one of CMakePresets.json: dev (default), release, clang, asan, tsan. Result: build/PRESET.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

preset="${1:-dev}"
shift || true
"$FARGPU_ROOT/scripts/setup.sh"
cd "$FARGPU_ROOT"
cmake --preset "$preset" "${FARGPU_CMAKE_ARGUMENTS[@]}" "$@"
ninja -C "build/$preset"
