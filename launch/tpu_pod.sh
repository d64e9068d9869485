#!/usr/bin/env bash
# The same command on every host of a Cloud TPU pod slice.
#
#   TPU=my-slice ZONE=us-central2-b launch/tpu_pod.sh --config=configs/learned_w_content.py \
#       --data_dir=/mnt/shared/tfds --workdir=/mnt/shared/runs/X
#
# Before: the checkout in ~/attn_cnn_jax on all hosts, with its .venv and jax[tpu] (README,
# Devices), and a file system (NFS) that all of them see for the data and the workdir. JAX
# finds the other hosts by itself. Run again after a preemption, it continues.
set -euo pipefail
printf -v flags '%q ' "$@"
gcloud compute tpus tpu-vm ssh "$TPU" --zone="$ZONE" --worker=all --command="
    cd attn_cnn_jax && .venv/bin/python -m attn_cnn_jax.main --multi_host $flags"
