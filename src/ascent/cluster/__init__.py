"""Several machines: where ranks, servers and judges stand, and how they are started there. Alone imports `ray`."""
