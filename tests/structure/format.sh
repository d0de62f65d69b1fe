#!/bin/sh
# Exit 1 with the names of the C++ and CUDA files that clang-format would change. Usage: format.sh ROOT
cd "$1" || exit 1
command -v clang-format >/dev/null || { echo "skipped: clang-format is not installed (package clang-format)"; exit 77; }
files=$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh' 2>/dev/null)
[ -n "$files" ] || { echo "skipped: not a git checkout"; exit 77; }
changed=$(echo "$files" | xargs clang-format --dry-run 2>&1 | sed -n 's/^\([^:]*\):[0-9].*clang-format-violations.*/\1/p' | sort -u)
[ -z "$changed" ] && exit 0
echo "clang-format -i would change:"
echo "$changed"
exit 1
