#!/usr/bin/env -S kdtrace -s
/*
 * The devices that a boot attaches, and the time that each of them takes.
 *
 *	devices.d -k KERNEL --trap-path direct -c boot
 */
#pragma D option quiet

fbt::device_attach:entry
{
	self->device = (struct _device *)arg0;
	self->began = timestamp;
}

fbt::device_attach:return
/self->device != NULL/
{
	printf("%12d ns  %s\n", timestamp - self->began, self->device->nameunit != NULL ?
	    stringof(self->device->nameunit) : "?");
	self->device = NULL;
}
