"""Two processes of four devices, through the launcher: the result of one of eight."""

import signal

import psutil
import pytest

from attn_cnn_jax import checkpoint, cluster, records

NOTICED_SOON = "--heartbeat_timeout_seconds=10"


def process_of(launcher, process_id: int) -> psutil.Process:
    """The process that a launcher has started with an id."""
    [found] = [
        child
        for child in psutil.Process(launcher.pid).children()
        if f"--process_id={process_id}" in child.cmdline()
    ]
    return found


def test_two_processes_train_like_one_through_a_kill_and_a_stop(
    processes, alone, tmp_path
):
    slowly = ("--config.steps_per_dispatch=2", NOTICED_SOON)
    two = processes.train(tmp_path, *slowly)
    processes.until_saved(tmp_path, two)
    process_of(two, 1).kill()
    output = processes.end(two, cluster.RUN_AGAIN, seconds=60)
    safe = checkpoint.last_resumable(tmp_path)
    assert processes.error(output) == (
        f"error: process 1 is gone (no sign of life for 10 s); step {safe} is safe in "
        f"{tmp_path}, the same command continues from there."
    )

    two = processes.train(tmp_path, *slowly)
    processes.until_saved(tmp_path, two, beyond=safe)
    two.send_signal(signal.SIGTERM)
    output = processes.end(two, 128 + signal.SIGTERM)
    assert f"continues after step {safe}" in output
    assert output.count("stopped by SIGTERM") == 1  # process 0 speaks for all
    assert safe < checkpoint.load(tmp_path).step < processes.steps

    processes.end(processes.train(tmp_path, *slowly))
    processes.assert_alike(tmp_path, alone)
    lines = records.read(tmp_path)
    steps = [line["step"] for line in lines if line["split"] == "train"]
    assert steps == list(range(4, processes.steps + 1, 4))


@pytest.mark.soak
def test_an_error_of_one_process_ends_the_others_with_its_status(processes, tmp_path):
    """What process 1 alone cannot do is no reason to run it again."""
    quickstart = processes.flags[0].removeprefix("--config=")
    config = tmp_path / "config.py"
    config.write_text(
        "import runpy, sys\n"
        "def get_config():\n"
        f"    c = runpy.run_path('{quickstart}')['get_config']()\n"
        "    if '--process_id=1' in sys.argv:\n"
        "        c.dataset.name = 'cifar10'\n"
        "        c.dataset.data_dir = '/nowhere'\n"
        "    return c\n"
    )
    launcher = ["bash", "launch/local.sh", "2", f"--config={config}"]
    workdir = tmp_path / "run"
    command = [*launcher, *processes.flags[1:], f"--workdir={workdir}"]
    port = processes.free_port()
    output = processes.end(processes.start(command, 4, PORT=port), 2, 60)
    told = f"process 1 ended with an error of its own; nothing is saved in {workdir}"
    assert f"error: {told}" in output
    assert "/nowhere" in output
