#!/usr/bin/env bash
# Builds the wheel and the source distribution, installs each into a fresh environment without torch, as docs/index.md says, and
# packs with it. PYTHON=/path/to/python chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/venv.sh
make_venv dev

work=$(mktemp -d "${TMPDIR:-/tmp}/packer-wheel.XXXXXX")
trap 'rm -rf "$work"' EXIT
.venv/bin/python -m build --outdir "$work/dist" . >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
"${PYTHON:-python3}" -m venv "$work/venv"
bin=$work/venv/bin
install() { "$bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
read -ra names < <(sed ':a;/\\$/N;s/\\\n//;ta' docs/index.md | sed -n 's/^pip install \(click .*\)$/\1/p')
install --constraint scripts/constraints.txt "${names[@]}"
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' packer/__init__.py)

for file in "$work"/dist/*.whl "$work"/dist/*.tar.gz; do
    install --no-deps --force-reinstall "$file"
    (
        cd "$work"
        rm -rf shapes shapes.lmdb sheet.html
        [ "$("$bin/packer" --version)" = "packer $version" ]
        [ "$("$bin/dataset-packer" --version)" = "packer $version" ]
        "$bin/python" -c "from importlib.metadata import version; assert version('dataset-packer') == '$version'"
        "$bin/packer" sample shapes --count 12 --quiet
        "$bin/packer" build shapes --resize 64x64 --quiet
        "$bin/packer" verify shapes.lmdb --deep
        "$bin/packer" view shapes.lmdb --export sheet.html >/dev/null
    )
    echo "${file##*/}: installs and packs"
done
