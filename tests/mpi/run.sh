#!/usr/bin/env bash
# Starts ranks and counts those that say a sentence, which may be more than must; more than a minute counts as a hang.
#   tests/mpi/run.sh PROGRAM RANKS MODE SPEAKERS SENTENCE [DEADLINE_MS]
set -uo pipefail
program=$1 ranks=$2 mode=$3 speakers=$4 sentence=$5
command -v "${MPIRUN:-mpirun}" >/dev/null || { echo "skipped: there is no mpirun"; exit 77; }
# shellcheck source=tests/mpi/mpirun.sh
. "$(dirname "$0")/mpirun.sh"
output=$(mktemp)
trap 'rm -f "$output"' EXIT

mpi -n "$ranks" "$program" "$mode" "${@:6}" >"$output" 2>&1
status=$?
cat "$output"
said=$(grep -cE "^rank [0-9]+: $sentence" "$output")
[ "$said" -ge "$speakers" ] || { echo "$said of $speakers ranks said: $sentence"; exit 1; }
case $sentence in
  done) [ $status -eq 0 ] || { echo "mpirun ended with status $status"; exit 1; } ;;
  *) [[ $status != @(0|124) ]] || { echo "mpirun ended with status $status"; exit 1; } ;;
esac
