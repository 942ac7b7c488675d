"""Seconds of a step: kernels, links, blocks, stages, the pipeline and what comes once."""
