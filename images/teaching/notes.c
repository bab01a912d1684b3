/* A list of notes with a deliberate bug (docs/walk.md).  SPDX-License-Identifier: BSD-2-Clause */
#include "kernel.h"

struct note {
	char text[16];
	struct note *next;
};

static struct note notes[8];
static struct note *first;
static unsigned int kept;

/* The bug: the length is not checked, so a long text overwrites the pointer after it. */
__attribute__((noinline)) void
note_keep(const char *text)
{
	struct note *note = &notes[kept++ % 8];
	char *to = note->text;

	note->next = first;
	while ((*to++ = *text++) != '\0')
		continue;
	first = note;
}

/* Count the letters in all notes. */
__attribute__((noinline)) u64
note_letters(void)
{
	u64 found = 0;

	for (struct note *note = first; note != 0; note = note->next)
		found += strlen(note->text);
	return found;
}
