"""Tests that a sweep on a Dask cluster survives when workers or its client are killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from emu.host.errors import KinstError
from images import catalog
from kinst.code.survey import survey
from kinst.relocation.trap import TRAPS
from kinst.verify.laboratory.encodings import RelocationTask, key_of, relocate
from kinst.verify.sweep.store import Store
from kinst.verify.sweep.workers import Cluster, Here

distributed = pytest.importorskip("distributed")
ARCH = "amd64"


@pytest.fixture(scope="module")
def codes():
    from emu.arch.architectures import ARCHITECTURES

    image = catalog.find(f"teaching/{ARCH}")
    return list(survey(ARCHITECTURES[ARCH], TRAPS[ARCH], image,
                       list(image.symbols.functions())).places)


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("DASK_DISTRIBUTED__WORKER__DAEMON", "False")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True,
                                  dashboard_address=None, host="127.0.0.1") as found:
        yield found


@pytest.fixture(scope="module")
def undisturbed(codes, tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("store") / "s.db")
    relocate(ARCH, codes, 1, 2, Here(), lambda done: None, store=store)
    return store.digest_rows()


def test_killed_workers_lose_no_results(codes, cluster, undisturbed, tmp_path):
    store, killed = Store(tmp_path / "s.db"), []

    def progress(_done):
        alive = [worker.pid for worker in cluster.workers.values() if worker.pid]
        if len(killed) < 2 and alive:
            killed.append(alive[len(killed) % len(alive)])
            os.kill(killed[-1], signal.SIGKILL)

    jobs = Cluster(cluster.scheduler_address)
    try:
        report = relocate(ARCH, codes, 1, 2, jobs, progress, store=store)
    finally:
        jobs.close()
    assert len(killed) == 2 and sum(report.verdicts.values()) == len(codes)
    assert store.digest_rows() == undisturbed


def test_a_killed_client_resumes_its_sweep(codes, cluster, undisturbed, tmp_path):
    path = tmp_path / "s.db"
    command = [sys.executable, "-m", "kinst_emu.commands.kinst", "relocate", "-k",
               f"teaching/{ARCH}", "--cluster", cluster.scheduler_address, "--store", str(path)]
    client = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    key, end = key_of(ARCH, 1, 2, False), time.monotonic() + 60
    while time.monotonic() < end and client.poll() is None:
        if path.is_file() and path.stat().st_size and list(Store(path).known(key, codes)):
            break
        time.sleep(0.01)
    client.kill()
    client.wait()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=120)
    assert Store(path).digest_rows() == undisturbed


def test_a_worker_of_another_version_is_refused(codes, cluster, monkeypatch):
    monkeypatch.setattr("kinst.verify.sweep.workers.our_code", lambda: "0" * 16)
    jobs = Cluster(cluster.scheduler_address)
    try:
        with pytest.raises(KinstError, match="another version of kinst-emu"):
            list(jobs.done(RelocationTask(ARCH, 1, 2), [codes]))
    finally:
        jobs.close()


def test_a_missing_scheduler_raises_a_one_line_error(monkeypatch):
    monkeypatch.setattr("kinst.verify.sweep.workers.WAIT", 1)
    with pytest.raises(KinstError, match="no scheduler answers") as error:
        Cluster("tcp://127.0.0.1:9")
    assert "\n" not in str(error.value)
