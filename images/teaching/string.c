/* String functions.  SPDX-License-Identifier: BSD-2-Clause */
#include "kernel.h"

size_t
strlen(const char *s)
{
	const char *p = s;

	while (*p != '\0')
		p++;
	return (size_t)(p - s);
}

int
memcmp(const void *a, const void *b, size_t n)
{
	const u8 *x = a, *y = b;

	for (; n != 0; n--, x++, y++)
		if (*x != *y)
			return *x - *y;
	return 0;
}

int
strcmp(const char *a, const char *b)
{
	while (*a != '\0' && *a == *b) {
		a++;
		b++;
	}
	return (u8)*a - (u8)*b;
}

void *
memcpy(void *to, const void *from, size_t n)
{
	u8 *d = to;
	const u8 *s = from;

	while (n-- != 0)
		*d++ = *s++;
	return to;
}

void *
memset(void *to, int c, size_t n)
{
	u8 *d = to;

	while (n-- != 0)
		*d++ = (u8)c;
	return to;
}

static int
digit_of(int c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'Z')
		return c - 'A' + 10;
	return 99;
}

u64
strtoul(const char *text, char **end, int base)
{
	u64 value = 0;
	int negative = 0, digit;

	while (*text == ' ' || *text == '\t')
		text++;
	if (*text == '-' || *text == '+')
		negative = *text++ == '-';
	if ((base == 0 || base == 16) && text[0] == '0' && (text[1] | 32) == 'x') {
		text += 2;
		base = 16;
	} else if (base == 0) {
		base = *text == '0' ? 8 : 10;
	}
	while ((digit = digit_of(*text)) < base) {
		value = value * (u64)base + (u64)digit;
		text++;
	}
	if (end != 0)
		*end = (char *)text;
	return negative ? -value : value;
}
