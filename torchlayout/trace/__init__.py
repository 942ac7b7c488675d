"""From the traces of a profiler to where each step's time went."""
