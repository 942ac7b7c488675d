"""Which tokens, in which order: corpora on disk, their preparation, the global order and the loader."""
