#!/usr/bin/env bash
# What to run on a GPU that one has for minutes, the most valuable first; it ends within nine minutes.
#
#     benchmarks/gpu.sh --dry-run          prints the commands and their seconds
#     benchmarks/gpu.sh --build [COMMIT]   where there is nvcc, and the Python of the GPU's machine: what the GPU needs,
#                                          into build/gpu; with a commit, its kernels too, to measure both on one card
#     benchmarks/gpu.sh [FOLDER]           runs them; results and logs go into the folder (build/gpu-results)
#
# A command that takes longer than its seconds is ended, and the next one starts.
set -u
cd "$(dirname "$0")/.."
earlier=build/gpu-earlier
bench="python3 -m benchmarks --device cuda --peers --only"
pytest="python3 -m pytest -q -p no:cacheprovider -m gpu tests/gpu"
pip="python3 -m pip install --no-deps --no-compile --upgrade --target build/gpu"
folder=build/gpu-results

commands() {
    cat <<COMMANDS
15 python3 -m linattn_core.info
100 $pytest tests/cuda/test_gpu.py -k "not two_to_the_31"
40 $bench operator/bfloat16-d64-h512/forward-and-backward --out $folder
30 test ! -d $earlier || { cd $earlier && $bench operator/bfloat16-d64-h512/forward-and-backward --out $folder/earlier; }
40 $bench lengths/forward/4096 --out $folder
55 $bench operator/bfloat16-d128-h64/forward --out $folder
55 $bench operator/bfloat16-d128-numerator-h64/forward --out $folder
50 $bench operator/bfloat16-d64-h8/forward --out $folder
45 $bench operator/float32-d64-h64/forward --out $folder
30 ncu --kernel-name regex:lean_product --launch-count 6 $pytest -k "same_bits and cuda and 512 and bfloat16"
80 $bench generation/language-model/one-text --out $folder
COMMANDS
}

build() {
    CUDAARCHS="${CUDAARCHS:-90-real}" LINATTN_CUDA=ON $pip \
        packages/linattn-core packages/linattn-cuda packages/linattn-triton packages/linattn-models packages/linattn-lab
}

case "${1:-}" in
--dry-run) commands; exit ;;
--build)
    # Also what a machine with torch, pytest, hypothesis and matplotlib may lack.
    build && $pip flash-linear-attention fla-core einops tabulate tqdm accelerate filelock psutil tyro docstring-parser \
        typeguard typing-extensions safetensors pydantic pydantic-core annotated-types typing-inspection || exit
    test -n "${2:-}" || exit 0
    rm -rf "$earlier" && mkdir -p "$earlier"
    git archive "$2" benchmarks kernels-cuda packages | tar -x -C "$earlier" && cd "$earlier" && build
    exit
    ;;
-*) sed -n 's/^# //p' "$0" >&2 && exit 2 ;;
"") ;;
*) folder=$1 ;;
esac
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
export PYTHONPATH=build/gpu:../gpu:.  # ../gpu: where the earlier kernels find the other libraries
export GIT_CEILING_DIRECTORIES=$PWD/build  # their records are not to have the commit of this checkout
commands | while read -r seconds command; do
    echo "== $command"
    timeout -k 5 "$seconds" bash -c "$command" </dev/null 2>&1 | tee -a "$folder/log.txt" | tail -n 40
done
