"""A structure-aware fuzzer of everything that reads files or values from outside: python -m tests.fuzz."""
