"""Measured runs of other people: read, predicted, judged, and fitted on."""
