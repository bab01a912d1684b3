"""Table of kernel function calls for cross-validation, with arguments that the functions accept.

The functions are those of FreeBSD's kernel and of the teaching kernel.  Each line contains the
function to test, and calls in the language of ``dtrace/calls``.  Placeholders in braces stand for
random arguments: ``s`` a string, ``num`` a string that begins with a number, ``ip`` a string like
an IPv4 address, ``d`` 64 bytes, ``b`` 128 zero bytes, ``n`` 0 to 63, ``p`` 1 to 63, ``k`` 1 to 15,
``c`` a character, ``i`` a signed 32-bit number, ``w`` and ``u`` unsigned numbers of 32 and 64 bits,
``base`` the base of a number, ``page`` a physical address.
"""

import random
import re
import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from emu.elf.image import Image
from emu.elf.symbols import STT_FUNC, STT_GNU_IFUNC

MUTEX = 'm = buf(32); _mtx_init(m+24, "m", 0, 0)'
LOCKED = f'{MUTEX}; __mtx_lock_flags(m+24, 0, "f", 1); __mtx_unlock_flags(m+24, 0, "f", 1)'
RW = 'r = buf(32); _rw_init_flags(r+24, "r", 0)'
SX = 'x = buf(32); sx_init_flags(x, "x", 0)'
SBUF = "s = sbuf_new(0, {b}, 128, 0); sbuf_cat(s, {s})"
NV = "v = nvlist_create(0); nvlist_add_number(v, {s}, {u})"
MBUF = "m = m_gethdr(1, 1); m_append(m, {n}, {d})"
UNIT = "u = new_unrhdr(0, 100, 0); alloc_unr(u)"
LOG = 'g = buf(256); msgbuf_init(g, buf(512), 512); msgbuf_addstr(g, -1, {s}, 0)'
ARENA = 'v = vmem_create("v", 4096, 65536, 16, 0, 2); vmem_alloc(v, {p}, 0x1002, buf(8))'
BLOCKS = "t = blist_create(1024, 2); blist_free(t, 0, 1024)"
CIPHER = "a = buf(1024); rijndael_set_key(a, {d}, 128)"
STREAM = "h = buf(256); chacha_keysetup(h, {d}, 256); chacha_ivsetup(h, {d}, {d})"
HASH = "h = buf(256)"

