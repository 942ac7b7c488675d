"""Run layouts side by side on the same training, judge them, report."""
