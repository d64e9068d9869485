"""Turns a copy of CIFAR-10 or CIFAR-100 into what `tfds.builder` reads.

    python -m attn_cnn_jax.prepare_data --source=PATH [--data_dir=DIR]

`sources.read_source` finds out what a copy is and reads it, `write.prepare` writes and
verifies it, `download.fetch` gets the official archive.
"""
