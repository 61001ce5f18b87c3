#!/usr/bin/env bash
# Measure stages of a campaign on the GPUs of this node, as far as the time goes.
#
#   tools/gpu_campaign/measure.sh VENV OUT DEVICES SECONDS STAGE...
#
# Stages: graphs resnet resnet-graphs scaling backends batches lstm training allreduce tune tests.
# Results go to OUT/<sweep>; what is there is not measured again. BLOCKS (3) and WINDOW_S (1) say how
# often and how long, of all but training, whose launches are whole trainings, and tune, which has a
# window of its own. A stage that the time does not suffice for ends as an interrupted sweep does:
# what it has measured is kept. The exit code is that of the last stage that failed.
set -uo pipefail

venv=$(realpath -s "$1")
out=$(realpath -m "$2")
devices=$3
end=$((SECONDS + $4))
shift 4
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=$venv/bin/python
export PYTHONPATH=$root OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export HVDSCALE_DATA_DIR=${HVDSCALE_DATA_DIR:-$out/data}
measure=(--set "measure.blocks=${BLOCKS:-3}" --set "measure.window_s=${WINDOW_S:-1}"
    --set measure.timeout_s=200)
mkdir -p "$out"
cd "$out" || exit 2

limited() { # COMMAND...
    local left=$((end - SECONDS))
    if [ "$left" -lt 20 ]; then
        echo "no time left for: $*" >&2
        return 124
    fi
    # The runner takes a TERM as the wish to end; a second one would not let it write.
    timeout --signal=TERM --kill-after=30 "$left" "$@"
}

sweep() { # SWEEP OPTIONS...
    limited "$python" -m harness run "$1" --results "$out" "${measure[@]}" "${@:2}"
}

stage() { # NAME
    local placement=1x$devices counts swept
    counts=[$(seq -s, 1 "$devices")]
    case $1 in
    graphs)
        sweep graphs --set "placement=$placement" --set workload.samples=200000
        ;;
    resnet)
        sweep resnet_tuned --set "placement=$placement" \
            --set measure.warmup_steps=100 --set 'measure.instruments=[phases,telemetry]'
        ;;
    resnet-graphs)
        local cuts=() pieces='{preset: latency, fusion_threshold_mb: 0, groups: '
        if [ "$devices" = 1 ]; then # nothing is reduced: what do the cuts of the model cost?
            cuts=(--set "include=[{horovod: ${pieces}2}}, {horovod: ${pieces}4}}]")
        fi
        sweep "$here/resnet-graphs.yaml" --set "placement=$placement" "${cuts[@]}"
        ;;
    scaling) # what `hvdscale predict` says of the largest count, from the smaller ones
        sweep stress_strain_weak --set backend=nccl --set "placement=$counts" \
            --set batch_size=75 --set workload.samples=100000 &&
        sweep lstm_weak --set backend=nccl --set "placement=$counts" \
            --set batch_size=64 --set workload.length=2000000 &&
        sweep resnet_weak --set backend=nccl --set "placement=$counts" \
            --set workload.samples=4096 &&
        if [ "$devices" -ge 4 ]; then # with fewer no law can be held against a count left out
            for swept in stress-strain-weak lstm-weak resnet-weak; do
                limited "$python" -m harness predict "$swept" --results "$out" \
                    --devices "$devices"
            done
        fi
        ;;
    backends)
        HVDSCALE_PYTHON_MPI_HOST=$venv-staged/bin/python \
            sweep "$here/backends.yaml" --set "placement=[2,$devices]"
        ;;
    batches) # an eager step waits for its launches: up to which batch?
        sweep batch_size --set name=batches --set 'execution.graph=[false,true]' \
            --set execution.fused_optimiser=true --set measure.warmup_steps=40 \
            --set 'measure.instruments=[phases,telemetry]'
        ;;
    lstm) sweep "$here/lstm.yaml" --set "placement=$placement" ;;
    training)
        limited "$python" -m harness train "$here/training.yaml" --results "$out" &&
        if [ "$devices" -gt 1 ]; then
            limited "$python" -m harness train "$here/training.yaml" --results "$out" \
                --set "name=training-$devices" --set "placement=$placement" --set 'exclude=[]' \
                --set engine=horovod --set backend=nccl --set horovod.preset=latency
        fi
        ;;
    allreduce)
        for tuning in latency bandwidth; do
            limited mpirun -np "$devices" --bind-to none "$python" -m harness allreduce \
                --tuning "$tuning" --backend nccl --sizes 4K,613764,1M,25M,100M,1G --results "$out"
        done
        ;;
    tune)
        limited "$python" -m harness tune stress_strain --placement "$placement" --backend nccl \
            --batch-size 75 --set workload.samples=100000 --budget "$((end - SECONDS - 10))s" \
            --set measure.window_s=0.5 --blocks "${BLOCKS:-3}" --results "$out"
        ;;
    tests) (cd "$root" && limited "$python" -m pytest -q -p no:cacheprovider tests/gpu) ;;
    *)
        echo "no stage '$1'" >&2
        return 2
        ;;
    esac
}

failed=0
for name in "$@"; do
    started=$SECONDS
    stage "$name"
    code=$?
    [ "$code" = 0 ] || failed=$code
    echo "== $name: exit code $code after $((SECONDS - started)) s"
done
exit "$failed"
