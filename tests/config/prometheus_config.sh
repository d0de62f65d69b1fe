#!/bin/sh
# prometheus_config.sh FILE: has promtool check a Prometheus configuration.
set -eu
if ! command -v promtool > /dev/null; then
  echo "skipped: promtool is not installed (Debian package prometheus)"
  exit 77
fi
exec promtool check config "$1"
