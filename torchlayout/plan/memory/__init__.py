"""Peak memory of each pipeline rank: exact for our own stack, fitted for others."""
