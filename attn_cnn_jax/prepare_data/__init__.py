"""Turn a copy of CIFAR-10 or CIFAR-100 into what `tfds.builder` reads.

    python -m attn_cnn_jax.prepare_data --source=PATH [--data_dir=DIR]

`copies.find_copy` finds out what a copy is and reads it, `write.prepare` writes and
verifies it, `download.fetch` gets the official archive.
"""
