#!/usr/bin/env -S kdtrace -s
/*
 * The first types of memory on the kernel's list of them: a walk along ks_next, a clause a step.
 *
 *	list.d -k KERNEL -c 'strlen("")'
 */
#pragma D option quiet

BEGIN
{
	this->type = `kmemstatistics;
}

BEGIN
/this->type != NULL/
{
	printf("%p %s\n", this->type, stringof(this->type->ks_shortdesc));
	this->type = this->type->ks_next;
}

BEGIN
/this->type != NULL/
{
	printf("%p %s\n", this->type, stringof(this->type->ks_shortdesc));
	this->type = this->type->ks_next;
}

BEGIN
/this->type != NULL/
{
	printf("%p %s\n", this->type, stringof(this->type->ks_shortdesc));
	this->type = this->type->ks_next;
}
