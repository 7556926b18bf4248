#!/usr/bin/env bash
# Makes the archives that run on a machine with nothing of ours installed:
#
#   dist/fargpu-VERSION-linux-x86_64.tar.gz           programs, client library, what they need, test
#                                                     programs, gpu-check.sh; at most 48 MiB
#   dist/fargpu-softgpu-VERSION-linux-x86_64.tar.gz   the software device; unpack it over the other
#
# Needed of the machine that they run on: glibc 2.36 and libstdc++ of gcc 12 (Debian 12, Ubuntu 24.04).
# --check also runs them in a root that holds no more than that.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

LIMIT_BYTES=$((48 << 20))

usage() { echo 'scripts/bundle.sh [--preset NAME (default: release)] [--no-build] [--check]'; }

preset=release
build=yes
check=no
while (($#)); do
  case "$1" in
    --preset) preset="${2:?--preset needs a name}" && shift ;;
    --no-build) build=no ;;
    --check) check=yes ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && exit 2 ;;
  esac
  shift
done
[[ "$build" == no ]] || "$FARGPU_ROOT/scripts/build.sh" "$preset"

cd "$FARGPU_ROOT"
tree="build/$preset"
version="$(sed -n 's/^project(fargpu VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)"
name="fargpu-$version-linux-x86_64"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
base="$work/base/$name"
soft="$work/soft/$name"

# Prints "name path" of the libraries that the given files load, except those of every machine.
libraries_of() {
  ldd "$@" 2>/dev/null | sed -n 's/^\t\(\S\+\) => \(\/\S\+\) .*/\1 \2/p' | sort -u |
    grep -vE '^(libc|libm|libdl|libpthread|librt|libresolv|libutil|ld-linux[^ ]*|libstdc\+\+|libgcc_s)\.so'
}

# place MODE RPATH SOURCE TARGET: copies, strips, and says where libraries are found. RPATH rather
# than RUNPATH, so that a LD_LIBRARY_PATH meant for the user's program does not change ours.
place() {
  install -D -m "$1" "$3" "$4"
  strip --strip-unneeded "$4"
  patchelf --force-rpath --set-rpath "$2" "$4"
}

# place_libraries RPATH FOLDER FILE...: what the files load, unless the base already has it.
place_libraries() {
  local rpath="$1" folder="$2" library path
  shift 2
  while read -r library path; do
    [[ ! -e "$base/lib/$library" ]] || continue
    place 644 "$rpath" "$path" "$folder/$library"
  done < <(libraries_of "$@")
}

programs=(fargpu fargpu-broker fargpud fargpu-worker fargpu-lease)
for program in "${programs[@]}"; do
  place 755 '$ORIGIN/../lib' "$tree/bin/$program" "$base/bin/$program"
done
place 644 '$ORIGIN/../..' "$tree/client/libcuda.so.1" "$base/lib/fargpu/client/libcuda.so.1"
place 644 '$ORIGIN/../..' "$tree/client/libnvidia-ml.so.1" "$base/lib/fargpu/client/libnvidia-ml.so.1"

# UCX is loaded at run time, and loads its transports from the folder ucx/ beside itself.
ucx="$(dirname "$(ldconfig -p | sed -n 's/.*libucp\.so\.0 .* => //p' | head -1)")"
place 644 '$ORIGIN' "$ucx/libucp.so.0" "$base/lib/libucp.so.0"
for module in "$ucx"/ucx/*.so.0; do
  place 644 '$ORIGIN/..' "$module" "$base/lib/ucx/$(basename "$module")"
done
place_libraries '$ORIGIN' "$base/lib" "${programs[@]/#/$tree/bin/}" "$ucx/libucp.so.0" "$ucx"/ucx/*.so.0

# Programs with the runtime linked in; what needs libnvrtc or libcudart of a toolkit stays here.
mkdir -p "$base/share/fargpu/programs"
grep -v '^nvrtc ' tests/programs/programs.txt >"$base/share/fargpu/programs.txt"
while read -r program _; do
  install -m 755 "$tree/programs/$program" "$base/share/fargpu/programs/$program"
done < <(sed -n '/^[a-z]/p' "$base/share/fargpu/programs.txt")
install -m 755 "$tree/perf/cuda_bench" "$tree/perf/raw_bench" "$base/share/fargpu/programs/"
install -m 755 scripts/gpu-check.sh "$base/gpu-check.sh"
install -m 644 scripts/bench_figures.sh "$base/share/fargpu/bench_figures.sh"
install -m 644 LICENSE NOTICE "$base/"
install -m 644 deploy/bundle/README.md "$base/README.md"

place 644 '$ORIGIN:$ORIGIN/../..' "$tree/softgpu/libcuda.so.1" "$soft/lib/fargpu/softgpu/libcuda.so.1"
place_libraries '$ORIGIN:$ORIGIN/../..' "$soft/lib/fargpu/softgpu" "$tree/softgpu/libcuda.so.1"
for library in "$tree"/softgpu/standins/lib*.so.*; do
  place 644 '$ORIGIN' "$library" "$soft/lib/fargpu/softgpu/standins/$(basename "$library")"
  ln -s "standins/$(basename "$library")" "$soft/lib/fargpu/softgpu/$(basename "$library")"
done

# The licences of the libraries that come from Debian.
for library in "$base"/lib/*.so* "$soft"/lib/fargpu/softgpu/*.so*; do
  [[ "$library" != */libcuda.so.1 && ! -L "$library" ]] || continue
  package="$(dpkg-query -S "*/$(basename "$library")" 2>/dev/null | sed -n '1s/:.*//p' || true)"
  copyright="/usr/share/doc/$package/copyright"
  [[ -n "$package" && -f "$copyright" ]] || fargpu_die "no licence found for $(basename "$library")"
  case "$library" in
    "$base"/*) install -D -m 644 "$copyright" "$base/share/doc/$package/copyright" ;;
    *) install -D -m 644 "$copyright" "$soft/share/doc/$package/copyright" ;;
  esac
done

mkdir -p dist
# The same input gives the same archive.
archive() {
  tar -C "$1" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - "$name" | gzip -n >"$2"
  echo "$2: $(du -k "$2" | cut -f1) KiB"
}
archive "$work/base" "dist/$name.tar.gz"
archive "$work/soft" "dist/${name/fargpu-/fargpu-softgpu-}.tar.gz"
size="$(stat -c %s "dist/$name.tar.gz")"
((size <= LIMIT_BYTES)) || fargpu_die "dist/$name.tar.gz has $size bytes, limit $LIMIT_BYTES"

if [[ "$check" == yes ]]; then
  scripts/bundle_check.sh "dist/$name.tar.gz" "dist/${name/fargpu-/fargpu-softgpu-}.tar.gz"
fi
