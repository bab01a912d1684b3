"""Locks of a recorded run as a self-contained HTML page."""

from collections.abc import Callable, Mapping, Sequence

from dtrace.flow.lock_events import Holding
from kinst_emu.locks.report import Order, inversions, named
from kinst_emu.report.page_file import packed_json
from kinst_emu.report.page_file import page as filled

MAX_HOLDINGS = 50_000  # maximum number of acquisitions in a page


def page(title: str, about: str, holdings: Sequence[Holding], names: Mapping[int, str],
         where: Callable[[tuple[int, ...]], str], found: Sequence[Order], begin: int, end: int,
         drawing: str) -> str:
    """Return the page.

    :param names: names of threads.
    :param where: returns the text of a place.
    :param found: the orders in which classes of locks were acquired.
    :param begin: virtual time in ns at the start of the window.
    :param end: virtual time at its end.
    :param drawing: picture of the orders (SVG); empty if there is none.
    """
    shown = sorted(holdings, key=lambda one: one.time)[:MAX_HOLDINGS]
    notes = [] if len(shown) == len(holdings) else [
        f"The page, and so the sums of the classes, has the first {MAX_HOLDINGS:,} of "
        f"{len(holdings):,} acquisitions."]
    texts: dict[str, int] = {}

    def text(words: str) -> int:
        return texts.setdefault(words, len(texts))

    rows = [[text(named(one.lock)), one.lock.at,
             text(names.get(one.thread) or (f"{one.thread:#x}" if one.thread else "(no thread)")),
             one.time - begin, one.held, one.waited, int(one.shared),
             int(one.released is not None), -1 if one.position is None else one.position,
             text(where(one.where)), text(where(one.released_where)),
             [text(named(lock)) for lock in one.within], int(one.changed) + 2 * int(one.handed)]
            for one in shown]
    wrong = {(one.before, one.after) for pair in inversions(found) for one in pair}
    return filled("locks.html", title, about, notes=notes, drawing=drawing,
                  orders=[(one, where(one.where), (one.before, one.after) in wrong)
                          for one in found],
                  data=packed_json({"texts": list(texts), "rows": rows, "length": end - begin}))
