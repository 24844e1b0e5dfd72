# Sourced by the tests of ranks.
# mpirun's status, 124 after 60 s. Open MPI 4.1's mpirun may hang in PMIx_server_finalize when ranks were lost:
# without ranks it is killed after some seconds, which counts as a failure.
mpi() {
  "${MPIRUN:-mpirun}" --allow-run-as-root --oversubscribe "$@" &
  local mpirun=$! begin=$SECONDS has_begun= idle=0
  while kill -0 "$mpirun" 2>/dev/null; do
    if ps -o stat= --ppid "$mpirun" | grep -qv Z; then
      has_begun=1 idle=0
    elif [ -n "$has_begun" ]; then
      idle=$((idle + 1))
    fi
    [ $idle -lt 25 ] || { kill -9 "$mpirun"; return 1; }
    [ $((SECONDS - begin)) -lt 60 ] || { pkill -9 -P "$mpirun"; kill -9 "$mpirun"; return 124; }
    sleep 0.2
  done
  wait "$mpirun"
}
