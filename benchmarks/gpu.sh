#!/usr/bin/env bash
# What to run on a GPU that one has for minutes, the most valuable first; it ends within nine minutes.
#
#     benchmarks/gpu.sh --dry-run     prints the commands and their seconds
#     benchmarks/gpu.sh --build       on any machine with nvcc: what the GPU needs, into build/gpu
#     benchmarks/gpu.sh [FOLDER]      runs them; results and logs go into the folder (build/gpu-results)
#
# A command that takes longer than its seconds is ended, and the next one starts.
set -u
cd "$(dirname "$0")/.."
packages=build/gpu
python="env PYTHONPATH=$packages:. python -m"
bench="$python benchmarks --device cuda --peers --out"
folder=build/gpu-results

commands() {
    cat <<COMMANDS
20 $python linattn_core.info
100 $python pytest -q -p no:cacheprovider -m gpu tests/gpu tests/cuda/test_gpu.py -k "not two_to_the_31"
40 $bench $folder --only operator/bfloat16-d64-h512/forward-and-backward
40 $bench $folder --only lengths/forward/4096
60 $bench $folder --only operator/bfloat16-d128-h64/forward
60 $bench $folder --only operator/bfloat16-d128-not-normalized-h64/forward
50 $bench $folder --only operator/bfloat16-d64-h8/forward
50 $bench $folder --only operator/float32-d64-h64/forward
40 ncu --kernel-name regex:lean_product --launch-count 3 $bench $folder/quick --quick --only lengths/forward/4096
60 $bench $folder --only generation/images/one-image
COMMANDS
}

build() {
    CUDAARCHS="${CUDAARCHS:-90-real}" LINATTN_CUDA=ON python -m pip install --no-deps --target "$packages" \
        packages/linattn-core packages/linattn-cuda packages/linattn-triton packages/linattn-models packages/linattn-lab
    python -m pip install --target "$packages" --no-deps tyro tqdm tabulate flash-linear-attention
}

case "${1:-}" in
--dry-run) commands; exit ;;
--build) build; exit ;;
"") ;;
*) folder=$1 ;;
esac
mkdir -p "$folder"
commands | while read -r seconds command; do
    echo "== $command"
    timeout "$seconds" bash -c "$command" </dev/null 2>&1 | tee -a "$folder/log.txt" | tail -n 40
done