TABLE = f"""
strlen          strlen({{s}})
strnlen         strnlen({{s}}, {{n}})
strcmp          strcmp({{s}}, {{s}})
strncmp         strncmp({{s}}, {{s}}, {{n}})
strcasecmp      strcasecmp({{s}}, {{s}})
strncasecmp     strncasecmp({{s}}, {{s}}, {{n}})
strchr          strchr({{s}}, {{c}})
strrchr         strrchr({{s}}, {{c}})
strstr          strstr({{s}}, {{s}})
strnstr         strnstr({{s}}, {{s}}, {{n}})
strspn          strspn({{s}}, {{s}})
strcspn         strcspn({{s}}, {{s}})
strlcpy         strlcpy({{b}}, {{s}}, {{n}})
strlcat         strlcat({{b}}, {{s}}, {{n}})
strncpy         strncpy({{b}}, {{s}}, {{n}})
strcpy          strcpy({{b}}, {{s}})
strcat          strcat({{b}}, {{s}})
strncat         strncat({{b}}, {{s}}, {{n}})
strtol          strtol({{num}}, 0, {{base}})
strtoul         strtoul({{num}}, 0, {{base}})
strtoq          strtoq({{num}}, 0, {{base}})
strtouq         strtouq({{num}}, 0, {{base}})
strdup          p = strdup({{s}}, &M_TEMP); free(p, &M_TEMP)
strndup         p = strndup({{s}}, {{n}}, &M_TEMP); free(p, &M_TEMP)
strdup_flags    strdup_flags({{s}}, &M_TEMP, 2)
strvalid        strvalid({{d}}, {{n}})
memcmp          memcmp({{d}}, {{d}}, {{n}})
memchr          memchr({{d}}, {{c}}, {{n}})
memcchr         memcchr({{d}}, {{c}}, {{n}})
memcpy          memcpy({{b}}, {{d}}, {{n}})
memmove         memmove({{b}}, {{d}}, {{n}})
memset          memset({{b}}, {{c}}, {{n}})
memset_early    memset_early({{b}}, {{c}}, {{n}})
memcpy_early    memcpy_early({{b}}, {{d}}, {{n}})
crc32           crc32({{w}}, {{d}}, {{n}})
crc32_z         crc32_z({{w}}, {{d}}, {{n}})
adler32_z       adler32_z({{w}}, {{d}}, {{n}})
calculate_crc32c calculate_crc32c({{w}}, {{d}}, {{n}})
murmur3_32_hash murmur3_32_hash({{d}}, {{n}}, {{w}})
murmur3_32_hash32 murmur3_32_hash32({{d}}, {{k}}, {{w}})
jenkins_hash    jenkins_hash({{d}}, {{n}}, {{w}})
jenkins_hash32  jenkins_hash32({{d}}, {{k}}, {{w}})
ether_crc32_le  ether_crc32_le({{d}}, {{k}})
ether_crc32_be  ether_crc32_be({{d}}, {{k}})
ZSTD_XXH64      ZSTD_XXH64({{d}}, {{n}}, {{u}})
ZSTD_compressBound ZSTD_compressBound({{w}})
ZSTD_versionNumber ZSTD_versionNumber()
ZSTD_getErrorString ZSTD_getErrorString({{n}})
inet_ntoa_r     inet_ntoa_r({{w}}, {{b}})
inet_ntop       inet_ntop(2, {{d}}, {{b}}, 64)
inet_ntop       inet_ntop(28, {{d}}, {{b}}, 64)
inet_pton       inet_pton(2, {{ip}}, {{b}})
inet_aton       inet_aton({{ip}}, {{b}})
ip6_sprintf     ip6_sprintf({{b}}, {{d}})
snprintf        snprintf({{b}}, {{n}}, "%d-%s", {{i}}, {{s}})
snprintf        snprintf({{b}}, 128, "%08lx|%-12s|%u", {{u}}, {{s}}, {{w}})
sprintf         sprintf({{b}}, "%s %x", {{s}}, {{w}})
sbuf_cat        {SBUF}; sbuf_finish(s); sbuf_len(s)
sbuf_bcat       {SBUF}; sbuf_bcat(s, {{d}}, {{n}}); sbuf_error(s)
sbuf_printf     {SBUF}; sbuf_printf(s, "%d %s", {{i}}, {{s}}); sbuf_finish(s); sbuf_len(s)
sbuf_putc       {SBUF}; sbuf_putc(s, {{c}}); sbuf_len(s)
sbuf_trim       {SBUF}; sbuf_trim(s); sbuf_len(s)
sbuf_clear      {SBUF}; sbuf_clear(s); sbuf_len(s)
sbuf_setpos     {SBUF}; sbuf_setpos(s, 0); sbuf_len(s)
sbuf_cpy        {SBUF}; sbuf_cpy(s, {{s}}); sbuf_done(s)
sbuf_data       {SBUF}; sbuf_finish(s); sbuf_data(s); sbuf_delete(s)
MD5Update       {HASH}; MD5Init(h); MD5Update(h, {{d}}, {{n}}); MD5Final(buf(16), h)
sha1_loop       {HASH}; sha1_init(h); sha1_loop(h, {{d}}, {{n}}); sha1_result(h, buf(20))
SipHashX        SipHashX(buf(128), 2, 4, {{d}}, {{d}}, {{n}})
rijndael_set_key {CIPHER}
rijndael_encrypt {CIPHER}; rijndael_encrypt(a, {{d}}, {{b}})
rijndael_decrypt {CIPHER}; rijndael_decrypt(a, {{d}}, {{b}})
chacha_keysetup {STREAM}
chacha_encrypt_bytes {STREAM}; chacha_encrypt_bytes(h, {{d}}, {{b}}, {{n}})
snprintf_uuid   snprintf_uuid({{b}}, 64, {{d}})
parse_uuid      parse_uuid("01234567-89ab-cdef-0123-456789abcdef", {{b}})
validate_uuid   validate_uuid({{s}}, {{k}}, {{b}}, 0)
le_uuid_dec     le_uuid_dec({{d}}, {{b}})
le_uuid_enc     le_uuid_enc({{b}}, {{d}})
be_uuid_dec     be_uuid_dec({{d}}, {{b}})
be_uuid_enc     be_uuid_enc({{b}}, {{d}})
uuidcmp         uuidcmp({{d}}, {{d}})
qsort           qsort({{d}}, 4, 16, &uuidcmp)
bsearch         bsearch({{d}}, {{d}}, 4, 16, &uuidcmp)
timevaladd      timevaladd({{d}}, {{d}})
timevalsub      timevalsub({{d}}, {{d}})
itimerfix       itimerfix({{d}})
malloc          p = malloc({{p}}, &M_TEMP, 1); free(p, &M_TEMP)
malloc          p = malloc({{p}}, &M_TEMP, 0x102); free(p, &M_TEMP)
realloc         p = malloc({{p}}, &M_TEMP, 2); realloc(p, {{p}}, &M_TEMP, 2)
reallocf        p = malloc({{p}}, &M_TEMP, 2); reallocf(p, {{p}}, &M_TEMP, 2)
zfree           p = malloc({{p}}, &M_TEMP, 2); zfree(p, &M_TEMP)
malloc_usable_size p = malloc({{p}}, &M_TEMP, 2); malloc_usable_size(p)
_mtx_init       {MUTEX}
__mtx_lock_flags {LOCKED}
_mtx_trylock_flags_ {MUTEX}; _mtx_trylock_flags_(m+24, 0, "f", 1)
_mtx_destroy    {MUTEX}; _mtx_destroy(m+24)
_rw_init_flags  {RW}; _rw_destroy(r+24)
_rw_wlock_cookie {RW}; _rw_wlock_cookie(r+24, "f", 1); _rw_wunlock_cookie(r+24, "f", 1)
__rw_rlock      {RW}; __rw_rlock(r+24, "f", 1); _rw_runlock_cookie(r+24, "f", 1)
sx_init_flags   {SX}; sx_destroy(x)
_sx_xlock       {SX}; _sx_xlock(x, 0, "f", 1); _sx_xunlock(x, "f", 1)
_sx_slock       {SX}; _sx_slock(x, 0, "f", 1); _sx_sunlock(x, "f", 1)
sx_try_xlock_   {SX}; sx_try_xlock_(x, "f", 1)
sx_try_slock_   {SX}; sx_try_slock_(x, "f", 1)
lockinit        l = buf(64); lockinit(l, 80, "l", 0, 0); lockdestroy(l)
sema_init       e = buf(128); sema_init(e, {{n}}, "e"); sema_value(e)
_sema_post      e = buf(128); sema_init(e, {{n}}, "e"); _sema_post(e, "f", 1); sema_value(e)
_sema_trywait   e = buf(128); sema_init(e, {{n}}, "e"); _sema_trywait(e, "f", 1)
hashinit        hashinit({{p}}, &M_TEMP, buf(8))
hashinit_flags  hashinit_flags({{p}}, &M_TEMP, buf(8), 1)
phashinit       phashinit({{p}}, &M_TEMP, buf(8))
devclass_find   devclass_find({{s}})
devclass_get_name devclass_get_name(devclass_find("root"))
devclass_get_count devclass_get_count(devclass_find("root"))
devclass_get_maxunit devclass_get_maxunit(devclass_find("root"))
kern_getenv     kern_getenv({{s}})
testenv         testenv({{s}})
getenv_int      getenv_int({{s}}, {{b}})
getenv_uint     getenv_uint({{s}}, {{b}})
getenv_long     getenv_long({{s}}, {{b}})
getenv_quad     getenv_quad({{s}}, {{b}})
getenv_bool     getenv_bool({{s}}, {{b}})
getenv_string   getenv_string({{s}}, {{b}}, 64)
resource_int_value resource_int_value({{s}}, {{n}}, {{s}}, {{b}})
resource_string_value resource_string_value({{s}}, {{n}}, {{s}}, {{b}})
resource_disabled resource_disabled({{s}}, {{n}})
nvlist_create   nvlist_destroy(nvlist_create(0))
nvlist_add_number {NV}; nvlist_size(v)
nvlist_add_string {NV}; nvlist_add_string(v, {{s}}, {{s}}); nvlist_error(v)
nvlist_add_bool {NV}; nvlist_add_bool(v, {{s}}, 1); nvlist_flags(v)
nvlist_add_null {NV}; nvlist_add_null(v, {{s}}); nvlist_empty(v)
nvlist_exists   {NV}; nvlist_exists(v, {{s}})
nvlist_clone    {NV}; nvlist_clone(v)
nvlist_pack     {NV}; nvlist_pack(v, buf(8))
nvlist_destroy  {NV}; nvlist_destroy(v)
new_unrhdr      {UNIT}
alloc_unr_specific {UNIT}; alloc_unr_specific(u, {{n}})
free_unr        {UNIT}; free_unr(u, 0)
crget           crfree(crget())
uifind          uifree(uifind({{w}}))
module_lookupbyname module_lookupbyname({{s}})
module_lookupbyid module_lookupbyid({{n}})
eventhandler_find_list eventhandler_find_list({{s}})
callout_init    callout_init(buf(128), 1)
vfs_byname      vfs_byname({{s}})
m_get           m_freem(m_get(1, 1))
m_gethdr        {MBUF}; m_length(m, 0)
m_append        {MBUF}; m_append(m, {{n}}, {{d}}); m_freem(m)
m_copyback      {MBUF}; m_copyback(m, {{n}}, {{n}}, {{d}})
m_adj           {MBUF}; m_adj(m, {{k}}); m_length(m, 0)
m_dup           {MBUF}; m_dup(m, 1)
m_copym         {MBUF}; m_copym(m, 0, 1000000000, 1)
m_fixhdr        {MBUF}; m_fixhdr(m)
m_defrag        {MBUF}; m_defrag(m, 1)
m_prepend       {MBUF}; m_prepend(m, {{k}}, 1)
in_cksum_skip   m = m_gethdr(1, 1); m_append(m, 63, {{d}}); in_cksum_skip(m, 60, {{k}})
in_addword      in_addword({{w}}, {{w}})
in_pseudo       in_pseudo({{w}}, {{w}}, {{w}})
blist_create    {BLOCKS}; blist_avail(t)
blist_fill      {BLOCKS}; blist_fill(t, {{n}}, {{k}}); blist_avail(t)
blist_destroy   {BLOCKS}; blist_destroy(t)
vmem_create     {ARENA}; vmem_size(v, 3)
sglist_alloc    g = sglist_alloc({{k}}, 2); sglist_append(g, {{d}}, {{n}}); sglist_length(g)
sglist_count    sglist_count({{d}}, {{n}})
sglist_free     g = sglist_alloc({{k}}, 2); sglist_free(g)
counter_u64_alloc n = counter_u64_alloc(2); counter_u64_zero(n); counter_u64_fetch(n)
msgbuf_addstr   {LOG}; msgbuf_getcount(g)
msgbuf_addchar  {LOG}; msgbuf_addchar(g, {{c}}); msgbuf_getchar(g)
msgbuf_clear    {LOG}; msgbuf_clear(g); msgbuf_getcount(g)
cam_strvis      cam_strvis({{b}}, {{d}}, {{k}}, 64)
cam_strmatch    cam_strmatch({{d}}, {{s}}, {{k}})
vm_phys_paddr_to_vm_page vm_phys_paddr_to_vm_page({{page}})
PHYS_TO_VM_PAGE PHYS_TO_VM_PAGE({{page}})
pmap_kextract   pmap_kextract(&hz)
sysctl_ctx_init c = buf(16); sysctl_ctx_init(c); sysctl_ctx_free(c)
sched_load      sched_load()
sched_rr_interval sched_rr_interval()
fibonacci       fibonacci({{k}})
collatz         collatz({{p}})
classify        classify({{k}}, {{u}})
account         account({{w}})
audit           audit({{w}})
refund          refund({{w}})
tail_even       tail_even({{w}})
describe        describe({{k}})
"""

