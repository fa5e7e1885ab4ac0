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

read_epochs() {  # of a pack
    "$bin/python" - "$1" <<'EOF'
import sys, time
import torch
from torch.utils.data import DataLoader
from packer import PackedDataset, collate

data = PackedDataset(sys.argv[1])
order = torch.Generator().manual_seed(0)
loader = DataLoader(data, batch_size=64, shuffle=True, collate_fn=collate, generator=order)
image, target = data[0]
if isinstance(target, dict):
    target = {key: tuple(value.shape) for key, value in target.items() if isinstance(value, torch.Tensor)}
print(f"first sample: image {tuple(image.shape)} {image.dtype}, target {target}")
for epoch, note in enumerate(("first touch: every record is checked", "steady state")):
    started = time.perf_counter()
    images = sum(len(batch) for batch, _ in loader)
    seconds = time.perf_counter() - started
    print(f"epoch {epoch}: {images} images in {seconds:.3f} s, {images / seconds:,.0f} images/s ({note})")
EOF
}

echo "\$ packer build $source ${options[*]-}"
"$bin/packer" build "$source" -o "$work/demo.lmdb" ${options[@]+"${options[@]}"}
for pack in "$work"/demo*.lmdb; do  # one for each split, if the source has some
    echo "\$ packer info $pack"
    "$bin/packer" info "$pack"
    echo "\$ two epochs through a torch DataLoader"
    read_epochs "$pack"
done
