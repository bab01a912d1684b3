"""One firing of one probe, told in steps from the real run."""
