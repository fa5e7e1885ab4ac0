#!/usr/bin/env bash
# Builds the wheel of packer-fast/, and runs its tests and those of packer that need it in .venv-fast: .venv with the
# wheel, while .venv stays without it. Without a C compiler, cmake and nasm, or without the sources of libjpeg-turbo, it
# says what is missing and skips. Arguments go to pytest, and leave out the tests of packer.
#
# The sources are those of LIBJPEG_TURBO_SOURCE (a folder or an archive), else of ../shared/third_party, else the
# public release, which cmake downloads and verifies.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/venv.sh

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

make_venv dev
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
echo "building the wheel of packer-fast (fetches scikit-build-core, under 1 MB)"
.venv/bin/python -m build --wheel --outdir "$out" packer-fast >"$out/build.log" 2>&1 || {
    cat "$out/build.log" >&2
    exit 1
}

libraries() {
    "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
}
rm -rf .venv-fast
.venv/bin/python -m venv --without-pip .venv-fast
echo "import site; site.addsitedir('$(libraries .venv)')" >"$(libraries .venv-fast)/venv.pth"
pip_install .venv-fast --no-deps --ignore-installed "$out"/dataset_packer_fast-*-py3-none-*.whl
unset PACKER_FAST_LIBRARY PYTHONPATH  # the wheel is what is tested
.venv-fast/bin/python -m pytest --config-file packer-fast/pyproject.toml packer-fast/tests "$@"
[ $# -gt 0 ] || .venv-fast/bin/python -m pytest -m native
