#!/usr/bin/env bash
# fp4moe run on ranks that mpirun starts.
#   program.sh FP4MOE equal RANKS     every exchange gives what one process gives, within the numerics of both
#   program.sh FP4MOE wrong RANKS     a path that does not exist: every rank ends, one says why
#   program.sh FP4MOE killed RANKS    a rank is killed at work: the others say so and end
#   program.sh FP4MOE asked RANKS     a rank is asked for another layer, backend or input: all say which
#   program.sh FP4MOE absent RANKS    a rank never starts MPI: the others say so and end
#   program.sh FP4MOE stopped RANKS   the first rank stops before it starts MPI: likewise
set -uo pipefail
program=$1 mode=$2 ranks=$3
command -v "${MPIRUN:-mpirun}" >/dev/null || { echo "skipped: there is no mpirun"; exit 77; }
# shellcheck source=tests/mpi/mpirun.sh
. "$(dirname "$0")/mpirun.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

start() { mpi -n "$ranks" "$program" run "$@"; }
fail() {
  echo "$1"
  cat output
  exit 1
}
# The first rank is given other words than the rest.
start_but_one() {  # WORDS OF THE FIRST -- WORDS OF THE OTHERS
  local one=()
  while [ "$1" != -- ]; do one+=("$1"); shift; done
  shift
  mpi -n 1 "${one[@]}" : -n $((ranks - 1)) "$program" "$@"
}
"$program" synth --model gpt-oss-20b --layers 2 --experts 8 --hidden 512 --intermediate 256 -o model >/dev/null || exit 1

case $mode in
  equal)
    "$program" run model --backend CPU --tokens 19 -o one.safetensors >/dev/null || exit 1
    for how in "--tp mpi" "--ep mpi --exchange "{local,gather,all_to_all,all_to_all_batched} \
               "--ep mpi --placement round_robin --exchange all_to_all"; do
      # shellcheck disable=SC2086
      (start model --backend CPU --tokens 19 --check $how -o many.safetensors) >output 2>&1 ||
        fail "$how: status $?"
      grep -q "^$ranks ranks (MPI)" output || fail "$how: not on $ranks ranks"
      [ "$(grep -c "within the backend's numerics" output)" -eq 1 ] || fail "$how: one rank speaks for all"
      "$program" diff one.safetensors many.safetensors >output || fail "$how: not what one process gives"
      echo "$how: $(tail -1 output)"
      rm many.safetensors
    done ;;
  wrong)
    (start nothing --ep mpi) >output 2>&1
    status=$?
    [[ $status != @(0|124) ]] || fail "status $status"
    grep -qF "nothing: cannot open: No such file or directory [store.open]" output || fail "nobody says why" ;;
  killed)
    # Open MPI's seconds from one signal to the next, here until the others are killed as well.
    export OMPI_MCA_odls_base_sigkill_timeout=3
    (start model --ep mpi --exchange all_to_all --tokens 8000) >output 2>&1 &
    launcher=$!
    # A rank that has mapped the model has joined the others.
    victim=
    while kill -0 $launcher 2>/dev/null && [ -z "$victim" ]; do
      for parent in $(pgrep -P $launcher) $launcher; do
        for rank in $(pgrep -P "$parent" -x fp4moe); do
          grep -qs model.safetensors "/proc/$rank/maps" && victim=$rank
        done
      done
    done
    [ -n "$victim" ] || fail "no rank was seen at work"
    kill -9 "$victim"
    wait $launcher
    status=$?
    [[ $status != @(0|124) ]] || fail "status $status"
    grep -qE "^fp4moe run: .*\[(comm\.|interrupted)" output || fail "nobody says why" ;;
  asked)
    others="run model --ep mpi --exchange gather --tokens 8"
    "$program" synth --adapter-for model -o adapter >/dev/null || exit 1
    while read -r words sentence; do
      # shellcheck disable=SC2086
      (start_but_one "$program" $others ${words//,/ } -- $others) >output 2>&1 </dev/null
      status=$?
      [[ $status != @(0|124) ]] || fail "$words: status $status"
      grep -qF "the ranks do not agree [comm.disagree]" output && grep -qF "found: $sentence" output || fail "$words: nobody says why"
      echo "$words: $(grep -m1 "found: " output)"
    done <<'ROWS'
--layer,1 layers 0 (rank 1); expected: layers 1 (rank 0)
--layer,all layers 0 (rank 1); expected: layers 0, 1 (rank 0)
--backend,MARLIN backend auto (rank 1); expected: backend MARLIN (rank 0)
--seed,2 seed 1 (rank 1); expected: seed 2 (rank 0)
--batch,2 batch 0 (rank 1); expected: batch 2 (rank 0)
--engine,reference engine auto (rank 1); expected: engine reference (rank 0)
--adapter,adapter adapters none (rank 1); expected: adapters
ROWS
    # Tensors of the same names and shapes, with other numbers.
    "$program" synth --model gpt-oss-20b --layers 2 --experts 8 --hidden 512 --intermediate 256 --seed 2 -o other >/dev/null || exit 1
    # shellcheck disable=SC2086
    (start_but_one "$program" ${others/model/other} -- $others) >output 2>&1 </dev/null
    status=$?
    [[ $status != @(0|124) ]] || fail "another model: status $status"
    grep -qF "found: tensors " output || fail "another model: nobody says why"
    echo "another model: $(grep -m1 "found: " output)" ;;
  absent)
    begin=$SECONDS
    (start_but_one "$program" inspect model -- run model --ep mpi --tokens 8 --deadline 4) >output 2>&1
    status=$?
    [[ $status != @(0|124) ]] || fail "status $status"
    [ $((SECONDS - begin)) -le 25 ] || fail "it took $((SECONDS - begin)) s"
    # Where the others are in MPI before the first ends, mpirun notices, says so and ends them.
    grep -q "^fp4moe run: MPI does not start.*\[mpi.start\]" output ||
      { grep -q 'this process did not call "init" before exiting' output &&
        grep -q "^fp4moe run: .*\[interrupted\]" output; } || fail "nobody says why" ;;
  stopped)
    begin=$SECONDS
    # It writes its number and stops itself: no other moment would be the same on every machine.
    # shellcheck disable=SC2016
    (start_but_one sh -c 'echo $$ >victim && kill -STOP $$ && exec "$0" "$@"' "$program" run model --ep mpi --tokens 8 \
      -- run model --ep mpi --tokens 8 --deadline 4) >output 2>&1
    status=$?
    [ -s victim ] || fail "the first rank did not begin"
    kill -9 "$(cat victim)" 2>/dev/null
    [[ $status != @(0|124) ]] || fail "status $status"
    [ $((SECONDS - begin)) -le 30 ] || fail "it took $((SECONDS - begin)) s"
    grep -qE "^fp4moe run: .*\[(mpi.start|comm\.)" output || fail "nobody says why" ;;
esac
