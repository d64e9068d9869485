#!/usr/bin/env bash
# Several processes on this machine, as if each were a host.
#
#   launch/local.sh NUM_PROCESSES FLAGS_OF_MAIN...
#   launch/local.sh 2 --config=configs/quickstart.py
#
# To try a many-host run without hosts. On a CPU, give each process virtual devices:
#   JAX_PLATFORMS=cpu XLA_FLAGS=--xla_force_host_platform_device_count=4 launch/local.sh 2 ...
# On GPUs all processes would claim all of them: use one process, or set
# CUDA_VISIBLE_DEVICES for each. Environment: PYTHON (.venv/bin/python), PORT (12355).
# Ctrl-C or SIGTERM stops all after the same step, saved; the same command continues. If
# one process is killed, the others end too, with the status 75: run it again.
set -euo pipefail
processes=$1
shift
pids=()
for ((id = 0; id < processes; id++)); do
    "${PYTHON:-.venv/bin/python}" -m attn_cnn_jax.main --multi_host \
        --coordinator_address="127.0.0.1:${PORT:-12355}" \
        --num_processes="$processes" --process_id="$id" "$@" &
    pids+=($!)
done
trap 'kill -TERM "${pids[@]}" 2>/dev/null || true' INT TERM HUP
status=0
for pid in "${pids[@]}"; do
    until wait "$pid"; do # a signal to this script ends the wait, not the process
        ended=$?
        kill -0 "$pid" 2>/dev/null && continue
        ((status == 75)) || status=$ended # 75, of those that survive, says most
        break
    done
done
exit "$status"
