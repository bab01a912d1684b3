"""Random statements and expressions on memory: types of the kernel, and scratch memory.

The memory is that of the program, so its content does not depend on the machine.
"""

from dtrace.judge.expressions import STRINGS, Expressions
from dtrace.judge.program import Node

# Types of the kernel with at most 88 bytes, and integer members of theirs
KERNEL_TYPES = {
    "struct ip": ("ip_hl", "ip_v", "ip_len", "ip_src.s_addr"),
    "struct tcphdr": ("th_off", "th_x2", "th_seq", "th_flags"),
    "struct udphdr": ("uh_sport", "uh_ulen"),
    "struct in_addr": ("s_addr",),
    "struct in6_addr": ("__u6_addr.__u6_addr8[3]", "__u6_addr.__u6_addr16[1]"),
    "struct sockaddr_in": ("sin_family", "sin_port", "sin_addr.s_addr"),
    "struct ether_header": ("ether_type", "ether_dhost[2]"),
    "struct timespec": ("tv_sec", "tv_nsec"),
    "struct timeval": ("tv_sec", "tv_usec"),
    "struct itimerval": ("it_value.tv_sec", "it_interval.tv_usec"),
    "struct iovec": ("iov_len",),
    "struct rlimit": ("rlim_cur",),
    "struct kevent": ("ident", "filter", "flags", "ext[1]"),
    "struct winsize": ("ws_row", "ws_col"),
    "struct termios": ("c_iflag", "c_cc[2]"),
    "union sigval": ("sival_int", "sigval_int"),
    "struct lock_object": ("lo_flags", "lo_data"),
    "struct acl_entry": ("ae_tag", "ae_perm", "ae_flags"),
}
KERNEL_FUNCTIONS = ("`malloc", "`uma_zalloc_arg", "`vn_open_cred", "`kern_openat")
BIT_FIELDS = ("ip_hl", "ip_v", "th_off", "th_x2")
WORDS = 12  # number of words of the union
# Addresses that cannot be read: at the beginning of memory, and in its last page
BAD_ADDRESSES = ("0", "1", "64", "4090", "0xffffffffffffff00", "0xffffffffffffffe3")


