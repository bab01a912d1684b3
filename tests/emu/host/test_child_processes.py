"""Tests of SIGINT while processes and threads are created."""

import os
import signal
import sys
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures._base import DoneAndNotDoneFutures

import pytest

from emu.host import child_processes
from emu.host.child_processes import uninterrupted


@pytest.fixture(autouse=True)
def heard():
    """Install the default SIGINT handler, since background jobs of a shell ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def other_thread():
    """Run another thread that does not block SIGINT; the signal may be delivered to that thread."""
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    yield
    ends.set()
    thread.join()


@pytest.mark.usefixtures("other_thread")
def test_an_interrupt_during_pool_creation_arrives_once_afterwards():
    done = []
    with ThreadPoolExecutor(4) as pool:
        with pytest.raises(KeyboardInterrupt), uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            futures = [pool.submit(len, "abc") for _ in range(20)]
            done.append(True)
        assert done and [one.result(5) for one in futures] == [3] * 20
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sigint_is_blocked_only_inside_the_context():
    with uninterrupted():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_other_threads_do_not_change_the_signal_handler():
    seen = []

    def other():
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_an_interrupt_that_a_finalizer_swallows_ends_a_wait(monkeypatch):
    """Python ignores exceptions in finalizers, and with them Ctrl-C at that moment."""
    swallowed, waits = [], []

    class Thing:
        pass

    def waiting(futures, _timeout, _when):
        thing = Thing()
        weakref.finalize(thing, signal.raise_signal, signal.SIGINT)
        del thing
        waits.append(len(swallowed))
        return DoneAndNotDoneFutures(set(), set(futures))

    monkeypatch.setattr(child_processes, "wait", waiting)
    monkeypatch.setattr(sys, "unraisablehook", lambda found: swallowed.append(found.exc_type))
    with pytest.raises(KeyboardInterrupt):
        child_processes.first_done([Future()])
    assert swallowed == [KeyboardInterrupt] and waits == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_first_future_that_is_done_is_found():
    futures = [Future(), Future()]
    futures[1].set_result(7)
    assert child_processes.first_done(futures) == 1
