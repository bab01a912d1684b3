#!/usr/bin/env -S kdtrace -s
/*
 * Walk the kernel's list of memory types along ks_next, one element for each clause.
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
