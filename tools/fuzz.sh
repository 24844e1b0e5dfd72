#!/usr/bin/env bash
# Fuzzes every target for some seconds, starting from its corpus; new finds stay in the build folder.
#   tools/fuzz.sh build/fuzz 60
set -euo pipefail
build=$1 seconds=$2
for program in "$build"/tests/fuzz/*_fuzz; do
  name=$(basename "$program" _fuzz)
  finds=$build/finds/$name
  mkdir -p "$finds"
  "$program" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 \
    -artifact_prefix="$finds/" "$finds" "tests/fuzz/corpus/$name"
done
