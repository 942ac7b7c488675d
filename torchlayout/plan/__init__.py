"""Memory and time of a layout before a GPU is rented: formulas, a hardware file, and their error on measured runs."""
