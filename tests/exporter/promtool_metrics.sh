#!/bin/sh
# promtool_metrics.sh golden|once GOLDEN EXPORTER: has promtool check the golden scrape, or a fresh one without a broker.
set -eu
if ! command -v promtool > /dev/null; then
  echo "skipped: promtool is not installed (Debian package prometheus)"
  exit 77
fi
text=$(mktemp)
trap 'rm -f "$text"' EXIT
case $1 in
  golden) cp "$2" "$text" ;;
  once) "$3" --once --no-bpf --socket /nonexistent/sluice.sock > "$text" ;;
esac
grep -q '^sluice_up ' "$text" # promtool has nothing against an empty file
said=$(promtool check metrics < "$text" 2>&1) || { echo "$said"; exit 1; }
[ -z "$said" ] || { echo "$said"; exit 1; }
