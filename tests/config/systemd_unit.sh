#!/bin/sh
# systemd_unit.sh UNIT EXPOSURE: has systemd-analyze verify a unit file, and hold its sandbox to an exposure of at most so many
# tenths of 10.
set -eu
if ! command -v systemd-analyze > /dev/null; then
  echo "skipped: systemd-analyze is not installed"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unit=$folder/$(basename "$1")
# The program need not be installed where the unit will find it: /bin/true stands for it.
sed 's,^ExecStart=[^ ]*,ExecStart=/bin/true,' "$1" > "$unit"
grep -q '^ExecStart=/bin/true' "$unit"
said=$(systemd-analyze verify --man=no --recursive-errors=no "$unit" 2>&1) || { echo "$said"; exit 1; }
[ -z "$said" ] || { echo "$said"; exit 1; }
systemd-analyze security --offline=yes --threshold="$2" --no-pager "$unit" > "$folder/security" || { cat "$folder/security"; exit 1; }
tail -1 "$folder/security"
