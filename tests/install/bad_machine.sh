#!/usr/bin/env bash
# Machines that lack something, played by programs that come first on PATH: each gets one sentence, and nothing is
# left half built.
#   tests/install/bad_machine.sh SOURCE_FOLDER CXX [PYTHON]      PYTHON has scikit-build-core and nanobind
set -euo pipefail
source=$(cd "$1" && pwd) cxx=$(command -v "$2") python=${3:+$(realpath -s "$3")}
work=$(mktemp -d)
mounted=
cleanup() { [ -z "$mounted" ] || umount "$mounted"; rm -rf "$work"; }
trap cleanup EXIT
tree=$work/tree
mkdir "$tree"
for part in CMakeLists.txt CMakePresets.json README.md LICENSE pyproject.toml cmake examples include python src tests tools; do
  ln -s "$source/$part" "$tree/"
done
cd "$tree"
failed=0 count=0

play() {  # NAME: a program of $work/NAME/bin; its text comes from stdin
  mkdir -p "$work/$1/bin"
  { echo '#!/bin/bash'; cat; } >"$work/$1/bin/$2"
  chmod +x "$work/$1/bin/$2"
}

# NAME "words the sentence has" COMMAND...: fails, with one line that begins with "fp4moe: " and has the words in
# this order; leaves no build folder.
expect() {
  local name=$1 words=$2 status=0
  shift 2
  count=$((count + 1))
  PATH=$work/$name/bin:$PATH timeout 30 "$@" >"$work/out" 2>"$work/err" </dev/null || status=$?
  sed -i '/^Installing /d' "$work/err"
  if [ $status -eq 0 ] || [ "$(wc -l <"$work/err")" != 1 ] || [ -s "$work/out" ] ||
     ! grep -q "^fp4moe: .*${words// \* /.*}" "$work/err"; then
    printf '%s: expected one sentence with "%s", exit %d:\n' "$name" "$words" $status
    cat "$work/out" "$work/err"
    failed=1
  fi
  local left
  left=$(find build -mindepth 1 -maxdepth 1 2>/dev/null || true)
  [ -z "$left" ] || { echo "$name: left $left"; failed=1; rm -rf build/*; }
}

# Packages.
for name in user offline bare; do play $name dpkg-query <<<'exit 1'; done
play user id <<<'echo 1000'
expect user "only root may install them: run sudo apt-get install g++" tools/packages.sh build
play offline id <<<'echo 0'
play offline apt-get <<<'echo "Err:1 deb.invalid"; echo "E: Could not resolve host" >&2; exit 100'
expect offline "apt-get failed (Could not resolve host): check the network * apt-get install g++" tools/packages.sh build
for program in bash env id uname grep cat; do ln -sf "$(command -v $program)" "$work/bare/bin/"; done
expect bare "there is no apt-get: install g++" env PATH="$work/bare/bin" bash tools/packages.sh build
mkdir -p "$work/other/bin"
for program in bash env id uname grep cat; do ln -sf "$(command -v $program)" "$work/other/bin/"; done
expect other "cmake is missing and this is no Debian" env PATH="$work/other/bin" bash tools/packages.sh build
expect other "cmake is missing: install it" env PATH="$work/other/bin" bash tools/build.sh release fp4moe_program

# Compilers. g++ 9.4 is a newer one with the older one's number; the old library is none.
play old g++ <<<"exec $cxx -U__GNUC__ -D__GNUC__=9 -U__GNUC_MINOR__ -D__GNUC_MINOR__=4 -U__clang__ \"\$@\""
expect old "is GNU 9.4.0, which is too old for C++20: install g++ 11, clang 14" env CXX=g++ tools/build.sh release fp4moe_program
play library g++ <<<"exec $cxx -nostdinc++ \"\$@\""
expect library "its library lacks C++20 * install g++ 11" env CXX=g++ tools/build.sh release fp4moe_program

# Tools.
play old_cmake cmake <<<'echo "cmake version 3.22.1"'
expect old_cmake "cmake 3.22.1 is too old: install 3.25" tools/build.sh release fp4moe_program
play old_nvcc nvcc <<<'echo "Cuda compilation tools, release 11.8, V11.8.89"'
expect old_nvcc "nvcc is no nvcc of CUDA 12.8" \
  tools/build.sh release all -DFP4MOE_CUDA=ON -DFP4MOE_NVCC="$work/old_nvcc/bin/nvcc" -DFP4MOE_BUILD_MB=0

# A folder that was configured before builds what it built before.
play refusing cmake <<'CMAKE'
[ "$1" = --version ] && exec echo "cmake version 3.25.1"
echo refused >build/release/CMakeCache.txt
echo " fp4moe: refused"
exit 1
CMAKE
mkdir -p build/release
echo kept >build/release/CMakeCache.txt
touch build/release/build.ninja
PATH=$work/refusing/bin:$PATH tools/build.sh release all -DX=1 2>"$work/err" && failed=1
grep -qx "fp4moe: refused" "$work/err" && grep -qx kept build/release/CMakeCache.txt ||
  { echo "refusing: the cache is not what it was"; failed=1; }
rm -rf build/release

# Headers, of libraries and of a Python that nobody has.
expect headers "headers are missing * apt-get install .*nlohmann-json3-dev" tools/build.sh release all -DCMAKE_IGNORE_PATH=/usr/include -DFP4MOE_BUILD_MB=0
mkdir -p "$work/python/site"
echo 'import sys; sys.version_info = (3, 97, 0, "final", 0)' >"$work/python/site/sitecustomize.py"
play python python3 <<<"[ \"\$1\" != -E ] || shift; PYTHONPATH=$work/python/site exec $(command -v python3) \"\$@\""
expect python "the headers of .*python3 (Python.h of 3.97.0) are missing" \
  tools/build.sh release all -DFP4MOE_TESTS=OFF -DFP4MOE_PYTHON=ON -DPython_EXECUTABLE="$work/python/bin/python3" -DFP4MOE_BUILD_MB=0

# Python environments.
play no_venv python3 <<<'exit 1'
expect no_venv "install its venv" tools/venv.sh build/venv tools/nvcc-requirements.txt
play no_index python3 <<'PYTHON3'
mkdir -p "$3/bin"
printf '#!/bin/sh\necho "ERROR: No matching distribution found for nanobind" >&2\nexit 1\n' >"$3/bin/pip"
chmod +x "$3/bin/pip"
PYTHON3
expect no_index "No matching distribution found for nanobind): check the network" tools/venv.sh build/venv tools/nvcc-requirements.txt

play old_python python3 <<'PYTHON3'
case $1 in -c) exit 1 ;; --version) echo "Python 3.10.12" ;; esac
PYTHON3
expect old_python "Python 3.10.12 is too old: tests/requirements.txt needs Python 3.11" tools/venv.sh build/venv tests/requirements.txt
# A second list that cannot be installed leaves what the first one brought.
mkdir -p build/venv/bin
cp tools/nvcc-requirements.txt build/venv/
printf '#!/bin/sh\necho "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device" >&2\nexit 1\n' >build/venv/bin/pip
chmod +x build/venv/bin/pip
mv build/venv "$work/venv"
expect full "No space left on device): free some room on the disk" \
  tools/venv.sh "$work/venv" tools/nvcc-requirements.txt tests/requirements-all.txt
[ -e "$work/venv/nvcc-requirements.txt" ] || { echo "full: an environment that worked is gone"; failed=1; }

# Folders and disks.
rm -rf build
touch build
expect folder "build/release cannot be made" tools/build.sh release fp4moe_program
rm -f build
mkdir -p "$work/disk/bin" build
if [ "$(id -u)" = 0 ] && mount -t tmpfs -o size=64m tmpfs "$PWD/build" 2>/dev/null; then
  mounted=$PWD/build
else
  play disk df <<<'echo "Filesystem 1048576-blocks Used Available Capacity Mounted on"; echo "none 64 0 64 0% /"'
fi
expect disk "has [0-9]* MB free, and a build takes [0-9]* MB: free some" tools/build.sh release fp4moe_program
[ -z "$mounted" ] || { umount "$mounted"; mounted=; }

# The same sentence from pip.
if [ -n "$python" ] && "$python" -c 'import scikit_build_core, nanobind' 2>/dev/null; then
  expect old "is GNU 9.4.0, which is too old for C++20: install g++ 11, clang 14" env CXX=g++ tools/wheel.sh "$python" build/py "$work/wheels"
else
  echo "no Python with scikit-build-core: pip is not asked"
fi
[ $failed = 0 ] && echo "$count bad machines get a sentence each"
