from hypothesis import given
from hypothesis import strategies as st

from emu.machine.events import NEVER, EventQueue


def test_timers_fire_in_order_of_deadline_and_name():
    queue, rung = EventQueue(), []
    for name, when in (("b", 5), ("a", 5), ("c", 3), ("d", 9)):
        queue.timer(name, lambda name=name: rung.append(name)).set(when)
    assert queue.next() == 3
    queue.run(5)
    assert rung == ["c", "a", "b"] and queue.next() == 9


def test_a_timer_that_is_set_again_fires_only_at_the_new_deadline():
    queue, rung = EventQueue(), []
    timer = queue.timer("t", lambda: rung.append(1))
    timer.set(5)
    timer.set(7)
    queue.run(6)
    assert not rung
    queue.run(7)
    assert rung == [1] and queue.next() == NEVER


def test_a_canceled_timer_does_not_fire():
    queue = EventQueue()
    timer = queue.timer("t", lambda: 1 / 0)
    timer.set(5)
    timer.cancel()
    queue.run(10)
    assert queue.next() == NEVER


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20)), max_size=20))
def test_a_restored_event_queue_fires_the_same_timers(settings):
    def play(queue, log):
        while queue.next() != NEVER:
            now = queue.next()
            queue.run(now)
            log.append(now)

    queues = [EventQueue(), EventQueue()]
    logs = [[], []]
    for queue, log in zip(queues, logs, strict=True):
        for name in "abc":
            queue.timer(name, lambda log=log, name=name: log.append(name))
    for name, when in settings:
        queues[0].timers[name].set(when)
    queues[1].restore(queues[0].state())
    for queue, log in zip(queues, logs, strict=True):
        play(queue, log)
    assert logs[0] == logs[1]
