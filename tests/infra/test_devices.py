"""Device choice, leases among real processes, and halving of batches when memory is short."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from privacy_assets.errors import ConfigError, LeaseTimeout
from privacy_assets.infra import devices, folders
from privacy_assets.infra.devices import (
    Device,
    halve_on_out_of_memory,
    lease_device,
    matching_devices,
    pick_device,
)

CARD = Device("cuda:0", "cuda-GPU-0")
CARDS = [CARD, Device("cuda:1", "cuda-GPU-1")]
MPS = Device("mps", "mps")
ROOT = str(Path(__file__).parents[2])

# A process that leases the one card, starts children of every kind on request, and prints the
# device's name.
HOLDER = """
import os, subprocess, sys, time
from privacy_assets.infra import devices
devices.accelerators = lambda: [devices.Device("cuda:0", "cuda-GPU-0")]
with devices.lease_device(sys.argv[1], slots=int(sys.argv[2]), timeout=120) as name:
    children = []
    if sys.argv[3] == "children":
        children.append(os.fork())
        if children[-1] == 0:
            time.sleep(600)
            os._exit(0)
        children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False).pid)
    print(name, *children, flush=True)
    time.sleep(600)
"""  # noqa: E501
OUTSIDE = """
import fcntl, os, sys
try: fcntl.flock(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError: print("locked")
"""


@pytest.fixture
def cards(monkeypatch):
    """Pretend that this machine has the given cards (at first one)."""

    def has(*found):
        monkeypatch.setattr(devices, "accelerators", lambda: list(found))

    has(CARD)
    return has


@pytest.fixture
def start_holder(tmp_path):
    """Start processes that hold a lease; after the test they and their children are ended."""
    started, children = [], []

    def start(slots, mode="alone"):
        command = [sys.executable, "-c", HOLDER, str(tmp_path), str(slots), mode]
        environment = {**os.environ, "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        name, *own = process.stdout.readline().split()
        assert name == "cuda:0"
        children.extend(map(int, own))
        return process

    start.children = children
    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
    for child in children:
        os.kill(child, signal.SIGKILL)


def alive(pid):
    status = Path(f"/proc/{pid}/status")
    return (
        "\nState:\tZ" not in status.read_text()
        if Path("/proc").is_dir()
        else os.kill(pid, 0) is None
    )


def rejected(folder, match="held by", **options):
    with (
        pytest.raises(LeaseTimeout, match=match),
        lease_device(folder, **{"timeout": 0, **options}),
    ):
        pytest.fail("leased twice")


@pytest.mark.parametrize(
    ("wanted", "there", "found"),
    [
        ("auto", CARDS, CARDS),
        ("auto", [MPS], [MPS]),
        ("auto", [], [devices.CPU]),
        ("cpu", CARDS, [devices.CPU]),
        ("cuda", CARDS, CARDS),
        ("cuda:1", CARDS, CARDS[1:]),
        ("mps", [MPS], [MPS]),
    ],
)
def test_devices_are_found_by_name(cards, wanted, there, found):
    cards(*there)
    assert matching_devices(wanted) == found and pick_device(wanted) == found[0].name


@pytest.mark.parametrize("wanted", ["cuda:7", "mps", "gpu", "cuda:", "cuda:x", "", "CPU"])
def test_other_devices_are_told(cards, wanted):
    told = (
        "is not available.*cuda:0, cpu"
        if wanted in ("cuda:7", "mps")
        else "is unknown.*auto, cpu, mps"
    )
    with pytest.raises(ConfigError, match=f"device '{wanted}' {told}"):
        pick_device(wanted)


def test_accelerators_of_this_machine_are_usable_by_torch():
    for device in devices.accelerators():
        assert torch.ones(2, device=device.name).sum().item() == 2


def test_cpu_needs_no_lease(tmp_path):
    folder = tmp_path / "locks"
    with (
        lease_device(folder, "cpu", timeout=0) as first,
        lease_device(folder, "cpu", timeout=0) as second,
    ):
        assert first == second == "cpu"
    assert not folder.exists()
    with pytest.raises(ConfigError, match="slots"), lease_device(folder, slots=0):
        pytest.fail("no slot")


def test_a_card_has_one_holder_under_any_number_and_until_an_error(cards, tmp_path):
    cards(*CARDS)
    with lease_device(tmp_path, timeout=0) as first, lease_device(tmp_path, timeout=0) as second:
        assert [first, second] == ["cuda:0", "cuda:1"]
        rejected(tmp_path, device="cuda")
    with pytest.raises(KeyError), lease_device(tmp_path, "cuda:1", timeout=0):
        raise KeyError
    with lease_device(tmp_path, "cuda:1", timeout=0) as name:
        assert name == "cuda:1"
        cards(Device("cuda:0", CARDS[1].identity))
        rejected(tmp_path)


@pytest.mark.slow
def test_threads_exclude_each_other_and_hear_of_the_holder(cards, tmp_path):
    inside, heard, guard = [], [], threading.Lock()

    def work():
        for _ in range(3):
            with lease_device(tmp_path, timeout=120, on_wait=heard.append, interval=0.1):
                with guard:
                    inside.append(1)
                    assert len(inside) == 1
                time.sleep(0.01)
                inside.pop()

    with lease_device(tmp_path, timeout=0):
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        ends = time.monotonic() + 120
        # each thread reports its wait at once, and again
        while len(heard) < 9 and time.monotonic() < ends:
            time.sleep(0.01)
        early = list(heard)
    for thread in threads:
        thread.join()
    assert (
        inside == []
        and len(early) >= 9
        and all("cuda:0 is held by process" in line for line in early)
    )
    # one who ends between the two looks has no number
    assert all("cuda:0 is held by" in line for line in heard)


@pytest.mark.slow
def test_processes_exclude_each_other(cards, tmp_path, start_holder):
    holders, heard = [start_holder(2) for _ in range(2)], []
    rejected(tmp_path, rf"process {holders[0].pid}", slots=2, timeout=0.5, on_wait=heard.append)
    assert len(heard) == 1 and all(f"process {holder.pid}" in heard[0] for holder in holders)
    holders[-1].terminate()
    with lease_device(tmp_path, slots=2, timeout=120) as name:
        assert name == "cuda:0"


def test_killed_holder_frees_the_device_though_its_children_live(cards, tmp_path, start_holder):
    holder = start_holder(1, "children")
    rejected(tmp_path)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with lease_device(tmp_path, timeout=120) as name:
        assert name == "cuda:0"
        assert len(start_holder.children) == 2 and all(map(alive, start_holder.children))


def test_neither_a_look_at_the_holder_nor_a_forked_child_ends_its_lease(cards, tmp_path):
    """A forked child's own request fails, and closing its copies releases no lock."""
    with lease_device(tmp_path, timeout=0):
        rejected(tmp_path, match=str(os.getpid()))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with lease_device(tmp_path, timeout=0.3):
                    pass
            except LeaseTimeout:
                code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        (path,) = tmp_path.glob("*.lock")
        seen = subprocess.run(
            [sys.executable, "-c", OUTSIDE, path], capture_output=True, text=True, check=True
        )
        assert seen.stdout.strip() == "locked"


def test_lock_files_that_were_deleted_or_are_links(cards, tmp_path, monkeypatch):
    """A cleaner of temporary files may delete a lock file while no process holds it."""
    with lease_device(tmp_path, timeout=0):
        pass
    (path,) = tmp_path.glob("*.lock")
    path.unlink()
    with lease_device(tmp_path, timeout=0):
        rejected(tmp_path)
    lock, deleted = folders.lock, []

    def just_deleted(*given):
        deleted.append(path.unlink() if not deleted else None)
        return lock(*given)

    monkeypatch.setattr(folders, "lock", just_deleted)
    with lease_device(tmp_path, timeout=120):  # a lease of the file that the next process will open
        assert path.exists() and len(deleted) == 2
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    path.unlink()
    path.symlink_to(victim)
    with pytest.raises(OSError), lease_device(tmp_path, timeout=0):
        pytest.fail("followed a link")
    assert victim.read_text() == "untouched"


OUT_OF_MEMORY = [
    torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 9.05 GB)"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"
    ),
    MemoryError(),
]


@pytest.mark.parametrize("error", [*OUT_OF_MEMORY, RuntimeError("shape mismatch")], ids=str)
def test_out_of_memory_halves_and_goes_on_and_other_errors_do_not(error, caplog):
    sizes = []

    def work(size):
        sizes.append(size)
        if size > 100:
            raise error
        return "done"

    if error not in OUT_OF_MEMORY:
        with pytest.raises(RuntimeError, match="shape"):
            halve_on_out_of_memory(work, 1000)
        assert sizes == [1000]
        return
    assert halve_on_out_of_memory(work, 1000) == ("done", 62)
    assert sizes == [1000, 500, 250, 125, 62]
    assert len(caplog.messages) == 4 and "62 rows" in caplog.messages[-1]
    with pytest.raises(type(error)):
        halve_on_out_of_memory(work, 450, minimum=400)
    assert sizes[5:] == [450, 400]
