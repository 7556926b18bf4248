#!/usr/bin/env bash
# Installs on Debian 12 what building and testing FarGPU needs and the machine lacks. Quick, and
# without a look at the network, when nothing is missing. Needs root or sudo only to install packages.
#
# Three things: Debian packages, an Abseil for libcuda.so.1, and the CUDA toolkit 13.0.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

PACKAGES=(
  gcc g++ clang libclang-rt-14-dev clang-format cmake ninja-build pkg-config git ccache dpkg-dev
  libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev libucx-dev libabsl-dev
  libspdlog-dev libgtest-dev libgmock-dev libbenchmark-dev llvm-19-dev libsqlite3-dev libssl-dev
  libcli11-dev libzstd-dev liblz4-dev python3 python3-yaml python3-jinja2
  iproute2 procps zstd patchelf
)

# NVIDIA's own wheels of toolkit 13.0; the compiler, its back end, and the runtime's headers and
# libraries.
CUDA_WHEELS=(
  nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-cccl==13.0.85
  nvidia-cuda-profiler-api==13.0.85
)

as_root() {
  if [[ "$(id -u)" == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fargpu_die "needs root for: $*"
  fi
}

# Prints those of its arguments that are not installed packages.
missing_packages() {
  comm -23 <(printf '%s\n' "$@" | sort -u) \
    <(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "$@" 2>/dev/null |
        sed -n 's/^installed //p' | sort -u)
}

install_packages() {
  local missing
  missing="$(missing_packages "$@")"
  [[ -n "$missing" ]] || return 0
  echo "setup: installing" $missing
  as_root apt-get update -qq
  # shellcheck disable=SC2086  # one word per package
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    $missing >/dev/null
}

# Abseil as position-independent archives. libcuda.so.1 carries its own copy, because the process
# that loads it may have another one, and Debian's archives cannot go into a shared object. It is
# made from Debian's source of the very version whose headers are installed.
ABSEIL_FLAGS=(
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_CXX_STANDARD=20
  -DCMAKE_CXX_VISIBILITY_PRESET=hidden -DBUILD_TESTING=OFF -DABSL_PROPAGATE_CXX_STD=ON
  -DCMAKE_INSTALL_LIBDIR=lib
)

install_abseil() {
  local prefix="$FARGPU_DEPS/abseil-pic" source version stamp work
  read -r source version < <(dpkg-query -W -f='${source:Package} ${source:Version}\n' libabsl-dev)
  stamp="$source $version ${ABSEIL_FLAGS[*]}"
  [[ "$(cat "$prefix/stamp" 2>/dev/null)" != "$stamp" ]] || return 0

  echo "setup: building $source $version, position independent (about a minute)"
  work="$(mktemp -d)"
  # shellcheck disable=SC2064  # the folder is known now
  trap "rm -rf '$work'" EXIT
  mkdir -p "$work/sources" "$work/lists/partial" "$work/cache/archives/partial"
  # The machine's own package sources, asked for sources instead of binaries, and kept apart from the
  # machine's lists.
  local file
  for file in /etc/apt/sources.list.d/*.sources; do
    [[ -f "$file" ]] || continue
    sed 's/^Types:.*/Types: deb-src/' "$file" >"$work/sources/$(basename "$file")"
  done
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [[ -f "$file" ]] || continue
    sed -n 's/^[[:space:]]*deb[[:space:]]/deb-src /p' "$file" >"$work/sources/$(basename "$file" .list).list"
  done
  local apt=(apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/sources"
    -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User=)
  "${apt[@]}" update
  (cd "$work" && "${apt[@]}" source --only-source "$source=$version" >/dev/null 2>"$work/log") || {
    cat "$work/log" >&2
    fargpu_die "no source of $source $version; run: apt-get update && apt-get install libabsl-dev"
  }
  local tree
  tree="$(find "$work" -mindepth 1 -maxdepth 1 -type d -name "$source-*")"
  {
    cmake -S "$tree" -B "$work/build" -G Ninja -DCMAKE_INSTALL_PREFIX="$prefix" \
      -DCMAKE_CXX_COMPILER=g++ -DCMAKE_C_COMPILER=gcc \
      -DCMAKE_CXX_COMPILER_LAUNCHER=ccache "${ABSEIL_FLAGS[@]}" &&
      ninja -C "$work/build" && DESTDIR="$work/root" ninja -C "$work/build" install
  } >"$work/log" 2>&1 || {
    tail -30 "$work/log" >&2
    fargpu_die "building $source $version failed"
  }
  echo "$stamp" >"$work/root$prefix/stamp"
  mkdir -p "$FARGPU_DEPS"
  rm -rf "$prefix"
  cp -a "$work/root$prefix" "$prefix"
  rm -rf "$work"
  trap - EXIT
}

# The toolkit's wheels, unpacked into one folder that looks like an installed toolkit.
install_cuda() {
  if [[ "$CUDA_HOME" != "$FARGPU_DEPS/cuda-13.0" ]]; then
    return 0
  fi
  local stamp="${CUDA_WHEELS[*]}" venv="$FARGPU_DEPS/cuda-venv"
  [[ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]] || return 0
  echo "setup: installing the CUDA toolkit 13.0 (${CUDA_WHEELS[*]})"
  install_packages python3-venv
  rm -rf "$venv" "$CUDA_HOME"
  /usr/bin/python3 -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "${CUDA_WHEELS[@]}"
  local tree
  tree="$(echo "$venv"/lib/python3*/site-packages/nvidia/cu13)"
  [[ -d "$tree" ]] || fargpu_die "the CUDA wheels hold no nvidia/cu13 folder"
  # Wheels cannot hold symbolic links: the names that the linker looks for are missing.
  local library
  for library in "$tree"/lib/lib*.so.*; do
    ln -sf "$(basename "$library")" "${library%%.so.*}.so"
  done
  ln -sfn lib "$tree/lib64"
  # An installed toolkit has a library to link driver programs with; the wheels have none. It names
  # the functions that the real one, found at run time, has.
  mkdir -p "$tree/lib/stubs"
  sed -n 's/^ *\(cu[A-Z][A-Za-z0-9_]*\);$/void \1(void) {}/p' "$FARGPU_ROOT/client/libcuda.map" |
    gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -x c - -o "$tree/lib/stubs/libcuda.so"
  chmod +x "$tree"/bin/* "$tree"/nvvm/bin/*
  ln -sfn "$tree" "$CUDA_HOME"
  fargpu_is_cuda_home "$CUDA_HOME" || fargpu_die "the CUDA wheels hold no usable toolkit"
  echo "$stamp" >"$venv/stamp"
}

command -v dpkg-query >/dev/null || fargpu_die "this is not Debian; see README.md for what a build needs"
mkdir -p "$FARGPU_DEPS"
# Two scripts may start at once; the second waits and finds all done.
exec 9>"$FARGPU_DEPS/lock"
command -v flock >/dev/null && flock 9
install_packages "${PACKAGES[@]}"
install_abseil
install_cuda
