"""Interrupts while processes and threads are made."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from emu.host.child_processes import uninterrupted


@pytest.fixture(autouse=True)
def heard():
    """Whoever runs the tests may ignore SIGINT, as a shell's job in the background does."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def other_thread():
    """One that does not block SIGINT: the system gives it what is blocked elsewhere."""
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    yield
    ends.set()
    thread.join()


@pytest.mark.usefixtures("other_thread")
def test_an_interrupt_while_a_pool_is_made_comes_afterwards_and_once():
    done = []
    with ThreadPoolExecutor(4) as pool:
        with pytest.raises(KeyboardInterrupt), uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            futures = [pool.submit(len, "abc") for _ in range(20)]
            done.append(True)
        assert done and [one.result(5) for one in futures] == [3] * 20
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nothing_is_interrupted_when_nothing_came():
    with uninterrupted():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_another_thread_leaves_the_handler_alone():
    seen = []

    def other():
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