class Memory:
    """Generator of expressions and statements on the memory of a program.

    :param expressions: generator of the operands.
    :ivar kinds: types of the kernel as which the union is read; none without a union.
    """

    def __init__(self, expressions: Expressions) -> None:
        self.expressions, self.random = expressions, expressions.random
        self.kinds: list[str] = []

    def declared(self) -> str:
        """Return the declaration of a union, and of a variable that is read as kernel types."""
        self.kinds = self.random.sample(list(KERNEL_TYPES), 3)
        scope = self.expressions.scope
        for kind in self.kinds:
            scope.members += [f"(({kind} *)&y0.w[0])->{one}" for one in KERNEL_TYPES[kind]]
            scope.sizes += [f"sizeof ({kind})"]
            scope.sizes += [f"offsetof({kind}, {one})" for one in KERNEL_TYPES[kind]
                            if one.isidentifier() and one not in BIT_FIELDS]
        scope.sizes.append("sizeof (y0)")
        return (f"union un0 {{ char c[{8 * WORDS}]; unsigned long w[{WORDS}]; }};\n"
                "union un0 y0;\n")

    def _fill(self) -> tuple[str | Node, ...]:
        return (f"\ty0.w[{self.random.randrange(WORDS)}] = ", self.expressions.integer(1), ";\n")

    def statement(self) -> Node:
        """Return a statement on memory."""
        choose = self.random
        forms = [self._token, self._scratch, self._symbol]
        if self.kinds:
            forms += [self._union] * 4 + [self._address, self._fault]
        return Node("statement", choose.choice(forms)(), optional=True)

    def _union(self) -> tuple[str | Node, ...]:
        """Set words of a union, and record a member."""
        choose = self.random
        kind = choose.choice(self.kinds)
        count = choose.choice((1, 4, 16, 40, 8 * WORDS))
        return (*self._fill(), *self._fill(), "\t", choose.choice((
            f"print(*(({kind} *)&y0.w[0]));", f"print(*(({kind} *)&y0.w[1]));",
            f"trace(*(({kind} *)&y0.w[0]));", f"tracemem(&y0.w[0], {count});", "print(y0);",
            f"tracemem(&y0.w[0], {8 * WORDS}, {count});",
            f"printm({count}, memref(&y0.w[0], {count}));",
            f"print(*((short *)&y0.c[{2 * choose.randrange(5)}]));",
            "trace(stringof(y0.c));", "print(y0.w);",
            'printf("%s|%S\\n", y0.c, stringof(y0.c));')), "\n")

    def _address(self) -> tuple[str | Node, ...]:
        """Print the text of a network address."""
        return (*self._fill(), "\t", self.random.choice((
            "trace(inet_ntoa((ipaddr_t *)&y0.w[1]));",
            "trace(inet_ntoa6((struct in6_addr *)&y0.w[0]));",
            "trace(inet_ntop(2, &y0.w[2]));", "trace(inet_ntop(28, &y0.w[0]));",
            "trace(inet_ntop(7, &y0.w[0]));")), "\n")

    def _fault(self) -> tuple[str | Node, ...]:
        """Copy memory that cannot be read; the address in the message depends on the way."""
        choose = self.random
        kind, address = choose.choice(self.kinds), choose.choice(BAD_ADDRESSES)
        count = choose.choice((1, 3, 8, 16))
        return ("\t" + choose.choice((
            f"trace(*(({kind} *){address}));", f"print(*(({kind} *){address}));",
            f"tracemem({address}, {count});", f"y0 = *((union un0 *){address});",
            f"trace(*((int *){address}));", f"trace(stringof((char *){address}));",
            f"printm({count}, memref({address}, {count}));",
            f"@[*(({kind} *){address})] = count();",
            f"bcopy((void *){address}, alloca({count}), {count});",
            f"trace(strlen(stringof((char *){address})));",
            f"trace(inet_ntoa((ipaddr_t *){address}));",
            f"trace(inet_ntoa6((struct in6_addr *){address}));")) + "\n",)

    def _token(self) -> tuple[str | Node, ...]:
        """Take a string apart by several calls of strtok()."""
        return ('\ttrace(strtok(strjoin(', self.expressions.string(1), ', ""), ',
                self.expressions.string(0), "));\n\ttrace(strtok(NULL, ",
                self.expressions.string(0), "));\n")

    def _scratch(self) -> tuple[str | Node, ...]:
        """Write to memory of alloca(), and print it."""
        choose = self.random
        text = choose.choice([one for one in STRINGS if one.isalnum()])
        size = choose.choice((8, 12, 16))
        ends = choose.choice(("trace(stringof(this->p0));", "print(*this->p0);",
                              f"tracemem(this->p0, {len(text) + 1});",
                              "trace(strlen((string)this->p0));"))
        return (f"\tthis->p0 = (char *)alloca({size});\n"
                f'\tbcopy("{text}", this->p0, {len(text) + 1});\n\t*this->p0 = ',
                self.expressions.integer(1), f";\n\t{ends}\n")

    def _symbol(self) -> tuple[str | Node, ...]:
        """Print the symbol or the time for a number."""
        choose = self.random
        name = choose.choice(KERNEL_FUNCTIONS)
        place = f"(uintptr_t)&{name} + {choose.choice((0, 0, 1))}"
        return choose.choice((
            (f"\tmod({place});\n",),
            (f'\tprintf("%a %p\\n", {place}, &{name});\n',),
            ('\tprintf("%Y|%p\\n", (int64_t)(', self.expressions.integer(1), "), (uintptr_t)(",
             self.expressions.integer(1), "));\n")))
