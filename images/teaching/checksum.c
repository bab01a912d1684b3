/* Checksums.  SPDX-License-Identifier: BSD-2-Clause */
#include "kernel.h"

u32
crc32(u32 crc, const void *data, size_t n)
{
	const u8 *p = data;

	crc = ~crc;
	while (n-- != 0) {
		crc ^= *p++;
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
	}
	return ~crc;
}

u32
fletcher32(const u16 *data, size_t words)
{
	u32 a = 0xffff, b = 0xffff;

	while (words-- != 0) {
		a = (a + *data++) % 0xffff;
		b = (b + a) % 0xffff;
	}
	return b << 16 | a;
}

u32
adler32(const u8 *data, size_t n)
{
	u32 a = 1, b = 0;

	while (n-- != 0) {
		a = (a + *data++) % 65521;
		b = (b + a) % 65521;
	}
	return b << 16 | a;
}
