"""The functions of exported files, as real Python that is linted and type-checked.

They are read as text and never imported, since they need torch and the host. An export holds the imports of its host's
file, the constants of its plan, the definitions of that file, and those of ``starts.py`` that are called.
"""
