"""Probes where functions and inline copies of them begin and end; part of the dispatcher
(``_dispatch.pyx`` includes it).
"""


@cython.no_gc_clear
cdef class ProbeBoundaries(ProbeSites):
    """Adds what is entered and left, and knows who is in it."""

    def add_copy(self, list ranges):
        """An inline copy with its code in [low, high) of each range; its number."""
        self.unchanging()
        return inline_add(&self.d, ranges)

    def add_copy_ends(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                      uint64_t size, uint32_t function, int provider, copies, bint entry,
                      bint returns, padding, bint anywhere):
        """The probes of inline copies that have code in a function.

        :param copies: (number, offset of its begin or None where that is in another function,
            whether it is entered there alone).
        :param entry: whether the probes of entries are wanted, not silent; so ``returns``.
        :param padding: says of an instruction's bytes whether it only fills space.
        :param anywhere: whether other functions may jump to any place in this one.
        :return: for each copy a list of where it is entered, (offset, probe's number), and a list
            of the same for the instructions that may lead out of it.  In place of the number -1:
            there is no instruction, -2: it is refused, -3: it lies in an exclusive access.
        """
        self.unchanging()
        cdef Dispatch *d = &self.d
        cdef Piece *pieces = NULL
        cdef int64_t *ways = NULL
        cdef uint64_t i, count, at
        cdef bint exclusive = False
        cdef const Template *t
        cdef uint32_t copy
        cdef int role
        made, refused, where = [], {}, {}
        try:
            count = self.pieces(address, code, start, size, &pieces, [])
            for i in range(count):
                t = &self.templates.all[pieces[i].template]
                exclusive = exclusive or t.flags & STARTS_EXCLUSIVE
                if exclusive or t.op == REFUSE:
                    refused[i] = -3 if exclusive else -2
                if t.flags & ENDS_EXCLUSIVE:
                    exclusive = False
                where[pieces[i].at] = i
            offsets = sorted(where)
            ways = <int64_t *>calloc(2 * count + 1, sizeof(int64_t))
            if ways == NULL:
                raise MemoryError
            unseen = self.flow_of(address, code, start, pieces, count, where, padding, ways)
            for copy, first, alone in copies:
                if copy >= d.copy_count:
                    raise ValueError("no such copy")
                entered, left = [], []
                if first is None:
                    firsts = []
                elif alone:
                    firsts = [first]
                else:
                    firsts = (self.reached(copy, address, pieces, count, ways, unseen, anywhere)
                              or self.reached(copy, address, pieces, count, ways, unseen, True)
                              or [first])
                for one in firsts:
                    if one not in where:
                        entered.append((one, -1))
                    elif where[one] in refused:
                        entered.append((one, refused[where[one]]))
                    else:
                        entered.append((one, inline_probe(d, self.site_of(
                            address, code, start, &pieces[<uint64_t>where[one]]), function,
                            provider, copy, ENTERS, not entry)))
                for i in self.in_ranges(copy, address, offsets, where):
                    t = &self.templates.all[pieces[i].template]
                    at = address + pieces[i].at
                    role = inline_way_out(d, copy, t, target_of(t, at, pieces[i].relative),
                                   at + pieces[i].length)
                    if role == NO_WAY_OUT:
                        continue
                    left.append((pieces[i].at, refused[i] if i in refused else inline_probe(
                        d, self.site_of(address, code, start, &pieces[i]), function, provider,
                        copy, role, not returns)))
                made.append((entered, left))
        finally:
            free(pieces)
            free(ways)
        return made

    def ways(self, uint64_t address, const uint8_t[::1] code, uint64_t start, uint64_t size):
        """Where control goes in a function: of each instruction (offset, length, numbers of the
        following one and of the one that it branches to, negative: of none; whether it calls)."""
        cdef Piece *pieces = NULL
        cdef int64_t *to = NULL
        cdef const Template *t
        cdef uint64_t i, count
        try:
            count = self.pieces(address, code, start, size, &pieces, [])
            to = <int64_t *>calloc(2 * count + 1, sizeof(int64_t))
            if to == NULL:
                raise MemoryError
            where = {pieces[i].at: i for i in range(count)}
            self.flow_of(address, code, start, pieces, count, where, lambda code: True, to)
            found = []
            for i in range(count):
                t = &self.templates.all[pieces[i].template]
                found.append((pieces[i].at, pieces[i].length, to[2 * i], to[2 * i + 1], t.op == CALL
                              or t.op == LINK and t.a != NO_REGISTER
                              or t.op == INDIRECT and t.truth != 0))
            return found
        finally:
            free(pieces)
            free(to)

    cdef list flow_of(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                      const Piece *pieces, uint64_t count, dict where, padding, int64_t *ways):
        """Where control goes from each instruction of a function: numbers of instructions, -1: not
        to one of them, -2: an address says where; of each the following one and the one that it
        branches to.

        :return: where control may come to by ways that are not seen: behind what control does not
            go on from, but for padding.
        """
        cdef uint64_t i, target, before_target = 0
        cdef bint falls
        cdef const Template *t
        cdef Template before
        memset(&before, 0, sizeof(Template))
        targets, behind, open_ = set(), [], False
        for i in range(count):
            t = &self.templates.all[pieces[i].template]
            target = target_of(t, address + pieces[i].at, pieces[i].relative)
            ways[2 * i] = ways[2 * i + 1] = -1
            falls = True
            if t.flags & RETURNS or t.op == RETURN:
                falls = False
            elif t.op == BRANCH_FLAGS or t.op == BRANCH_COMPARE or t.op == BRANCH_BIT or (
                    t.op == BRANCH_COUNT) or t.op == JUMP:
                falls = t.op != JUMP
                ways[2 * i + 1] = where.get(<uint64_t>(target - address), -1)
            elif t.op == LINK and t.a == NO_REGISTER:
                falls = False
                if t.b != NO_REGISTER and before.op == SET and before.a == t.b:
                    target = before_target + t.extra
                if t.b == NO_REGISTER or before.op == SET and before.a == t.b:
                    ways[2 * i + 1] = where.get(<uint64_t>(target & ~<uint64_t>1) - address, -1)
                else:
                    ways[2 * i + 1] = ELSEWHERE
            elif t.op == INDIRECT and not t.truth:
                falls = False
                ways[2 * i + 1] = ELSEWHERE
            if ways[2 * i + 1] >= 0:
                targets.add(ways[2 * i + 1])
            falls = falls and i + 1 < count and (
                pieces[i + 1].at == pieces[i].at + pieces[i].length)
            if falls:
                ways[2 * i] = i + 1
            if open_ and not padding(bytes(code[start + pieces[i].at :
                                                start + pieces[i].at + pieces[i].length])):
                behind.append(i)
                open_ = False
            open_ = open_ or not falls
            before = t[0]
            before_target = target
        return [one for one in behind if one not in targets]

    cdef list reached(self, uint32_t copy, uint64_t address, const Piece *pieces, uint64_t count,
                      const int64_t *ways, list unseen, bint anywhere):
        """Offsets of the instructions of a copy that control comes to first.

        :param unseen: as of ``flow_of``: control comes to these from a jump to an address outside of
            the copy, or, ``anywhere``, from other functions.
        """
        cdef uint8_t *seen = <uint8_t *>calloc(count + 1, 1)
        cdef uint64_t *waiting = <uint64_t *>malloc((count + 1) * sizeof(uint64_t))
        cdef uint64_t waits = 0
        cdef uint64_t i
        cdef int64_t k
        cdef int which
        found = []
        try:
            if seen == NULL or waiting == NULL:
                raise MemoryError
            if count:
                seen[0] = 1  # each instruction waits once
                waits = 1
                waiting[0] = 0
            while waits or anywhere:
                if anywhere:
                    anywhere = False
                    for k in unseen:
                        if 0 <= k < <int64_t>count and not seen[k]:
                            seen[k] = 1
                            waiting[waits] = <uint64_t>k
                            waits += 1
                    unseen = []
                    continue
                waits -= 1
                i = waiting[waits]
                if inline_in_copy(&self.d, copy, address + pieces[i].at):
                    found.append(int(pieces[i].at))
                    continue
                for which in range(2):
                    k = ways[2 * i + which]
                    anywhere = anywhere or k == ELSEWHERE
                    if k >= 0 and not seen[k]:
                        seen[k] = 1
                        waiting[waits] = <uint64_t>k
                        waits += 1
        finally:
            free(seen)
            free(waiting)
        found.sort()
        return found

    cdef list in_ranges(self, uint32_t copy, uint64_t address, offsets, where):
        """The numbers of a function's instructions that lie in a copy."""
        cdef const InlineCopy *c = &self.d.copies[copy]
        cdef uint32_t k
        found = []
        for k in range(c.first, c.first + c.count):
            low, high = int(self.d.ranges[k].low) - address, int(self.d.ranges[k].high) - address
            found += [where[at] for at in offsets[bisect_left(offsets, low):
                                                  bisect_left(offsets, high)]]
        return found

    cdef uint32_t site_of(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                          const Piece *piece) except? 0xFFFFFFFF:
        return table_site_at(&self.d, address + piece.at, piece.template, &code[start + piece.at],
                       piece.length, piece.relative)

    def copy_of(self, uint32_t probe):
        """What a probe is to an inline copy: (the copy's number, 1: it is entered there, 2: control
        may leave it there, 3: there it calls a function that returns to the outside, whether the
        probe is silent); None: it is a probe of no copy."""
        if probe >= self.d.probe_count:
            raise IndexError(probe)
        cdef const Probe *p = &self.d.probes[probe]
        return (p.copy, p.role, bool(p.silent)) if p.role else None

    def lies_lower(self, uint32_t probe, int32_t lower):
        """How many bytes the stack pointer is lowered by at an entry of a copy that has several."""
        self.unchanging()
        if self.copy_of(probe) is None:
            raise ValueError(f"probe {probe} is of no inline copy")
        self.d.probes[probe].lower = lower

    def lowered_at(self, uint32_t probe):
        """What ``lies_lower`` was told of a probe; 0: nothing."""
        if probe >= self.d.probe_count:
            raise IndexError(probe)
        return self.d.probes[probe].lower

    def enter_copy(self, uint32_t probe):
        """Control is at the begin of a probe's inline copy; whether the probe is to fire."""
        self.live()
        if self.copy_of(probe) is None:
            raise ValueError(f"probe {probe} is of no inline copy")
        return bool(inline_enter(&self.d, self.d.probes[probe].copy, self.d.probes[probe].lower)
                    and not self.d.probes[probe].silent)

    def leave_copy(self, uint32_t probe):
        """Control has left a probe's inline copy; whether the probe is to fire."""
        self.live()
        if self.copy_of(probe) is None:
            raise ValueError(f"probe {probe} is of no inline copy")
        return bool(inline_leave(&self.d, self.d.probes[probe].copy)
                    and not self.d.probes[probe].silent)

    def ranges_of(self, uint32_t copy):
        """[low, high) of each piece of an inline copy."""
        if copy >= self.d.copy_count:
            raise IndexError(copy)
        cdef const InlineCopy *c = &self.d.copies[copy]
        return [(self.d.ranges[k].low, self.d.ranges[k].high)
                for k in range(c.first, c.first + c.count)]

    def forget_copy(self, probes):
        """The copy of some probes is not followed: its entry fires whenever control comes there, its
        ends never."""
        self.unchanging()
        cdef uint32_t i
        for i in probes:
            if i >= self.d.probe_count or not self.d.probes[i].role:
                raise ValueError(f"probe {i} is of no copy")
            if self.d.probes[i].role == ENTERS:
                self.d.probes[i].role = NO_WAY_OUT
            else:
                self.d.probes[i].silent = True

    cdef bint leads_astray(self, uint64_t address, const uint8_t[::1] code, uint64_t start, uint64_t size,
                           uint64_t at, strays) except -1:
        """Whether the instruction at an offset jumps where no function begins, as ``strays`` of
        ``add_boundaries`` says; what returns is not asked about."""
        cdef uint32_t length = 0
        cdef int32_t relative = 0
        cdef int64_t number = self.template_of(&code[start + at], <uint32_t>min(size - at, 15),
                                               address + at, &length, &relative)
        if number < 0:
            raise ValueError("a boundary is no instruction")
        cdef const Template *t = &self.templates.all[number]
        if t.flags & RETURNS or t.op == RETURN or t.op == INDIRECT:
            return False
        if t.op == LINK:
            return strays(at, None)
        return strays(at, target_of(t, address + at, relative))

    def add_boundaries(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                       uint64_t size, uint32_t function, entry, returns, strays):
        """Probes where a function is entered and left.

        :param entry: their provider; None: none there.  So ``returns``.
        :param strays: says of an offset, and of where its jump leads (None: a register says it),
            whether that is where no function begins.
        :return: their numbers.
        """
        self.unchanging()
        first, left, _framed, leaving = self.boundaries(address, code, start, size)
        wanted = [(first, entry, False)] if entry is not None and first >= 0 else []
        ways = []
        if returns is not None:
            for places, decided in ((left, False), (leaving, True)):
                for place in places:
                    if not self.leads_astray(address, code, start, size, place, strays):
                        ways.append((place, returns, decided))
            wanted += sorted(ways)
        cdef uint32_t length = 0
        cdef int32_t relative = 0
        cdef int64_t template
        cdef uint64_t at
        made = []
        for at, provider, decided in wanted:
            template = self.template_of(&code[start + at], <uint32_t>min(size - at, 15),
                                        address + at, &length, &relative)
            if template < 0:
                raise ValueError("a boundary is no instruction")
            made.append(table_probe_at(
                &self.d, table_site_at(&self.d, address + at, <uint32_t>template, &code[start + at],
                                 length, relative), function, provider))
            if provider == returns:
                self.leaves_by(<uint32_t>made[len(made) - 1], <uint32_t>template)
            if decided:
                table_leaves_only(&self.d, <uint32_t>made[len(made) - 1], address, size)
        return made

    def follow_threads(self, int per_cpu, uint64_t begins):
        """How to know threads, for returns by tail calls.

        :param per_cpu: Unicorn's number of the register that leads to the thread.
        :param begins: the address of a new thread's first instruction; 0: it is not known.
        """
        if not self.is_narrow(per_cpu):
            raise ValueError(f"register {per_cpu} has more than 64 bits")
        self.d.per_cpu, self.d.thread_begins = per_cpu, begins

    def is_tail(self, uint32_t probe):
        """Whether a probe fires only when the function that its instruction jumps to has returned."""
        if probe >= self.d.probe_count:
            raise IndexError(probe)
        return bool(self.d.probes[probe].tail)

    def leave_by_tail(self, uint32_t probe, uint64_t sp, uint64_t back):
        """Have such a probe fire when control is at ``back`` with the stack pointer ``sp``."""
        self.live()
        if not self.is_tail(probe) and self.d.probes[probe].role != CALLS_OUT:
            raise ValueError(f"probe {probe} fires where it is")
        cdef int why = return_note_tail(&self.d, probe, sp, back, 0, self.d.probes[probe].role == CALLS_OUT)
        if why:
            raise MachineError(return_why_not_noted(why))

    def pending_returns(self):
        """The probes that wait for a function to return: (thread, probe), the outermost of a thread first.

        A function that has left by a tail call has no frame on its thread's stack any more.
        """
        cdef uint64_t i
        cdef uint32_t k
        cdef list found = []
        cdef TailThread *t
        for i in range(self.d.tails.mask + 1 if self.d.tails.threads != NULL else 0):
            t = &self.d.tails.threads[i]
            for k in range(t.count if t.used else 0):
                found.append((return_thread_of(t.key), t.all[k].probe))
        return found

    def copies_entered(self):
        """The inline copies that threads are in: (thread, copy), the outermost of a thread first."""
        cdef uint64_t i
        cdef uint32_t k
        cdef list found = []
        cdef TailThread *t
        for i in range(self.d.tails.mask + 1 if self.d.tails.threads != NULL else 0):
            t = &self.d.tails.threads[i]
            for k in range(t.active_count if t.used else 0):
                found.append((return_thread_of(t.key), t.active[k].copy))
        return found

    @property
    def after(self):
        """Whether the function that fires has returned already, to its caller."""
        return bool(self.d.after)
