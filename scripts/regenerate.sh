#!/usr/bin/env bash
# Writes the generator's checked-in products anew: opcodes.lock, libcuda.map, api-coverage.md.
set -euo pipefail
cd "$(dirname "$0")/.."
include="${CUDA_HOME:-/usr/local/cuda}/include"
/usr/bin/python3 protocol/codegen/check.py "$PWD" "$include" --update
