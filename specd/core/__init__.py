"""The C++ core: a whole step in one call, with packed weights and paged attention.

`src/` holds the C++, `library.py` opens it, `packed.py` and `loader.py` bring weights into its
form, `decoder.py` runs a step. Where there is no library, `specd/model` serves alone.
"""
