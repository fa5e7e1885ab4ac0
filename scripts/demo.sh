#!/usr/bin/env bash
# From a folder of images to training batches. usage: scripts/demo.sh [FOLDER [packer build OPTIONS...]]
# Without FOLDER a small folder with Pascal VOC labels is drawn first.
set -euo pipefail
here=$PWD
cd "$(dirname "$0")/.."
. scripts/venv.sh
make_venv

work=$(mktemp -d "${TMPDIR:-/tmp}/packer-demo.XXXXXX")
trap 'rm -rf "$work"' EXIT
if [ $# -ge 1 ]; then
    source=$(cd "$here" && realpath -- "$1")
    shift
    options=("$@")
else
    source=$work/shapes
    options=(--labels voc --resize 224x224 --fit pad)
    echo "\$ packer sample $source --layout voc --count 400"
    .venv/bin/packer sample "$source" --layout voc --count 400
fi
cd "$here"
bin=$OLDPWD/.venv/bin

echo "\$ packer build $source ${options[*]-}"
"$bin/packer" build "$source" -o "$work/demo.lmdb" ${options[@]+"${options[@]}"}
for pack in "$work"/demo*.lmdb; do  # one for each split, if the source has some
    echo "\$ packer info $pack"
    "$bin/packer" info "$pack"
    echo "\$ two epochs through a torch DataLoader"
    "$bin/python" "$OLDPWD/scripts/read_epoch.py" "$pack"
done
