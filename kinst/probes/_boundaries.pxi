"""Probes at the entries and exits of functions and of their inline copies.

This file is part of the dispatcher; ``_dispatch.pyx`` includes it.
"""


@cython.no_gc_clear
cdef class ProbeBoundaries(ProbeSites):
    """Part of the dispatcher that probes the entries and exits of functions and inline copies."""

    def add_copy(self, list ranges, uint64_t order=0):
        """Add an inline copy with code in the ranges [low, high), and return the copy's number.

        :param order: determines which of two copies at one instruction is entered first: the one
            with the lower number, which must be the outer one.
        """
        self.unchanging()
        return inline_add(&self.d, ranges, order)

    def add_copy_ends(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                      uint64_t size, uint32_t function, int provider, copies, bint entry,
                      bint returns, padding, bint anywhere, int program=0):
        """Add the entry and exit probes of inline copies that have code in a function.

        :param copies: (number, offset of the entry or None if it is in another function, whether
            the copy has no other entry).
        :param entry: whether the entry probes fire; otherwise they are silent and only track the
            copies.
        :param returns: the same for the exit probes.
        :param padding: returns whether the bytes of an instruction are only padding.
        :param anywhere: whether other functions may jump to any place in this one.
        :param program: number of the program that contains the function, or 0 for the kernel.  In a
            program, every instruction can have a probe.
        :return: for each copy, a list of its entries, (offset, probe number), and a list of the
            instructions that may leave it, in the same form.  Values in place of a probe number:
            -1 if no instruction starts at the offset, -2 if the instruction is refused, -3 if it
            belongs to an exclusive access.
        """
        self.unchanging()
        cdef Dispatch *d = &self.d
        cdef Piece *pieces = NULL
        cdef int64_t *ways = NULL
        cdef uint64_t i, count, at
        cdef bint exclusive = False
        cdef const Template *t
        cdef uint32_t copy, probe
        cdef int role
        made, refused, where = [], {}, {}
        try:
            count = self.pieces(address, code, start, size, &pieces, [])
            for i in range(count):
                t = &self.templates.all[pieces[i].template]
                exclusive = exclusive or t.flags & STARTS_EXCLUSIVE
                if program == 0 and (exclusive or t.op == REFUSE):
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
                    raise ValueError("no inline copy has this number")
                entered, left = [], []
                if first is None:
                    firsts = []
                elif alone:
                    firsts = [first]
                else:
                    firsts = (self.reached(copy, address, pieces, count, ways, unseen, anywhere)
                              or self.reached(copy, address, pieces, count, ways, unseen, True)
                              or [first])
                inside = self.in_ranges(copy, address, offsets, where)
                if first is not None and not alone:
                    firsts = sorted({self.past_padding(
                        one, copy, address, code, start, pieces, count, where, padding)
                        for one in firsts})
                for one in firsts:
                    if one not in where:
                        entered.append((one, -1))
                    elif where[one] in refused:
                        entered.append((one, refused[where[one]]))
                    else:
                        probe = inline_probe(d, self.site_of(
                            program, address, code, start, &pieces[<uint64_t>where[one]]), function,
                            provider, copy, ENTERS, not entry)
                        d.probes[probe].loops = inline_leads_back(
                            d, copy, address, address + size, inside, ways, where[one])
                        entered.append((one, probe))
                for i in inside:
                    t = &self.templates.all[pieces[i].template]
                    at = address + pieces[i].at
                    role = inline_way_out(d, copy, t, target_of(t, at, pieces[i].relative),
                                   at + pieces[i].length)
                    if role == NO_WAY_OUT:
                        continue
                    left.append((pieces[i].at, refused[i] if i in refused else inline_probe(
                        d, self.site_of(program, address, code, start, &pieces[i]), function,
                        provider, copy, role, not returns)))
                made.append((entered, left))
        finally:
            free(pieces)
            free(ways)
        return made

    def ways(self, uint64_t address, const uint8_t[::1] code, uint64_t start, uint64_t size):
        """Return the instructions of a function and their successors.

        :return: for each instruction (offset, length, index of the following instruction, index of
            the branch target, whether it is a call); a negative index means none.
        """
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
        """Compute the successors of each instruction of a function.

        :param ways: receives two indices for each instruction: of the following instruction and of
            the branch target.  -1: none in this function; -2: computed at run time.
        :return: the indices of instructions that control can reach only by jumps that the code does
            not show: they follow an instruction that never continues, are not branch targets, and
            are not padding.
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
        """Return the offsets of the instructions at which control enters an inline copy.

        :param unseen: what ``flow_of`` returned: control reaches these instructions from computed
            jumps outside of the copy or, with ``anywhere``, from other functions.
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
                seen[0] = 1  # each instruction is queued at most once
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

    cdef object past_padding(self, one, uint32_t copy, uint64_t address,
                             const uint8_t[::1] code, uint64_t start, const Piece *pieces,
                             uint64_t count, dict where, padding):
        """Return the offset of the first instruction of a copy that is not padding, from one on.

        Padding in front of a loop is executed once, and the loop does not come back to it.
        """
        cdef int64_t i = where.get(one, -1)
        while i >= 0 and padding(bytes(code[start + pieces[i].at :
                                            start + pieces[i].at + pieces[i].length])):
            if i + 1 >= <int64_t>count or (
                    pieces[i + 1].at != pieces[i].at + pieces[i].length) or (
                    not inline_in_copy(&self.d, copy, address + pieces[i + 1].at)):
                return one
            i += 1
        return one if i < 0 else int(pieces[i].at)

    cdef list in_ranges(self, uint32_t copy, uint64_t address, offsets, where):
        """Return the indices of a function's instructions that are in an inline copy."""
        cdef const InlineCopy *c = &self.d.copies[copy]
        cdef uint32_t k
        found = []
        for k in range(c.first, c.first + c.count):
            low, high = int(self.d.ranges[k].low) - address, int(self.d.ranges[k].high) - address
            found += [where[at] for at in offsets[bisect_left(offsets, low):
                                                  bisect_left(offsets, high)]]
        return found

    cdef uint32_t site_of(self, int program, uint64_t address, const uint8_t[::1] code,
                          uint64_t start, const Piece *piece) except? 0xFFFFFFFF:
        if program:
            return program_site(&self.d, program, address + piece.at, piece.template,
                                &code[start + piece.at], piece.length, piece.relative)
        return table_site_at(&self.d, address + piece.at, piece.template, &code[start + piece.at],
                       piece.length, piece.relative)

    def copy_of(self, uint32_t probe):
        """Return a probe's role in an inline copy, or None if the probe belongs to no copy.

        :return: (number of the copy, role, whether the probe is silent).  Role 1: control enters
            the copy here; 2: control may leave it here; 3: the instruction calls a function that
            returns to an address outside of the copy.
        """
        if probe >= self.d.probe_count:
            raise IndexError(probe)
        cdef const Probe *p = &self.d.probes[probe]
        return (p.copy, p.role, bool(p.silent)) if p.role else None

    def lies_lower(self, uint32_t probe, int32_t lower):
        """Set the stack depth at the entry of an inline copy, in bytes below the initial sp."""
        self.unchanging()
        if self.copy_of(probe) is None:
            raise ValueError(f"probe {probe} does not belong to an inline copy")
        self.d.probes[probe].lower = lower

    def lowered_at(self, uint32_t probe):
        """Return the stack depth that ``lies_lower`` has set for the entry of an inline copy."""
        if probe >= self.d.probe_count:
            raise IndexError(probe)
        return self.d.probes[probe].lower

    def loops_at(self, uint32_t probe):
        """Return whether code of an inline copy may lead back to the entry that a probe is at."""
        if probe >= self.d.probe_count:
            raise IndexError(probe)
        return bool(self.d.probes[probe].loops)

    def enter_copy(self, uint32_t probe):
        """Record that the thread enters a probe's inline copy; return whether the probe fires."""
        self.live()
        if self.copy_of(probe) is None:
            raise ValueError(f"probe {probe} does not belong to an inline copy")
        return bool(inline_enter(&self.d, &self.d.probes[probe], self.program(probe))
                    and not self.d.probes[probe].silent)

    def leave_copy(self, uint32_t probe):
        """Record that the thread has left a probe's inline copy; return whether the probe fires."""
        self.live()
        if self.copy_of(probe) is None:
            raise ValueError(f"probe {probe} does not belong to an inline copy")
        return bool(inline_leave(&self.d, self.d.probes[probe].copy, self.program(probe))
                    and not self.d.probes[probe].silent)

    def ranges_of(self, uint32_t copy):
        """Return the address ranges [low, high) that contain the code of an inline copy."""
        if copy >= self.d.copy_count:
            raise IndexError(copy)
        cdef const InlineCopy *c = &self.d.copies[copy]
        return [(self.d.ranges[k].low, self.d.ranges[k].high)
                for k in range(c.first, c.first + c.count)]

    def forget_copy(self, probes):
        """Stop tracking the inline copy to which the given probes belong.

        The copy's entry probe then fires whenever control reaches it; its exit probes never fire.
        """
        self.unchanging()
        cdef uint32_t i
        for i in probes:
            if i >= self.d.probe_count or not self.d.probes[i].role:
                raise ValueError(f"probe {i} does not belong to an inline copy")
            if self.d.probes[i].role == ENTERS:
                self.d.probes[i].role = NO_WAY_OUT
            else:
                self.d.probes[i].silent = True

    cdef bint leads_astray(self, uint64_t address, const uint8_t[::1] code, uint64_t start, uint64_t size,
                           uint64_t at, strays) except -1:
        """Whether the instruction at an offset jumps to an address where no function begins.

        ``strays`` of ``add_boundaries`` decides this; returns and indirect jumps never do.
        """
        cdef uint32_t length = 0
        cdef int32_t relative = 0
        cdef int64_t number = self.template_of(&code[start + at], <uint32_t>min(size - at, 15),
                                               address + at, &length, &relative)
        if number < 0:
            raise ValueError("no instruction starts at a boundary of the function")
        cdef const Template *t = &self.templates.all[number]
        if t.flags & RETURNS or t.op == RETURN or t.op == INDIRECT:
            return False
        if t.op == LINK:
            return strays(at, None)
        return strays(at, target_of(t, address + at, relative))

    def add_boundaries(self, uint64_t address, const uint8_t[::1] code, uint64_t start,
                       uint64_t size, uint32_t function, entry, returns, strays):
        """Add probes where a function is entered and left, and return the probes' numbers.

        :param entry: provider of the entry probe; None: add none.
        :param returns: provider of the return probes; None: add none.
        :param strays: called with the offset of a jump and its target (None: in a register);
            returns whether no function begins at the target.
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
                raise ValueError("no instruction starts at a boundary of the function")
            made.append(table_probe_at(
                &self.d, table_site_at(&self.d, address + at, <uint32_t>template, &code[start + at],
                                 length, relative), function, provider))
            if provider == returns:
                self.leaves_by(<uint32_t>made[len(made) - 1], <uint32_t>template)
            if decided:
                table_leaves_only(&self.d, <uint32_t>made[len(made) - 1], address, size)
        return made

    def follow_threads(self, int per_cpu, uint64_t begins):
        """Set how threads are identified; this is needed to detect returns after tail calls.

        :param per_cpu: Unicorn's identifier of the register that points to the thread's pointer.
        :param begins: the address of a new thread's first instruction, or 0 if unknown.
        """
        if not self.is_narrow(per_cpu):
            raise ValueError(f"register {per_cpu} has more than 64 bits")
        self.d.per_cpu, self.d.thread_begins = per_cpu, begins

    def is_tail(self, uint32_t probe):
        """Whether a probe is on a tail call and fires after the called function has returned."""
        if probe >= self.d.probe_count:
            raise IndexError(probe)
        return bool(self.d.probes[probe].tail)

    def leave_by_tail(self, uint32_t probe, uint64_t sp, uint64_t back):
        """Make the probe of a tail call fire when control reaches the return address.

        :param sp: the stack pointer after the return.
        :param back: the return address.
        """
        self.live()
        if not self.is_tail(probe) and self.d.probes[probe].role != CALLS_OUT:
            raise ValueError(f"probe {probe} is not at a tail call")
        cdef int why = return_note_tail(&self.d, probe, sp, back, 0, self.d.probes[probe].role == CALLS_OUT)
        if why:
            raise MachineError(return_why_not_noted(why))

    def pending_returns(self):
        """Return the threads and probes of the tail calls that have not returned yet.

        A function that left by a tail call no longer has a frame on its thread's stack.

        :return: (thread, probe), the outermost of each thread first.
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
        """Return (thread, inline copy) for all inline copies in execution, outermost first."""
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
        """Whether the function of the firing probe has already returned to its caller."""
        return bool(self.d.after)
