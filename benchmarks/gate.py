"""What the gate costs: CPU seconds of verifying and of publishing a large table, against hashing it once.

    python -m benchmarks.gate --size-gb 1

Every time is user plus system time, the least of three, with the file in the page cache. Verifying is meant to
cost at most 1.2 times what hashing does.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from privacy_assets.gate.attestation import attest
from privacy_assets.gate.gate import Gate
from privacy_assets.gate.keys import SigningKey, TrustedKeys, first_key
from privacy_assets.gate.releases import Release, check_bytes, hash_file
from privacy_assets.gate.snapshot import Snapshot
from privacy_assets.gate.statements import Place, Sealed, seal
from privacy_assets.policy import Policy
from privacy_assets.stats.estimates import Estimate
from privacy_assets.stats.limits import Limit
from privacy_assets.stats.results import MetricResult

PLACE = Place("large")
POLICY = Policy((Limit("dcr.member_excess", at_most=0.1),))
RESULT = MetricResult("dcr", (Estimate("member_excess", 0.0, -0.01, 0.01, n=1000, subjects=1000),))


def deployment(root: Path) -> Gate:
    """A gate with keys of its own."""
    key, trusted = root / "private" / "signing.key", root / "trusted_keys"
    first_key(key, trusted)
    return Gate(root / "releases", root / "private", SigningKey(key, "", TrustedKeys((trusted,))), b"k" * 32)


def large_snapshot(gate: Gate, size: int) -> Snapshot:
    """A Parquet file of about ``size`` bytes where the gate keeps its snapshots, written piece by piece."""
    rng, rows, columns = np.random.default_rng(0), 1 << 17, 8
    folder = PLACE.below(gate.private / "snapshots")
    folder.mkdir(parents=True)
    schema = pa.schema([(f"column {number}", pa.float64()) for number in range(columns)])
    pieces = max(1, round(size / (rows * columns * 8)))
    with pq.ParquetWriter(folder / "draft", schema, compression="none", use_dictionary=False) as writer:
        for _ in range(pieces):
            writer.write_table(pa.table([rng.random(rows) for _ in range(columns)], schema=schema))
    sha256 = hash_file(folder / "draft")
    path = (folder / "draft").rename(folder / f"{sha256}.parquet")
    return Snapshot(PLACE, path, sha256, pieces * rows, "train", "content")


def cost(work: Callable[[], object], before: Callable[[], object] = lambda: None) -> tuple[float, float]:
    """CPU and wall seconds of ``work``: the least of three each; ``before`` is not counted."""
    used, lasted = [], []
    for _ in range(3):
        before()
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        used.append(time.process_time() - cpu)
        lasted.append(time.perf_counter() - wall)
    return min(used), min(lasted)


def measure(gate: Gate, snapshot: Snapshot) -> dict[str, tuple[float, float]]:
    """CPU and wall seconds of reading and hashing, of signing and verifying, and of publishing."""
    taken = seal(snapshot.statement(), gate.key)

    def hashed() -> None:
        with snapshot.path.open("rb") as stream:
            hashlib.file_digest(stream, "sha256")

    def signed() -> Sealed:
        return seal(attest(snapshot, POLICY, {"dcr": RESULT}, {"train": "train"}, {}).statement(), gate.key)

    def published() -> Release:
        return gate.publish(signed(), taken, PLACE, POLICY, {})

    def verified() -> None:
        signed()
        release = gate.store.current(PLACE)
        check_bytes(release.table, release.opened(PLACE, gate.key.trusted).sha256)

    def forgotten() -> None:
        for release in gate.store.history(PLACE):
            release.folder.chmod(0o755)
            shutil.rmtree(release.folder)

    hashed()
    publishing = cost(published, forgotten)
    return {"hash": cost(hashed), "sign and verify": cost(verified), "publish": publishing}


def main() -> None:
    """Print the statistics."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-gb", type=float, default=1.0)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        gate = deployment(Path(folder))
        snapshot = large_snapshot(gate, int(options.size_gb * 1e9))
        size, made = snapshot.path.stat().st_size, peak()
        seconds = measure(gate, snapshot)
    print(f"{size / 1e9:.2f} GB, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    for name, (cpu, wall) in seconds.items():
        print(f"{name:16} {cpu:6.2f} CPU s  {wall:6.2f} s  {cpu / seconds['hash'][0]:5.2f} x hashing")
    print(f"peak memory {peak():.0f} MB, of which {made:.0f} MB before measuring")


def peak() -> float:
    """Most memory that this process ever held, in MB (Linux: the number is in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
