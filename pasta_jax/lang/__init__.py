"""PASTA-LANG: tags, programs, structure and clock, in Python and NumPy only; see docs/LANG.md for a tutorial."""
