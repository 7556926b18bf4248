#!/usr/bin/env bash
# Runs the archives of bundle.sh where nothing of ours is installed: in a root that holds a shell, its
# tools, and the C and C++ runtime, and no more. Needs root.
#
# scripts/bundle_check.sh ARCHIVE... [-- ARGUMENTS for gpu-check.sh]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

archives=()
while (($#)) && [[ "$1" != -- ]]; do
  archives+=("$1")
  shift
done
shift || true
((${#archives[@]})) || fargpu_die "which archives? scripts/bundle.sh --check makes and checks them"
(($#)) || set -- --driver softgpu --quick

root="$(mktemp -d)"
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,usr,tmp,proc,sys,dev,etc,lib64,opt,lib/x86_64-linux-gnu}
ln -s ../bin "$root/usr/bin"
echo 'root:x:0:0:root:/tmp:/bin/bash' >"$root/etc/passwd"

tools=(bash sh awk cat chmod cmp cp cut date dirname basename env grep head ls mkdir mktemp mv rm sed
  sleep sort stat tail timeout tr uname wc)
for tool in "${tools[@]}"; do
  cp -L "$(command -v "$tool")" "$root/bin/$tool"
done
# What these need, and the runtime that Debian 12 and Ubuntu 24.04 always have.
{
  for tool in "${tools[@]}"; do ldd "$root/bin/$tool"; done
  ldd "$(gcc -print-file-name=libstdc++.so.6)"
} | grep -oE '/\S+' | sort -u | while read -r path; do
  install -D "$path" "$root$path"
done
for library in libstdc++.so.6 libgcc_s.so.1 libm.so.6 libresolv.so.2 libdl.so.2 libpthread.so.0 \
  librt.so.1 libutil.so.1; do
  install "$(realpath "$(gcc -print-file-name="$library")")" "$root/lib/x86_64-linux-gnu/$library"
done

for archive in "${archives[@]}"; do
  tar -C "$root/opt" -xzf "$archive"
done
folder="$(cd "$root/opt" && ls)"
# shellcheck disable=SC2016  # for the shell inside
unshare --mount --pid --fork --kill-child bash -c '
  set -e
  root="$1" folder="$2"
  shift 2
  mount --make-rprivate /
  mount -t proc none "$root/proc"
  mount --rbind /dev "$root/dev"
  mount --rbind /sys "$root/sys"
  exec chroot "$root" /bin/env -i PATH=/bin HOME=/tmp "/opt/$folder/gpu-check.sh" "$@"
' bash "$root" "$folder" "$@" </dev/null
