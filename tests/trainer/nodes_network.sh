#!/bin/sh
# A job of two machines that are network namespaces here, joined by a cable: each has an address and a loopback of its own, so
# nothing meets by accident. They train what one launcher trains; and when the cable is cut both end, and say why.
#
#   nodes_network.sh BUILD
#
# Needs root and iproute2; without them it says so and exits 77.
set -u

build=${1:?usage: nodes_network.sh BUILD}
[ "$(id -u)" -eq 0 ] || { echo "skipped: network namespaces need root"; exit 77; }
for tool in ip unshare nsenter; do
  command -v $tool >/dev/null || { echo "skipped: needs $tool (iproute2, util-linux)"; exit 77; }
done
unshare -n true 2>/dev/null || { echo "skipped: no new network namespace may be made here"; exit 77; }
[ -d "$build/lib/softgpu" ] || { echo "skipped: the software GPU is not built"; exit 77; }

scratch=$(mktemp -d)
unshare -n sleep 600 & first=$!
unshare -n sleep 600 & second=$!
trap 'kill $first $second 2>/dev/null; wait; rm -rf "$scratch"' EXIT
fail() {
  echo "FAILED: $*"
  cat "$scratch"/*.out
  exit 1
}

for pid in $first $second; do
  until [ "$(readlink /proc/$pid/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
done
ip link add name cable0 netns $first type veth peer name cable1 netns $second || { echo "skipped: no veth here"; exit 77; }
plug() {  # namespace of, its end, its address
  nsenter -t "$1" -n ip link set lo up && nsenter -t "$1" -n ip addr add "$3"/24 dev "$2" && nsenter -t "$1" -n ip link set "$2" up
}
plug $first cable0 10.77.0.1 && plug $second cable1 10.77.0.2 || fail "no addresses"

train() {  # namespace of, name, more
  in=$1 name=$2
  shift 2
  mkdir -p "$scratch/$name.tmp"
  LD_LIBRARY_PATH="$build/lib/softgpu" SOFTGPU_PACING=0 SOFTGPU_COUNT=2 SOFTGPU_DIR="$scratch/$name.gpus" TMPDIR="$scratch/$name.tmp" \
    timeout 100 nsenter -t "$in" -n "$build/bin/sluice-train" --data synthetic --hidden 24 --batch 16 --eval-samples 0 "$@" >"$scratch/$name.out" 2>&1
}
nodes="--nproc 2 --nnodes 2 --rendezvous 10.77.0.1:29520 --rendezvous-timeout 60"

# shellcheck disable=SC2086 # words
train $first one --steps 6 --nproc 4 --save "$scratch/one" || fail "one launcher"
# shellcheck disable=SC2086
train $second b $nodes --node-rank 1 --steps 6 --save "$scratch/two" & other=$!
# shellcheck disable=SC2086
train $first a $nodes --node-rank 0 --steps 6 --save "$scratch/two" || fail "node 0"
wait $other || fail "node 1"
cmp "$scratch/one" "$scratch/two" || fail "other weights"

# shellcheck disable=SC2086
train $second b $nodes --node-rank 1 --seconds 300 --heartbeat-timeout 5 --log "$scratch/b.log" & other=$!
# shellcheck disable=SC2086
train $first a $nodes --node-rank 0 --seconds 300 --heartbeat-timeout 5 --log "$scratch/a.log" & mine=$!
for name in a b; do
  left=900
  until count=$(grep -c '"event":"step"' "$scratch/$name.log" 2>/dev/null) && [ "$count" -gt 8 ]; do
    sleep 0.1
    left=$((left - 1))
    [ $left -gt 0 ] || fail "node $name does not train"
  done
done
nsenter -t $first -n ip link set cable0 down
wait $mine && fail "node 0 ended well without node 1"
wait $other && fail "node 1 ended well without node 0"
grep -q "node 1 (10.77.0.2): it has given no sign of life for 5 s (--heartbeat-timeout); ending the job" "$scratch/a.out" ||
  fail "node 0 does not say whom it lost"
grep -q "the rendezvous at 10.77.0.1:29520 (node 0) has given no sign of life for 5 s" "$scratch/b.out" ||
  fail "node 1 does not say whom it lost"
echo "two machines trained as one, and noticed the cut"
