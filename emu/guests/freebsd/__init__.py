"""FreeBSD's kernel as a guest."""