NAME = re.compile(r"([A-Za-z_]\w*)\(|&([A-Za-z_]\w*)")
WORDS = ("buf", "bytes")


@dataclass(frozen=True)
class CallEntry:
    """Entry of the table of calls.

    :param function: the function to test; ``template`` may call other functions to prepare it.
    """

    function: str
    template: str


def entries(table: str) -> tuple[CallEntry, ...]:
    """Parse the lines of a table of calls."""
    return tuple(CallEntry(*line.split(None, 1)) for line in table.strip().splitlines())


ENTRIES = entries(TABLE)


def available(image: Image, entries: Iterable[CallEntry] = ENTRIES) -> list[CallEntry]:
    """Return the entries whose functions and variables exist in the kernel."""
    def there(name: str, called: bool) -> bool:
        return name in WORDS or any(
            not called or symbol.kind in (STT_FUNC, STT_GNU_IFUNC)
            for symbol in image.symbols.named(name))

    return [entry for entry in entries
            if all(there(call or variable, bool(call))
                   for call, variable in NAME.findall(entry.template))]


def _string(r: random.Random) -> str:
    text = "".join(r.choice(string.ascii_letters[:8] + " .-") for _ in range(r.randrange(24)))
    return f'"{text}"'


CHOOSE: dict[str, Callable[[random.Random], str]] = {
    "s": _string,
    "num": lambda r: (
        f'"{r.choice(("", "-", "0x", "0"))}{r.randrange(1 << 40)}{r.choice(("", "z"))}"'),
    "ip": lambda r: '"' + ".".join(str(r.randrange(300)) for _ in range(4)) + '"',
    "d": lambda r: 'bytes("' + "".join(f"\\x{r.randrange(256):02x}" for _ in range(64)) + '")',
    "b": lambda r: "buf(128)",
    "n": lambda r: str(r.randrange(64)), "p": lambda r: str(r.randrange(1, 64)),
    "k": lambda r: str(r.randrange(1, 16)),
    "c": lambda r: str(r.randrange(1, 128)),
    "i": lambda r: str(r.randrange(-1 << 31, 1 << 31)), "w": lambda r: str(r.randrange(1 << 32)),
    "u": lambda r: str(r.randrange(1 << 64)), "base": lambda r: r.choice(("0", "10", "16", "8")),
    "page": lambda r: hex(r.randrange(1 << 19) << 12),
}
PLACE = re.compile(r"\{(\w+)\}")


def call(entry: CallEntry, generator: random.Random) -> str:
    """Return the calls of an entry, with randomly chosen arguments."""
    return PLACE.sub(lambda place: CHOOSE[place[1]](generator), entry.template)
