"""PASTA in JAX: language models that say where their own answer can be decoded in parallel."""
