#!/bin/sh
# scripts/setup says what it cannot install before it does anything: the toolkit, a driver, the permission for BPF.
set -eu
setup=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() { echo "setup_test: $*: $(cat "$folder/said")" >&2; exit 1; }
# says WHAT COMMAND...: the command fails, and the first thing it says is this.
refuses() {
  what=$1
  shift
  if "$@" >"$folder/said" 2>&1; then fail "not refused"; fi
  head -n 1 "$folder/said" | grep -q "$what" || fail "no word of $what"
  [ "$(wc -l <"$folder/said")" = 1 ] || fail "not one line"
}

refuses "the CUDA 13 toolkit was not found.*install the toolkit from NVIDIA, or set CUDACXX" \
  env -u CUDACXX CUDA_HOME="$folder" PATH=/usr/bin:/bin "$setup" --check
printf '#!/bin/sh\necho "Cuda compilation tools, release 11.8, V11.8.89"\n' >"$folder/nvcc"
chmod +x "$folder/nvcc"
refuses "is of CUDA 11, and Sluice needs 13 or later; install" env CUDACXX="$folder/nvcc" "$setup" --check

"$setup" --check >"$folder/said" 2>&1 || grep -q "needs these Debian packages" "$folder/said" || fail "not clean"
if [ ! -e /dev/nvidiactl ]; then
  grep -q "no NVIDIA driver here, so .* software GPUs .*install NVIDIA's driver" "$folder/said" || fail "no word of the driver"
fi
if [ "$(id -u)" = 0 ] && setpriv --bounding-set -sys_admin,-bpf,-perfmon true 2>/dev/null; then
  setpriv --bounding-set -sys_admin,-bpf,-perfmon "$setup" --check >"$folder/said" 2>&1 || true
  grep -q "may not load BPF programs, .*CAP_BPF and CAP_PERFMON" "$folder/said" || fail "no word of BPF"
else
  grep -q "may not load BPF programs" "$folder/said" || echo "capabilities cannot be given up here: the line about BPF was not looked at"
fi
