#!/usr/bin/env bash
# A reader that goes away had what it wanted: no word about it, and the command's own status. A full disk is an error.
#   closed_pipe.sh FP4MOE
set -euo pipefail
program=$1
words=$(mktemp)
trap 'rm -f "$words"' EXIT
for command in "matrix --json" "layouts triton.mxfp4" "help --json" "list backends" "error"; do
  # shellcheck disable=SC2086  # a command is several words
  "$program" $command 2>"$words" | head -n 1 >/dev/null
  [ ! -s "$words" ] || { echo "fp4moe $command | head -n 1 said:"; cat "$words"; exit 1; }
done
if [ -w /dev/full ] && "$program" matrix --json >/dev/full 2>"$words"; then
  echo "a full disk passed for success"
  exit 1
fi
