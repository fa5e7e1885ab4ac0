#!/usr/bin/env bash
# Builds the wheel of packer-fast/ and runs its tests with it, in .venv-fast. Without a C compiler, cmake and nasm, or
# without the sources of libjpeg-turbo, it says what is missing and skips. Arguments go to pytest.
#
# The sources are those of LIBJPEG_TURBO_SOURCE (a folder or an archive), else of ../shared/third_party, else the
# public release, which cmake downloads and verifies.
set -euo pipefail
cd "$(dirname "$0")/.."

skip() {
    echo "skipped: $*"
    exit 0
}

command -v cc >/dev/null || skip "packer-fast needs a C compiler; on Debian: apt-get install gcc"
command -v cmake >/dev/null || skip "packer-fast needs cmake; on Debian: apt-get install cmake"
if [ "$(uname -m)" = x86_64 ]; then
    command -v nasm >/dev/null || skip "packer-fast needs nasm; on Debian: apt-get install nasm"
fi

if [ -z "${LIBJPEG_TURBO_SOURCE:-}" ]; then
    for archive in ../shared/third_party/libjpeg-turbo-3.2.0*.tar.xz; do
        if [ -e "$archive" ]; then
            LIBJPEG_TURBO_SOURCE=$(realpath "$archive")
            export LIBJPEG_TURBO_SOURCE
        fi
    done
fi
if [ -z "${LIBJPEG_TURBO_SOURCE:-}" ]; then
    url=$(grep -om1 'https://[^)]*\.tar\.gz' packer-fast/CMakeLists.txt)
    python3 - "$url" <<'EOF' || skip "$url cannot be reached; set LIBJPEG_TURBO_SOURCE to a folder or archive of it"
import sys, urllib.request
try:
    urllib.request.urlopen(urllib.request.Request(sys.argv[1], method="HEAD"), timeout=20)
except OSError as error:
    sys.exit(str(error))
EOF
fi

want=$(cat packer-fast/pyproject.toml scripts/constraints.txt | cksum)
if [ "$(cat .venv-fast/.installed 2>/dev/null)" != "$want" ]; then
    echo "making .venv-fast"
    rm -rf .venv-fast
    "${PYTHON:-python3}" -m venv .venv-fast
    .venv-fast/bin/python -m pip install --quiet --disable-pip-version-check --constraint scripts/constraints.txt \
        build numpy opencv-python-headless pillow pytest simplejpeg
    echo "$want" >.venv-fast/.installed
fi

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
echo "building the wheel of packer-fast"
.venv-fast/bin/python -m build --wheel --outdir "$out" packer-fast >"$out/build.log" 2>&1 || {
    cat "$out/build.log" >&2
    exit 1
}
wheel=$(ls "$out"/dataset_packer_fast-*-py3-none-*.whl)
.venv-fast/bin/python -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheel"
# the wheel is what is tested: the pytest command does not import from the working folder, as python -m pytest does
env -u PACKER_FAST_LIBRARY -u PYTHONPATH .venv-fast/bin/pytest --config-file packer-fast/pyproject.toml packer-fast/tests "$@"
