#!/usr/bin/env bash
# Builds and runs a checkout of NVIDIA's cuda-samples on the software device and prints a table.
#   tests/conformance/run_samples.sh CHECKOUT [--remote] [--only NAME,...] [--timeout SECONDS] ...
# (--help lists all). Needs scripts/build.sh to have run; nvcc is found as scripts/env.sh says.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/env.sh"
exec python3 -B "$FARGPU_ROOT/tests/conformance/samples.py" "$@"
