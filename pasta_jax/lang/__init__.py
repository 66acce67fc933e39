"""PASTA-LANG: tags, programs, structure and clock, with Python and NumPy only; docs/LANG.md teaches it."""
