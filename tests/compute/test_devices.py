"""Device choice, leases among real processes, and halving on lack of memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from privacy_assets.compute import devices
from privacy_assets.compute.devices import Device, halve_on_out_of_memory, lease_device, matching_devices, pick_device
from privacy_assets.errors import ConfigError, LeaseTimeout

CARD = Device("cuda:0", "cuda-GPU-0")
CARDS = [CARD, Device("cuda:1", "cuda-GPU-1")]
ROOT = str(Path(__file__).parents[2])

# A process that takes a lease on the one card, writes a word, and does as told by its last argument.
HOLDER = """
import ctypes, os, subprocess, sys, time
from privacy_assets.compute import devices
devices.accelerators = lambda: [devices.Device("cuda:0", "cuda-GPU-0")]
with devices.lease_device(sys.argv[1], slots=int(sys.argv[2]), timeout=120) as name:
    if sys.argv[3] in ("fork", "bare fork"):  # the bare one passes by the hooks that Python has for forks
        child = os.fork() if sys.argv[3] == "fork" else ctypes.PyDLL(None).fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
    elif sys.argv[3] == "spawn":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False).pid
    else:
        child = 0
    print(name, child, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def cards(monkeypatch):
    """Pretend that this machine has two cards; returns a setter for others."""
    monkeypatch.setattr(devices, "accelerators", lambda: CARDS)
    return lambda found: monkeypatch.setattr(devices, "accelerators", lambda: list(found))


@pytest.fixture
def start_holder(tmp_path):
    """Start processes that hold a lease; they and their children are ended after the test."""
    started, children = [], []

    def start(slots=1, mode="alone"):
        command = [sys.executable, "-c", HOLDER, str(tmp_path), str(slots), mode]
        environment = {**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        name, child = process.stdout.readline().split()
        assert name == "cuda:0"
        if int(child):
            children.append(int(child))
        return process, int(child)

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    for child in children:
        os.kill(child, signal.SIGKILL)


def _alive(pid):
    return (
        "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
        if Path("/proc").is_dir()
        else os.kill(pid, 0) is None
    )


def test_matching_devices(cards):
    assert pick_device("auto") == "cuda:0"
    assert pick_device("cuda") == "cuda:0"
    assert matching_devices("cuda") == CARDS
    assert pick_device("cuda:1") == "cuda:1"
    assert pick_device("cpu") == "cpu"
    cards([Device("mps", "mps")])
    assert pick_device("auto") == pick_device("mps") == "mps"
    cards([])
    assert pick_device("auto") == "cpu"


@pytest.mark.parametrize("wanted", ["cuda:7", "mps"])
def test_absent_device_says_what_is_there(cards, wanted):
    with pytest.raises(ConfigError, match=f"{wanted}.*cuda:0, cuda:1, cpu"):
        pick_device(wanted)


@pytest.mark.parametrize("wanted", ["gpu", "cuda:", "cuda:x", "", "CPU"])
def test_unknown_device_names_the_known(wanted):
    with pytest.raises(ConfigError, match="auto, cpu, mps"):
        pick_device(wanted)


def test_accelerators_of_this_machine_are_usable_by_torch():
    for device in devices.accelerators():
        assert torch.ones(2, device=device.name).sum().item() == 2


def test_cpu_needs_no_lease(tmp_path):
    folder = tmp_path / "locks"
    with lease_device(folder, "cpu", timeout=0) as first, lease_device(folder, "cpu", timeout=0) as second:
        assert first == second == "cpu"
    assert not folder.exists()


def test_auto_takes_the_card_that_is_free(cards, tmp_path):
    with lease_device(tmp_path, timeout=0) as first, lease_device(tmp_path, timeout=0) as second:
        assert [first, second] == ["cuda:0", "cuda:1"]
        with pytest.raises(LeaseTimeout), lease_device(tmp_path, "cuda", timeout=0):
            pytest.fail("a third holder of two cards")
    with lease_device(tmp_path, "cuda:1", timeout=0) as name:
        assert name == "cuda:1"


def test_the_same_card_under_another_number_is_one_device(cards, tmp_path):
    cards([CARDS[1]])
    with lease_device(tmp_path, timeout=0) as name:
        assert name == "cuda:1"
        cards([Device("cuda:0", CARDS[1].identity)])
        with pytest.raises(LeaseTimeout), lease_device(tmp_path, timeout=0):
            pytest.fail("one card leased twice")


def test_lease_ends_with_an_error(cards, tmp_path):
    with pytest.raises(KeyError), lease_device(tmp_path, "cuda:0", timeout=0):
        raise KeyError
    with lease_device(tmp_path, "cuda:0", timeout=0) as name:
        assert name == "cuda:0"


def test_threads_exclude_each_other(cards, tmp_path):
    inside, most, guard = [0], [0], threading.Lock()

    def work():
        for _ in range(3):
            with lease_device(tmp_path, "cuda:0", timeout=120):
                with guard:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                time.sleep(0.01)
                with guard:
                    inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] and inside == [0]


@pytest.mark.parametrize("slots", [1, 2])
def test_processes_exclude_each_other(cards, tmp_path, start_holder, slots):
    cards([CARD])
    holders = [start_holder(slots)[0] for _ in range(slots)]
    heard = []
    with (
        pytest.raises(LeaseTimeout, match=rf"process {holders[0].pid} since 20"),
        lease_device(tmp_path, slots=slots, timeout=0.5, on_wait=heard.append),
    ):
        pytest.fail("one holder too many")
    assert len(heard) == 1
    assert all(f"process {holder.pid} since 20" in heard[0] for holder in holders)
    holders[-1].terminate()
    with lease_device(tmp_path, slots=slots, timeout=120) as name:
        assert name == "cuda:0"


def test_looking_at_the_holder_does_not_end_its_lease(cards, tmp_path):
    """A record lock is lost when its process closes any descriptor of the file: a waiting thread must not do that."""
    cards([CARD])
    with lease_device(tmp_path, timeout=0):
        for _ in range(3):
            with pytest.raises(LeaseTimeout, match=str(os.getpid())), lease_device(tmp_path, timeout=0):
                pytest.fail("leased twice")
        path = str(next(tmp_path.glob("*.lock")))
        outside = (
            "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDWR)\n"
            "try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept OSError: print('locked')"
        )
        seen = subprocess.run([sys.executable, "-c", outside, path], capture_output=True, text=True, check=True)
        assert seen.stdout.strip() == "locked"


@pytest.mark.parametrize("mode", ["fork", "bare fork", "spawn"])
def test_killed_holder_frees_the_device_though_its_child_lives(cards, tmp_path, start_holder, mode):
    cards([CARD])
    holder, child = start_holder(mode=mode)
    with pytest.raises(LeaseTimeout), lease_device(tmp_path, timeout=0):
        pytest.fail("the holder was not killed yet")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with lease_device(tmp_path, timeout=120) as name:
        assert name == "cuda:0"
        assert _alive(child)


def test_forked_child_has_no_lease_and_cannot_end_its_parents(cards, tmp_path):
    """In the child: asking again must fail while the parent holds; leaving the copied ``with`` block frees nothing."""
    cards([CARD])
    with lease_device(tmp_path, timeout=0):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with lease_device(tmp_path, timeout=0.3):
                    pass
            except LeaseTimeout:
                code = 0
            for path in tmp_path.glob("*.lock"):
                devices._LOCKS.release(str(path.resolve()))
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        context = multiprocessing.get_context("spawn")
        other = context.Process(target=_try_lease, args=(str(tmp_path),))
        other.start()
        other.join()
        assert other.exitcode == 3


def _try_lease(folder):
    devices.accelerators = lambda: [CARD]
    try:
        with lease_device(folder, timeout=0.3):
            sys.exit(0)
    except LeaseTimeout as error:
        sys.exit(3 if str(os.getppid()) in str(error) else 4)


def test_waiting_speaks_again_and_again_and_ends(cards, tmp_path):
    cards([CARD])
    heard, done = [], threading.Event()

    def hold():
        with lease_device(tmp_path, timeout=0):
            done.set()
            while len(heard) < 3:
                time.sleep(0.01)

    thread = threading.Thread(target=hold)
    thread.start()
    done.wait()
    with lease_device(tmp_path, timeout=120, on_wait=heard.append, every=0.1) as name:
        assert name == "cuda:0"
    thread.join()
    assert len(heard) >= 3
    assert all("cuda:0 is held by process" in line for line in heard)


def test_deleted_lock_file_does_not_stay_locked_out(cards, tmp_path):
    """A cleaner of temporary files may delete a lock file that nobody holds."""
    cards([CARD])
    with lease_device(tmp_path, timeout=0):
        pass
    for path in tmp_path.glob("*.lock"):
        path.unlink()
    with lease_device(tmp_path, timeout=0), pytest.raises(LeaseTimeout), lease_device(tmp_path, timeout=0):
        pytest.fail("leased twice")


def test_lock_file_that_is_a_link_is_refused(cards, tmp_path):
    cards([CARD])
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    folder = tmp_path / "locks"
    folder.mkdir()
    (folder / f"{CARD.identity}.0.lock").symlink_to(victim)
    with pytest.raises(OSError), lease_device(folder, timeout=0):
        pytest.fail("followed a link")
    assert victim.read_text() == "untouched"


def test_slots_must_be_positive(tmp_path):
    with pytest.raises(ConfigError, match="slots"), lease_device(tmp_path, slots=0):
        pytest.fail("no slot")


OUT_OF_MEMORY = [
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 9.05 GB)"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_out_of_memory_halves_and_goes_on(error):
    sizes, heard = [], []

    def work(size):
        sizes.append(size)
        if size > 100:
            raise error
        return "done"

    assert halve_on_out_of_memory(work, 1000, say=heard.append) == ("done", 62)
    assert sizes == [1000, 500, 250, 125, 62]
    assert len(heard) == 4 and "62 rows" in heard[-1]


def test_out_of_memory_at_the_minimum_is_raised():
    sizes = []

    def work(size):
        sizes.append(size)
        raise OUT_OF_MEMORY[0]

    with pytest.raises(torch.cuda.OutOfMemoryError):
        halve_on_out_of_memory(work, 10, minimum=4, say=lambda text: None)
    assert sizes == [10, 5, 4]


def test_other_errors_are_not_retried():
    sizes = []

    def work(size):
        sizes.append(size)
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape"):
        halve_on_out_of_memory(work, 10)
    assert sizes == [10]
