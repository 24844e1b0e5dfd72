#!/usr/bin/env bash
# The static program: asks for no library and no new kernel, works where there is nothing but itself, and
# says what it cannot do.
#   tests/install/static.sh PROGRAM        exit 77: it is sound, but only root can lock it up alone
set -euo pipefail
program=$1
fail() { echo "$program: $*" >&2; exit 1; }

readelf -lW "$program" >/dev/null || fail "is no program"
! readelf -lW "$program" | grep -q INTERP || fail "asks for a program interpreter"
needs=$(readelf -dW "$program" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
[ -z "$needs" ] || fail "asks for" $needs
kernel=$(readelf -n "$program" 2>/dev/null | sed -n 's/.*OS: Linux, ABI: \([0-9.]*\).*/\1/p')
[ -n "$kernel" ] || fail "does not say which kernel it needs"
# Debian 10 has 4.19.
[ "$(printf '%s\n' "$kernel" 4.19 | sort -V | tail -1)" = 4.19 ] || fail "needs Linux $kernel"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$program" "$work/fp4moe"
env=$(command -v env) chroot=$(command -v chroot || true)
if [ "$(id -u)" = 0 ] && [ -n "$chroot" ] && "$chroot" "$work" /fp4moe --version >/dev/null 2>&1; then
  alone=yes at=
  run() { "$env" -i "$chroot" "$work" /fp4moe "$@"; }
else
  alone=no at=$work
  run() { "$env" -i "$work/fp4moe" "$@"; }
fi
case $(run --version) in "fp4moe "*) ;; *) fail "does not tell its version" ;; esac
run synth --model gpt-oss-20b --experts 4 --hidden 64 --intermediate 64 -o "$at/layer" >/dev/null
run lint "$at/layer" >/dev/null
run convert "$at/layer" -o "$at/packed" >/dev/null
run verify "$at/packed" >/dev/null
run run "$at/packed" --check | grep -q "within the backend's numerics" || fail "computes something else"
run run "$at/layer" --tp 2 >/dev/null || fail "does not run ranks as threads"
run doctor | grep -q "cuda engine .*linked statically and cannot load a driver" || fail "doctor does not say what it lacks"
status=0
said=$(run run "$at/layer" --engine cuda 2>&1) || status=$?
[ $status = 7 ] || fail "--engine cuda ends with $status"
case $said in *"linked statically and cannot load a driver"*) ;; *) fail "--engine cuda says: $said" ;; esac
if [ $alone = no ]; then
  echo "works, beside others: only root may put it into a folder alone"
  exit 77
fi
echo "works alone in an empty folder, on Linux $kernel and newer"
