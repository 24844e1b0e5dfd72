#!/usr/bin/env bash
# Runs the commands of a page's ```sh blocks that begin with "fp4moe", in order, in an empty folder.
#   tests/docs/run.sh FP4MOE PAGE
set -euo pipefail
program=$1 page=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
ln -s "$program" "$work/fp4moe"
cp -r "$(dirname "$0")/../../testdata" "$work/testdata"
cd "$work"
export PATH=$work:$PATH
count=0
while IFS= read -r line; do
  command=${line%%#*}
  echo "\$ $command"
  eval "$command"
  count=$((count + 1))
done < <(awk '/^```sh$/ {inside = 1; next} /^```/ {inside = 0} inside && /^fp4moe /' "$page")
echo "$count commands of $(basename "$page") ran"
[ "$count" -gt 0 ]
