#!/usr/bin/env bash
# Builds the source distribution and the wheel, builds the wheel once more from the unpacked source distribution and from the
# tree, compares the bytes, installs each into a fresh environment without torch, as docs/install.md says, and packs with it.
# usage: scripts/test_wheel.sh [FOLDER]   FOLDER gets the two files; PYTHON=/path/to/python chooses the interpreter
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/venv.sh
make_venv dev

work=$(mktemp -d "${TMPDIR:-/tmp}/packer-wheel.XXXXXX")
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1700000000)}
export SOURCE_DATE_EPOCH
umask 022  # a wheel keeps the permissions of files, so a checkout that others may not read gives other bytes
build() { .venv/bin/python -m build "$@" >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }; }
echo "building the source distribution and three wheels (each build fetches setuptools, 1 MB)"
build --outdir "$work/dist" .
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' packer/__init__.py)
wheel=dataset_packer-$version-py3-none-any.whl
tar -xzf "$work/dist/dataset_packer-$version.tar.gz" -C "$work"
cp -R "$work/dataset_packer-$version" "$work/again"  # another path, and other times
build --wheel --outdir "$work/twice" "$work/again"
mkdir "$work/tree"
cp -R packer packer-fast pyproject.toml README.md LICENSE MANIFEST.in "$work/tree"
build --wheel --outdir "$work/thrice" "$work/tree"  # as pip install . does, without the source distribution
cmp "$work/dist/$wheel" "$work/twice/$wheel"
cmp "$work/dist/$wheel" "$work/thrice/$wheel"
echo "$wheel: built three times, the same bytes"
unexpected=$(tar -tzf "$work/dist/dataset_packer-$version.tar.gz" | cut -d/ -f2 | sort -u |
    grep -vxE 'packer|dataset_packer.egg-info|[A-Z-]+(\.md|\.in)?|CITATION.cff|pyproject.toml|setup.cfg|' || true)
[ -z "$unexpected" ] || { echo "the source distribution also holds $unexpected" >&2; exit 1; }

"${PYTHON:-python3}" -m venv "$work/venv"
bin=$work/venv/bin
read -ra names < <(sed ':a;/\\$/N;s/\\\n//;ta' docs/install.md | sed -n 's/^pip install \(click .*\)$/\1/p')
pip_install "$work/venv" --constraint scripts/constraints.txt "${names[@]}"

for file in "$work"/dist/*.whl "$work"/dist/*.tar.gz; do
    pip_install "$work/venv" --no-deps --force-reinstall "$file"
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
if [ $# -gt 0 ]; then
    mkdir -p "$1"
    cp "$work"/dist/* "$1"
fi
