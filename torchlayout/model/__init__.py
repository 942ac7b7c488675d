"""The Llama model, which knows nothing of parallelism."""
